"""Whether a GPU is here, asked in a process of its own: a driver that hangs or crashes takes nothing with it."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tilewright.harness.errors import MachineProblem
from tilewright.harness.types import Target

PROBE_LIMIT_S = 60.0
_PROBE = """
import json, torch
found = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
print(json.dumps([{"name": p.name, "arch": p.major * 10 + p.minor, "memory": p.total_memory} for p in found]))
"""


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU of this machine."""

    name: str
    arch: int
    """90 for compute capability 9.0."""
    memory_bytes: int


@functools.cache
def devices() -> tuple[Device, ...]:
    """The CUDA devices that torch can use here; none where there is no driver. Costs nothing where there is none."""
    if not Path("/dev/nvidiactl").exists() and not Path("/dev/dxg").exists():
        return ()
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", _PROBE],
            capture_output=True,
            timeout=PROBE_LIMIT_S,
            check=True,
            env=dict(os.environ),
        )
        listed = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return ()
    return tuple(Device(each["name"], each["arch"], each["memory"]) for each in listed)


def device_available() -> bool:
    """Whether there is a CUDA device that torch can use."""
    return bool(devices())


def present(target: Target) -> bool:
    """Whether the first device is of the target's architecture."""
    return target.backend == "cuda" and any(device.arch == target.arch for device in devices()[:1])


def require(target: Target) -> None:
    """Raise MachineProblem unless the target can be measured here."""
    if not present(target):
        found = ", ".join(f"{d.name} (cuda:{d.arch})" for d in devices()) or "no usable GPU"
        raise MachineProblem(
            f"cannot measure for {target.name}: this machine has {found}",
            "choose the device's own target, or let the time be modelled",
        )
