"""`tilewright log`, `show`, `diff`, `fsck` and `export`: reading what a run has left."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.harness.cli import words

if TYPE_CHECKING:
    from tilewright.harness.runs.views import Detail, LogRow, Summary

DAMAGED = 1

RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON, for programs.")]


def log(run: RunPath, as_json: AsJson = False) -> None:
    """List the rounds of a run, oldest first."""
    from dataclasses import asdict

    from tilewright.harness.runs import views

    write = sys.stdout.write
    for row in views.log(run):
        write((json.dumps(asdict(row), ensure_ascii=False) if as_json else _row(row)) + "\n")


def _row(row: LogRow) -> str:
    what = f"{row.direction} / {row.strategy}" if row.strategy else "start" if row.n == 0 else "no move"
    verdict = f"{row.verdict} {row.failure}".strip()
    ratio = words.ratio(row.ratio, row.time) if row.n else ""
    return f"{row.n:>5}  {row.decision:<9}  {verdict:<12}  {ratio:<16}  {what}".rstrip()


def show(
    run: RunPath,
    n: Annotated[int | None, typer.Argument(metavar="ROUND", help="A round's number; default: the run.")] = None,
    source: Annotated[bool, typer.Option("--source", help="Only the round's candidate, as it is.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show a run, or one of its rounds.

    What was tried and why, what was found, what was decided, and what was not checked.
    """
    from tilewright.harness.codec import plain
    from tilewright.harness.errors import Problem
    from tilewright.harness.runs import views

    if n is None:
        summary = views.summary(run)
        if source:
            raise Problem("--source needs a round", f"for example `tilewright show {run} 0 --source`")
        lines = [json.dumps(plain(summary), ensure_ascii=False)] if as_json else _summary(summary)
    else:
        detail = views.show(run, n)
        if source:
            if detail.source is None:
                raise Problem(f"{run}: round {n} has no candidate", "`tilewright log` lists the rounds")
            sys.stdout.write(detail.source)
            return
        lines = [json.dumps(plain(detail), ensure_ascii=False)] if as_json else _detail(detail)
    for line in lines:
        print(line)


def _summary(summary: Summary) -> Iterator[str]:
    yield f"run: {summary.path}"
    yield f"task: {summary.task.name} ({summary.task.kind}, {summary.task.family}), from {summary.task.path}"
    yield f"target: {summary.target.name}, {summary.target.device}"
    settings = summary.settings
    yield f"planner: {settings.planner}, memory {settings.memory}, policy {settings.policy}, seed {settings.seed}"
    yield f"rounds: {max(0, summary.rounds - 1)} and the baseline; kept: {', '.join(map(str, summary.kept)) or 'none'}"
    if summary.in_progress:
        yield f"a round was begun: `tilewright resume {summary.path}` finishes it"
    if summary.best is not None:
        best = summary.best
        ratio = f", {words.ratio(best.ratio, best.verdict.timed)}" if best.n and best.ratio else ""
        yield f"best: round {best.n}{ratio}, {words.found(best.verdict)}, {words.CORRECT[best.verdict.correct]}"


def _detail(detail: Detail) -> Iterator[str]:
    done, verdict = detail.round, detail.round.verdict
    yield f"round {done.n}, commit {detail.commit[:12]}, from round {'none' if done.parent is None else done.parent}"
    if done.move:
        yield f"move: {done.move.direction} / {done.move.strategy}"
    if done.hypothesis:
        yield f"hypothesis: {done.hypothesis}"
    if done.label:
        yield f"candidate: {done.label} ({(done.candidate or '')[:12]})"
    if done.claim:
        yield f"claim: {words.claimed(done.claim)}: {done.receipt}"
    yield f"verdict: {words.found(verdict)}" + (f": {verdict.detail}" if verdict.detail else "")
    yield f"decision: {done.decision}" + (f", {done.reason}" if done.reason else "")
    yield f"correctness: {words.CORRECT[verdict.correct]}"
    if done.n and done.ratio is not None:
        yield f"start over this: {words.ratio(done.ratio, verdict.timed)}"
    for each in verdict.times:
        time, floor = words.microseconds(each.time_us), words.microseconds(each.floor_us)
        yield f"  {each.case}: {time} {verdict.timed}, floor {floor}, bound by {each.bound}"
    for trial in done.trials:
        status = "not judged to the end" if trial.status is None else str(trial.failure or trial.status)
        time = f", {words.microseconds(trial.time_us)}" if trial.time_us is not None else ""
        yield f"  tried {trial.label or trial.candidate[:12]}: {status}{time}"
    for evidence in detail.evidence:
        note = f": {evidence.note}" if evidence.note else ""
        yield f"evidence: {evidence.skill}.{evidence.tool}, {evidence.standing}{note}"
    if done.choice:
        ranked = sorted(done.choice.distribution.items(), key=lambda item: -item[1])
        yield "choice: " + ", ".join(f"{name} {share:.2f}" for name, share in ranked)
    if detail.proof and detail.proof.not_checked:
        yield "not checked: " + "; ".join(detail.proof.not_checked)
    if done.note:
        yield f"note: {done.note}"
    yield f"cost: {done.cost.candidates} candidates, {done.cost.planning_s + done.cost.judging_s:.1f} s"


def diff(
    run: RunPath,
    a: Annotated[int, typer.Argument(metavar="A", help="A round's number.")],
    b: Annotated[int, typer.Argument(metavar="B", help="Another's.")],
) -> None:
    """Compare the candidates of two rounds."""
    from tilewright.harness.runs import views

    sys.stdout.write(views.diff(run, a, b))


def fsck(run: RunPath, as_json: AsJson = False) -> None:
    """Check a run against itself.

    Exit status 1 where something was lost or edited.
    """
    from dataclasses import asdict

    from tilewright.harness.runs.fsck import fsck as check
    from tilewright.knowledge.memory.statistics import refolded

    findings = check(run, refolded)
    for finding in findings:
        kind = "damage" if finding.fatal else "warning"
        print(
            json.dumps(asdict(finding), ensure_ascii=False)
            if as_json
            else f"{kind}: {finding.where}: {finding.what}; {finding.remedy}"
        )
    if any(finding.fatal for finding in findings):
        raise typer.Exit(DAMAGED)
    if not as_json:
        print(f"{run}: sound" + (f", {len(findings)} warnings" if findings else ""))


def export(
    run: RunPath,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder to write to; default: TASK-best.")
    ] = None,
) -> None:
    """Write out the best candidate with its proof.

    A module that stands alone, proof.json for programs and PROOF.md for people.
    """
    from tilewright.harness.errors import Problem
    from tilewright.harness.runs.export import export as exported

    files = exported(run)
    name = next(path for path in files if path.endswith(".py")).removesuffix(".py")
    folder = output if output is not None else Path(f"{name}-best")
    there = [path for path in files if (folder / path).exists()]
    if there:
        raise Problem(f"{folder} holds {', '.join(there)} already", "choose another folder; nothing was overwritten")
    try:
        for path, data in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)
    except OSError as error:
        for path in files:  # none of them was there before
            with suppress(OSError):
                (folder / path).unlink()
        raise Problem(f"{folder} cannot be written: {error.strerror}", "choose another folder") from None
    for path in files:
        print(folder / path)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (log, show, diff, fsck, export):
        app.command()(command)
