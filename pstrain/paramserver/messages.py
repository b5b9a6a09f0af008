"""Messages between trainers and parameter servers: a JSON header and a body of arrays.

The header says which arrays follow, in order; each starts at a multiple of 64 bytes in the body.
Knows the form of messages, not what servers do with them. Invariant: arrays that come out of a
received body are aligned and read-only, however it travelled, so that kernels see one type.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dataservice.errors import error_from_dict, error_to_dict
from pstrain import buffers
from pstrain.errors import DataLossError

EXCHANGE = "parameters"

_ALIGNMENT = 64

Array = NDArray[Any]
Part = tuple[str, tuple[int, ...]]


# Made once: the functions of the module make their own, and look which encoding it is.
_ENCODER = json.JSONEncoder(separators=(",", ":"))
_DECODER = json.JSONDecoder()


def encode_header(header: dict[str, Any]) -> bytes:
    """A header as bytes."""
    return _ENCODER.encode(header).encode()


def decode_header(data: bytes) -> dict[str, Any]:
    """The header in ``data``; DataLossError if there is none."""
    try:
        header = _DECODER.decode(data.decode())
    except ValueError as error:
        raise DataLossError(f"not a message header: {data[:80]!r}") from error
    if not isinstance(header, dict):
        raise DataLossError(f"not a message header: {data[:80]!r}")
    return header


def encode_error(error: Exception) -> bytes:
    """The reply that makes the peer raise ``error``."""
    return encode_header({"error": error_to_dict(error)})


def decode_reply(data: bytes) -> dict[str, Any]:
    """The header of a reply; raises what the server replied with."""
    header = decode_header(data)
    if "error" in header:
        raise error_from_dict(header["error"])
    return header


def new_body(parts: Sequence[Part]) -> tuple[pa.Buffer | None, list[Array]]:
    """A body for arrays of these (dtype, shape), and the arrays in it, to be filled in."""
    if not parts:
        return None, []
    offsets, size = _layout(parts)
    buffer = pa.allocate_buffer(size)
    return buffer, _views(buffer, parts, offsets)


class LateBody:
    """A body that is written where it is sent from: ``fill`` gets its arrays, of ``parts``.

    Through shared memory that saves a copy. ``fill`` must not fail, and may be called again.
    """

    def __init__(self, parts: Sequence[Part], fill: Callable[[list[Array]], None]) -> None:
        self.parts = list(parts)
        self.fill = fill
        self._offsets, self.room = _layout(parts)

    @classmethod
    def of(cls, arrays: Sequence[Array]) -> LateBody | None:
        """Of arrays that nobody changes until the body was sent; None where there are none."""
        if not arrays:
            return None
        parts = [(array.dtype.str, array.shape) for array in arrays]
        return cls(parts, functools.partial(_copy_all, arrays))

    @classmethod
    def joined(cls, bodies: Sequence[LateBody]) -> LateBody:
        """One body with the arrays of several, in order."""

        def fill(targets: list[Array]) -> None:
            rest = iter(targets)
            for body in bodies:
                body.fill(list(itertools.islice(rest, len(body.parts))))

        return cls([part for body in bodies for part in body.parts], fill)

    def write_into(self, target: pa.Buffer) -> tuple[int, int]:
        """Writes the body at the start of ``target``; first byte and size."""
        self.fill(_views(target, self.parts, self._offsets))
        return 0, self.room

    def to_buffer(self) -> pa.Buffer:
        """The body in memory of its own, which this thread uses again once nobody reads it."""
        floats = -(-self.room // 4)
        buffer = pa.py_buffer(buffers.empty((floats,))).slice(0, self.room)
        self.write_into(buffer)
        return buffer


def _copy_all(arrays: Sequence[Array], targets: Sequence[Array]) -> None:
    for target, array in zip(targets, arrays, strict=True):
        target[...] = array


Body: TypeAlias = "pa.Buffer | LateBody | None"


def body_arrays(body: pa.Buffer | None, parts: Sequence[Part]) -> list[Array]:
    """The arrays in a received body, without copying where it is aligned; keep it alive.

    Raises DataLossError when the body has another size than the parts need.
    """
    if not parts:
        return []
    offsets, size = _layout(parts)
    if body is None or body.size != size:
        raise DataLossError(
            f"a message's body has {0 if body is None else body.size} bytes, expected {size}"
        )
    if body.address % np.dtype(np.int64).itemsize:
        aligned = pa.allocate_buffer(size)
        _bytes(aligned)[...] = _bytes(body)
        body = aligned
    arrays = _views(body, parts, offsets)
    for array in arrays:
        array.flags.writeable = False
    return arrays


def _layout(parts: Sequence[Part]) -> tuple[list[int], int]:
    offsets, end = [], 0
    for dtype, shape in parts:
        start = -(-end // _ALIGNMENT) * _ALIGNMENT
        offsets.append(start)
        end = start + np.dtype(dtype).itemsize * math.prod(shape)
    return offsets, end


def _views(buffer: pa.Buffer, parts: Sequence[Part], offsets: Sequence[int]) -> list[Array]:
    data = _bytes(buffer)
    return [
        np.ndarray(shape, dtype, data, offset)
        for (dtype, shape), offset in zip(parts, offsets, strict=True)
    ]


def _bytes(buffer: pa.Buffer) -> NDArray[np.uint8]:
    return np.asarray(_Memory(buffer))


class _Memory:
    """Arrow's memory as NumPy sees it; views of a received body are made read-only after."""

    __slots__ = ("__array_interface__", "_owner")

    def __init__(self, buffer: pa.Buffer) -> None:
        self._owner = buffer
        self.__array_interface__ = {
            "version": 3,
            "data": (buffer.address, False),
            "shape": (buffer.size,),
            "typestr": "|u1",
        }
