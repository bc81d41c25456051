"""Two long-lived processes that the tests of rewrites share: one interprets candidates, one compiles them."""

from __future__ import annotations

import ast
import base64
import functools
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tilewright.harness.types import Target
from tilewright.knowledge.rewrites import Situation
from tilewright.knowledge.targets import target

Array = npt.NDArray[np.float64]
HERE = Path(__file__).parent


@dataclass
class Child:
    """A process that answers one JSON line with another."""

    process: subprocess.Popen[str]

    def ask(self, job: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, "the child process ended"
        answer: dict[str, Any] = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()


def start(mode: str) -> Child:
    command = [sys.executable, str(HERE / "child.py"), mode]
    return Child(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))


@dataclass
class Interpreter(Child):
    """Runs candidates in Triton's interpreter."""

    def run(self, source: str, args: list[Any], seed: int = 0, entry: str = "launch") -> list[Array]:
        """What the entry returns, then its arguments afterwards; as float64."""
        answer = self.ask({"source": source, "args": args, "seed": seed, "entry": entry})
        return [
            np.frombuffer(base64.b64decode(o["data"]), dtype=np.float64).reshape(o["shape"]) for o in answer["outputs"]
        ]

    def same(self, before: str, after: str, args: list[Any], tolerance: float = 2e-5, entry: str = "launch") -> None:
        """Fails unless both sources give the same results on the same arguments."""
        old, new = self.run(before, args, entry=entry), self.run(after, args, entry=entry)
        assert len(old) == len(new)
        for a, b in zip(old, new, strict=True):
            np.testing.assert_allclose(b, a, rtol=tolerance, atol=tolerance)


@dataclass
class Compiler(Child):
    """Compiles candidates for sm_90."""

    def launches(self, source: str, args: list[Any], entry: str = "launch") -> list[dict[str, Any]]:
        """Each launch in order: kernel, grid, num_warps, ttir, ttgir, ptx."""
        found: list[dict[str, Any]] = self.ask({"source": source, "args": args, "entry": entry})["launches"]
        return found

    def one(self, source: str, args: list[Any], entry: str = "launch") -> dict[str, Any]:
        """The only launch."""
        (found,) = self.launches(source, args, entry)
        return found


@pytest.fixture(scope="session")
def widths() -> Callable[[dict[str, Any]], list[int]]:
    """The widths of a compiled launch's global loads in bits, each once."""
    access = re.compile(r"ld\.global[.\w:]*?(?:\.v(\d))?\.b(\d+)")
    return lambda launch: sorted({int(n or 1) * int(bits) for n, bits in access.findall(launch["ptx"])})


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Interpreter]:
    child = Interpreter(start("interpret").process)
    yield child
    child.close()


@pytest.fixture(scope="session")
def compiler() -> Iterator[Compiler]:
    child = Compiler(start("compile").process)
    yield child
    child.close()


@pytest.fixture(scope="session")
def hopper() -> Target:
    return target("cuda:90")


@pytest.fixture(scope="session")
def situation(hopper: Target) -> Situation:
    """Nothing is known but the target."""
    return Situation(target=hopper)


@pytest.fixture(scope="session")
def kernel() -> Callable[[str], str]:
    """The source of one of the tests' own kernels."""
    return lambda name: (HERE.parent / "kernels" / f"{name}.py").read_text()


@pytest.fixture(scope="session")
def liger() -> Callable[[str], str]:
    """One of Liger's operators as a candidate: its kernels, its launch code and what they call, in one file."""
    return lambda name: _liger(name)


_LIGER = {
    "softmax": (
        ("_softmax_single_block_forward_kernel", "_softmax_forward"),
        "def launch(x):\n    return _softmax_forward(x)[0]\n",
    ),
    "layer_norm": (
        ("_layer_norm_forward_kernel", "layer_norm_forward"),
        "def launch(x, weight, bias, eps):\n    return layer_norm_forward(x, weight, bias, eps)[0]\n",
    ),
    "rms_norm": (
        ("_rms_norm_forward_kernel", "_block_rms_norm_forward_kernel", "rms_norm_forward"),
        "def launch(x, weight, eps):\n    return rms_norm_forward(x, weight, eps, 0.0, 'llama', True)[0]\n",
    ),
    "swiglu": (
        ("silu", "_swiglu_forward_kernel", "_should_tile", "swiglu_forward"),
        "def launch(a, b):\n    return swiglu_forward(a, b)[2]\n",
    ),
}
_LIGER_HEAD = """\
from contextlib import contextmanager
from typing import Tuple

import torch
import triton
import triton.language as tl
from triton.language.extra.libdevice import rsqrt

_CASTING_MODE_NONE: tl.constexpr = tl.constexpr(-1)
_CASTING_MODE_LLAMA: tl.constexpr = tl.constexpr(0)
_CASTING_MODE_GEMMA: tl.constexpr = tl.constexpr(1)
_str_to_casting_mode = {"llama": 0, "gemma": 1, "none": -1}
_SWIGLU_TILE_MIN_BLOCK = 16384


def infer_device_arch():
    return "hopper"


def set_large_grf_mode(kernel_args):
    kernel_args["grf_mode"] = "256"


"""


@functools.cache
def _liger(name: str) -> str:
    spec = importlib.util.find_spec("liger_kernel")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent / "ops"
    functions, launch = _LIGER[name]
    shared = (folder / "utils.py").read_text()
    own = (folder / f"{name}.py").read_text()
    parts = [_cut(shared, f) for f in ("is_hip", "device_context", "calculate_settings")]
    return _LIGER_HEAD + "\n\n".join([*parts, *(_cut(own, f) for f in functions), launch])


def _cut(text: str, name: str) -> str:
    """The source of a top-level function, decorators included."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            return "".join(text.splitlines(keepends=True)[first - 1 : node.end_lineno])
    raise KeyError(name)
