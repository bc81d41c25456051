"""The `inputs` of a task file: arguments, weighted cases and reduced checks, read as a literal, line by line."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from tilewright.harness.errors import TaskProblem
from tilewright.harness.tasks.checks import reduced, title
from tilewright.harness.tasks.spec import (
    RESERVED,
    SpecError,
    is_tensor,
    parse_spec,
    resolve_one,
    uses,
)
from tilewright.harness.types import Case, Scalar, TensorSpec


@dataclass(frozen=True, slots=True)
class Inputs:
    """What `inputs` says: arguments by name in order, cases at full size, checks at reduced size."""

    args: Mapping[str, TensorSpec | Scalar]
    cases: tuple[Case, ...]
    checks: tuple[Case, ...]


@dataclass(frozen=True, slots=True)
class _Reader:
    path: str

    def wrong(self, node: ast.AST, cause: str, remedy: str = "") -> NoReturn:
        raise TaskProblem(cause, remedy, path=self.path, line=getattr(node, "lineno", None))

    def literal(self, node: ast.expr, what: str) -> object:
        """The value of a literal. A task is read, never run, so anything else is refused."""
        try:
            return ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            inner = next(
                (n for n in ast.walk(node) if isinstance(n, ast.Call | ast.Name | ast.Attribute | ast.comprehension)),
                node,
            )
            self.wrong(
                inner if hasattr(inner, "lineno") else node,
                f"{what} must be plain values, found {ast.unparse(inner)!r}",
                "write the numbers and strings out; the file is read, not run",
            )

    def entries(self, node: ast.expr, what: str) -> dict[str, tuple[ast.expr, ast.expr]]:
        """The items of a dict display: key node and value node by key."""
        if not isinstance(node, ast.Dict):
            self.wrong(node, f"{what} must be a dict {{…}}, found {ast.unparse(node)[:60]!r}")
        found: dict[str, tuple[ast.expr, ast.expr]] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            if not (isinstance(key, ast.Constant) and isinstance(key.value, str)):
                self.wrong(key or value, f"{what}: expected a string as key, found {ast.unparse(key or value)!r}")
            if key.value in found:
                self.wrong(key, f"{what}: {key.value!r} is given twice")
            found[key.value] = (key, value)
        return found

    def args(self, node: ast.expr) -> dict[str, TensorSpec | Scalar]:
        args: dict[str, TensorSpec | Scalar] = {}
        for name, (key, value_node) in self.entries(node, "inputs['args']").items():
            value = self.literal(value_node, f"argument {name!r}")
            if value is ...:
                self.wrong(value_node, f"argument {name!r} is not filled in", "give its spec or its value")
            if not (value is None or isinstance(value, bool | int | float | str)):
                self.wrong(
                    value_node,
                    f"argument {name!r}: expected a tensor's spec such as 'float16[M, N]', a number, a string, "
                    f"True, False or None, found {ast.unparse(value_node)!r}",
                )
            if not name.isidentifier():
                self.wrong(key, f"argument {name!r} is not a name")
            if isinstance(value, str) and is_tensor(value):
                try:
                    args[name] = parse_spec(value)
                except SpecError as error:
                    self.wrong(value_node, f"argument {name!r}: {error}")
            else:
                args[name] = value
        if not any(isinstance(spec, TensorSpec) for spec in args.values()):
            self.wrong(node, "inputs['args'] has no tensor", "give at least one spec such as 'float16[M, N]'")
        return args

    def bindings(self, node: ast.expr, what: str) -> tuple[dict[str, Scalar], str | None, float]:
        """A case's bindings, name and weight."""
        bindings: dict[str, Scalar] = {}
        name: str | None = None
        weight = 1.0
        for key, (_, value_node) in self.entries(node, what).items():
            value = self.literal(value_node, f"{what}: {key!r}")
            if value is ...:
                self.wrong(value_node, f"{what}: {key!r} is not filled in", "give its value")
            if key == "weight":
                good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
                if not good or value <= 0:  # type: ignore[operator]  # `good` says it is a number
                    self.wrong(value_node, f"{what}: weight must be a number above 0, found {value!r}")
                weight = float(value)  # type: ignore[arg-type]  # as above
            elif key == "name":
                if not isinstance(value, str) or not value.strip():
                    self.wrong(value_node, f"{what}: name must be a string, found {value!r}")
                name = value.strip()
            elif value is None or isinstance(value, bool | int | float | str):
                bindings[key] = value
            else:
                self.wrong(value_node, f"{what}: {key!r} must be a number or a string, found {value!r}")
        return bindings, name, weight

    def case_list(
        self, node: ast.expr, what: str, args: Mapping[str, TensorSpec | Scalar], first: Case | None
    ) -> tuple[Case, ...]:
        """The cases of a list; with `first`, its bindings stand in for the missing ones."""
        if not isinstance(node, ast.List | ast.Tuple):
            self.wrong(node, f"inputs[{what!r}] must be a list of dicts, found {ast.unparse(node)[:60]!r}")
        if not node.elts:
            self.wrong(node, f"inputs[{what!r}] is empty", "give at least one case")
        cases: list[Case] = []
        for number, element in enumerate(node.elts, 1):
            where = f"{what} {number}"
            bindings, name, weight = self.bindings(element, where)
            full = {**(first.bindings if first else {}), **bindings}
            self.check_names(element, where, args, full)
            try:
                for arg, spec in args.items():
                    resolve_one(arg, spec, full)
            except SpecError as error:
                self.wrong(element, f"{where}: {error}")
            case = Case(name=name or title(full), bindings=full, weight=1.0 if first else weight)
            if any(case.name == other.name for other in cases):
                self.wrong(element, f"{where}: a second case named {case.name!r}", "give it another name, or drop it")
            cases.append(case)
        return tuple(cases)

    def check_names(
        self, node: ast.expr, where: str, args: Mapping[str, TensorSpec | Scalar], bindings: Mapping[str, Scalar]
    ) -> None:
        needed = {use.name: (use.role, arg) for arg, spec in args.items() for use in uses(spec)}
        for name, (role, arg) in needed.items():
            if name in RESERVED and role != "scalar":
                self.wrong(node, f"argument {arg!r}: {name!r} is a case's {name} and no size", "use another name")
            if name not in bindings and role in ("size", "bound"):
                self.wrong(
                    node,
                    f"{where} does not bind {name!r}, which argument {arg!r} uses; it binds "
                    f"{', '.join(bindings) or 'nothing'}",
                    f"add {name!r} to the case",
                )
        for name in bindings:
            if name not in needed:
                self.wrong(
                    node,
                    f"{where} binds {name!r}, which no argument uses; arguments use "
                    f"{', '.join(sorted(n for n, (role, _) in needed.items() if role != 'scalar')) or 'no names'}",
                    "correct the name, or drop it",
                )


def read_inputs(node: ast.expr, path: str) -> Inputs:
    """Read the value of `inputs`. Raises TaskProblem with the line of the first mistake."""
    reader = _Reader(path)
    entries = reader.entries(node, "inputs")
    for key, (key_node, _) in entries.items():
        if key not in ("args", "cases", "check"):
            reader.wrong(key_node, f"inputs has no key {key!r}; it has args, cases and check")
    for key in ("args", "cases"):
        if key not in entries:
            reader.wrong(node, f"inputs lacks {key!r}", "give args and cases")
    args = reader.args(entries["args"][1])
    cases = reader.case_list(entries["cases"][1], "cases", args, None)
    if "check" in entries:
        checks = reader.case_list(entries["check"][1], "check", args, cases[0])
    else:
        checks = reduced(args, cases)
        if not checks:
            reader.wrong(
                node,
                "no reduced sizes could be derived from the cases",
                'add "check": [{…}] to inputs, with sizes small enough to interpret',
            )
    return Inputs(args=args, cases=cases, checks=checks)
