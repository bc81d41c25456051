"""Append to a git repository and read from it: plumbing only, so that no index, work tree or hook is involved.

Every commit is one `git fast-import`: atomic, and refused unless it extends the tip (compare-and-swap). All
commands run with the user's git configuration and GIT_* environment shut out, so neither can break a run, and
with the settings that could run somebody's program (hooks, file-system monitors) switched off.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilewright.harness.errors import Problem, RunCorrupt, RunProblem

WHO = "Tilewright <tilewright@localhost>"
"""Author and committer of every commit; the machine and the person stay out of a history that may be published."""

CONFIG = """\
[core]
\trepositoryformatversion = 0
\tfilemode = true
\tbare = false
\tlogallrefupdates = false
\tfsync = committed,reference
\thooksPath = /dev/null
[user]
\tname = Tilewright
\temail = tilewright@localhost
[commit]
\tgpgsign = false
[gc]
\tauto = 0
[fastimport]
\tunpackLimit = 1
"""
# One small pack a commit costs two fsyncs where a dozen loose objects cost a dozen; `tidy` rolls the packs up.

_OVERRIDES = {"core.hooksPath": "/dev/null", "core.fsmonitor": "false", "core.fsync": "committed,reference"}
_CHUNK = 2000
"""Objects asked of one `git cat-file`: bounds memory, and one process is 3 ms."""
_KEEP = ("GIT_PYTHON_", "GIT_EXEC_PATH")


@dataclass(frozen=True, slots=True)
class Entry:
    """A commit in short."""

    sha: str
    when_s: int
    subject: str
    trailers: Mapping[str, str]
    changed: tuple[tuple[str, str], ...] = ()
    """(status letter, path) of each file changed, where asked for."""


@dataclass(frozen=True, slots=True)
class _Done:
    code: int
    out: bytes
    err: str


@dataclass(slots=True)
class Store:
    """One repository with a work tree at `path`. Holds no process and no cache: cheap to make."""

    path: Path
    inherit: tuple[int, ...] = ()
    """File descriptors that writing git processes keep open, so that a lock outlives its owner's last commit."""
    _git: Any = field(default=None, repr=False)

    @property
    def gitdir(self) -> Path:
        """Where git keeps its data."""
        return self.path / ".git"

    @classmethod
    def init(cls, path: Path) -> Store:
        """Make an empty repository at `path` (which must exist), or make one anew that has no commit yet."""
        store = cls(path)
        store._ok(store._run("init", "--quiet", "--template=", "--initial-branch=main"), "make a repository")
        (store.gitdir / "config").write_text(CONFIG)
        return store

    def append(
        self,
        ref: str,
        parent: str | None,
        message: str,
        files: Mapping[str, bytes],
        *,
        deletes: Iterable[str] = (),
        when_s: int | None = None,
    ) -> str:
        """Commit `files` on top of `parent` and move `ref` there; return the new commit's SHA.

        All or nothing. Raises RunProblem when `ref` no longer stands at `parent` or before it (another writer
        was faster), when a lock file was left behind, and when the disk is full or cannot be written.
        """
        stream = _stream(ref, parent, message, files, deletes, int(time.time()) if when_s is None else when_s)
        done = self._run("fast-import", "--quiet", "--done", "--date-format=raw", input=stream, write=True)
        if done.code != 0:
            for report in self.gitdir.glob("fast_import_crash_*"):
                report.unlink(missing_ok=True)
            raise self._problem(done, f"commit to {ref}")
        return done.out.decode().split()[0]

    def tip(self, ref: str) -> str | None:
        """The commit that `ref` points to, or None where there is no such ref."""
        done = self._run("rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")
        return done.out.decode().strip() if done.code == 0 else None

    def point(self, ref: str, new: str) -> None:
        """Move `ref` to commit `new`, wherever it stood."""
        self._ok(self._run("update-ref", ref, new, write=True), f"move {ref}")

    def read(self, at: str, path: str) -> bytes:
        """The file `path` at commit or ref `at`. Raises KeyError where there is none."""
        ((_, data),) = self.blobs([f"{at}:{path}"])
        if data is None:
            raise KeyError(path)
        return data

    def files(self, at: str, under: str = "") -> dict[str, str]:
        """Every file at commit or ref `at` below the folder `under`, as path -> blob SHA."""
        names = [under] if under else []
        done = self._run("ls-tree", "-r", "-z", "--full-tree", at, *names)
        if done.code != 0:
            raise RunCorrupt(f"{self.path}: cannot list the files of {at}: {_last(done.err)}", FSCK)
        listed = {}
        for line in done.out.decode(errors="surrogateescape").split("\0")[:-1]:
            meta, _, path = line.partition("\t")
            listed[path] = meta[-40:]
        return listed

    def blobs(self, names: Iterable[str]) -> Iterator[tuple[str, bytes | None]]:
        """The contents of many blobs, each named by SHA or `ref:path`, in order; None where one cannot be read."""
        wanted = list(names)
        chunks = [wanted[at : at + _CHUNK] for at in range(0, len(wanted), _CHUNK)]
        if len(chunks) < 2:
            yield from (pair for chunk in chunks for pair in self._batch(chunk))
            return
        # Two at a time, a third waiting: git inflates while the caller decodes, and memory stays bounded.
        ahead: deque[Future[list[tuple[str, bytes | None]]]] = deque()
        with ThreadPoolExecutor(2) as pool:
            for chunk in chunks:
                ahead.append(pool.submit(self._batch, chunk))
                if len(ahead) == 3:
                    yield from ahead.popleft().result()
            for waiting in ahead:
                yield from waiting.result()

    def _batch(self, names: list[str]) -> list[tuple[str, bytes | None]]:
        read: list[tuple[str, bytes | None]] = []
        while len(read) < len(names):
            rest = names[len(read) :]
            done = self._run("cat-file", "--batch", "--buffer", input="".join(f"{n}\n" for n in rest).encode())
            read += zip(rest, _parse_batch(done.out), strict=False)
            if len(read) < len(names):  # git dies at a corrupt object: pass that one over, go on after it
                read.append((names[len(read)], None))
        return read

    def log(self, ref: str, *, changes: bool = False, limit: int | None = None) -> Iterator[Entry]:
        """The commits of `ref`, oldest first (with `limit`: the newest only), with their trailers.

        Raises RunCorrupt where the history cannot be followed.
        """
        wanted = ["--raw", "--no-renames", "--no-abbrev"] if changes else []
        some = [f"--max-count={limit}"] if limit else []
        # A commit begins with 0x1e; -z would put NULs inside entries when changes are listed too.
        form = "--format=tformat:%x1e%H%x1f%ct%x1f%s%x1f%(trailers:only,unfold)%x1f"
        done = self._run("-c", "core.quotePath=false", "log", "--reverse", "--no-decorate", *some, *wanted, form, ref)
        if done.code != 0:
            raise RunCorrupt(f"{self.path}: cannot follow the history of {ref}: {_last(done.err)}", FSCK)
        for record in done.out.decode(errors="replace").split("\x1e")[1:]:
            sha, when, subject, trailers, rest = record.split("\x1f")
            pairs = (line.partition(": ")[::2] for line in trailers.splitlines() if line)
            yield Entry(sha, int(when), subject, dict(pairs), _changes(rest) if changes else ())

    def check(self) -> list[str]:
        """What `git fsck` has to say: nothing when every object is there and is what its name says."""
        done = self._run("fsck", "--full", "--no-dangling", "--no-progress", "--no-reflogs")
        lines = [x for x in (done.out.decode(errors="replace") + done.err).splitlines() if x.strip()]
        return [x for x in lines if not x.startswith(("notice:", "warning: ", "dangling "))] or (
            [f"git fsck ended with status {done.code}"] if done.code else []
        )

    def refresh_index(self, ref: str) -> None:
        """Make git's index equal `ref`, so that `git status` is clean; best effort, nothing of ours reads it."""
        made = self.gitdir / "index.new"
        done = self._run("read-tree", ref, index=made, write=True)
        if done.code == 0:
            self._run("update-index", "-q", "--refresh", index=made, write=True)
            os.replace(made, self.gitdir / "index")
        made.unlink(missing_ok=True)

    def tidy(self) -> None:
        """Roll small packs up into larger ones, geometrically; best effort (an old git may not know how)."""
        self._run("repack", "--geometric=2", "-d", "-n", "-q", write=True)

    def clear(self, *refs: str) -> None:
        """Remove what a killed git left: lock files of `refs` and unfinished packs. Only for the one writer."""
        for name in ("HEAD", "packed-refs", *refs):  # git locks HEAD too when the branch that it names moves
            (self.gitdir / f"{name}.lock").unlink(missing_ok=True)
        for rest in [*self.gitdir.glob("objects/pack/tmp_*"), *self.gitdir.glob("fast_import_crash_*")]:
            rest.unlink(missing_ok=True)

    # --- processes -------------------------------------------------------------------------------------

    def _run(self, *args: str, input: bytes | None = None, write: bool = False, index: Path | None = None) -> _Done:
        own = {
            "GIT_DIR": str(self.gitdir.absolute()),
            "GIT_WORK_TREE": str(self.path.absolute()),
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_SYSTEM": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_CONFIG_COUNT": str(len(_OVERRIDES)),
            **{f"GIT_CONFIG_KEY_{i}": key for i, key in enumerate(_OVERRIDES)},
            **{f"GIT_CONFIG_VALUE_{i}": value for i, value in enumerate(_OVERRIDES.values())},
        }
        if index:
            own["GIT_INDEX_FILE"] = str(index.absolute())
        git = self._python_git()
        command = [git.GIT_PYTHON_GIT_EXECUTABLE, *args]
        foreign = [k for k in os.environ if k.startswith("GIT_") and k not in own and not k.startswith(_KEEP)]
        if foreign:  # GitPython can add to the environment but not take away
            command = ["env", *(f"--unset={name}" for name in foreign), *command]
        process = git.execute(
            command,
            istream=subprocess.PIPE if input is not None else None,
            as_process=True,
            env=own,
            start_new_session=True,  # Ctrl-C is for us: git finishes what it writes
            pass_fds=self.inherit if write else (),
        )
        out, err = process.communicate(input)
        return _Done(process.returncode, out, err.decode(errors="replace"))

    def _python_git(self) -> Any:
        if self._git is None:
            os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
            with _plain_environment():  # it asks git's version as it is imported
                import git

            if not git.GIT_OK:
                raise Problem("git was not found, and every run is a git repository", "install git 2.36 or newer")
            self._git = git.Git(str(self.path))
        return self._git

    def _ok(self, done: _Done, what: str) -> _Done:
        if done.code != 0:
            raise self._problem(done, what)
        return done

    def _problem(self, done: _Done, what: str) -> RunProblem:
        """Why git failed, as a cause and a remedy."""
        said, where = done.err, f"{self.path}: could not {what}"
        if "Not updating" in said:
            return RunProblem(
                f"{where}: another process has committed to this run meanwhile", "use one process at a time on a run"
            )
        if found := re.search(r"Unable to create '(.+\.lock)': File exists", said):
            lock = Path(found[1])
            try:
                age = f"was left {max(0.0, time.time() - lock.stat().st_mtime):.0f} s ago"
            except FileNotFoundError:
                age = "was there until just now, left"
            return RunProblem(
                f"{where}: {lock} {age} by a git process that died, or still runs",
                f"if no git process is at work on this run, delete it: rm {lock}",
            )
        if done.code == -signal.SIGXFSZ:
            return os_problem(OSError(errno.EFBIG, os.strerror(errno.EFBIG)), where)
        for code in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG):
            if os.strerror(code) in said:
                return os_problem(OSError(code, os.strerror(code)), where)
        return RunProblem(f"{where}: {_last(said) or f'git ended with status {done.code}'}", FSCK)


