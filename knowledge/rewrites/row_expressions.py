"""Expressions of a kernel whose program is a row, read as expressions over a tile of rows.

Every value is one of four kinds: the same for every row (a scalar), one scalar a row, a vector along the row that
all rows share (column offsets, weights), or a vector along the row that differs by row. With ROWS rows a program
these become a scalar, a vector [ROWS], a vector [BLOCK] and a matrix [ROWS, BLOCK]. Where two kinds meet the
operands are lifted, reductions go along the second axis, and accesses that depend on the row get a mask of rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

import libcst as cst

from tilewright.knowledge.rewrites.elementwise import (
    ELEMENTWISE,
    METHODS,
    PLAIN,
    REDUCTIONS,
    SCANS,
    Refused,
    elementwise,
    is_type,
)
from tilewright.knowledge.rewrites.kernels import Language
from tilewright.knowledge.rewrites.source import Patch, Source, dotted


class Kind(Enum):
    """How a value relates to the rows of a program."""

    SAME = "a scalar"
    ROW = "one scalar a row"
    COLUMN = "a vector that all rows share"
    MATRIX = "a vector a row"
    MIXED = "of a kind that depends on the branch taken"


@dataclass(frozen=True, slots=True)
class Value:
    """A kind, and the expression that made the value where that is a constant that could be made larger."""

    kind: Kind
    site: cst.CSTNode | None = None


@dataclass(slots=True, eq=False)
class RowExpressions:
    """What is known so far of one kernel, and the patches for the expressions read so far."""

    source: Source
    language: Language
    kernel: cst.FunctionDef
    rows: str
    """Name of the vector of row numbers."""
    mask: str
    """Name of the mask of rows that exist."""
    tile: str
    """Name of the constexpr: rows a program."""
    patches: list[Patch] = field(default_factory=list)
    blocks: set[str] = field(default_factory=set)
    """Texts of the extents of vectors along the row."""
    prefix: str = "tl"
    environment: dict[str, Value] = field(default_factory=dict)
    grown: dict[cst.CSTNode, Kind] = field(default_factory=dict)
    found: int = 0
    """How many times the program's index was read."""

    # --- expressions -----------------------------------------------------------------------------------

    def read(self, name: cst.Name) -> Kind:
        """The kind of a name; parameters and globals are the same for every row."""
        value = self.environment.get(name.value, Value(Kind.SAME))
        if value.kind is Kind.MIXED:
            raise Refused(f"`{name.value}` has another shape in another branch")
        return value.kind

    def kind(self, node: cst.BaseExpression) -> Kind:
        """The kind of an expression; patches what is inside it."""
        if node in self.grown:
            return self.grow(node, self.grown[node])
        match node:
            case cst.Name():
                return self.read(node)
            case cst.Integer() | cst.Float() | cst.SimpleString():
                return Kind.SAME
            case cst.UnaryOperation():
                inner = self.kind(node.expression)
                if isinstance(node.operator, cst.Not) and inner is not Kind.SAME:
                    raise Refused("`not` of a tensor")
                return inner
            case cst.BinaryOperation():
                return self.together([node.left, node.right])
            case cst.Comparison() if len(node.comparisons) == 1:
                return self.together([node.left, node.comparisons[0].comparator])
            case cst.BooleanOperation():
                return self.only_scalars([node.left, node.right])
            case cst.IfExp():
                self.only_scalars([node.test])
                return self.together([node.body, node.orelse], lift=False)
            case cst.Attribute():
                inner = self.kind(node.value)
                if node.attr.value not in ("dtype", "type", "element_ty") and inner is not Kind.SAME:
                    raise Refused(f"`.{node.attr.value}` of a tensor is not followed")
                return Kind.SAME
            case cst.Subscript():
                if self.kind(node.value) is not Kind.SAME or _new_axis(node):
                    raise Refused("the kernel already uses two-dimensional tiles")
                return Kind.SAME
            case cst.Tuple() | cst.List():
                return self.only_scalars([e.value for e in node.elements])
            case cst.Call():
                return self.call(node)
        raise Refused(f"`{self.source.code(node)[:60]}` is not followed")

    def only_scalars(self, nodes: Iterable[cst.BaseExpression]) -> Kind:
        for node in nodes:
            if self.kind(node) is not Kind.SAME:
                raise Refused(f"`{self.source.code(node)[:60]}` must not depend on the row here")
        return Kind.SAME

    def join(self, a: Kind, b: Kind) -> Kind:
        if a is b or b is Kind.SAME:
            return a
        return b if a is Kind.SAME else Kind.MATRIX

    def together(self, nodes: list[cst.BaseExpression], lift: bool = True) -> Kind:
        """Operands that broadcast against each other; those of lower rank are lifted."""
        kinds = [self.kind(n) for n in nodes]
        both = Kind.SAME
        for kind in kinds:
            both = self.join(both, kind)
        if not lift and any(k is not both for k in kinds):
            raise Refused("the two sides of a conditional expression have different shapes")
        for node, kind in zip(nodes, kinds, strict=True):
            self.lift(node, kind, both)
        return both

    def lift(self, node: cst.BaseExpression, kind: Kind, to: Kind) -> None:
        """Give an operand the rank of the tile."""
        if to is Kind.MATRIX and kind in LIFT:
            self.suffix(node, LIFT[kind])

    def suffix(self, node: cst.BaseExpression, text: str) -> None:
        if not atom(node):
            self.wrap(node)
        end = self.source.outer(node)[1]
        self.patches.append(Patch(end, end, text))

    def wrap(self, node: cst.BaseExpression) -> None:
        start, end = self.source.outer(node)
        self.patches += [Patch(start, start, "(", lead=True), Patch(end, end, ")")]

    def grow(self, node: cst.BaseExpression, kind: Kind) -> Kind:
        """An initial value of a loop, given the shape of what the loop carries."""
        made = self.language.op(node.func) if isinstance(node, cst.Call) else None
        if kind is Kind.ROW and made is None:
            dtype = f"{self.prefix}.int32" if isinstance(node, cst.Integer) else f"{self.prefix}.float32"
            start, end = self.source.outer(node)
            text = self.source.data[start:end].decode()
            self.patches.append(Patch(start, end, f"{self.prefix}.full([{self.tile}], {text}, {dtype})"))
            return kind
        if kind is Kind.MATRIX and isinstance(node, cst.Call) and made in ("zeros", "full"):
            shape = node.args[0].value
            if isinstance(shape, cst.List | cst.Tuple) and len(shape.elements) == 1:
                start = self.source.span(shape.elements[0].value)[0]
                self.patches.append(Patch(start, start, f"{self.tile}, "))
                return kind
        raise Refused(f"`{self.source.code(node)[:60]}` cannot be made {kind.value}")

    # --- calls -----------------------------------------------------------------------------------------

    def call(self, node: cst.Call) -> Kind:
        if any(a.star for a in node.args):
            raise Refused("a call with `*` arguments is not followed")
        op = self.language.op(node.func)
        name = dotted(node.func)
        values = [a.value for a in node.args]
        if op is None and name in self.language.functions:
            elementwise(self.language, name, frozenset())
            return self.together(values)
        if op is None and isinstance(node.func, cst.Attribute):
            return self.method(node, node.func)
        if op is None and name in PLAIN:
            return self.only_scalars(values)
        if op == "program_id":
            return self.program(node)
        if op == "arange":
            self.only_scalars(values)
            if len(values) > 1:
                self.blocks.add(self.source.code(values[1]))
            return Kind.COLUMN
        if op in ("zeros", "full"):
            shape = values[0] if values else None
            if not isinstance(shape, cst.Tuple | cst.List) or len(shape.elements) != 1:
                raise Refused(f"`{self.source.code(node)[:60]}` is not a vector along the row")
            self.only_scalars(values)
            return Kind.COLUMN
        if op == "load":
            return self.access(node, ("pointer", "mask", "other"))
        if op in REDUCTIONS:
            return self.reduce(node)
        if op in SCANS:
            return self.reduce(node, scan=True)
        if op in ("zeros_like", "full_like") and values:
            kind = self.kind(values[0])
            self.only_scalars(values[1:])
            return kind
        if op in ("multiple_of", "max_contiguous", "max_constancy", "assume") and values:
            kind = self.kind(values[0])
            if kind in (Kind.ROW, Kind.MATRIX):
                raise Refused(f"the hint `{self.source.code(node)[:50]}` speaks of one row")
            self.only_scalars(values[1:])
            return kind
        if op in ELEMENTWISE or (op is not None and is_type(op)):
            return self.together(values)
        raise Refused(f"`{self.source.code(node.func)}` is not known to work on a tile of rows")

    def program(self, node: cst.Call) -> Kind:
        axis = node.args[0].value if node.args else None
        if not isinstance(axis, cst.Integer):
            raise Refused("the axis of tl.program_id is not a literal")
        if axis.value != "0":
            return Kind.SAME
        self.found += 1
        self.prefix = dotted(node.func).rpartition(".")[0] or self.prefix
        self.patches.append(Patch(*self.source.span(node), self.rows))
        return Kind.ROW

    def method(self, node: cst.Call, function: cst.Attribute) -> Kind:
        kind = self.kind(function.value)
        method = function.attr.value
        if kind is Kind.SAME or method in METHODS:
            self.only_scalars(a.value for a in node.args)
            return kind
        if method in REDUCTIONS and kind in (Kind.MATRIX, Kind.COLUMN):
            return self.axis(node, kind, 0, Kind.ROW)
        raise Refused(f"`.{method}` is not known to work on a tile of rows")

    def reduce(self, node: cst.Call, pair: bool = False, scan: bool = False) -> Kind:
        """A reduction along the row: over the second axis of a matrix, as it was for a shared vector."""
        if not node.args:
            raise Refused("a reduction of nothing")
        wants = any(a.keyword is not None and a.keyword.value == "return_indices" for a in node.args)
        if wants is not pair:
            raise Refused("a reduction that returns a pair is not taken apart")
        kind = self.kind(node.args[0].value)
        if kind not in (Kind.MATRIX, Kind.COLUMN):
            raise Refused(f"`{self.source.code(node)[:60]}` reduces {kind.value}")
        return self.axis(node, kind, 1, kind if scan else Kind.ROW)

    def axis(self, node: cst.Call, kind: Kind, position: int, result: Kind) -> Kind:
        axis: cst.BaseExpression | None = None
        for i, arg in enumerate(node.args[position:]):
            keyword = arg.keyword.value if arg.keyword else None
            if keyword == "axis" or (keyword is None and i == 0):
                axis = arg.value
            elif keyword in (None, "keep_dims"):
                raise Refused(f"`{self.source.code(node)[:60]}` is not a plain reduction")
            else:
                self.only_scalars([arg.value])
        if axis is not None and self.source.code(axis) not in ("0", "-1", "None"):
            raise Refused(f"`{self.source.code(node)[:60]}` reduces along an axis that is not literal")
        if kind is Kind.COLUMN:
            return Kind.SAME if result is Kind.ROW else result
        if axis is not None:
            self.patches.append(Patch(*self.source.outer(axis), "1"))
        else:
            end = self.source.outer(node.args[-1].value)[1] if node.args else self.source.span(node)[1] - 1
            self.patches.append(Patch(end, end, ", axis=1" if node.args else "axis=1"))
        return result

    # --- memory ----------------------------------------------------------------------------------------

    def store(self, node: cst.Call) -> None:
        kind = self.access(node, ("pointer", "value", "mask"))
        if kind in (Kind.SAME, Kind.COLUMN):
            raise Refused(f"`{self.source.code(node)[:60]}` writes what all rows share")

    def access(self, node: cst.Call, order: tuple[str, ...]) -> Kind:
        """A load or store: operands are lifted to the address, and the mask of rows joins the access's own."""
        given: dict[str, cst.BaseExpression] = {}
        alias = {"val": "value"}
        for i, arg in enumerate(node.args):
            name = arg.keyword.value if arg.keyword else order[i] if i < len(order) else ""
            if name in ("boundary_check", "padding_option", ""):
                raise Refused(f"`{self.source.code(node)[:60]}` is not a plain access")
            given[alias.get(name, name)] = arg.value
        if any(a.star for a in node.args) or "pointer" not in given:
            raise Refused(f"`{self.source.code(node)[:60]}` is not a plain access")
        kinds = {name: self.kind(v) for name, v in given.items()}
        kind = kinds["pointer"]
        for name in ("value", "other", "mask"):
            extra = kinds.get(name, Kind.SAME)
            if self.join(kind, extra) is not kind:
                raise Refused(f"`{self.source.code(node)[:60]}`: the {name} depends on the row, the address does not")
        for name in ("value", "other"):
            if name in given:
                self.lift(given[name], kinds[name], kind)
        if kind in (Kind.ROW, Kind.MATRIX):
            self.row_mask(node, given.get("mask"), kinds.get("mask", Kind.SAME), kind)
        return kind

    def row_mask(self, node: cst.Call, old: cst.BaseExpression | None, old_kind: Kind, kind: Kind) -> None:
        text = self.mask + ("[:, None]" if kind is Kind.MATRIX else "")
        if old is None:
            end = self.source.outer(node.args[-1].value)[1]
            self.patches.append(Patch(end, end, f", mask={text}"))
            return
        start, end = self.source.outer(old)
        if isinstance(old, cst.Name) and old.value in ("None", "True"):
            self.patches.append(Patch(start, end, text))
            return
        if kind is Kind.MATRIX and old_kind in LIFT:
            self.lift(old, old_kind, kind)
        elif not atom(old):
            self.wrap(old)
        self.patches.append(Patch(end, end, f" & {text}"))


LIFT: Mapping[Kind, str] = {Kind.ROW: "[:, None]", Kind.COLUMN: "[None, :]"}


def atom(node: cst.BaseExpression) -> bool:
    """Whether a subscript binds to the whole of it."""
    return bool(node.lpar) or isinstance(node, cst.Name | cst.Call | cst.Subscript | cst.Attribute)


def _new_axis(node: cst.Subscript) -> bool:
    return any(
        isinstance(e.slice, cst.Slice) or (isinstance(e.slice, cst.Index) and dotted(e.slice.value) == "None")
        for e in node.slice
    )
