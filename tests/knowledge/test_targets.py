"""The devices that kernels are made fast for."""

from __future__ import annotations

import dataclasses

import pytest

from tilewright.harness.errors import KnowledgeProblem, TargetProblem
from tilewright.harness.types import Target
from tilewright.knowledge.targets import read, target, target_names


def test_the_promised_targets_are_there() -> None:
    assert {"cuda:80", "cuda:90", "cuda:100"} <= set(target_names())


@pytest.mark.parametrize("name", target_names())
def test_every_target_hangs_together_and_says_where_it_comes_from(name: str) -> None:
    found = target(name)
    assert found.name == name == f"{found.backend}:{found.arch}"
    assert len(found.source) > 40
    assert 1e9 < found.clock_hz < 4e9
    assert found.dram_bytes_per_s < found.l2_bytes_per_s
    assert 1e-7 < found.dram_latency_s < 1e-5
    assert 1e-6 < found.launch_s < 1e-4
    # An FMA a lane and cycle, 128 lanes a multiprocessor: what the sheets call fp32 peak, give or take A100's 64.
    lanes = found.fp32_flops_per_s / (2 * found.clock_hz * found.multiprocessors)
    assert lanes == pytest.approx(64 if found.arch == 80 else 128, rel=0.05)
    assert found.tensor_flops_per_s["fp16"] == found.tensor_flops_per_s["bf16"] >= found.tensor_flops_per_s["tf32"]


def test_an_unknown_target_names_those_that_exist() -> None:
    with pytest.raises(TargetProblem, match="no target is called 'cuda:70'") as caught:
        target("cuda:70")
    assert "cuda:90" in caught.value.remedy


def text_of(found: Target, **changes: object) -> str:
    values = {**dataclasses.asdict(found), **changes}
    del values["name"]
    rates = values.pop("tensor_flops_per_s")
    lines = [f"{key} = {value!r}" for key, value in values.items() if value is not None]
    if isinstance(rates, dict):
        lines += ["[tensor_flops_per_s]", *(f"{key} = {value!r}" for key, value in rates.items())]
    return "\n".join(lines).replace("'", '"')


def test_a_file_that_is_right_reads_back_the_same() -> None:
    found = dataclasses.replace(target("cuda:90"), source="a test")
    assert read("cuda:90", text_of(found), "here") == found


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clock_hz": None}, "here: missing clock_hz"),
        ({"colour": "green"}, "here: unknown key colour"),
        ({"l2_bytes": 1.5}, "here: l2_bytes: expected a whole number, found 1.5"),
        ({"arch": True}, "here: arch: expected a whole number, found True"),
        ({"dram_bytes_per_s": -1.0}, "here: dram_bytes_per_s: expected a positive number, found -1.0"),
        ({"launch_s": "soon"}, "here: launch_s: expected a positive number, found 'soon'"),
        ({"source": " "}, "here: source: expected words, found ' '"),
        ({"tensor_flops_per_s": {"fp13": 1.0}}, "here: tensor_flops_per_s: expected a table"),
        ({"tensor_flops_per_s": {"fp16": 0}}, "here: tensor_flops_per_s.fp16: expected a positive number, found 0"),
        ({"shared_bytes_per_block": 1 << 30}, "here: shared_bytes_per_block exceeds"),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_key_expectation_and_finding(
    changes: dict[str, object], message: str
) -> None:
    text = text_of(dataclasses.replace(target("cuda:90"), source="a test"), **changes).replace("True", "true")
    with pytest.raises(KnowledgeProblem) as caught:
        read("cuda:90", text, "here")
    assert str(caught.value).startswith(message)


def test_a_file_that_is_no_toml_is_refused() -> None:
    with pytest.raises(KnowledgeProblem, match="here: not TOML"):
        read("cuda:90", "clock = = 3", "here")
