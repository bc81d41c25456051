"""How results are put into words: a ratio of measured times is a speed-up, one of modelled times never is."""

from __future__ import annotations

from tilewright.harness.types import Claim, How, Json, Proof, Receipt, Round, Verdict

CORRECT = {
    How.MEASURED: "checked on the device",
    How.INTERPRETER: "checked in Triton's interpreter, at reduced sizes",
    How.COMPILED: "compiled only",
    How.MODELLED: "not checked",
    How.NOT_CHECKED: "not checked",
}


def ratio(value: float | None, timed: How | str) -> str:
    """Start over candidate, with the word for the kind of time: `1.83x measured`, `1.83x modelled`."""
    return "" if value is None else f"{value:.2f}x {timed}"


def found(verdict: Verdict) -> str:
    """A verdict in a word or two: `PASS`, `FAIL wrong`."""
    return f"{verdict.status} {verdict.failure}" if verdict.failure else str(verdict.status)


def microseconds(value: float) -> str:
    """A time with a unit that suits it."""
    return f"{value / 1000:.3g} ms" if value >= 1000 else f"{value:.3g} µs"


def claimed(claim: Claim) -> str:
    """A claim in words: `programs falls`, `num_warps == 8`."""
    return " ".join(str(part) for part in (claim.fact, claim.relation, claim.value) if part is not None)


def finished(path: str, rounds: int, candidates: int, best: Round, proof: Proof | None) -> dict[str, Json]:
    """The last object of `--json`. `speedup` stands only where both times were measured."""
    verdict = best.verdict
    result: dict[str, Json] = {"round": best.n}
    if verdict.timed is How.MEASURED:
        result["speedup"] = best.ratio
    elif verdict.timed is How.MODELLED:
        result["predicted_ratio"] = best.ratio
    result |= {
        "baseline": "start",
        "time": str(verdict.timed),
        "correct": str(verdict.correct),
        "not_checked": list(proof.not_checked) if proof is not None else [],
    }
    return {"event": "finished", "run": path, "rounds": rounds, "candidates": candidates, "best": result}


def outcome(best: Round, start: Round, proof: Proof | None) -> list[str]:
    """The result for a person, a sentence a line."""
    verdict = best.verdict
    lines = []
    if best.n == 0:
        lines.append("no candidate was better: the start is still the best")
    elif best.ratio is not None:
        how = best.move.strategy if best.move else best.label
        before, after = start.verdict.time_us, verdict.time_us
        times = f": {microseconds(before)} -> {microseconds(after)}" if before and after else ""
        if verdict.timed is How.MEASURED:
            lines.append(f"best: round {best.n} ({how}), speed-up {best.ratio:.2f}x over the start, measured{times}")
        else:
            lines.append(
                f"best: round {best.n} ({how}), modelled {best.ratio:.2f}x the start's rate{times}; "
                "a prediction, nothing was timed"
            )
    if best.claim is not None and best.receipt is Receipt.REALISED:
        lines.append(f"seen in the compiled kernel, as claimed: {claimed(best.claim)}")
    lines.append(f"correctness: {CORRECT[verdict.correct]}")
    if proof is not None and proof.not_checked:
        lines.append("not checked: " + "; ".join(proof.not_checked))
    return lines
