"""What a run looks like on disk: which file holds what, and what a commit says of its round."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Container, Mapping
from dataclasses import dataclass, replace

from tilewright.harness import codec
from tilewright.harness.errors import RunCorrupt, RunProblem
from tilewright.harness.runs.secrets import leaked, scrub_json
from tilewright.harness.types import (
    Decision,
    Evidence,
    How,
    Observation,
    Proof,
    Record,
    Round,
    Settings,
    Target,
    Task,
    Verdict,
    sha256,
)

MAIN = "refs/heads/main"
"""The rounds, one commit each: the only truth."""
BEST = "refs/tilewright/best"
"""The commit of the best round so far: a convenience, derived from MAIN."""
FORMAT = 1
LARGE = 256 * 1024
"""Bytes above which a JSON file is stored compressed, once by content, under blobs/ (IR dumps, conversations)."""
ROUND_JSON = re.compile(r"rounds/\d{2,}/(\d{4,})/round\.json(?:\.ref)?")
OBSERVATION_JSON = re.compile(r"rounds/\d{2,}/(\d{4,})/observation\.json")
EVIDENCE_JSON = re.compile(r"rounds/\d{2,}/(\d{4,})/evidence/([0-9a-f]{64})\.json(?:\.ref)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """run.json: what a run was made from. Written once."""

    format: int = FORMAT
    task: Task
    target: Target
    settings: Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """verdict.json: a round's verdict with what stands behind it."""

    verdict: Verdict
    proof: Proof | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointer:
    """`<path>.ref`: stands for a large file at `path`, which is stored compressed under blobs/."""

    blob: str
    """SHA-256 of the content."""
    bytes: int
    """Its size before compression."""


def folder(n: int) -> str:
    """Where round `n` is; sharded by hundreds, because a folder of 10,000 entries makes every commit slow."""
    return f"rounds/{n // 100:02d}/{n:04d}"


