"""Tasks: what to optimise and what it must compute, read from files of Python that are never executed here."""

from __future__ import annotations

from tilewright.harness.tasks.load import load_task

__all__ = ["load_task"]
