"""Copies of finished rounds in the work tree, so that `cat`, `grep` and an editor work. Never read back."""

from __future__ import annotations

import os
from collections.abc import Mapping
from hashlib import sha1
from pathlib import Path

from tilewright.harness.runs.layout import folder


def write(root: Path, files: Mapping[str, bytes]) -> None:
    """Write `files` below `root`, each whole or not at all.

    Each round's round.json comes last, so that its presence says that all are there.
    """
    made: set[Path] = set()
    new = root / ".git" / "tilewright" / "copy"
    for path in sorted(files, key=lambda p: p.endswith(("/round.json", "/round.json.ref"))):
        at = root / path
        if at.parent not in made:
            at.parent.mkdir(parents=True, exist_ok=True)
            made.add(at.parent)
        new.write_bytes(files[path])
        new.replace(at)


def missing(root: Path, files: Mapping[str, str], rounds: int) -> list[str]:
    """Which of `files` (path -> git blob SHA) lack their copy, among `rounds` rounds; content is not compared.

    Only candidate.py is compared: it changes, so an old copy may be left where a process was killed.
    """
    first = [p for p in files if not p.startswith("rounds/") and not os.path.exists(root / p)]
    lost = [n for n in range(rounds) if not _copied(root, n)]
    at = tuple(f"{folder(n)}/" for n in lost)
    some = [p for p in files if p.startswith("rounds/") and p.startswith(at)] if at else []
    best = "candidate.py"
    stale = best in files and best not in first and git_sha((root / best).read_bytes()) != files[best]
    return first + some + ([best] if stale else [])


def _copied(root: Path, n: int) -> bool:
    at = f"{root}/{folder(n)}/round.json"
    return os.path.exists(at) or os.path.exists(f"{at}.ref")


def git_sha(data: bytes) -> str:
    """The name that git gives to a blob."""
    return sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