def first_files(header: Header, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files of a run's first commit: run.json, and the task's own files byte for byte.

    Raises RunProblem where the task holds the value of a secret of this environment.
    """
    made = {"run.json": codec.dump(header), **{f"task/{path}": data for path, data in files.items()}}
    for path, data in made.items():
        if name := leaked(data):
            raise RunProblem(
                f"{path} would hold the value of the environment variable {name}, and a run's history may be published",
                f"take it out of the task, or, if {name} is no secret, run with `env -u {name}`",
            )
    return made


def first_message(header: Header) -> str:
    """The message of a run's first commit."""
    return (
        f"Start on {_line(header.task.name)} for {_line(header.target.name)}\n\n"
        f"Task-SHA256: {header.task.digest}\nTarget: {_line(header.target.name)}\n"
        f"Tilewright: {_line(header.settings.versions.get('tilewright', 'unknown'))}\n"
    )


def evidence_name(evidence: Evidence) -> str:
    """The SHA-256 that stands for a piece of evidence: its key, or where it has none that of its content."""
    return evidence.key if re.fullmatch(r"[0-9a-f]{64}", evidence.key) else sha256(codec.dump(evidence))


def round_files(record: Record, have: Container[str]) -> tuple[Record, dict[str, bytes]]:
    """A record as it is stored, without secrets, and its files; `have` are the paths that exist already."""
    done = replace(record.round, evidence=tuple(evidence_name(e) for e in record.evidence))
    if record.source is not None and sha256(record.source) != done.candidate:
        raise ValueError(f"round {done.n}: the source is not the candidate that was judged")
    at = folder(done.n)
    text = scrub_json(codec.dump(done))
    record = replace(record, round=codec.load(Round, text))  # what a later reader sees, everyone sees
    texts = {
        f"{at}/round.json": text,
        f"{at}/verdict.json": codec.dump(Judgement(verdict=done.verdict, proof=record.proof)),
    }
    for evidence in record.evidence:
        texts[f"{at}/evidence/{evidence_name(evidence)}.json"] = codec.dump(evidence)
    if record.observation is not None:
        texts[f"{at}/observation.json"] = codec.dump(record.observation)
    if record.messages is not None:
        texts[f"{at}/messages.json"] = json.dumps(record.messages, indent=1, ensure_ascii=False).encode() + b"\n"
    made: dict[str, bytes] = {}
    for path, text in texts.items():
        made |= _stored(path, scrub_json(text), have)
    sources = {f"{at}/trials/{digest[:12]}.py": source for digest, source in record.trials.items()}
    if record.source is not None:
        sources[f"{at}/candidate.py"] = record.source
        if done.n == 0 or done.decision is Decision.KEPT:
            sources["candidate.py"] = record.source
    for path, source in sources.items():
        made[path] = source.encode()
        if name := leaked(made[path]):  # the journal has scrubbed every candidate before it was judged
            raise RunProblem(
                f"{path} holds the value of the environment variable {name}",
                f"if {name} is no secret, run with `env -u {name}`",
            )
    return record, made


def _stored(path: str, text: bytes, have: Container[str]) -> dict[str, bytes]:
    if len(text) <= LARGE:
        return {path: text}
    pointer = Pointer(blob=sha256(text), bytes=len(text))
    blob = f"blobs/{pointer.blob}.z"
    # Level 6 and no time stamp: the same content gives the same bytes, so git keeps it once.
    packed = {} if blob in have else {blob: zlib.compress(text, 6)}
    return {f"{path}.ref": codec.dump(pointer), **packed}


def unpack(pointer: Pointer, packed: bytes, path: str) -> bytes:
    """A large file's content again. Raises RunCorrupt where it is not what the pointer says."""
    try:
        text = zlib.decompress(packed)
    except zlib.error as error:
        raise RunCorrupt(f"blobs/{pointer.blob}.z, which {path} refers to, cannot be unpacked: {error}") from error
    if sha256(text) != pointer.blob:
        raise RunCorrupt(f"blobs/{pointer.blob}.z, which {path} refers to, holds something else")
    return text


def round_message(done: Round, observation: Observation | None) -> str:
    """A round's commit message: what it did in plain words, then trailers for programs."""
    return f"round {done.n}: {_did(done)}\n\n" + "".join(
        f"{name}: {value}\n" for name, value in trailers(done, observation).items()
    )


def trailers(done: Round, observation: Observation | None) -> dict[str, str]:
    """What a commit says of its round to programs, in order; a trailer that has nothing to say is left out."""
    verdict, move = done.verdict, done.move
    measured = verdict.timed is How.MEASURED
    said = {
        "Round": str(done.n),
        "Parent-Round": "" if done.parent is None else str(done.parent),
        "Direction": _line(move.direction) if move else "",
        "Strategy": _line(move.strategy) if move else "",
        "Verdict": verdict.status.value,
        "Failure": verdict.failure.value if verdict.failure else "",
        "Decision": done.decision.value,
        "Speedup": f"{done.ratio:.4f}" if measured and done.ratio is not None else "",
        "Predicted-Ratio": f"{done.ratio:.4f}" if not measured and done.ratio is not None else "",
        "Time": verdict.timed.value,
        "Correct": verdict.correct.value,
        "Level": done.reached.value,
        "Candidate-SHA256": done.candidate or "",
        "Observation": observation.digest if observation else "",
    }
    return {name: value for name, value in said.items() if value}


def _did(done: Round) -> str:
    verdict = done.verdict
    found = f"{verdict.status} {verdict.failure}" if verdict.failure else str(verdict.status)
    if done.ratio is not None:
        measured = verdict.timed is How.MEASURED
        found = f"{verdict.status}, {done.ratio:.3f} times the start's speed, {'measured' if measured else 'predicted'}"
    if done.n == 0:
        return f"the baseline ({found})" if done.decision is Decision.KEPT else f"the baseline fails ({found})"
    tried = _line(done.move.strategy) if done.move else "no move"
    if done.candidate is None:
        return f"no candidate for {tried}"
    return f"{done.decision} {tried} ({found})"


def _line(text: str) -> str:
    """One line of printable text: what comes from elsewhere cannot forge a trailer."""
    return "".join(c if c.isprintable() else " " for c in text).strip()[:200] or "-"
