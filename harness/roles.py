"""The roles round the loop. Protocols for the checker; anything with these methods will do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from tilewright.harness.types import (
    Candidate,
    Context,
    Evidence,
    Json,
    Judged,
    Observation,
    Proof,
    Proposal,
    Round,
    Settings,
    Target,
    Task,
)

T = TypeVar("T")


class Once(Protocol):
    """Do a costly thing once, even if the process dies: what was done before is read, not done again."""

    async def __call__(self, key: str, kind: type[T], do: Callable[[], Awaitable[T]]) -> T:
        """Return what was stored under `key`, or do it, store it durably, and return it."""


class History(Protocol):
    """What a planner may read of a run."""

    @property
    def path(self) -> str: ...
    @property
    def task(self) -> Task: ...
    @property
    def target(self) -> Target: ...
    @property
    def settings(self) -> Settings: ...
    @property
    def rounds(self) -> Sequence[Round]:
        """All finished rounds; round 0 is the baseline."""

    @property
    def best(self) -> Round:
        """The last kept round, or the baseline."""

    @property
    def observations(self) -> Sequence[Observation]:
        """What memory may learn from this run so far, in order of rounds."""

    def context(self, n: int) -> Context:
        """What memory is asked about when round `n`'s candidate is to be changed."""

    def prefix(self, n: int) -> tuple[str, ...]:
        """Directions of the accepted moves on the lineage that ends at round `n`, oldest first."""

    def source(self, n: int) -> str:
        """The candidate of round `n`; KeyError where it had none."""

    def proof(self, n: int) -> Proof:
        """What stands behind the verdict of round `n`."""


class Ask(Protocol):
    """Put one question to one skill. Never raises for a skill's failure: that is evidence too (unavailable)."""

    async def __call__(self, skill: str, tool: str, arguments: dict[str, Json]) -> Evidence: ...


class Planner(Protocol):
    """Decides what to try next and writes it. Never measures, never commits."""

    async def propose(self, history: History, ask: Ask) -> Proposal:
        """The next move with its candidates. Raises NothingLeft when there is nothing to try."""


class Skills(Protocol):
    """The skills, behind MCP."""

    async def ask(self, skill: str, tool: str, arguments: dict[str, Json]) -> Evidence:
        """As `Ask`."""


class Judge(Protocol):
    """Says whether candidates are right and how fast they are. Nobody else does."""

    async def judge(self, task: Task, candidates: Sequence[Candidate], once: Once) -> Judged:
        """Judge a batch and put the best one forward.

        Each candidate's verdict goes through `once`, so that a killed round repeats none of them.
        Raises TaskProblem where the task is at fault and MachineProblem where the machine is.
        """
