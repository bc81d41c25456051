"""The small language of a task's arguments: `T[M, 2 * N] strides[2 * N, 1] integers[0, V]`.

A tensor is a dtype and its sizes, written as integer expressions over the names that a case binds. Nothing
here runs the task's code: expressions are parsed and only `+ - * //`, parentheses, names and numbers are
understood.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tilewright.harness.errors import TaskProblem
from tilewright.harness.types import Case, Scalar, Task, Tensor, TensorSpec

FLOATS = ("float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
DTYPES = (*FLOATS, *INTEGERS, "bool")
"""Torch's names for what a tensor argument may hold."""

RESERVED = ("weight", "name")
"""Keys of a case that are not names to compute with."""

_OTHER_SPELLINGS = {
    "fp16": "float16",
    "fp32": "float32",
    "fp64": "float64",
    "bf16": "bfloat16",
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "int": "int32",
    "long": "int64",
    "i32": "int32",
    "i64": "int64",
}
_SPEC = re.compile(r"\s*(?P<dtype>[\w.]+)\s*\[(?P<shape>[^\[\]]*)\]\s*(?P<rest>.*)", re.DOTALL)
_WORD = re.compile(r"\s*(?P<word>\w+)\s*\[(?P<args>[^\[\]]*)\]")
_EXPECTED = "`DTYPE[SIZE, SIZE, …]`, then perhaps `strides[…]` and `integers[LOW, HIGH]` or `uniform[LOW, HIGH]`"


class SpecError(ValueError):
    """What is wrong with a spec or an expression, in one sentence; callers add the file and the line."""


@dataclass(frozen=True, slots=True)
class Use:
    """A name that an argument needs, and as what."""

    name: str
    role: str
    """`dtype`, `size`, `bound` (of the values) or `scalar`."""


# --- expressions -----------------------------------------------------------------------------------------


LONGEST_EXPRESSION = 200
"""Characters; what reads expressions here takes a frame of Python's stack for each level."""


def _parsed(text: str) -> ast.expr:
    if len(text) > LONGEST_EXPRESSION:
        raise SpecError(f"an expression of {len(text)} characters is too long; {LONGEST_EXPRESSION} are read")
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        raise SpecError(f"expected an expression of names, numbers, + - * // and ( ), found {text!r}") from None


def names_in(text: str) -> set[str]:
    """The names that an expression uses."""
    return {n.id for n in ast.walk(_parsed(text)) if isinstance(n, ast.Name)}


def divisions_in(text: str) -> set[tuple[str, str]]:
    """Pairs (a, b) of names for which the expression takes `a // b`."""
    return {
        (n.left.id, n.right.id)
        for n in ast.walk(_parsed(text))
        if isinstance(n, ast.BinOp)
        and isinstance(n.op, ast.FloorDiv)
        and isinstance(n.left, ast.Name)
        and isinstance(n.right, ast.Name)
    }


def evaluate(text: str, bindings: Mapping[str, Scalar], *, fractions: bool = False) -> int | float:
    """The value of an expression under a case's bindings.

    Only whole numbers are allowed, unless `fractions` (bounds of uniform values). Raises SpecError for an
    unbound name, a name bound to something else than a number, a division by zero or an unknown operation.
    """

    def value(node: ast.expr) -> int | float:
        match node:
            case ast.Constant(value=int(n)) if not isinstance(n, bool):
                return n
            case ast.Constant(value=float(x)) if fractions:
                return x
            case ast.Name(id=name):
                bound = bindings.get(name)
                if name not in bindings:
                    raise SpecError(f"{name!r} in {text!r} is not bound; the case binds {_listed(bindings)}")
                kinds = (int, float) if fractions else (int,)
                if isinstance(bound, bool) or not isinstance(bound, kinds):
                    raise SpecError(f"{name!r} in {text!r} must be a whole number, the case binds it to {bound!r}")
                return bound
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                return -value(inner)
            case ast.BinOp(left=a, op=ast.Add(), right=b):
                return value(a) + value(b)
            case ast.BinOp(left=a, op=ast.Sub(), right=b):
                return value(a) - value(b)
            case ast.BinOp(left=a, op=ast.Mult(), right=b):
                return value(a) * value(b)
            case ast.BinOp(left=a, op=ast.FloorDiv(), right=b):
                divisor = value(b)
                if divisor == 0:
                    raise SpecError(f"{text!r} divides by zero")
                return value(a) // divisor
        raise SpecError(f"expected names, numbers, + - * // and ( ), found {ast.unparse(node)!r} in {text!r}")

    return value(_parsed(text))


def _listed(bindings: Mapping[str, Scalar]) -> str:
    return ", ".join(bindings) or "nothing"


# --- specs -----------------------------------------------------------------------------------------------


def is_tensor(text: str) -> bool:
    """Whether a string argument is meant as a tensor's spec (it has brackets) and not as a plain string."""
    return "[" in text or "]" in text