FSCK = "`tilewright fsck RUN` says what is damaged"

REMEDIES = {
    errno.ENOSPC: "make room on that disk, then go on with `tilewright resume`",
    errno.EDQUOT: "make room in your quota, then go on with `tilewright resume`",
    errno.EFBIG: "raise the file size limit (`ulimit -f`), then go on with `tilewright resume`",
    errno.EROFS: "the file system is read-only: choose another place with --run",
    errno.EACCES: "you may not do that there: mend the permissions, or choose another place with --run",
    errno.EPERM: "you may not do that there: mend the permissions, or choose another place with --run",
    errno.EIO: "the disk reports errors: copy the run elsewhere and check it with `tilewright fsck`",
}


@contextmanager
def _plain_environment() -> Iterator[None]:
    """The user's git configuration and GIT_* variables out of the way: one that is broken stops any git."""
    kept = {k: os.environ.pop(k) for k in list(os.environ) if k.startswith("GIT_") and not k.startswith(_KEEP)}
    os.environ |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    try:
        yield
    finally:
        del os.environ["GIT_CONFIG_GLOBAL"], os.environ["GIT_CONFIG_NOSYSTEM"]
        os.environ |= kept


def os_problem(error: OSError, where: str) -> RunProblem:
    """A failure of the file system as a cause and a remedy; the cause names `where` and the system's own word."""
    reason = error.strerror or str(error)
    return RunProblem(f"{where}: {reason}", REMEDIES.get(error.errno or 0, "mend that, then try again"))


