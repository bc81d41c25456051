"""Code written for a CUDA device, run where there is none: `device="cuda"` becomes ordinary memory.

Under `redirected(target)` tensors that the code believes to be on the GPU live in CPU memory, and every question
about the device (`x.is_cuda`, `x.device`, `torch.cuda.get_device_capability()`, …) is answered for the target.
A tensor that the code leaves on the CPU is remembered as such, so that handing it to a kernel is found out.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_CUDA = re.compile(r"cuda(:\d+)?$")
_CUDA_DEVICE = torch.device("cuda", 0)
_CPU_DEVICE = torch.device("cpu")
_MARK = "_tilewright_on_cpu"


@dataclass(frozen=True, slots=True)
class Device:
    """What code may ask about the device. From a target's fields, or an A100-like one where there is no target."""

    name: str = "generic device of compute capability 8.0"
    major: int = 8
    minor: int = 0
    warp_size: int = 32
    multiprocessors: int = 108
    clock_hz: float = 1.41e9
    l2_bytes: int = 41943040
    shared_bytes_per_multiprocessor: int = 167936
    shared_bytes_per_block: int = 166912
    registers: int = 65536
    warps: int = 64

    @classmethod
    def of(cls, target: Mapping[str, Any] | None) -> Device:
        """The device of a target given as a mapping of its fields."""
        if target is None:
            return cls()
        return cls(
            name=target["device"],
            major=target["arch"] // 10,
            minor=target["arch"] % 10,
            warp_size=target["warp_size"],
            multiprocessors=target["multiprocessors"],
            clock_hz=target["clock_hz"],
            l2_bytes=target["l2_bytes"],
            shared_bytes_per_multiprocessor=target["shared_bytes_per_multiprocessor"],
            shared_bytes_per_block=target["shared_bytes_per_block"],
            registers=target["registers_per_multiprocessor"],
            warps=target["warps_per_multiprocessor"],
        )

    def properties(self) -> SimpleNamespace:
        """What `torch.cuda.get_device_properties` returns."""
        return SimpleNamespace(
            name=self.name,
            major=self.major,
            minor=self.minor,
            total_memory=80 << 30,
            multi_processor_count=self.multiprocessors,
            warp_size=self.warp_size,
            L2_cache_size=self.l2_bytes,
            clock_rate=int(self.clock_hz / 1e3),
            regs_per_multiprocessor=self.registers,
            max_threads_per_block=1024,
            max_threads_per_multi_processor=self.warps * self.warp_size,
            shared_memory_per_block=49152,
            shared_memory_per_block_optin=self.shared_bytes_per_block,
            shared_memory_per_multiprocessor=self.shared_bytes_per_multiprocessor,
            is_integrated=0,
            is_multi_gpu_board=0,
            gcnArchName="",
        )


def on_cpu(tensor: torch.Tensor) -> bool:
    """Whether the redirected code left this tensor on the CPU."""
    return bool(tensor.__dict__.get(_MARK, False))


@contextlib.contextmanager
def redirected(target: Mapping[str, Any] | None) -> Iterator[None]:
    """Answer for `target` (a mapping of its fields; None: some A100) and keep CUDA tensors in CPU memory.

    Everything is undone on the way out. Tensors made outside count as being on the device.
    """
    device = Device.of(target)
    mode = _CudaInCpuMemory()
    undo: list[tuple[Any, str, Any]] = []
    for owner, answers in _answers(device, mode):
        for name, value in answers.items():
            undo.append((owner, name, getattr(owner, name, undo)))
            setattr(owner, name, value)
    try:
        with mode:
            yield
    finally:
        for owner, name, old in reversed(undo):
            if old is undo:
                delattr(owner, name)
            else:
                setattr(owner, name, old)


def _is_cuda(device: Any) -> bool:
    if isinstance(device, torch.device):
        return device.type == "cuda"
    if isinstance(device, str):
        return _CUDA.match(device) is not None
    return isinstance(device, int) and not isinstance(device, bool)


class _CudaInCpuMemory(TorchFunctionMode):
    """Sees every torch call of the code, and maps its devices."""

    def __init__(self) -> None:
        super().__init__()
        self.default_is_cuda = False
        self._getters: dict[Any, Callable[[torch.Tensor], Any]] = {
            torch.Tensor.is_cuda.__get__: lambda t: not on_cpu(t),  # type: ignore[attr-defined]  # a C getter
            torch.Tensor.is_cpu.__get__: on_cpu,  # type: ignore[attr-defined]  # a C getter
            torch.Tensor.device.__get__: lambda t: _CPU_DEVICE if on_cpu(t) else _CUDA_DEVICE,
            torch.Tensor.get_device: lambda t: -1 if on_cpu(t) else 0,
        }

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if (getter := self._getters.get(func)) is not None:
            return getter(args[0])
        name = getattr(func, "__name__", "")
        if name in ("cuda", "cpu") and isinstance(args[0], torch.Tensor):
            return _moved(args[0], to_cuda=name == "cuda")
        if name in ("pin_memory", "record_stream", "is_pinned") and args and isinstance(args[0], torch.Tensor):
            return {"pin_memory": args[0], "record_stream": None, "is_pinned": False}[name]
        kwargs = dict(kwargs or {})
        kwargs.pop("pin_memory", None)
        asked = kwargs.get("device")
        if asked is not None and _is_cuda(asked):
            kwargs["device"] = _CPU_DEVICE
        if name == "to":
            args, asked = _plain_to(args, asked)
        out = func(*args, **kwargs)
        self._remember(out, args, kwargs, asked, name)
        return out

    def _remember(self, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any], asked: Any, name: str) -> None:
        """Note where the result lies: as asked, else with its inputs, else on the default device."""
        if isinstance(out, tuple | list):
            results = [each for each in out if isinstance(each, torch.Tensor)]
        elif isinstance(out, torch.Tensor):
            results = [out]
        else:
            return
        if asked is not None:
            left = not _is_cuda(asked)
        else:
            inputs = list(_tensors((*args, *kwargs.values())))
            left = all(on_cpu(each) for each in inputs) if inputs else not self.default_is_cuda
        inputs_by_id = {id(each) for each in _tensors(args)}
        for each in results:
            if id(each) not in inputs_by_id or name == "to":
                each.__dict__[_MARK] = left