def parse_spec(text: str) -> TensorSpec:
    """Read `DTYPE[SIZE, …] words…`. Raises SpecError that says what was expected and what was found."""
    whole = _SPEC.fullmatch(text)
    if whole is None:
        raise SpecError(f"expected {_EXPECTED}, found {text!r}")
    words: dict[str, tuple[str, ...]] = {}
    rest = whole["rest"]
    while rest.strip():
        found = _WORD.match(rest)
        if found is None or found["word"] not in ("strides", "integers", "uniform"):
            raise SpecError(
                f"expected strides[…], integers[LOW, HIGH] or uniform[LOW, HIGH] after the sizes, "
                f"found {rest.strip()!r} in {text!r}"
            )
        if found["word"] in words:
            raise SpecError(f"{found['word']} is given twice in {text!r}")
        words[found["word"]] = _split(found["args"])
        rest = rest[found.end() :]
    if "integers" in words and "uniform" in words:
        raise SpecError(f"expected one of integers[…] and uniform[…], found both in {text!r}")
    shape, strides = _split(whole["shape"]), words.get("strides")
    if strides is not None and len(strides) != len(shape):
        raise SpecError(f"expected {len(shape)} strides, one a size, found {len(strides)} in {text!r}")
    values = "integers" if "integers" in words else "uniform" if "uniform" in words else "normal"
    bounds = words.get(values, ("0", "1"))
    if len(bounds) != 2:
        raise SpecError(f"expected {values}[LOW, HIGH], found {len(bounds)} numbers in {text!r}")
    for expression in (*shape, *(strides or ()), *bounds):
        names_in(expression)
    return TensorSpec(shape=shape, dtype=whole["dtype"], strides=strides, values=values, low=bounds[0], high=bounds[1])


def _split(text: str) -> tuple[str, ...]:
    parts = [part.strip() for part in text.split(",")]
    if parts and parts[-1] == "":
        parts.pop()
    return tuple(parts)


def dtype_of(word: str, bindings: Mapping[str, Scalar]) -> str:
    """The torch dtype's name that a word of a spec stands for. Raises SpecError for one that is unknown."""
    bound = bindings.get(word, word)
    name = bound.removeprefix("torch.") if isinstance(bound, str) else bound
    if name in DTYPES and isinstance(name, str):
        return name
    if bound is word and isinstance(word, str) and word not in _OTHER_SPELLINGS and word.isidentifier():
        raise SpecError(f"{word!r} is neither a dtype nor a name that the case binds; dtypes are {', '.join(DTYPES)}")
    hint = f"; torch calls it {_OTHER_SPELLINGS[name]!r}" if name in _OTHER_SPELLINGS else ""
    raise SpecError(f"expected a torch dtype's name ({', '.join(DTYPES)}), found {name!r}{hint}")


def uses(spec: TensorSpec | Scalar) -> Iterator[Use]:
    """The names that an argument may take from a case. A dtype's own name is not one."""
    if isinstance(spec, TensorSpec):
        if spec.dtype.removeprefix("torch.") not in DTYPES:
            yield Use(spec.dtype, "dtype")
        for text in (*spec.shape, *(spec.strides or ())):
            yield from (Use(name, "size") for name in sorted(names_in(text)))
        for text in (spec.low, spec.high):
            yield from (Use(name, "bound") for name in sorted(names_in(text)))
    elif isinstance(spec, str):
        yield Use(spec, "scalar")


def resolve_one(name: str, spec: TensorSpec | Scalar, bindings: Mapping[str, Scalar]) -> Tensor | Scalar:
    """One argument with every number known. Raises SpecError where the case does not make sense of it."""
    if not isinstance(spec, TensorSpec):
        return bindings[spec] if isinstance(spec, str) and spec in bindings else spec
    shape = tuple(int(evaluate(text, bindings)) for text in spec.shape)
    for size, text in zip(shape, spec.shape, strict=True):
        if size < 1:
            raise SpecError(f"{name}: size {text!r} is {size}, and must be at least 1")
    strides = None
    if spec.strides is not None:
        strides = tuple(int(evaluate(text, bindings)) for text in spec.strides)
        for stride, text in zip(strides, spec.strides, strict=True):
            if stride < 0:
                raise SpecError(f"{name}: stride {text!r} is {stride}, and must not be negative")
    dtype = dtype_of(spec.dtype, bindings)
    low = evaluate(spec.low, bindings, fractions=spec.values == "uniform")
    high = evaluate(spec.high, bindings, fractions=spec.values == "uniform")
    values = spec.values
    if dtype == "bool" and values == "normal":
        values, low, high = "integers", 0, 2
    if dtype in INTEGERS and values != "integers":
        raise SpecError(f"{name}: {dtype} values need a range; write integers[LOW, HIGH] after the sizes")
    if low >= high:
        raise SpecError(f"{name}: {values}[{spec.low}, {spec.high}] is empty: {low} is not below {high}")
    return Tensor(name=name, shape=shape, dtype=dtype, strides=strides, values=values, low=low, high=high)


def resolve(task: Task, case: Case) -> dict[str, Tensor | Scalar]:
    """Every argument of one case with its numbers filled in, in the order of the entry's parameters.

    A string argument that is the name of a binding stands for the bound value. Empty for a KernelBench
    task, whose file makes its own inputs. Raises TaskProblem that names the case.
    """
    try:
        return {name: resolve_one(name, spec, case.bindings) for name, spec in task.args.items()}
    except SpecError as error:
        raise TaskProblem(
            f"case {case.name!r}: {error}", "mend the case's numbers or the argument's spec", path=task.path
        ) from None
