"""Which of Triton's operations work element by element, so that a tile of another shape passes through them."""

from __future__ import annotations

import re

import libcst as cst

from tilewright.knowledge.rewrites.kernels import Language
from tilewright.knowledge.rewrites.source import dotted

# fmt: off
ELEMENTWISE = frozenset(
    {
        "exp", "exp2", "log", "log2", "log1p", "expm1", "sqrt", "sqrt_rn", "rsqrt", "abs", "fabs",
        "sigmoid", "maximum", "minimum", "where", "fma", "sin", "cos", "tanh", "erf", "floor", "ceil",
        "clamp", "div_rn", "fdiv", "umulhi", "pow", "add", "sub", "mul", "isnan", "isinf", "sinh",
        "cosh", "atan", "atan2", "asin", "acos", "cast", "cdiv",
    }
)
# fmt: on
REDUCTIONS = frozenset({"sum", "max", "min", "argmax", "argmin", "xor_sum"})
SCANS = frozenset({"cumsum", "cumprod"})
METHODS = frozenset({"to", "cast", "exp", "log", "sqrt", "rsqrt", "abs", "sigmoid", "cos", "sin", "exp2", "log2"})
SILENT = frozenset({"static_assert", "static_print", "debug_barrier"})
PLAIN = frozenset({"float", "int", "bool", "min", "max", "len", "abs", "isinstance", "tuple"})
_TYPE = re.compile(r"(u?int|b?float)\d\w*")
ATOMICS = frozenset({"atomic_add", "atomic_max", "atomic_min", "atomic_and", "atomic_or", "atomic_xor"})


class Refused(Exception):
    """The kernel has no reading as a tile of rows; the text says why."""


def is_type(op: str) -> bool:
    """Whether the operation is a type's name, called to convert: `tl.float32(x)`."""
    return _TYPE.fullmatch(op) is not None


def elementwise(language: Language, name: str, seen: frozenset[str]) -> None:
    """`Refused` unless a `@triton.jit` helper works element by element on whatever shape it is given."""
    if name in seen:
        raise Refused(f"`{name}` calls itself")
    function = language.functions[name]
    stack: list[cst.CSTNode] = [function.body]
    constexprs = {
        p.name.value for p in function.params.params if p.annotation and "constexpr" in dotted(p.annotation.annotation)
    }
    while stack:
        node = stack.pop()
        if isinstance(node, cst.Subscript | cst.For | cst.While | cst.Tuple | cst.List | cst.With | cst.Lambda):
            raise Refused(f"`{name}` is not elementwise")
        if isinstance(node, cst.If | cst.IfExp) and not _compile_time(node.test, constexprs):
            raise Refused(f"`{name}` branches on a value")
        if isinstance(node, cst.Call):
            op = language.op(node.func)
            called = dotted(node.func)
            if op is None and called in language.functions:
                elementwise(language, called, seen | {name})
            elif op is None and isinstance(node.func, cst.Attribute) and node.func.attr.value in METHODS:
                stack.append(node.func.value)
            elif op is None and called in PLAIN:
                pass
            elif op is None or not (op in ELEMENTWISE or op in SILENT or is_type(op)):
                raise Refused(f"`{name}` calls `{called}`, which is not elementwise")
            stack.extend(a.value for a in node.args)
        else:
            stack.extend(node.children)


def _compile_time(test: cst.BaseExpression, constexprs: set[str]) -> bool:
    stack: list[cst.CSTNode] = [test]
    while stack:
        node = stack.pop()
        if isinstance(node, cst.Attribute):
            if node.attr.value == "dtype":
                continue
            if dotted(node).partition(".")[0] not in ("tl", "triton"):
                stack.append(node.value)
        elif isinstance(node, cst.Name):
            if node.value not in constexprs and not node.value.isupper() and not node.value.startswith("_"):
                return False
        elif isinstance(node, cst.Call):
            return False
        else:
            stack.extend(node.children)
    return True
