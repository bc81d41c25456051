"""What a run is for, and what it is made with."""

from __future__ import annotations

from importlib import metadata

from tilewright.harness.errors import TargetProblem
from tilewright.harness.types import Target

DEFAULT_TARGET = "cuda:90"
"""Compiled and modelled for where there is no GPU and none was named."""


def wanted(name: str | None) -> Target:
    """The target of a name; without one that of the GPU here, and without a GPU the default.

    Raises TargetProblem where nothing is known of it.
    """
    from tilewright.harness.judge.device import devices
    from tilewright.knowledge.targets import target, target_names

    if name is not None:
        return target(name)
    here = devices()[:1]
    if not here:
        return target(DEFAULT_TARGET)
    own = f"cuda:{here[0].arch}"
    if own not in target_names():
        raise TargetProblem(
            f"nothing is known of the GPU here, {here[0].name} ({own})",
            f"choose one with --target: {', '.join(target_names())}",
        )
    return target(own)


def versions() -> dict[str, str]:
    """Versions of what a result depends on; packages that are not installed are left out."""
    import platform

    found = {"python": platform.python_version()}
    for name in ("tilewright", "torch", "triton", "numpy"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
