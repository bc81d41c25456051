"""Scaffolding: what a function needs is found, copied with its comments, and runs on its own."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tilewright.harness.errors import TaskProblem
from tilewright.harness.tasks import load_task
from tilewright.harness.tasks.scaffold import scaffold, skeleton
from tilewright.harness.tasks.source import imports, is_allowed

Package = Callable[..., None]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Package:
    """Writes modules of a package that can be found, and that fails when it is imported."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(**modules: str) -> None:
        for name, text in {"__init__": "raise RuntimeError('a package was run')", **modules}.items():
            path = tmp_path / "shop" / f"{name.replace('sub_', 'sub/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))

    return write


def run(source: str) -> dict[str, Any]:
    """Execute a scaffolded source and return what it defines."""
    for _, name in imports(ast.parse(source)):
        assert is_allowed(name), source
    namespace: dict[str, Any] = {"__name__": "scaffolded"}
    exec(compile(source, "scaffolded", "exec"), namespace)
    return namespace


def test_helpers_constants_and_comments_come_along_and_nothing_else(package: Package) -> None:
    package(
        a='''
        import math
        import json
        from shop.b import double as twice

        # How often.
        TIMES = 3
        UNUSED = json


        # Adds up.
        def total(x):  # of x
            """Doc."""
            return TIMES * twice(x) + math.floor(0.5)


        def other():
            return json
        ''',
        b="""
        FACTOR = 2


        def double(x):
            return FACTOR * x  # exactly
        """,
    )
    source = scaffold("shop.a:total")
    assert run(source)["total"](7) == 42
    for kept in ("# How often.\nTIMES = 3", "# Adds up.\ndef total(x):  # of x", "# exactly", "# from shop.b, line"):
        assert kept in source
    assert "json" not in source
    assert source.index("def double") < source.index("def total")
    assert source == scaffold("shop.a:total")


def test_names_that_clash_are_told_apart(package: Package) -> None:
    package(
        a="""
        from shop import b
        from shop.c import size as other
        import shop.d

        def size():
            return 1

        def total(b_2=5):
            size_2 = 10
            return [size(), b.size(), other(), shop.d.size(), size_2, b_2]
        """,
        b="def size():\n    return helper()\n\ndef helper():\n    return 2\n",
        c="def size():\n    return helper()\n\ndef helper():\n    return 3\n",
        d="import math as size_3\n\ndef size():\n    return size_3.floor(4.5)\n",
    )
    assert run(scaffold("shop.a:total"))["total"]() == [1, 2, 3, 4, 10, 5]


def test_locals_keep_their_names_and_their_meaning(package: Package) -> None:
    package(
        a="""
        from shop.b import scale as factor

        def total(values):
            scale = 100
            inner = lambda scale: scale + factor(1)
            class Box:
                scale = 3
                def get(self):
                    return factor(self.scale)
            return [scale, inner(1), Box().get(), [factor(scale) for scale in values]]
        """,
        b="def scale(x):\n    return 2 * x\n",
    )
    assert run(scaffold("shop.a:total"))["total"]([1, 2]) == [100, 3, 6, [2, 4]]


def test_blocks_that_define_a_name_come_whole(package: Package) -> None:
    package(
        a="""
        import operator
        from shop.b import ready

        if ready(operator.ge):
            try:
                from nowhere_at_all import fast
            except ImportError:
                from math import floor as fast
        else:
            fast = None

        TABLE = {}
        TABLE["x"] = 5
        TABLE.update(y=6)
        for name in ("p", "q"):
            TABLE[name] = len(TABLE)

        def total():
            return fast(1.5), sorted(TABLE.items())
        """,
        b="""
        def ready(compare):
            try:
                import not_installed_either
            except Exception:
                return compare(2, 1)
            return not_installed_either
        """,
    )
    done = run(scaffold("shop.a:total"))["total"]()
    assert done == (1, [("p", 2), ("q", 3), ("x", 5), ("y", 6)])


