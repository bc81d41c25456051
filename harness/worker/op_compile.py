"""Compile what a candidate launches, for a target that need not be here, and say what the compiler made of it.

Job: kind, source, entry, args, target (a mapping of its fields); for KernelBench `task_source`; `ir` asks for texts.
Reply: `kernels`, one a distinct launch: kernel, grid, launches, facts, digest, args, lines, meta; `order`, indices
into it, one a launch; `autotuned`, which configuration stands for an autotuned kernel; `compulsory_bytes`, the entry's
tensor arguments and results once each; `result_bytes`, those of results that are no argument's memory. With `ir` the
tensors `ir/N/ttir`, `ir/N/ttgir` and `ir/N/ptx` hold the texts of kernel N. An operation of torch's own that the launch
code makes on the device is listed too, as a kernel named `torch:…` that has bytes and no registers.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Mapping
from typing import Any

import torch
from triton.compiler.errors import CompilationError
from triton.runtime.errors import PTXASError

from tilewright.harness.worker import facts, resources
from tilewright.harness.worker.autotuned import first_that_fits
from tilewright.harness.worker.capture import CompilerFailed, DoesNotFit, Launch, capturing, checked
from tilewright.harness.worker.failed import Failed, sentence
from tilewright.harness.worker.outcome import chain, foreign_lines
from tilewright.harness.worker.redirect import redirected
from tilewright.harness.worker.virtual import TorchOp, Virtual, prepared
from tilewright.harness.worker.wire import Blob

IR_TEXTS = ("ttir", "ttgir", "ptx")


def handle(job: dict[str, Any], tensors: dict[str, Blob]) -> tuple[dict[str, Any], dict[str, Blob]]:
    """See the module. Raises Failed: `compile` for a kernel, `launch` for the code round it."""
    target = job["target"]
    virtual = Virtual()
    with redirected(target), virtual, first_that_fits() as chosen:
        try:
            with capturing(target, lambda launch: virtual.noted.append(checked(launch))):
                foreign = prepared(job, tensors)
                with virtual.recording(), torch.no_grad():
                    returned = foreign.call(*foreign.args)
        except Exception as error:
            if (failed := _failure(error, job["source"])) is not None:
                raise failed from error
            raise
        reply, texts = _reply(job, foreign.args, virtual.noted)
        autotuned = [dataclasses.asdict(each) for each in chosen]
        sizes = {
            "compulsory_bytes": _compulsory_bytes(job, foreign.args, returned),
            "result_bytes": _result_bytes(foreign.args, returned),
        }
        return {**reply, "autotuned": autotuned, **sizes}, texts


# --- what went well ---------------------------------------------------------------------------------------


def _reply(job: Mapping[str, Any], args: list[Any], noted: list[Any]) -> tuple[dict[str, Any], dict[str, Blob]]:
    kernels: list[dict[str, Any]] = []
    index: dict[Any, int] = {}
    order: list[int] = []
    texts: dict[str, Blob] = {}
    storages = _storages(job, args)
    made: dict[int, tuple[dict[str, facts.Fact], str]] = {}
    for each in noted:
        if isinstance(each, Launch):
            if id(each.kernel) not in made:
                made[id(each.kernel)] = kernel_facts(each.kernel)
            entry = _launched(each, *made[id(each.kernel)], storages)
        else:
            entry = _torch_entry(each)
        key = (entry["kernel"], entry["digest"], tuple(entry["grid"]))
        if key not in index:
            index[key] = len(kernels)
            kernels.append(entry)
            if job.get("ir") and isinstance(each, Launch):
                for name in IR_TEXTS:
                    text = each.kernel.asm[name].encode()
                    texts[f"ir/{index[key]}/{name}"] = Blob("uint8", (len(text),), text)
        kernels[index[key]]["launches"] += 1
        order.append(index[key])
    return {"kernels": kernels, "order": order}, texts


def _compulsory_bytes(job: Mapping[str, Any], args: list[Any], returned: Any) -> int:
    """Every tensor argument read once, every result and every argument overwritten by contract written once."""
    given = {id(each): each for each in args if isinstance(each, torch.Tensor)}
    names = [each["name"] for each in job.get("args", [])]
    written = [arg for name, arg in zip(names, args, strict=False) if name in job.get("mutates", [])]
    results = returned if isinstance(returned, tuple | list) else [returned]
    made = {id(each): each for each in results if isinstance(each, torch.Tensor) and id(each) not in given}
    return sum(each.numel() * each.element_size() for each in (*given.values(), *made.values(), *written))


def _result_bytes(args: list[Any], returned: Any) -> int:
    """Memory of the results that does not belong to an argument: somebody must have written it."""
    given = {each.untyped_storage().data_ptr() for each in args if isinstance(each, torch.Tensor)}
    sizes: dict[int, int] = {}
    for each in returned if isinstance(returned, tuple | list) else [returned]:
        if isinstance(each, torch.Tensor) and (at := each.untyped_storage().data_ptr()) not in given:
            size = min(each.numel() * each.element_size(), each.untyped_storage().nbytes())
            sizes[at] = max(sizes.get(at, 0), size)
    return sum(sizes.values())


def kernel_facts(kernel: Any) -> tuple[dict[str, facts.Fact], str]:
    """Facts from the compiler about one of triton's compiled kernels, and the digest of its machine code.

    Registers and spills come from the assembler's log where `capture` kept it, else from the device's driver.
    """
    asm, metadata = kernel.asm, kernel.metadata
    found: dict[str, facts.Fact] = {
        "num_warps": metadata.num_warps,
        "num_stages": metadata.num_stages,
        "shared_bytes": metadata.shared,
        **facts.ttir_facts(asm["ttir"]),
        **facts.ttgir_facts(asm["ttgir"]),
        **facts.ptx_facts(asm["ptx"], facts.scalar_places(asm["ttir"])),
    }
    log = getattr(metadata, "ptxas_log", "")
    found |= resources.log_resources(log) or resources.loaded_resources(kernel)
    return found, resources.code_digest(asm["cubin"], metadata.shared, metadata.num_warps)


def _launched(launch: Launch, found: dict[str, facts.Fact], digest: str, storages: dict[int, str]) -> dict[str, Any]:
    args: list[dict[str, Any]] = []
    meta: dict[str, Any] = {}
    params = {each.name: each for each in launch.kernel.src.fn.params}
    for name, value in launch.args.items():
        if isinstance(value, torch.Tensor):
            pointer = value.untyped_storage().data_ptr()
            storage = storages.setdefault(pointer, f"new{len(storages)}")
            args.append(
                {
                    "name": name,
                    "tensor": {
                        "storage": storage,
                        "dtype": str(value.dtype).removeprefix("torch."),
                        "shape": list(value.shape),
                        "strides": list(value.stride()),
                    },
                }
            )
        elif params[name].is_constexpr:
            meta[name] = value if isinstance(value, bool | int | float | str | None) else str(value)
        else:
            args.append({"name": name, "scalar": value if isinstance(value, bool | int | float) else str(value)})
    asm = launch.kernel.asm
    return {
        "kernel": launch.kernel.src.fn.__name__,
        "grid": list(launch.grid),
        "launches": 0,
        "facts": found,
        "digest": digest,
        "args": args,
        "meta": meta,
        "lines": facts.line_bits(asm["ptx"], asm["ttir"]),
    }


def _torch_entry(op: TorchOp) -> dict[str, Any]:
    name = f"torch:{op.name.removeprefix('aten::')}"
    counts: dict[str, facts.Fact] = {
        "torch_op": True,
        "programs": 1,
        "load_bytes": op.load_bytes,
        "store_bytes": op.store_bytes,
        "unique_load_bytes": op.load_bytes,
        "unique_store_bytes": op.store_bytes,
        "dot_flops": op.flops,
        "dot_operand": op.operand,
    }
    digest = hashlib.sha256(repr((name, sorted(counts.items()))).encode()).hexdigest()
    return {
        "kernel": name,
        "grid": [1, 1, 1],
        "launches": 0,
        "facts": counts,
        "digest": digest,
        "args": [],
        "meta": {},
        "lines": {"load": {}, "store": {}},
    }


def _storages(job: Mapping[str, Any], args: list[Any]) -> dict[int, str]:
    """Names of the storages that the launch was given, by address; those it makes are named as they appear."""
    names = [each["name"] for each in job.get("args", [])] or [f"input{i}" for i in range(len(args))]
    return {
        value.untyped_storage().data_ptr(): name
        for name, value in zip(names, args, strict=False)
        if isinstance(value, torch.Tensor)
    }


# --- what went wrong --------------------------------------------------------------------------------------


def _failure(error: Exception, source: str) -> Failed | None:
    """A failure of the compiler in words for the kernel's author; None where it is not the compiler's."""
    links = list(chain(error))
    if any(isinstance(each, Failed) for each in links):
        return None
    refusals = [each for each in links if isinstance(each, CompilationError)]
    if refusals:
        return _refused(refusals, source, foreign_lines(error))
    for each in links:
        if isinstance(each, DoesNotFit):
            return _too_large(each, foreign_lines(error))
        if isinstance(each, PTXASError):
            said = re.findall(r"(?:error|fatal)\s*:.*", str(each)) or str(each).splitlines()[:1]
            return Failed("compile", f"the assembler refused a kernel: {said[0].strip()}", foreign_lines(error))
        if isinstance(each, CompilerFailed):
            return Failed("compile", f"the compiler failed on a kernel: {each}", foreign_lines(error))
    return None


def _refused(errors: list[Any], source: str, launched: str) -> Failed:
    """The compiler's message, with the innermost line of the candidate that it is about and a caret under it."""
    said = [each.error_message.strip() for each in errors if each.error_message]
    if said:
        message = said[-1]
    else:
        cause = errors[-1].__cause__
        message = sentence(cause) if cause is not None else type(errors[-1]).__name__
    message = " ".join(message.splitlines()[0].split())
    for each in reversed(errors):
        if each.node is None or not each.src or (before := source.find(each.src.splitlines()[0])) < 0:
            continue
        line = each.node.lineno + source[:before].count("\n")
        text, caret = each.src.splitlines()[each.node.lineno - 1], " " * each.node.col_offset + "^"
        return Failed("compile", f"line {line}: {message}", f"line {line}:\n{text}\n{caret}\n{launched}".rstrip())
    return Failed("compile", message, launched)


def _too_large(error: DoesNotFit, launched: str) -> Failed:
    """What the kernel needs, what there is, and the constants that a smaller need would come from."""
    fn, metadata = error.kernel.src.fn, error.kernel.metadata
    names = {(i,): each.name for i, each in enumerate(fn.params)}
    constants = {
        names[path]: value
        for path, value in error.kernel.src.constants.items()
        if path in names and isinstance(value, int) and not isinstance(value, bool) and value > 1
    }
    largest = sorted(constants.items(), key=lambda item: -item[1])[:4]
    said = ", ".join(f"{name}={value}" for name, value in [*largest, ("num_stages", metadata.num_stages)])
    return Failed(
        "launch",
        f"{fn.__name__} needs {error.required} {error.what}, the target has {error.limit}: reduce {said}",
        launched,
    )
