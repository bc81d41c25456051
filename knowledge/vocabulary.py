"""The words that cards may use for facts, and small expressions over them.

A symptom (`load_bytes > 1.3 * unique_load_bytes`) or a bound is data on a card, so that a new one needs no
code. An expression knows numbers, facts, ceilings of the target, comparisons and arithmetic, and nothing else.
"""

from __future__ import annotations

import ast
import functools
import operator
from collections.abc import Callable, Mapping

Value = int | float | str | bool

_FACTS = """
registers spill_bytes shared_bytes num_warps num_stages barriers
loads loads_in_loop stores stores_in_loop atomics dots dots_in_loop reduces reduces_in_loop loops
converts_in_loop async_copies mma dot_precision
load_bits_min load_bits_max store_bits_min store_bits_max narrow_loads narrow_stores
tile_elements tile_rank index64_ops
load_bytes store_bytes load_sector_bytes store_sector_bytes reread_bytes unique_load_bytes
unique_store_bytes fp32_flops dot_flops sfu_ops reduce_steps
programs launches kernels
"""
FACTS = frozenset(_FACTS.split())
"""Facts that a claim may name; docs/facts.md says what each means."""

_CEILINGS = """
warp_size multiprocessors clock_hz dram_bytes_per_s dram_latency_s l2_bytes l2_bytes_per_s
shared_bytes_per_multiprocessor shared_bytes_per_block registers_per_multiprocessor
warps_per_multiprocessor blocks_per_multiprocessor fp32_flops_per_s launch_s
"""
CEILINGS = frozenset(_CEILINGS.split())
"""Numbers of the target that an expression may use."""

RELATIONS = ("==", ">=", "<=", "rises", "falls", "differs")
"""How a claimed fact must relate to its value (the first three) or to the parent's (the others)."""

_BINARY: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_COMPARE: dict[type[ast.cmpop], Callable[[Value, Value], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


@functools.lru_cache(maxsize=512)
def parse(text: str) -> ast.expr:
    """An expression over facts and ceilings. Raises ValueError that says what is not allowed in it."""
    try:
        node = ast.parse(text, mode="eval").body
    except SyntaxError as failure:
        raise ValueError(f"not an expression: {failure.msg}") from None
    for part in ast.walk(node):
        match part:
            case ast.Name(id=name):
                if name not in FACTS and name not in CEILINGS:
                    raise ValueError(f"unknown fact {name!r}")
            case ast.Constant(value=value):
                if not isinstance(value, (int, float, str)):
                    raise ValueError(f"{value!r} is neither a number nor a text")
            case ast.BinOp(op=op):
                if type(op) not in _BINARY:
                    raise ValueError("of arithmetic, only + - * / are known")
            case ast.Compare(ops=ops):
                if any(type(op) not in _COMPARE for op in ops):
                    raise ValueError("of comparisons, only == != < <= > >= are known")
            case ast.BoolOp() | ast.UnaryOp(op=ast.Not() | ast.USub()) | ast.boolop() | ast.unaryop():
                pass
            case ast.operator() | ast.cmpop() | ast.expr_context():
                pass
            case _:
                raise ValueError(f"{type(part).__name__} is not allowed")
    return node


def evaluate(text: str, values: Mapping[str, Value]) -> Value | None:
    """What an expression says; None when it needs a fact that `values` does not hold, or divides by zero.

    `and` and `or` stop early, as in Python: a false part decides even when another part is unknown.
    """
    return _value(parse(text), values)


def _value(node: ast.expr, values: Mapping[str, Value]) -> Value | None:
    match node:
        case ast.Constant(value=value):
            return value if isinstance(value, (int, float, str)) else None
        case ast.Name(id=name):
            return values.get(name)
        case ast.UnaryOp(op=op, operand=operand):
            inner = _value(operand, values)
            if isinstance(op, ast.Not):
                return None if inner is None else not inner
            return -inner if isinstance(inner, (int, float)) else None
        case ast.BinOp(left=left, op=op, right=right):
            one, two = _value(left, values), _value(right, values)
            if not isinstance(one, (int, float)) or not isinstance(two, (int, float)):
                return None
            return None if isinstance(op, ast.Div) and two == 0 else _BINARY[type(op)](one, two)
        case ast.Compare(left=left, ops=ops, comparators=rest):
            return _compared([_value(part, values) for part in (left, *rest)], ops)
        case ast.BoolOp(op=op, values=parts):
            decides = isinstance(op, ast.Or)
            seen = [_value(part, values) for part in parts]
            if any(s is not None and bool(s) is decides for s in seen):
                return decides
            return None if None in seen else not decides
        case _:
            raise AssertionError(f"parse let {type(node).__name__} through")


def _compared(values: list[Value | None], ops: list[ast.cmpop]) -> bool | None:
    for one, op, two in zip(values, ops, values[1:], strict=False):
        if one is None or two is None:
            return None
        if isinstance(one, str) is not isinstance(two, str):
            return isinstance(op, ast.NotEq)
        if not _COMPARE[type(op)](one, two):
            return False
    return True