def test_imports_inside_functions_are_followed(package: Package) -> None:
    package(
        a="""
        def total(x):
            from shop.b import double, half as split
            return double(x), split(x)
        """,
        b="def double(x):\n    return 2 * x\n\ndef half(x):\n    return x // 2\n",
    )
    assert run(scaffold("shop.a:total"))["total"](8) == (16, 4)


def test_an_optional_import_of_the_package_s_own_is_followed(package: Package) -> None:
    package(
        a="""
        try:
            from shop.b import double
        except ImportError:
            double = None

        try:
            from shop.gone import treble
        except ImportError:
            treble = None

        def total(x):
            return double(x), treble
        """,
        b="def double(x):\n    return 2 * x\n",
    )
    assert run(scaffold("shop.a:total"))["total"](4) == (8, None)


def test_re_exports_relative_imports_and_stars_are_followed(package: Package) -> None:
    package(
        sub___init__="from .deep import *\nfrom ..b import double\n",
        sub_deep="__all__ = ['treble']\n\ndef treble(x):\n    return 3 * x\n\ndef hidden():\n    return 0\n",
        a="from .sub import double, treble\n\ndef total(x):\n    return double(x) + treble(x)\n",
        b="def double(x):\n    return 2 * x\n",
    )
    source = scaffold("shop.a:total")
    assert run(source)["total"](2) == 10
    assert "hidden" not in source


