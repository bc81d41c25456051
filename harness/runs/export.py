"""The winner of a run as files that stand alone: the module, its proof for programs, its proof for people."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tilewright.harness import codec
from tilewright.harness.decide import ratios
from tilewright.harness.errors import RunProblem
from tilewright.harness.runs.layout import Judgement
from tilewright.harness.runs.reading import best_of
from tilewright.harness.runs.views import Reader
from tilewright.harness.types import Decision, How, Json, Proof, Round, Task, Verdict

CORRECT = {
    How.MEASURED: "on the device, at the task's own sizes",
    How.INTERPRETER: "in Triton's interpreter on the CPU, at reduced sizes; it has not run on a GPU",
    How.NOT_CHECKED: "not checked",
}
TIMED = {
    How.MEASURED: "measured on the device",
    How.MODELLED: "computed by a cost model from what the compiler produced; a prediction, nothing was timed",
    How.NOT_CHECKED: "not timed",
}


def export(path: str | Path) -> dict[str, bytes]:
    """The best kept candidate of the run at `path`: `<task>.py`, proof.json and PROOF.md, as path -> content.

    Raises RunProblem where it is no run, or where no round beat the start: then there is nothing to export.
    """
    reader = Reader(path)
    rounds = reader.rounds
    best = best_of(rounds) if rounds else None
    if best is None or best.n == 0 or best.decision is not Decision.KEPT:
        done = f"{len(rounds) - 1} rounds" if rounds else "no round"
        raise RunProblem(
            f"{path}: nothing to export: after {done} the start is still the best",
            "go on with `tilewright resume --rounds N`, or `tilewright show` why rounds were discarded",
        )
    source, proof, task = reader.source(best), reader.proof(best.n), reader.header.task
    if source is None or proof is None:
        raise RunProblem(f"{path}: round {best.n} was kept without a candidate or a proof", "run `tilewright fsck`")
    name = re.sub(r"\W+", "_", task.name).strip("_") or "kernel"
    judged = Judgement(verdict=best.verdict, proof=proof)
    text = "\n".join(_proof(task, rounds[0], best, proof)) + "\n"
    return {f"{name}.py": source.encode(), "proof.json": codec.dump(judged), "PROOF.md": text.encode()}


def _proof(task: Task, start: Round, best: Round, proof: Proof) -> Iterator[str]:
    verdict = best.verdict
    yield f"# {task.name}: round {best.n}"
    yield ""
    yield from _claim(best)
    yield ""
    yield "| | SHA-256 |"
    yield "|---|---|"
    yield f"| candidate | `{proof.candidate}` |"
    yield f"| task | `{proof.task}` |"
    yield ""
    yield f"Target: {proof.target}. Confinement: {proof.confinement}."
    yield ""
    yield "## Results"
    yield ""
    yield f"Correctness was established {CORRECT.get(verdict.correct, verdict.correct)}."
    yield from _block("The contract", proof.contract)
    yield from _block("Errors found beside what was allowed", proof.errors)
    yield ""
    yield "## Time"
    yield ""
    yield f"Times are {TIMED.get(verdict.timed, verdict.timed)}."
    yield ""
    yield from _times(start.verdict, verdict)
    yield from _block("Terms of the modelled time", proof.model)
    if proof.samples_us:
        yield ""
        yield "Raw samples are in proof.json, by case."
    yield ""
    yield "## What the compiler made of it"
    yield ""
    for kernel in proof.kernels:
        facts = ", ".join(f"{name} {value}" for name, value in kernel.facts.items())
        yield f"- `{kernel.kernel}`, case {kernel.case}, grid {kernel.grid}, {kernel.launches} a call: {facts}"
    if best.claim:
        claim = best.claim
        value = "" if claim.value is None else f" {claim.value}"
        yield ""
        yield f"The edit claimed: {claim.fact} {claim.relation}{value}. In the compiled kernel that is {best.receipt}."
    yield ""
    yield "## Not checked"
    yield ""
    for item in proof.not_checked or _left_out(verdict):
        yield f"- {item}"
    yield ""
    yield "## With"
    yield ""
    for name, version in sorted(proof.versions.items()):
        yield f"- {name} {version}"


def _claim(best: Round) -> Iterator[str]:
    if best.ratio is None:
        yield "No speed-up over the start is claimed."
    elif best.verdict.timed is How.MEASURED:
        yield f"{best.ratio:.3f} times the speed of the start, measured ({best.verdict.proof})."
    else:
        yield f"Predicted, not measured: {best.ratio:.3f} times the speed of the start by the cost model."
    if best.move:
        yield ""
        yield f"Strategy of the last step: {best.move.strategy} ({best.move.direction}). {best.hypothesis}".rstrip()


def _left_out(verdict: Verdict) -> Iterator[str]:
    """What follows from the kinds of evidence alone, where the judge listed nothing."""
    if verdict.correct is not How.MEASURED:
        yield "the result on a GPU, and at full sizes"
    if verdict.timed is not How.MEASURED:
        yield "the time on a GPU"
    if verdict.proof != "proof":
        yield f"the full contract: this verdict is a {verdict.proof}, made to steer the search"


def _times(start: Verdict, verdict: Verdict) -> Iterator[str]:
    gains = ratios(start, verdict) if start.timed is verdict.timed else {}
    yield f"| case | weight | {verdict.timed} µs | start / this | floor µs | bound by |"
    yield "|---|---:|---:|---:|---:|---|"
    for t in verdict.times:
        gain = f"{gains[t.case]:.3f}" if t.case in gains else ""
        yield f"| {t.case} | {t.weight:g} | {t.time_us:.3f} | {gain} | {t.floor_us:.3f} | {t.bound} |"


def _block(title: str, data: Json) -> Iterator[str]:
    """Structured data under a title, as JSON; nothing where there is none."""
    if data is None:
        return
    yield ""
    yield f"{title}:"
    yield "```json"
    yield codec.dump(data, object).decode().rstrip()
    yield "```"
