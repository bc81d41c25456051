"""Does a run's committed observation say what its round says? What does not is refused, with the reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.harness.types import Decision, Failure, Observation, Round, Status, Verdict


def outcomes_allowed(verdict: Verdict) -> frozenset[str]:
    """The outcomes that an observation of this verdict may state; empty where it must not teach anything."""
    if verdict.status is Status.PASS:
        return frozenset({"faster", "slower", "flagged"})
    if verdict.status is Status.INFRA or verdict.failure is Failure.UNSUPPORTED:
        return frozenset()
    if verdict.status is Status.FAIL:
        return frozenset({"compile" if verdict.failure is Failure.COMPILE else "wrong"})
    return frozenset({"flagged"})


def disagreement(
    seen: Observation, rounds: Mapping[int, Round], sources: Mapping[int, str], number: int, run: str
) -> str:
    """Why the observation in round `number`'s folder is not what the round was; empty when it agrees.

    `sources` are the SHA-256 of the committed candidates by round, `run` the identity in run.json.
    """
    done = rounds.get(number)
    if done is None or seen.round != number:
        return f"it speaks of round {seen.round}, and stands in the folder of round {number}"
    if seen.run != run:
        return f"it speaks of run {seen.run!r}, and this is {run!r}"
    if seen.candidate != done.candidate or sources.get(number) != seen.candidate:
        return "its candidate is not the one that was judged and committed"
    if done.move is None or (seen.direction, seen.strategy) != (done.move.direction, done.move.strategy):
        return "its strategy is not the round's"
    allowed = outcomes_allowed(done.verdict)
    if seen.outcome not in allowed:
        wanted = " or ".join(sorted(allowed)) or "no observation"
        return f"its outcome is {seen.outcome}, the verdict {done.verdict.status} allows {wanted}"
    if not 0 <= seen.reward_ppm <= 1_000_000 or (seen.reward_ppm > 0 and seen.outcome != "faster"):
        return f"a reward of {seen.reward_ppm} ppm does not go with {seen.outcome}"
    if done.parent is None or tuple(seen.prefix) != lineage(rounds, done.parent):
        return "its prefix is not the accepted moves of its parent's lineage"
    parent, child = rounds[done.parent].verdict.time_us, done.verdict.time_us
    if parent and child and seen.outcome in ("faster", "slower") and (child < parent) != (seen.outcome == "faster"):
        return f"its outcome is {seen.outcome}, and the times are {parent:.3f} µs before, {child:.3f} µs after"
    return ""


def lineage(rounds: Mapping[int, Round], n: int | None) -> tuple[str, ...]:
    """Directions of the accepted moves on the lineage that ends at round `n`, oldest first."""
    found: list[str] = []
    while n is not None and n in rounds:
        at = rounds[n]
        if at.move and at.decision is Decision.KEPT:
            found.append(at.move.direction)
        n = at.parent
    return tuple(reversed(found))


def outcomes(observations: Sequence[Observation]) -> dict[str, int]:
    """How many of each outcome."""
    counts: dict[str, int] = {}
    for one in observations:
        counts[one.outcome] = counts.get(one.outcome, 0) + 1
    return dict(sorted(counts.items()))
