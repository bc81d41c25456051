"""What a candidate is compared with: the reference in float64 whatever it asks for, and the rounding it may take."""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright.harness.judge.numbers import Array, real, to_blob
from tilewright.harness.judge.pool import Pool, Reply

Ask = Callable[..., Reply]
X = np.random.default_rng(0).standard_normal((6, 50))


@pytest.fixture(scope="session")
def ask(runner: asyncio.Runner, compiling: Pool) -> Ask:
    """Runs the body of a reference on arrays of one dtype."""

    def asked(body: str, dtype: str = "float32", mutates: tuple[str, ...] = (), **arrays: Array) -> Reply:
        tensors = {
            name: to_blob(value, dtype if value.dtype.kind == "f" else value.dtype.name)
            for name, value in arrays.items()
        }
        listed = [
            {"name": name, "tensor": {"shape": list(blob.shape), "dtype": blob.dtype, "strides": None}}
            for name, blob in tensors.items()
        ]
        source = f"import torch\ndef reference({', '.join(arrays)}):\n{textwrap.indent(textwrap.dedent(body), '    ')}"
        job = {"op": "reference", "kind": "triton", "task_source": source, "args": listed, "seed": 0}
        job |= {"mutates": list(mutates), "precision": "strict", "target": None, "lower": True}
        return runner.run(compiling.run(job, tensors, limit_s=60))

    return asked


def exact_error(reply: Reply, expected: Array) -> float:
    header, tensors = reply
    assert "failed" not in header, header
    assert header["exact"] == "float64", header
    return float(np.abs(real(tensors["exact:out0"]) - expected).max())


@pytest.mark.parametrize(
    "body",
    [
        "return torch.softmax(x, -1)",
        "return torch.softmax(x.float(), -1).to(x.dtype)",
        "return torch.softmax(x.to(torch.float32), dim=-1)",
        "return torch.softmax(x, -1, dtype=torch.float32)",
        "return torch.softmax(x + torch.zeros(50), -1)",
        "return torch.softmax(x + torch.zeros(50, dtype=torch.float16, device='cuda'), -1)",
        "e = torch.exp(x - x.amax(-1, keepdim=True)); return e / e.sum(-1, keepdim=True, dtype=torch.float32)",
    ],
)
def test_the_reference_is_computed_in_float64_whatever_it_casts_to(body: str, ask: Ask) -> None:
    wide = X.astype(np.float32).astype(np.float64)
    e = np.exp(wide - wide.max(-1, keepdims=True))
    assert exact_error(ask(body, x=X), e / e.sum(-1, keepdims=True)) < 1e-15


def test_its_own_dtype_is_kept_beside_it(ask: Ask) -> None:
    _, tensors = ask("return x * 2", "bfloat16", x=X)
    assert tensors["native:out0"].dtype == "bfloat16"
    assert tensors["exact:out0"].dtype == "float64"
    assert np.array_equal(real(tensors["native:out0"]), real(tensors["exact:out0"]))


def test_disturbed_inputs_show_how_badly_conditioned_a_result_is(ask: Ask) -> None:
    def spread(body: str) -> float:
        _, tensors = ask(body, x=X, y=X * 1.0001)
        exact = real(tensors["exact:out0"])
        return float(np.abs(real(tensors["moved0:out0"])).max() / np.abs(exact).max())

    assert 1e-9 < spread("return x * 1") < 2**-24
    assert spread("return x - y") > 1e-4


def test_whole_numbers_are_never_cast(ask: Ask) -> None:
    header, tensors = ask(
        "assert i.dtype is torch.int64\nreturn x.gather(1, i), i + 1", x=X, i=np.zeros((6, 1), np.int64)
    )
    assert "failed" not in header, header
    assert tensors["native:out1"].dtype == "int64"
    assert "exact:out0" in tensors


def test_a_reference_that_has_no_float64_says_why(ask: Ask) -> None:
    header, _ = ask("assert x.dtype is torch.float32, 'float32 only'\nreturn x + 1", x=X)
    assert header["exact"] == "native"
    assert "float32 only" in header["exact_note"]


def test_what_it_overwrites_is_a_result_and_what_it_only_may_overwrite_is_not(ask: Ask) -> None:
    header, tensors = ask("x.add_(1)", mutates=("x", "y"), x=X, y=X)
    assert header["mutated"] == ["x"]
    assert [name for name in tensors if name.startswith("native:")] == ["native:mutated:x"]


def test_a_run_in_lower_precision_is_off_by_what_that_loses(ask: Ask) -> None:
    for dtype, bits in (("float32", 11), ("float16", 4), ("bfloat16", 3)):
        _, tensors = ask("return x * 1", dtype, x=X)
        exact, lower = real(tensors["exact:out0"]), real(tensors["lower:out0"])
        worst = float((np.abs(lower - exact) / np.abs(exact)).max())
        assert 2.0 ** -(bits + 2) < worst <= 2.0**-bits


def test_a_reference_that_draws_random_numbers_draws_the_same_again(ask: Ask) -> None:
    body = "return x + torch.randint(0, 9, x.shape)"
    first, again = ask(body, x=X)[1], ask(body, x=X)[1]
    assert bytes(first["native:out0"].data) == bytes(again["native:out0"].data)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return x @ x", "RuntimeError"),
        ("return {'a': x}", "expected a tensor"),
        ("pass", "nothing to compare"),
        ("import os; os._exit(0)", "exited with status 0"),
    ],
)
def test_a_reference_that_fails_is_reported(body: str, expected: str, ask: Ask) -> None:
    header: dict[str, Any] = ask(body, x=X)[0]
    assert expected in header["failed"]["detail"]
