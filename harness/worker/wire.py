"""Frames between the judge and a worker: a prefix, a JSON header, then raw tensor bytes. Never pickle.

    4 bytes   magic `TWF1`
    4 bytes   length of the header, little-endian
    8 bytes   length of the payload, little-endian
    header    UTF-8 JSON object; `tensors` lists name, dtype, shape and nbytes of each tensor in the payload
    payload   the tensors' bytes, C-contiguous, each starting at a multiple of 64 bytes from the payload's start

A header or payload over the limits, or one whose parts do not add up, is a `FrameError`: whoever is at the
other end is not trusted to be well-behaved.
"""

from __future__ import annotations

import json
import math
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

MAGIC = b"TWF1"
PREFIX = struct.Struct("<4sIQ")
HEADER_LIMIT_BYTES = 16 << 20
PAYLOAD_LIMIT_BYTES = 8 << 30
ALIGN_BYTES = 64
MOST_DIMENSIONS = 64
"""As many as numpy takes."""
SAID_CHARACTERS = 300
"""Of what is wrong with a frame: whoever wrote it chose the words."""

ITEM_BYTES = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "uint64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
}
"""Bytes per element of every dtype that travels, by torch's name."""

Buffer: TypeAlias = bytes | bytearray | memoryview


class FrameError(Exception):
    """The other end sent something that is not a frame, or one over the limits."""


class Closed(Exception):
    """The other end closed its socket before a whole frame came."""


@dataclass(frozen=True, slots=True)
class Blob:
    """A tensor as it travels: C-contiguous bytes. A bfloat16 travels as its two bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: Buffer

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


def encode(header: Mapping[str, Any], tensors: Mapping[str, Blob] | None = None) -> list[Buffer]:
    """The frame as buffers to write one after another; tensors' bytes are not copied."""
    blobs = dict(tensors or {})
    listing = []
    payload: list[Buffer] = []
    size = 0
    for name, blob in blobs.items():
        data = memoryview(blob.data).cast("B")
        if data.nbytes != blob.nbytes:
            raise FrameError(f"tensor {name}: {data.nbytes} bytes for {blob.dtype}{list(blob.shape)}")
        listing.append({"name": name, "dtype": blob.dtype, "shape": list(blob.shape), "nbytes": data.nbytes})
        padding = -data.nbytes % ALIGN_BYTES
        payload += [data, bytes(padding)] if padding else [data]
        size += data.nbytes + padding
    text = json.dumps({**header, "tensors": listing}).encode()
    if len(text) > HEADER_LIMIT_BYTES or size > PAYLOAD_LIMIT_BYTES:
        raise FrameError(f"a frame of {len(text)} + {size} bytes is over the limit")
    return [PREFIX.pack(MAGIC, len(text), size), text, *payload]


def lengths(prefix: Buffer) -> tuple[int, int]:
    """Header and payload bytes that follow a prefix of `PREFIX.size` bytes."""
    magic, header, payload = PREFIX.unpack(prefix)
    if magic != MAGIC:
        raise FrameError(f"expected a frame, found the bytes {bytes(magic)!r}")
    if header > HEADER_LIMIT_BYTES or payload > PAYLOAD_LIMIT_BYTES:
        raise FrameError(f"a frame of {header} + {payload} bytes is over the limit")
    return header, payload


def decode(text: Buffer, payload: Buffer) -> tuple[dict[str, Any], dict[str, Blob]]:
    """A frame's header without its list of tensors, and the tensors as views of the payload."""
    try:
        header = json.loads(bytes(text))
        listing = header.pop("tensors")
        view = memoryview(payload)
        tensors: dict[str, Blob] = {}
        start = 0
        for entry in listing:
            name, dtype, shape = entry["name"], entry["dtype"], tuple(entry["shape"])
            if dtype not in ITEM_BYTES or len(shape) > MOST_DIMENSIONS or not all(map(_is_size, shape)):
                raise FrameError(f"tensor {name!r}: unknown type {dtype!r} or shape {shape!r}"[:SAID_CHARACTERS])
            size = math.prod(shape) * ITEM_BYTES[dtype]
            if size != entry["nbytes"] or start + size > view.nbytes:
                raise FrameError(f"tensor {name!r}: {entry['nbytes']} bytes do not fit {dtype}{list(shape)}")
            tensors[name] = Blob(dtype, shape, view[start : start + size])
            start += size + (-size % ALIGN_BYTES)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FrameError(f"not a frame's header: {error!r}"[:SAID_CHARACTERS]) from error
    if not isinstance(header, dict):
        raise FrameError("a frame's header is a JSON object")
    return header, tensors


def _is_size(n: object) -> bool:
    return isinstance(n, int) and not isinstance(n, bool) and 0 <= n <= PAYLOAD_LIMIT_BYTES


def send(sock: socket.socket, header: Mapping[str, Any], tensors: Mapping[str, Blob] | None = None) -> None:
    """Write one frame to a blocking socket."""
    for buffer in encode(header, tensors):
        sock.sendall(buffer)


def receive(sock: socket.socket) -> tuple[dict[str, Any], dict[str, Blob]]:
    """Read one frame from a blocking socket."""
    header, payload = lengths(_exactly(sock, PREFIX.size))
    text = _exactly(sock, header)
    return decode(text, _exactly(sock, payload))


def _exactly(sock: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        got = sock.recv_into(view)
        if not got:
            raise Closed(f"the other end closed with {view.nbytes} of {size} bytes outstanding")
        view = view[got:]
    return data