def read_many(path: str | Path, ref: str, suffix: str) -> Iterator[tuple[str, bytes]]:
    """Every file of a repository at `ref` whose path ends in `suffix`, as (path, content), without a checkout.

    Raises RunProblem where `path` is no repository or has no such ref, RunCorrupt where a file cannot be read.
    """
    store = Store(Path(path))
    if not store.gitdir.is_dir() or store.tip(ref) is None:
        raise RunProblem(f"{path} is not a run: it has no {ref}", "give a directory made by `tilewright optimize`")
    wanted = {p: oid for p, oid in store.files(ref).items() if p.endswith(suffix)}
    for name, (_, data) in zip(wanted, store.blobs(wanted.values()), strict=True):
        if data is None:
            raise RunCorrupt(f"{path}: {name} cannot be read", FSCK)
        yield name, data


def _stream(
    ref: str, parent: str | None, message: str, files: Mapping[str, bytes], deletes: Iterable[str], when_s: int
) -> bytes:
    """The commit in the language of `git fast-import`."""
    text = message.encode()
    parts = [f"commit {ref}\nmark :1\ncommitter {WHO} {when_s} +0000\ndata {len(text)}\n".encode(), text, b"\n"]
    if parent:
        parts.append(f"from {parent}\n".encode())
    parts += [f"D {_checked(path)}\n".encode() for path in deletes]
    for path, data in files.items():
        parts += [f"M 100644 inline {_checked(path)}\ndata {len(data)}\n".encode(), data, b"\n"]
    parts.append(b"get-mark :1\ndone\n")
    return b"".join(parts)


def _checked(path: str) -> str:
    """A path that git and fast-import take as it stands; ValueError for one that would leave the tree."""
    parts = path.split("/")
    if re.search(r'[\x00-\x1f"\\]', path) or any(p in ("", ".", "..") or p.lower() == ".git" for p in parts):
        raise ValueError(f"not a path that a repository can hold: {path!r}")
    return path


def _parse_batch(out: bytes) -> Iterator[bytes | None]:
    at = 0
    while at < len(out):
        end = out.index(b"\n", at)
        head = out[at:end]
        if head.endswith((b" missing", b" ambiguous")):
            yield None
            at = end + 1
            continue
        size = int(head.rsplit(b" ", 1)[1])
        if end + 1 + size >= len(out):
            return  # cut short: git died while it wrote this one
        yield out[end + 1 : end + 1 + size]
        at = end + size + 2


def _changes(raw: str) -> tuple[tuple[str, str], ...]:
    lines = (line for line in raw.splitlines() if line.startswith(":"))
    return tuple((meta.rsplit(" ", 1)[1], path) for meta, _, path in (line.partition("\t") for line in lines))


def _last(said: str) -> str:
    lines: Sequence[str] = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1] if lines else ""
