"""Which family of operators a reference belongs to: part of the context that memory learns in."""

from __future__ import annotations

import ast

# What PyTorch's operators are called, as functions, methods or modules, in lower case. The first row that
# matches decides: a loss also takes a softmax, and a normalisation also takes sums.
_CALLS = {
    family: frozenset(names.split())
    for family, names in {
        "attention": "scaled_dot_product_attention multi_head_attention_forward multiheadattention",
        "loss": """cross_entropy crossentropyloss nll_loss nllloss mse_loss mseloss kl_div kldivloss huber_loss
            huberloss smooth_l1_loss smoothl1loss hinge_embedding_loss triplet_margin_loss tripletmarginloss
            binary_cross_entropy binary_cross_entropy_with_logits bceloss bcewithlogitsloss cosine_similarity""",
        "convolution": """conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d
            convtranspose1d convtranspose2d convtranspose3d""",
        "matmul": "matmul mm bmm addmm baddbmm linear einsum dot mv outer tensordot @",
        "softmax": "softmax log_softmax logsoftmax logsumexp softmin",
        "normalisation": """layer_norm rms_norm batch_norm group_norm instance_norm normalize layernorm rmsnorm
            groupnorm batchnorm1d batchnorm2d batchnorm3d instancenorm1d instancenorm2d instancenorm3d norm
            vector_norm rsqrt var var_mean std""",
        "pooling": """max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d maxpool1d maxpool2d
            maxpool3d avgpool1d avgpool2d avgpool3d adaptive_avg_pool2d adaptive_max_pool2d""",
        "scan": "cumsum cumprod cummax cummin logcumsumexp associative_scan",
        "gather": "embedding gather scatter scatter_add index_select index_add embedding_bag take",
        "reduction": "sum mean prod amax amin argmax argmin max min any all topk sort median",
    }.items()
}

FAMILIES = (*_CALLS, "elementwise", "unknown")
"""The words for it; a task may declare one of them."""


def family_of(node: ast.AST) -> str:
    """The family of a reference (a function or a class), by the operators it calls; read, not run."""
    calls: list[str] = []
    for part in ast.walk(node):
        match part:
            case ast.Call(func=ast.Attribute(attr=name)) | ast.Call(func=ast.Name(id=name)):
                calls.append(name.lower())
            case ast.BinOp(op=ast.MatMult()):
                calls.append("@")
            case ast.BinOp() | ast.UnaryOp():
                calls.append("arithmetic")
    products = [name for name in calls if name in _CALLS["matmul"]]
    if len(products) >= 2 and _CALLS["softmax"] & set(calls):
        return "attention"  # two products with a softmax between them, written out
    for family, names in _CALLS.items():
        if names & set(calls):
            return family
    return "elementwise" if calls else "unknown"