def _plain_to(args: tuple[Any, ...], asked: Any) -> tuple[tuple[Any, ...], Any]:
    """`x.to("cuda", …)` without its device; the device asked for, by word or by another tensor."""
    plain: list[Any] = [args[0]]
    for arg in args[1:]:
        if isinstance(arg, torch.device | str) or (isinstance(arg, int) and not isinstance(arg, bool)):
            asked = arg
            plain.append(_CPU_DEVICE)
        else:
            if isinstance(arg, torch.Tensor):
                asked = _CPU_DEVICE if on_cpu(arg) else _CUDA_DEVICE
            plain.append(arg)
    if asked is not None and on_cpu(args[0]) == _is_cuda(asked):
        plain[0] = _moved(args[0], to_cuda=_is_cuda(asked))
    return tuple(plain), asked


def _moved(tensor: torch.Tensor, *, to_cuda: bool) -> torch.Tensor:
    if on_cpu(tensor) != to_cuda:
        return tensor
    copy = tensor.detach().clone()
    copy.__dict__[_MARK] = not to_cuda
    return copy


def _tensors(args: tuple[Any, ...]) -> Iterator[torch.Tensor]:
    for arg in args:
        if isinstance(arg, torch.Tensor):
            yield arg
        elif isinstance(arg, tuple | list):
            yield from _tensors(tuple(arg))


class _Stream:
    """A stream or an event on which nothing is ever pending; both a context manager and a handle."""

    cuda_stream = 0
    cuda_event = 0
    device = _CUDA_DEVICE
    device_index = 0
    stream_id = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def query(self) -> bool:
        return True

    def record_event(self, event: _Stream | None = None) -> _Stream:
        return event or _Stream()

    def elapsed_time(self, end: object) -> float:
        raise RuntimeError("this code runs without a device: it has no time to measure")

    def _nothing(self, *args: object, **kwargs: object) -> None:
        pass

    synchronize = wait = wait_stream = wait_event = record = _nothing


class _Chosen(contextlib.AbstractContextManager[None]):
    """`torch.cuda.device(…)`, `device_of`, `stream`: there is only one to choose."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        self.idx, self.prev_idx = 0, -1

    def __exit__(self, *error: object) -> None:
        pass


class _Generator(torch.Generator):
    """A generator for the device draws on the CPU."""

    def __new__(cls, device: Any = "cpu") -> _Generator:
        return super().__new__(cls, "cpu")  # type: ignore[call-arg]  # torch's stub declares __init__ only


def _answers(device: Device, mode: _CudaInCpuMemory) -> list[tuple[Any, dict[str, Any]]]:
    """What to set on which module while redirected."""

    def always(value: Any) -> Callable[..., Any]:
        return lambda *args, **kwargs: value

    def set_default_device(device: Any) -> None:
        mode.default_is_cuda = device is not None and _is_cuda(device)

    cuda = {
        "is_available": always(True),
        "is_initialized": always(True),
        "init": always(None),
        "_lazy_init": always(None),
        "device_count": always(1),
        "current_device": always(0),
        "set_device": always(None),
        "get_device_name": always(device.name),
        "get_device_capability": always((device.major, device.minor)),
        "get_device_properties": always(device.properties()),
        "get_arch_list": always([f"sm_{device.major}{device.minor}"]),
        "is_bf16_supported": always(True),
        "is_current_stream_capturing": always(False),
        "mem_get_info": always((80 << 30, 80 << 30)),
        "memory_allocated": always(0),
        "max_memory_allocated": always(0),
        "memory_reserved": always(0),
        "reset_peak_memory_stats": always(None),
        "empty_cache": always(None),
        "synchronize": always(None),
        "manual_seed": torch.default_generator.manual_seed,
        "manual_seed_all": torch.default_generator.manual_seed,
        "Stream": _Stream,
        "Event": _Stream,
        "current_stream": always(_Stream()),
        "default_stream": always(_Stream()),
        "set_stream": always(None),
        "stream": _Chosen,
        "device": _Chosen,
        "device_of": _Chosen,
    }
    top = {
        "set_default_device": set_default_device,
        "get_default_device": lambda: _CUDA_DEVICE if mode.default_is_cuda else _CPU_DEVICE,
        "Generator": _Generator,
    }
    answers: list[tuple[Any, dict[str, Any]]] = [
        (torch.cuda, cuda),
        (torch, top),
        (torch.version, {"cuda": torch.version.cuda or "13.0"}),
    ]
    if hasattr(torch, "accelerator"):
        accelerator = {
            "is_available": always(True),
            "device_count": always(1),
            "current_accelerator": always(torch.device("cuda")),
            "current_device_index": always(0),
            "current_device_idx": always(0),
            "set_device_index": always(None),
            "set_device_idx": always(None),
            "current_stream": always(_Stream()),
            "synchronize": always(None),
        }
        answers.append((torch.accelerator, accelerator))
    return answers
