"""Runs or compiles candidates for the tests, in a process of its own: `child.py interpret | compile`.

One JSON object a line comes in on standard input and one goes out. `interpret`: runs the entry on values drawn
from a seed and answers its results (and the arguments, which it may have overwritten). `compile`: runs the launch
code with a driver that compiles for sm_90 and runs nothing, and answers each launch's TTIR and PTX.
"""

import base64
import importlib.util
import itertools
import json
import os
import sys
import tempfile
import traceback
from types import ModuleType
from typing import Any

MODE = sys.argv[1]
if MODE == "interpret":
    os.environ["TRITON_INTERPRET"] = "1"
os.environ.setdefault("TRITON_CACHE_DIR", tempfile.mkdtemp())
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

import numpy as np  # noqa: E402
import torch  # noqa: E402
import triton.language as tl  # noqa: E402

torch.set_num_threads(1)


LIBDEVICE = "from triton.language.extra.libdevice import rsqrt\n"


COUNT = itertools.count(1)


def load(source: str, folder: str) -> ModuleType:
    name = f"candidate_{next(COUNT)}"
    if MODE == "interpret":  # which has no libdevice
        source = source.replace(LIBDEVICE, "def rsqrt(x):\n    return 1 / tl.sqrt(x)\n")
    path = os.path.join(folder, f"{name}.py")
    with open(path, "w") as file:
        file.write(source)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def arguments(specs: list[Any], seed: int) -> list[Any]:
    made: list[Any] = []
    for i, spec in enumerate(specs):
        if not isinstance(spec, dict):
            made.append(spec)
            continue
        rng = np.random.default_rng([seed, i])
        shape, dtype = spec["shape"], spec.get("dtype", "float32")
        if "int" in dtype:
            values: Any = rng.integers(spec.get("low", 0), spec.get("high", 10), shape)
        else:
            values = rng.standard_normal(shape)
        tensor = torch.tensor(values).to(getattr(torch, dtype))
        if "strides" in spec:
            extent = 1 + sum((n - 1) * s for n, s in zip(shape, spec["strides"], strict=True))
            tensor = torch.zeros(extent, dtype=tensor.dtype).as_strided(shape, spec["strides"]).copy_(tensor)
        made.append(tensor)
    return made


def interpret(job: dict[str, Any], folder: str) -> dict[str, Any]:
    module = load(job["source"], folder)
    for kernel in vars(module).values():
        if hasattr(kernel, "configs"):  # without a device there is nothing to tune by
            kernel.configs = kernel.configs[:1]
    args = arguments(job["args"], job.get("seed", 0))
    result = getattr(module, job.get("entry", "launch"))(*args)
    outputs = [t for t in (result if isinstance(result, tuple | list) else (result,)) if isinstance(t, torch.Tensor)]
    outputs += [a for a in args if isinstance(a, torch.Tensor)]
    return {
        "outputs": [
            {"shape": list(t.shape), "data": base64.b64encode(t.double().contiguous().numpy().tobytes()).decode()}
            for t in outputs
        ]
    }


def floats() -> None:
    """Float scalars become fp32 values, as they do in a compiled launch."""
    from triton.runtime import interpreter

    plain = interpreter._implicit_cvt

    def convert(arg: Any) -> Any:
        if isinstance(arg, float):
            return tl.tensor(interpreter.TensorHandle(np.array([arg], dtype=np.float32), tl.float32), tl.float32)
        return plain(arg)

    interpreter._implicit_cvt = convert


class Driver:
    """Compiles for one target; its launches run nothing."""

    def __init__(self, arch: int) -> None:
        from triton.backends.compiler import GPUTarget

        self.target = GPUTarget("cuda", arch, 32)
        self.launches: list[dict[str, Any]] = []
        self.utils = self

    def launcher_cls(self, src: Any, metadata: Any) -> Any:
        def run(x: int, y: int, z: int, *rest: Any) -> None:
            self.launches.append({"kernel": metadata.name, "grid": [x, y, z], "num_warps": metadata.num_warps})

        return run

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {
            "max_shared_mem": 232448, "max_num_regs": 65536, "multiprocessor_count": 132, "warpSize": 32,
            "sm_clock_rate": 1980000, "mem_clock_rate": 2619000, "mem_bus_width": 5120,
        }  # fmt: skip

    def load_binary(self, name: str, kernel: Any, shared: int, device: int) -> tuple[None, str, int, int, int]:
        return (None, name, 0, 0, 1024)

    def unload_module(self, module: Any) -> None:
        pass

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_device_interface(self) -> Any:
        return torch.cpu

    def map_python_to_cpp_type(self, ty: str) -> str:
        return "void*"

    def get_benchmarker(self) -> Any:
        def bench(fn: Any, quantiles: Any = None, **kw: Any) -> list[float]:
            fn()
            return [1.0] * (len(quantiles) if quantiles else 1)

        return bench


def compiled(job: dict[str, Any], folder: str, driver: Driver, record: list[dict[str, Any]]) -> dict[str, Any]:
    driver.launches.clear()
    record.clear()
    module = load(job["source"], folder)
    getattr(module, job.get("entry", "launch"))(*arguments(job["args"], 0))
    return {"launches": [dict(launch, **asm) for launch, asm in zip(driver.launches, record, strict=True)]}


def recording(driver: Driver) -> list[dict[str, Any]]:
    from triton.runtime.driver import driver as active
    from triton.runtime.jit import JITFunction

    active.set_active(driver)
    record: list[dict[str, Any]] = []
    plain = JITFunction.run

    def run(self: Any, *args: Any, **kw: Any) -> Any:
        before = len(driver.launches)
        kernel = plain(self, *args, **kw)
        if len(driver.launches) > before:
            record.append({stage: kernel.asm[stage] for stage in ("ttir", "ttgir", "ptx")})
        return kernel

    JITFunction.run = run
    return record


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        if MODE == "interpret":
            floats()
            np.seterr(all="ignore")

            def handle(job: dict[str, Any]) -> dict[str, Any]:
                return interpret(job, folder)

        else:
            driver = Driver(90)
            record = recording(driver)

            def handle(job: dict[str, Any]) -> dict[str, Any]:
                return compiled(job, folder, driver, record)

        for line in sys.stdin:
            try:
                answer = handle(json.loads(line))
            except BaseException:
                answer = {"error": traceback.format_exc()}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


main()
