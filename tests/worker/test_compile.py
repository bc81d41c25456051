"""Launch code of candidates, compiled for devices that are not there."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from tilewright.harness.judge.pool import Pool, Reply
from tilewright.knowledge.targets import target

Compile = Callable[..., Reply]

HEAD = "import torch\nimport triton\nimport triton.language as tl\n\n"

ADD = """
@triton.jit
def add(x, y, o, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = i < n
    tl.store(o + i, tl.load(x + i, mask=m) + tl.load(y + i, mask=m), mask=m)


def launch(x, y):
    o = torch.empty_like(x)
    n = x.numel()
    add[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, o, n, BLOCK=1024)
    return o
"""

MATMUL = """
@triton.jit
def matmul(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        ta = tl.load(a + rm[:, None] * K + k + rk[None, :])
        tb = tl.load(b + (k + rk)[:, None] * N + rn[None, :])
        acc = tl.dot(ta, tb, acc)
    tl.store(c + rm[:, None] * N + rn[None, :], acc.to(c.dtype.element_ty))


def launch(a, b):
    (M, K), N = a.shape, b.shape[1]
    c = torch.empty((M, N), device="cuda", dtype=a.dtype)
    matmul[(M // 64, N // 64)](a, b, c, M, N, K, BM=64, BN=64, BK=TILE)
    return c
"""


def tensor(*shape: int, dtype: str = "float32", strides: list[int] | None = None, **spec: Any) -> dict[str, Any]:
    return {"shape": list(shape), "dtype": dtype, "strides": strides, **spec}


@pytest.fixture(scope="session")
def compiled(runner: asyncio.Runner, compiling: Pool) -> Compile:
    """Compile a candidate; keyword arguments are the entry's: a spec for a tensor, a value for a scalar."""

    def run(source: str, where: str = "cuda:90", *, job: dict[str, Any] | None = None, **args: Any) -> Reply:
        listed = [
            {"name": name, "tensor": value} if isinstance(value, dict) else {"name": name, "scalar": value}
            for name, value in args.items()
        ]
        asked = {
            "op": "compile",
            "kind": "triton",
            "source": HEAD + source,
            "entry": "launch",
            "args": listed,
            "target": dataclasses.asdict(target(where)),
            **(job or {}),
        }
        return runner.run(compiling.run(asked, limit_s=120.0))

    return run


def failure(reply: Reply) -> dict[str, Any]:
    assert "failed" in reply[0], reply[0]
    found: dict[str, Any] = reply[0]["failed"]
    return found


def only_kernel(reply: Reply) -> dict[str, Any]:
    assert "failed" not in reply[0], reply[0]
    (kernel,) = reply[0]["kernels"]
    found: dict[str, Any] = kernel
    return found


@pytest.mark.parametrize(
    ("where", "mma"), [("cuda:80", "mma.v2"), ("cuda:90", "wgmma"), ("cuda:100", "tcgen05"), ("cuda:120", "mma.v2")]
)
def test_a_matmul_is_compiled_to_the_tensor_cores_of_each_target(compiled: Compile, where: str, mma: str) -> None:
    square = tensor(512, 512, dtype="float16")
    kernel = only_kernel(compiled(MATMUL.replace("TILE", "32"), where, a=square, b=square))
    facts = kernel["facts"]
    assert facts["mma"] == mma
    assert kernel["grid"] == [8, 8, 1]
    assert kernel["meta"] == {"BM": 64, "BN": 64, "BK": 32}
    assert (facts["dots_in_loop"], facts["loads_in_loop"], facts["stores_in_loop"], facts["loops"]) == (1, 2, 0, 1)
    assert facts["dot_precision"] == "fp16"
    assert facts["async_copies"] > 0
    assert facts["tile_elements"] == 64 * 64
    assert 16 <= facts["registers"] <= 255
    assert facts["spill_bytes"] < 64
    assert (facts["num_warps"], facts["num_stages"]) == (4, 3)


def test_a_tensor_of_fp32_is_multiplied_as_tf32_unless_the_kernel_says_otherwise(compiled: Compile) -> None:
    square = tensor(256, 256)
    source = MATMUL.replace("TILE", "32")
    exact = source.replace("tl.dot(ta, tb, acc)", 'tl.dot(ta, tb, acc, input_precision="ieee")')
    assert only_kernel(compiled(source, a=square, b=square))["facts"]["dot_precision"] == "tf32"
    facts = only_kernel(compiled(exact, a=square, b=square))["facts"]
    assert (facts["dot_precision"], facts["mma"]) == ("ieee", "none")


def test_a_bound_that_is_no_multiple_of_16_costs_the_wide_access(compiled: Compile) -> None:
    even = only_kernel(compiled(ADD, x=tensor(65536), y=tensor(65536)))["facts"]
    odd = only_kernel(compiled(ADD, x=tensor(65537), y=tensor(65537)))["facts"]
    assert (even["load_bits_min"], even["store_bits_min"], even["narrow_loads"]) == (128, 128, 0)
    assert (odd["load_bits_max"], odd["store_bits_max"]) == (32, 32)
    assert odd["narrow_loads"] > 0


def test_machine_code_is_the_same_whatever_the_comments_and_other_when_the_code_is(compiled: Compile) -> None:
    args = {"x": tensor(65536), "y": tensor(65536)}
    first = only_kernel(compiled(ADD, **args))["digest"]
    assert only_kernel(compiled("# a remark\n\n" + ADD, **args))["digest"] == first
    assert only_kernel(compiled(ADD.replace("m = i < n", "inside = i < n\n    m = inside"), **args))["digest"] == first
    assert only_kernel(compiled(ADD.replace("BLOCK=1024", "BLOCK=2048"), **args))["digest"] != first
    assert only_kernel(compiled(ADD.replace("BLOCK=1024", "BLOCK=1024, num_warps=8"), **args))["digest"] != first


def test_every_launch_is_listed_in_order_and_equal_ones_once(compiled: Compile) -> None:
    source = ADD.replace(
        "return o", "add[(64,)](o, y, o, n, BLOCK=1024)\n    add[(32,)](o, y, x, n, BLOCK=2048)\n    return x"
    )
    header, _ = compiled(source, x=tensor(65536), y=tensor(65536))
    assert header["order"] == [0, 0, 1]
    assert [kernel["launches"] for kernel in header["kernels"]] == [2, 1]
    storages = [arg["tensor"]["storage"] for arg in header["kernels"][0]["args"] if "tensor" in arg]
    assert storages[:2] == ["x", "y"]
    assert storages[2] not in ("x", "y")
    assert header["compulsory_bytes"] == 2 * 65536 * 4


def test_arguments_far_larger_than_memory_are_no_obstacle(compiled: Compile) -> None:
    huge = tensor(1 << 36)
    kernel = only_kernel(compiled(ADD.replace("program_id(0)", "program_id(0).to(tl.int64)"), x=huge, y=huge))
    assert kernel["grid"] == [1 << 26, 1, 1]
    assert kernel["facts"]["index64_ops"] > 0


def test_texts_of_the_intermediate_representations_come_on_request(compiled: Compile) -> None:
    _, texts = compiled(ADD, x=tensor(4096), y=tensor(4096), job={"ir": True})
    assert sorted(texts) == ["ir/0/ptx", "ir/0/ttgir", "ir/0/ttir"]
    assert b"tt.load" in bytes(texts["ir/0/ttir"].data)
    assert b".entry add" in bytes(texts["ir/0/ptx"].data)


def test_spilled_registers_are_reported(compiled: Compile) -> None:
    tight = ADD.replace("BLOCK=1024", "BLOCK=8192, num_warps=4, maxnreg=24")
    assert only_kernel(compiled(tight, x=tensor(65536), y=tensor(65536)))["facts"]["spill_bytes"] > 0


AUTOTUNED = """
def fewer(configs, named_args, **kwargs):
    return [config for config in configs if config.kwargs["BM"] > 16]


@triton.autotune(
    configs=[
        triton.Config({"BM": 16, "BN": 16, "BK": 16}),
        triton.Config({"BM": 256, "BN": 256, "BK": 128}, num_stages=4, num_warps=8),
        triton.Config({"BM": 64, "BN": 32, "BK": 32}, num_warps=2),
        triton.Config({"BM": 32, "BN": 32, "BK": 32}),
    ],
    key=["M", "N", "K"],
    prune_configs_by={"early_config_prune": fewer},
)
@triton.heuristics({"EVEN": lambda args: args["K"] % args["BK"] == 0})
""" + MATMUL.replace("BK: tl.constexpr)", "BK: tl.constexpr, EVEN: tl.constexpr)").replace(
    "matmul[(M // 64, N // 64)](a, b, c, M, N, K, BM=64, BN=64, BK=TILE)",
    'matmul[lambda m: (M // m["BM"], N // m["BN"])](a, b, c, M, N, K)',
)


def test_an_autotuned_kernel_stands_with_the_first_configuration_that_fits(compiled: Compile) -> None:
    square = tensor(512, 512, dtype="float16")
    header, _ = compiled(AUTOTUNED, "cuda:80", a=square, b=square)
    assert "failed" not in header, header
    (chosen,) = header["autotuned"]
    assert (chosen["kernel"], chosen["index"], chosen["configs"], chosen["tried"]) == ("matmul", 2, 4, 2)
    (kernel,) = header["kernels"]
    assert kernel["grid"] == [8, 16, 1]
    assert kernel["facts"]["num_warps"] == 2
    assert kernel["meta"]["EVEN"] is True


DEVICE_QUESTIONS = """
class Launcher:
    def __init__(self):
        assert torch.cuda.is_available() and torch.cuda.device_count() == 1
        assert torch.cuda.get_device_capability() == (9, 0)
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        assert properties.multi_processor_count == 132 and properties.name == "NVIDIA H200"
        answered = triton.runtime.driver.active.utils.get_device_properties(0)
        assert answered["multiprocessor_count"] == 132
        assert triton.runtime.driver.active.get_current_target().arch == 90

    def __call__(self, x):
        assert x.is_cuda and not x.is_cpu and x.device == torch.device("cuda", 0) and x.get_device() == 0
        with torch.cuda.device(x.device), torch.cuda.stream(torch.cuda.Stream()):
            made = [
                torch.empty(4, device="cuda"),
                torch.zeros_like(x),
                x.new_empty(3),
                torch.tensor([1, 2], device=x.device),
                torch.ones(3).cuda(),
                torch.ones(3).to("cuda"),
                torch.ones(3).to(x.device, torch.float16),
                x.t().contiguous(),
                torch.randn(3, generator=torch.Generator(device="cuda"), device="cuda:0"),
            ]
        assert all(each.is_cuda for each in made)
        left = [torch.ones(3), x.cpu(), x.to("cpu"), torch.arange(3) + 1, torch.ones(3).to(torch.float16)]
        assert not any(each.is_cuda for each in left) and left[0].device.type == "cpu"
        with torch.device("cuda"):
            assert torch.empty(2).is_cuda
        torch.cuda.synchronize()
        torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
        return x


def launch(x):
    return Launcher()(x)
"""


def test_launch_code_gets_the_targets_answers_to_its_questions_about_the_device(compiled: Compile) -> None:
    header, _ = compiled(DEVICE_QUESTIONS, x=tensor(64, 64))
    assert "failed" not in header, header


def test_what_torch_itself_would_do_on_the_device_is_listed_and_not_done(compiled: Compile) -> None:
    source = "def launch(a, b):\n    c = a @ b\n    return torch.softmax(c, -1), a.t(), a.shape[0]\n"
    size = 16384
    header, _ = compiled(source, a=tensor(size, size, dtype="float16"), b=tensor(size, size, dtype="float16"))
    assert "failed" not in header, header
    product, softmax = header["kernels"]
    assert (product["kernel"], softmax["kernel"]) == ("torch:mm", "torch:_softmax")
    assert product["facts"]["dot_flops"] == 2 * size**3
    assert product["facts"]["load_bytes"] == 2 * 2 * size**2
    assert softmax["facts"]["store_bytes"] == 2 * size**2


KERNELBENCH = """
import torch.nn as nn

batch_size = 4096
dim = 65536


class Model(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x, y):
        return (x + y) * self.scale


def get_inputs():
    return [torch.rand(batch_size, dim), torch.rand(batch_size, dim)]


def get_init_inputs():
    return [2.0]
"""


def test_a_kernelbench_module_is_called_with_the_inputs_of_its_task(compiled: Compile) -> None:
    source = ADD + "\n\nclass ModelNew(torch.nn.Module):\n    def __init__(self, scale):\n        super().__init__()\n"
    source += "        assert scale == 2.0\n\n    def forward(self, x, y):\n        return launch(x, y)\n"
    job = {"kind": "kernelbench", "entry": "ModelNew", "task_source": HEAD + KERNELBENCH}
    kernel = only_kernel(compiled(source, job=job))
    assert kernel["grid"] == [4096 * 65536 // 1024, 1, 1]
    assert kernel["facts"]["load_bits_min"] == 128


def test_a_kernel_that_does_not_compile_is_reported_with_the_candidates_line_and_a_caret(compiled: Compile) -> None:
    found = failure(compiled(ADD.replace("m = i < n", "m = i < missing"), x=tensor(64), y=tensor(64)))
    assert found["failure"] == "compile"
    assert found["detail"].startswith("line 9: ")
    assert "missing" in found["detail"]
    assert "    m = i < missing\n            ^" in found["trace"]
    assert len(found["trace"]) < 2000


def test_an_error_inside_the_library_is_reported_at_the_candidates_line(compiled: Compile) -> None:
    found = failure(compiled(ADD.replace("m = i < n", "m = i < tl.sum(n, 0)"), x=tensor(64), y=tensor(64)))
    assert (found["failure"], found["detail"][:8]) == ("compile", "line 9: ")


def test_too_much_shared_memory_is_reported_with_need_limit_and_what_to_reduce(compiled: Compile) -> None:
    square = tensor(4096, 4096, dtype="float16")
    found = failure(compiled(MATMUL.replace("TILE", "1024"), a=square, b=square))
    assert found["failure"] == "launch"
    assert "bytes of shared memory, the target has 232448: reduce BK=1024" in found["detail"]


@pytest.mark.parametrize(
    ("change", "word", "detail"),
    [
        (("torch.empty_like(x)", "torch.empty(x.shape)"), "launch", "argument `o` of add is a CPU tensor"),
        (("n = x.numel()", "n = x.numel() + absent"), "launch", "NameError: name 'absent' is not defined"),
        (("BLOCK=1024", "BLOCK=1000"), "compile", "power of 2"),
        (("BLOCK=1024", "BLOCK=1024, num_warps=64"), "launch", "needs 2048 threads"),
        (("def launch(x, y):", "def launch(x, y:"), "compile", "line 13: "),
        (("def launch(x, y):", "def start(x, y):"), "compile", "no `launch`"),
        ((".cdiv(n, meta", ".cdiv(n * 100000000, meta"), "launch", "grid axis 0 of add is"),
    ],
)
def test_each_mistake_has_its_word_and_one_sentence(
    compiled: Compile, change: tuple[str, str], word: str, detail: str
) -> None:
    assert change[0] in ADD
    found = failure(compiled(ADD.replace(*change), x=tensor(1 << 20), y=tensor(1 << 20)))
    assert found["failure"] == word, found
    assert detail in found["detail"]
    assert "\n" not in found["detail"]
