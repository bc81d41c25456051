"""What a compiled kernel takes of the machine, and what identifies it: read from the assembler's log and the binary."""

from __future__ import annotations

import hashlib
import re
import struct
from typing import Any

_REGISTERS = re.compile(r"Used (\d+) registers")
_SPILLS = re.compile(r"(\d+) bytes spill (?:stores|loads)")


def log_resources(log: str) -> dict[str, int]:
    """Registers a thread holds, and bytes a thread spills (stores and loads in the code), from `ptxas -v`.

    Where a kernel calls functions of its own, the largest register count and the sum of the spills.
    """
    registers = [int(each) for each in _REGISTERS.findall(log)]
    if not registers:
        return {}
    return {"registers": max(registers), "spill_bytes": sum(int(each) for each in _SPILLS.findall(log))}


def loaded_resources(kernel: Any) -> dict[str, int]:
    """The same of a kernel that a real driver has loaded; its spills are the bytes of local memory a thread has."""
    registers, spills = getattr(kernel, "n_regs", None), getattr(kernel, "n_spills", None)
    if registers is None or spills is None:
        return {}
    return {"registers": int(registers), "spill_bytes": int(spills) * 4}


def code_digest(binary: bytes, shared_bytes: int, num_warps: int) -> str:
    """SHA-256 of what the device would execute: code and constants, and the shape of the launch.

    Line tables, names and notes are left out, so that two kernels are equal when their machine code is.
    A binary that is not 64-bit little-endian ELF counts whole.
    """
    digest = hashlib.sha256(f"{shared_bytes} {num_warps}".encode())
    for part in _code_sections(binary) or [binary]:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def _code_sections(binary: bytes) -> list[bytes]:
    """The contents of `.text*` and `.nv.constant*` sections, in order; empty where there are none to find."""
    if binary[:6] != b"\x7fELF\x02\x01" or len(binary) < 64:
        return []
    (offset,) = struct.unpack_from("<Q", binary, 40)
    size, count, names_index = struct.unpack_from("<HHH", binary, 58)
    if offset + size * count > len(binary) or names_index >= count:
        return []
    headers = [struct.unpack_from("<IIQQQQ", binary, offset + size * i) for i in range(count)]
    names_at, names_size = headers[names_index][4], headers[names_index][5]
    names = binary[names_at : names_at + names_size]
    found: list[bytes] = []
    for name_at, kind, _flags, _address, at, length in headers:
        name = names[name_at : names.find(b"\0", name_at)]
        if name.startswith((b".text", b".nv.constant", b".rodata")) and kind != 8:  # 8: occupies no bytes
            found.append(binary[at : at + length])
    return found
