"""A Triton driver for a device that is not there: kernels are compiled for it, and nothing is ever launched."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime.driver import driver as registry

from tilewright.harness.worker.redirect import Device


class CompileOnlyDriver(DriverBase):  # type: ignore[misc]  # triton is untyped
    """Answers what the compiler and launch code ask of a driver, for the device of a target.

    Has no launcher: `capture` takes launches before one would be needed.
    """

    def __init__(self, target: Mapping[str, Any] | None) -> None:
        self.device = Device.of(target)
        arch = self.device.major * 10 + self.device.minor
        backend = target["backend"] if target else "cuda"
        self.target = GPUTarget(backend, arch, self.device.warp_size)
        self.utils = self

    @classmethod
    def is_active(cls) -> bool:
        return True

    def get_device_properties(self, device: object = 0) -> dict[str, int]:
        """Under `utils`, where launch code looks for the number of multiprocessors."""
        return {
            "max_shared_mem": self.device.shared_bytes_per_block,
            "max_num_regs": self.device.registers,
            "multiprocessor_count": self.device.multiprocessors,
            "warpSize": self.device.warp_size,
            "sm_clock_rate": int(self.device.clock_hz / 1e3),
            "mem_clock_rate": int(self.device.clock_hz / 1e3),
            "mem_bus_width": 5120,
        }

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None:
        pass

    def get_current_stream(self, device: object = 0) -> int:
        return 0

    def get_device_capability(self, device: object = 0) -> tuple[int, int]:
        return self.device.major, self.device.minor

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", 0)

    def get_device_interface(self) -> Any:
        return torch.cuda

    def map_python_to_cpp_type(self, ty: str) -> str:
        return "void*"

    def get_benchmarker(self) -> Any:
        raise RuntimeError("this code runs without a device: it has no time to measure")

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        return torch.empty(1)

    def clear_cache(self, cache: torch.Tensor) -> None:
        pass


@contextlib.contextmanager
def driven(target: Mapping[str, Any] | None) -> Iterator[CompileOnlyDriver]:
    """Make the compile-only driver for `target` Triton's active driver, and give the old one back."""
    driver = CompileOnlyDriver(target)
    active, default = registry._active, registry._default
    registry._active = registry._default = driver
    try:
        yield driver
    finally:
        registry._active, registry._default = active, default
