"""Folders that workers write to. They go when the work is done; those of a process that was killed go later."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from pathlib import Path

_OURS = re.compile(r"tilewright-[a-z]+-(\d+)-\w+")


def made(what: str) -> str:
    """A new folder for `what` (job, pool, seed) that names the process it belongs to."""
    return tempfile.mkdtemp(prefix=f"tilewright-{what}-{os.getpid()}-")


def swept(*, older_than_s: float = 3600.0) -> int:
    """Delete this user's folders whose process is gone and that are old enough; return how many.

    The age is for processes that cannot be seen from here (in another container, on the same /tmp). A process that
    has taken over a dead one's number keeps its folders alive until it ends too: no harm.
    """
    gone, now = 0, time.time()
    for folder in Path(tempfile.gettempdir()).glob("tilewright-*"):
        owner = _OURS.fullmatch(folder.name)
        if owner is None or Path("/proc", owner[1]).exists() or folder.is_symlink():
            continue
        try:
            found = folder.stat()
        except FileNotFoundError:
            continue
        if found.st_uid == os.getuid() and now - found.st_mtime >= older_than_s:
            shutil.rmtree(folder, ignore_errors=True)
            gone += 1
    return gone