def test_a_file_beside_the_function_s_is_followed(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import beside\n\ndef total(x):\n    return beside.double(x)\n")
    (tmp_path / "beside.py").write_text("def double(x):\n    return 2 * x\n")
    assert run(scaffold(f"{tmp_path / 'mine.py'}:total"))["total"](4) == 8


def test_what_torch_carries_is_taken_from_torch(package: Package) -> None:
    package(a="from packaging.version import Version\n\ndef newer(a, b):\n    return Version(a) > Version(b)\n")
    assert "from torch._vendor.packaging.version import Version" in scaffold("shop.a:newer")


def test_annotations_that_are_never_evaluated_need_nothing(package: Package) -> None:
    package(
        a="""
        from __future__ import annotations
        from typing import TYPE_CHECKING
        import numpy as np

        if TYPE_CHECKING:
            from somewhere import Thing

        def total(x: Thing, y: np.ndarray) -> Thing:
            z: np.ndarray = x + y
            return z
        """
    )
    assert run(scaffold("shop.a:total"))["total"](1, 2) == 3


@pytest.mark.parametrize(
    ("module", "spec", "says"),
    [
        ("import numpy as np\n\ndef total():\n    return np.zeros(3)\n", "shop.a:total", "uses 'np' from 'numpy'"),
        ("def total():\n    return unheard_of\n", "shop.a:total", "uses 'unheard_of'"),
        ("from shop.gone import f\n\ndef total():\n    return f\n", "shop.a:total", "'shop.gone.f', which is not"),
        ("from shop import b\n\ndef total():\n    return vars(b)\n", "shop.a:total", "as a value"),
        ("def total():\n    import numpy\n    return numpy\n", "shop.a:total", "imports 'numpy'"),
        ("x = 1\n", "shop.a:total", "does not define 'total'"),
        ("x = (\n", "shop.a:total", "syntax error"),
        ("", "shop.a.total", "expected package.module:function"),
        ("", "shop.nothing:total", "no module 'shop.nothing'"),
        ("", "not_installed_at_all.x:f", "no module 'not_installed_at_all'"),
    ],
)
def test_what_cannot_be_followed_is_named(package: Package, module: str, spec: str, says: str) -> None:
    package(a=module, b="")
    with pytest.raises(TaskProblem) as error:
        scaffold(spec)
    assert says in str(error.value)


KERNELS = """
import torch
import triton
import triton.language as tl

BLOCK = 128


@triton.jit
def scale_kernel(x_ptr, y_ptr, n, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) * factor, mask=at < n)


def scale(x, factor=2.0):
    y = torch.empty_like(x)
    scale_kernel[(triton.cdiv(x.numel(), BLOCK),)](x, y, x.numel(), factor, BLOCK=BLOCK)
    return y, factor


class Scale(torch.autograd.Function):
    pass
"""
TASK = """
import torch

start = "shop.a:scale"
inputs = {"args": {"x": "float32[N]", "factor": 2.0}, "cases": [{"N": 1000}]}


def reference(x, factor):
    return x * factor
"""
ADAPTER = """

def launch(x, factor):
    y, _ = scale(x, factor)
    return y
"""


def test_an_unfilled_skeleton_says_what_is_missing_until_it_is_filled_in(package: Package, tmp_path: Path) -> None:
    package(a=KERNELS)
    text = skeleton("shop.a:scale")
    path = tmp_path / "scale.py"
    path.write_text(text)
    with pytest.raises(TaskProblem, match="argument 'x' is not filled in") as error:
        load_task(str(path))
    assert error.value.line == text[: text.index('"x": ...')].count("\n") + 1
    text = text.replace('"x": ...', '"x": "float32[M, N]"')
    path.write_text(text)
    with pytest.raises(TaskProblem, match="'M' is not filled in"):
        load_task(str(path))
    text = text.replace('{"M": ..., "N": ...}', '{"M": 64, "N": 1000}')
    path.write_text(text)
    with pytest.raises(TaskProblem, match="reference is not filled in"):
        load_task(str(path))
    path.write_text(text.replace("raise NotImplementedError(", "return x * factor  # ("))
    task = load_task(str(path))
    assert task.args["factor"] == 2.0
    assert "def scale_kernel" in task.start
    assert "return scale(x, factor)" in task.start


def test_a_task_may_start_from_a_function_with_an_adapter(package: Package, tmp_path: Path) -> None:
    package(a=KERNELS)
    path = tmp_path / "task.py"
    path.write_text(TASK + ADAPTER)
    task = load_task(str(path))
    assert task.source == TASK + ADAPTER
    assert "reference" not in task.start
    assert task.start.rstrip().endswith("y, _ = scale(x, factor)\n    return y")
    assert "# from shop.a, line 9\n@triton.jit" in task.start
    compile(task.start, "start", "exec")


def test_without_an_adapter_the_function_is_called_directly(package: Package, tmp_path: Path) -> None:
    package(a=KERNELS)
    path = tmp_path / "task.py"
    path.write_text(TASK)
    assert "def launch(x, factor):\n    return scale(x, factor)\n" in load_task(str(path)).start


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (TASK.replace("shop.a:scale", "shop.a:Scale"), "shop.a:Scale is a class"),
        (TASK.replace("shop.a:scale", "shop.a:scale_kernel"), "a kernel alone cannot be launched"),
        (TASK.replace("shop.a:scale", "shop.a:shrink"), "does not define 'shrink'"),
        (TASK.replace("x, factor", "x, factor, y").replace("2.0}", '2.0, "y": 1}'), "cannot be called with"),
        (TASK + ADAPTER.replace("scale(", "shrink("), "uses 'shrink'"),
        (TASK + "\n\ndef launch(x, factor):\n    return x\n", "launch does not use 'scale'"),
        (TASK + ADAPTER + "\n\ndef scale(x):\n    return x\n", "a 'scale' of its own"),
    ],
)
def test_a_start_that_does_not_fit_is_reported_at_its_line(
    package: Package, tmp_path: Path, text: str, says: str
) -> None:
    package(a=KERNELS)
    path = tmp_path / "task.py"
    path.write_text(text)
    with pytest.raises(TaskProblem) as error:
        load_task(str(path))
    assert says in str(error.value)
    assert error.value.line == 4
