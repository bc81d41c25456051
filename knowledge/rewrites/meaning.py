"""What an expression of a kernel means: a canonical text and a shape with symbolic extents.

Used by `flow.py`, which follows statements and explains the texts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from tilewright.knowledge.rewrites.values import Access, Flow, Loop, Shape, Value, broadcast

if TYPE_CHECKING:
    from tilewright.knowledge.rewrites.kernels import Language

_DESCRIPTOR = frozenset({"load_tensor_descriptor", "store_tensor_descriptor"})
LONGEST = 4000

ELEMENTWISE = frozenset(
    {
        "exp",
        "exp2",
        "log",
        "log2",
        "sqrt",
        "sqrt_rn",
        "rsqrt",
        "abs",
        "sigmoid",
        "maximum",
        "minimum",
        "where",
        "fma",
        "sin",
        "cos",
        "tanh",
        "erf",
        "floor",
        "ceil",
        "clamp",
        "div_rn",
        "umulhi",
        "cdiv",
        "pow",
        "add",
        "sub",
        "mul",
        "isnan",
        "log1p",
        "expm1",
        "atan",
        "ldexp",
        "fast_expf",
    }
)
"""Operations whose result has the broadcast shape of their operands, one value from each place."""
SAME_SHAPE = frozenset(
    {
        "to",
        "cast",
        "multiple_of",
        "max_contiguous",
        "max_constancy",
        "zeros_like",
        "flip",
        "cumsum",
        "cumprod",
        "softmax",
        "sort",
    }
)
"""Operations whose result has the shape of their first operand."""
DTYPES = frozenset(
    {f"{kind}{bits}" for kind in ("int", "uint") for bits in (1, 8, 16, 32, 64)}
    | {"float16", "bfloat16", "float32", "float64", "float8e5", "float8e4nv"}
)
"""Types, which convert when they are called: `tl.float32(0)`."""
HINTS = frozenset({"multiple_of", "max_contiguous", "max_constancy"})
REDUCTIONS = frozenset({"sum", "max", "min", "argmax", "argmin", "xor_sum", "reduce"})


class Expressions:
    """Follows expressions: `eval` says what one means where it stands, and notes memory accesses."""

    def __init__(self, language: Language, params: set[str]) -> None:
        self.language, self.params = language, params
        self.env: dict[str, Value] = {p: Value(p) for p in params}
        self.flow = Flow()
        self.origin: dict[str, str | None] = {}
        self.count = 0
        self.loops: tuple[Loop, ...] = ()
        self.statement: cst.CSTNode = cst.Pass()
        self.path: tuple[cst.CSTNode, ...] = ()

    def block(self, block: cst.BaseSuite, path: tuple[cst.CSTNode, ...]) -> None:
        """Follow the statements of a block."""
        raise NotImplementedError

    def root(self, pointer: Value) -> str | None:
        """The one pointer parameter among an address's summands, through loops and branches."""
        found = {self.origin.get(p, p if p in self.params else None) for p in pointer.parts} - {None}
        named = {f for f in found if f is not None and f.lower().endswith(("ptr", "ptrs", "pointer"))} or found
        return named.pop() if len(named) == 1 else None

    def again(self, name: str, *before: Value) -> Value:
        """A new value for a name that was `before`, from the same pointer and of the same shape where all agree."""
        shapes, roots = {v.shape for v in before}, {self.root(v) for v in before}
        value = self.fresh(name, shapes.pop() if len(shapes) == 1 else None)
        self.origin[value.text] = roots.pop() if len(roots) == 1 else None
        return value

    def fresh(self, name: str, shape: Shape | None) -> Value:
        self.count += 1
        return Value(f"{name}#{self.count}", shape)

    def eval(self, node: cst.BaseExpression) -> Value:
        value = self.meaning(node)
        self.flow.values[node] = value
        return value

    def meaning(self, node: cst.BaseExpression) -> Value:
        if isinstance(node, cst.Name):
            return self.env.get(node.value, Value(node.value))
        if isinstance(node, cst.Integer | cst.Float | cst.SimpleString):
            return Value(node.value)
        if isinstance(node, cst.Call):
            return self.called(node)
        if isinstance(node, cst.BinaryOperation):
            return self.combine(node.operator, self.eval(node.left), self.eval(node.right))
        if isinstance(node, cst.UnaryOperation):
            inner = self.eval(node.expression)
            return Value(f"{type(node.operator).__name__}({inner.text})", inner.shape)
        if isinstance(node, cst.Comparison):
            parts = [self.eval(node.left)]
            text = parts[0].text
            for c in node.comparisons:
                parts.append(self.eval(c.comparator))
                text += f" {type(c.operator).__name__} {parts[-1].text}"
            return Value(f"({text})", broadcast(*(p.shape for p in parts)))
        if isinstance(node, cst.BooleanOperation):
            a, b = self.eval(node.left), self.eval(node.right)
            return Value(f"({a.text} {type(node.operator).__name__} {b.text})", broadcast(a.shape, b.shape))
        if isinstance(node, cst.IfExp):
            test, a, b = self.eval(node.test), self.eval(node.body), self.eval(node.orelse)
            return Value(f"if({test.text},{a.text},{b.text})", a.shape if a.shape == b.shape else None)
        if isinstance(node, cst.Subscript):
            return self.indexed(node)
        if isinstance(node, cst.Attribute):
            base = self.eval(node.value)
            transposed = base.shape[::-1] if node.attr.value == "T" and base.shape is not None else ()
            return Value(f"{base.text}.{node.attr.value}", transposed)
        if isinstance(node, cst.Tuple | cst.List):
            inside = [self.eval(e.value) for e in node.elements]
            return Value("[" + ",".join(v.text for v in inside) + "]", None)
        for child in node.children:
            if isinstance(child, cst.BaseExpression):
                self.eval(child)
        return self.fresh("unknown", None)

    def combine(self, operator: cst.CSTNode, a: Value, b: Value) -> Value:
        shape = broadcast(a.shape, b.shape)
        name = type(operator).__name__.removesuffix("Assign")
        if name == "Add":
            terms = tuple(sorted(t for t in (*a.parts, *b.parts) if t != "0")) or ("0",)
            return Value(terms[0], shape) if len(terms) == 1 else Value("(" + "+".join(terms) + ")", shape, terms)
        if name == "Subtract" and b.text == "0":
            return Value(a.text, shape, a.terms)
        if name == "Multiply":
            if "0" in (a.text, b.text):
                return Value("0", shape)
            factors = sorted(t for t in (a.text, b.text) if t != "1") or ["1"]
            return Value(factors[0] if len(factors) == 1 else "(" + "*".join(factors) + ")", shape)
        return Value(f"({a.text} {name} {b.text})", shape)

    def indexed(self, node: cst.Subscript) -> Value:
        base = self.eval(node.value)
        shape: list[str] | None = []
        left = list(base.shape) if base.shape is not None else None
        text = []
        for element in node.slice:
            index = element.slice
            if isinstance(index, cst.Index) and isinstance(index.value, cst.Name) and index.value.value == "None":
                text.append("None")
                shape = [*shape, "1"] if shape is not None else None
            elif isinstance(index, cst.Slice) and index.lower is None and index.upper is None:
                text.append(":")
                shape = [*shape, left.pop(0)] if shape is not None and left else None
            else:
                value = self.eval(index.value) if isinstance(index, cst.Index) else self.fresh("slice", None)
                text.append(value.text)
                shape = None
        final = tuple(shape) + tuple(left) if shape is not None and left is not None else None
        return Value(f"{base.text}[{','.join(text)}]", final)

    def called(self, node: cst.Call) -> Value:
        op = self.language.op(node.func)
        method = op is None and isinstance(node.func, cst.Attribute)
        args = [self.eval(a.value) for a in node.args if a.keyword is None]
        if method and isinstance(node.func, cst.Attribute):
            args = [self.eval(node.func.value), *args]
            op = node.func.attr.value
        named = {a.keyword.value: self.eval(a.value) for a in node.args if a.keyword is not None}
        name = op or (node.func.value if isinstance(node.func, cst.Name) else "?")
        if name in _DESCRIPTOR or (method and name in ("load", "store", "gather", "scatter")):
            kind = "load" if name.startswith(("load", "gather")) else "store"
            self.note(kind, node, Value("?", None))
            return self.fresh(name, None if kind == "load" else ())
        if name in ("load", "store") or name.startswith("atomic") or "barrier" in name:
            return self.memory(node, name, args, named)
        if name in self.language.functions and op is None:
            return self.helper(node, name, args, named)
        if op is None and name not in ("float", "int", "min", "max", "bool", "len"):
            self.flow.unclear.append(f"call of {name}")
        if name in HINTS and args:
            return args[0]
        pieces = [v.text for v in args] + [f"{k}={v.text}" for k, v in sorted(named.items())]
        return Value(f"{name}({','.join(pieces)})", self.shape_of(node, name, args, named))

    def memory(self, node: cst.Call, name: str, args: list[Value], named: dict[str, Value]) -> Value:
        kind = "barrier" if "barrier" in name else "atomic" if name.startswith("atomic") else name
        pointer = args[0] if args else named.get("pointer", Value("?", None))
        at = {"load": (1, 2), "store": (2, 9)}.get(kind, (9, 9))
        given = [args[i] if i < len(args) else named.get(k) for i, k in zip(at, ("mask", "other"), strict=True)]
        self.note(
            kind,
            node,
            pointer,
            mask=given[0] if given[0] is None or given[0].text != "None" else None,
            other=given[1],
            value=(args[1] if len(args) > 1 else named.get("value")) if kind == "store" else None,
            root=self.root(pointer),
        )
        return Value(f"{name}#{self.count}", () if kind in ("store", "barrier") else pointer.shape)

    def note(
        self,
        kind: str,
        call: cst.Call,
        pointer: Value,
        *,
        mask: Value | None = None,
        other: Value | None = None,
        value: Value | None = None,
        root: str | None = None,
    ) -> None:
        self.count += 1
        self.flow.accesses.append(
            Access(
                kind=kind,
                call=call,
                pointer=pointer,
                mask=mask,
                other=other,
                value=value,
                root=root,
                loops=self.loops,
                path=self.path,
                statement=self.statement,
                order=self.count,
            )
        )

    def helper(self, node: cst.Call, name: str, args: list[Value], named: dict[str, Value]) -> Value:
        """A call of another jit function: its shape by following it with the shapes given."""
        if self.language.touches_memory(name):
            self.note("call", node, Value("?", None))
            return self.fresh(name, None)
        function = self.language.functions[name]
        inner = type(self)(self.language, set())
        formal = [p.name.value for p in function.params.params]
        inner.env = {**dict(zip(formal, args, strict=False)), **named}
        body = function.body
        inner.block(body, ())
        last = body.body[-1] if body.body else None
        shape = None
        if isinstance(last, cst.SimpleStatementLine) and isinstance(last.body[-1], cst.Return):
            returned = last.body[-1].value
            shape = inner.flow.values[returned].shape if returned is not None else None
        pieces = [v.text for v in args] + [f"{k}={v.text}" for k, v in sorted(named.items())]
        return Value(f"{name}({','.join(pieces)})", shape)

    def shape_of(self, node: cst.Call, name: str, args: list[Value], named: dict[str, Value]) -> Shape | None:
        first = args[0].shape if args else None
        if name in ELEMENTWISE:
            return broadcast(*(v.shape for v in (*args, *named.values())))
        if name in SAME_SHAPE or name in DTYPES:
            return first if args else next((v.shape for v in named.values()), None)
        if name in REDUCTIONS and len(args) <= 2 and not self.language_is_python(node):
            axis = args[1].text if len(args) > 1 else named["axis"].text if "axis" in named else None
            keep = named.get("keep_dims", Value("False")).text == "True"
            if first is None or "return_indices" in named:
                return None
            if axis is None or axis == "None":
                return ("1",) * len(first) if keep else ()
            if not axis.isdigit() or int(axis) >= len(first):
                return None
            i = int(axis)
            return first[:i] + (("1",) if keep else ()) + first[i + 1 :]
        if name == "arange" and len(args) == 2:
            return (args[1].text if args[0].text == "0" else f"({args[1].text}-{args[0].text})",)
        if name in ("zeros", "full", "broadcast_to", "reshape", "view"):
            dims = args[0] if name in ("zeros", "full") and args else args[1] if len(args) > 1 else named.get("shape")
            return _extents(dims.text) if dims is not None else None
        if name == "expand_dims" and first is not None and len(args) == 2 and args[1].text.isdigit():
            return (*first[: int(args[1].text)], "1", *first[int(args[1].text) :])
        if name == "trans" and first is not None and len(args) == 1:
            return first[::-1]
        if name == "dot" and len(args) >= 2 and first is not None and args[1].shape is not None:
            return (*first[:-1], args[1].shape[-1]) if args[1].shape else None
        if name in ("program_id", "num_programs", "float", "int", "bool", "min", "max", "len"):
            return ()
        return None

    def language_is_python(self, node: cst.Call) -> bool:
        return isinstance(node.func, cst.Name) and self.language.op(node.func) is None


def _extents(text: str) -> Shape | None:
    """The extents in a canonical list `[A,B]`; None where one of them is itself a list or a call of several."""
    if not (text.startswith("[") and text.endswith("]")):
        return None
    out, depth, current = [], 0, ""
    for c in text[1:-1]:
        depth += (c in "([") - (c in ")]")
        if c == "," and depth == 0:
            out.append(current)
            current = ""
        else:
            current += c
    return tuple([*out, current] if current else out)
