"""Frames: what goes in comes out, and nothing else is taken for one."""

from __future__ import annotations

import socket
import struct
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.harness.worker import wire
from tilewright.harness.worker.wire import ITEM_BYTES, Blob, Closed, FrameError

SHAPES = st.lists(st.integers(0, 5), max_size=4).map(tuple)


@st.composite
def blobs(draw: st.DrawFn) -> Blob:
    dtype = draw(st.sampled_from(sorted(ITEM_BYTES)))
    shape = draw(SHAPES)
    size = int(np.prod(shape, dtype=np.int64)) * ITEM_BYTES[dtype]
    return Blob(dtype, shape, draw(st.binary(min_size=size, max_size=size)))


@given(st.dictionaries(st.text(max_size=8), blobs(), max_size=4), st.dictionaries(st.text(max_size=5), st.integers()))
def test_a_frame_brings_back_its_header_and_every_byte_of_its_tensors(
    tensors: dict[str, Blob], header: dict[str, int]
) -> None:
    header.pop("tensors", None)
    data = b"".join(bytes(part) for part in wire.encode(header, tensors))
    text, payload = wire.lengths(data[: wire.PREFIX.size])
    body = data[wire.PREFIX.size :]
    assert len(body) == text + payload
    found, back = wire.decode(body[:text], body[text:])
    assert found == header
    assert {n: (b.dtype, b.shape, bytes(b.data)) for n, b in back.items()} == {
        n: (b.dtype, b.shape, bytes(b.data)) for n, b in tensors.items()
    }


@given(st.binary(min_size=16, max_size=64))
def test_bytes_that_are_not_a_frame_are_refused(data: bytes) -> None:
    if data[:4] == wire.MAGIC:
        return
    with pytest.raises(FrameError):
        wire.lengths(data[: wire.PREFIX.size])


@pytest.mark.parametrize(
    "prefix",
    [
        struct.pack("<4sIQ", wire.MAGIC, wire.HEADER_LIMIT_BYTES + 1, 0),
        struct.pack("<4sIQ", wire.MAGIC, 2, wire.PAYLOAD_LIMIT_BYTES + 1),
    ],
)
def test_a_frame_over_the_limits_is_refused_before_memory_is_taken_for_it(prefix: bytes) -> None:
    with pytest.raises(FrameError, match="over the limit"):
        wire.lengths(prefix)


@pytest.mark.parametrize(
    "header",
    [
        b"[]",
        b"{}",
        b"{",
        b'{"tensors": 3}',
        b'{"tensors": [{"name": "x", "dtype": "float32", "shape": [4], "nbytes": 99}]}',
        b'{"tensors": [{"name": "x", "dtype": "object", "shape": [4], "nbytes": 16}]}',
        b'{"tensors": [{"name": "x", "dtype": "float32", "shape": [-4], "nbytes": -16}]}',
        b'{"tensors": [{"name": "x", "dtype": "float32", "shape": [400], "nbytes": 1600}]}',
    ],
)
def test_a_header_whose_parts_do_not_add_up_is_refused(header: bytes) -> None:
    with pytest.raises(FrameError):
        wire.decode(header, bytes(16))


def test_a_frame_cut_short_is_an_ending_and_not_a_frame() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(struct.pack("<4sIQ", wire.MAGIC, 100, 0) + b"{")
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(Closed):
            wire.receive(ours)


def test_a_large_tensor_passes_through_a_socket() -> None:
    ours, theirs = socket.socketpair()
    values = np.arange(1 << 20, dtype=np.float32)
    with ours, theirs:
        sending = threading.Thread(
            target=wire.send, args=(theirs, {"op": "x"}, {"v": Blob("float32", (1 << 20,), values.data)})
        )
        sending.start()
        header, tensors = wire.receive(ours)
        sending.join()
    assert header == {"op": "x"}
    assert np.array_equal(np.frombuffer(tensors["v"].data, np.float32), values)
