"""Two long-lived processes that the tests of rewrites share: one interprets candidates, one compiles them."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
from collections.abc import Iterator
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


def load_bits(ptx: str) -> list[int]:
    """Width of every global load in the PTX, in bits."""
    return [int(n or 1) * int(bits) for n, bits in re.findall(r"ld\.global[.\w:]*?(?:\.v(\d))?\.b(\d+)", ptx)]


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
