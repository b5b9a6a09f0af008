"""Messages between trainers and parameter servers: a JSON header and a body of arrays.

The header says which arrays follow, in order; each starts at a multiple of 64 bytes in the body.
Large arrays may travel separately, after the message (see ``pieces``). Knows the form of messages,
not what servers do with them. Invariant: the arrays of a received body are aligned and read-only,
however the body travelled, so that kernels see one type.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dataservice.errors import error_from_dict, error_to_dict
from dataservice.runtime.checksum import aligned
from pstrain import buffers
from pstrain.errors import DataLossError

EXCHANGE = "parameters"
IDENTITY = "identity"
"""The exchange in which a server says, for each message, which process it is, and of which session.
"""

LARGE_BYTES: Final = 1 << 20
"""Arrays of at least this size may travel separately."""

_ALIGNMENT = 64

Header = dict[str, Any]
Array = NDArray[Any]
BodyPart = tuple["str | np.dtype[Any]", tuple[int, ...]]
Fill = Callable[[int, int, int, Array], None]
Place = tuple[tuple[int, ...], "np.dtype[Any]", int]
"""The shape and dtype of an array in a body, and its first byte."""


# Used directly, because ``json.loads`` detects the encoding of the bytes in each call.
_DECODER = json.JSONDecoder()


def _encoder() -> Callable[[Any, int], Sequence[str]]:
    """Returns a function that encodes a value to chunks of text, written in C if ``json`` has it.

    ``JSONEncoder.encode`` makes such a function for each header, which takes as long as encoding.
    """
    encoder = json.JSONEncoder(separators=(",", ":"))
    by_c = getattr(json.encoder, "c_make_encoder", None)
    if by_c is None:
        return lambda value, _level: list(encoder.iterencode(value))
    escape = json.encoder.encode_basestring_ascii
    made = by_c(None, encoder.default, escape, None, ":", ",", False, False, True)
    return cast("Callable[[Any, int], Sequence[str]]", made)


_ENCODE = _encoder()


def encode_header(header: Header) -> bytes:
    """Encodes a header as bytes."""
    return "".join(_ENCODE(header, 0)).encode()


def decode_header(data: bytes) -> Header:
    """Returns the header in ``data``; raises DataLossError if there is none."""
    try:
        text = data.decode()
        header, end = _DECODER.raw_decode(text)
    except ValueError as error:
        raise DataLossError(f"not a message header: {data[:80]!r}") from error
    if end != len(text) or not isinstance(header, dict):
        raise DataLossError(f"not a message header: {data[:80]!r}")
    return header


def encode_error(error: Exception) -> bytes:
    """Returns the reply that makes the peer raise ``error``."""
    return encode_header(refusal(error))


def refusal(error: Exception) -> Header:
    """Returns the header of a reply, or of one part of a reply, that reports ``error``."""
    return {"error": error_to_dict(error)}


def decode_reply(data: bytes) -> Header:
    """Returns the header of a reply; raises the error that the server reported, if any."""
    return checked(decode_header(data))


def checked(header: Header) -> Header:
    """Returns a decoded header, or one part of it; raises the error that it reports, if any."""
    if "error" in header:
        raise error_from_dict(header["error"])
    return header


def new_body(parts: Sequence[BodyPart]) -> tuple[pa.Buffer | None, list[Array]]:
    """Allocates a body for arrays of these (dtype, shape); the caller fills the returned arrays."""
    if not parts:
        return None, []
    places, size = _layout(parts)
    buffer = pa.allocate_buffer(size)
    return buffer, _views(memoryview(buffer), places)


class LateBody:
    """A body whose arrays are written only when it is sent, into the memory it is sent from.

    ``fill(part, start, stop, target)`` writes rows ``[start, stop)`` of one of the ``parts``; it
    must not fail, and may be called repeatedly. With shared memory this saves a copy. ``arrays``
    has the parts that exist already, or None; these can be sent from where they are.
    """

    def __init__(
        self, parts: Sequence[BodyPart], fill: Fill, arrays: Sequence[Array | None] | None = None
    ) -> None:
        self.parts = list(parts)
        self.fill = fill
        self.arrays = list(arrays) if arrays is not None else [None] * len(self.parts)
        self._places: tuple[list[Place], int] | None = None

    @property
    def room(self) -> int:
        """The bytes that the body takes."""
        return self._laid_out()[1]

    def _laid_out(self) -> tuple[list[Place], int]:
        if self._places is None:
            self._places = _layout(self.parts)
        return self._places

    @classmethod
    def of(cls, arrays: Sequence[Array]) -> LateBody | None:
        """Makes a body of arrays, or None; the arrays must not change until the reply comes."""
        if not arrays:
            return None
        parts = [(array.dtype, array.shape) for array in arrays]
        return cls(parts, functools.partial(_copy_rows, arrays), arrays)

    @classmethod
    def joined(cls, bodies: Sequence[LateBody]) -> LateBody:
        """Makes one body with the arrays of several bodies, in order."""
        places = [(body, part) for body in bodies for part in range(len(body.parts))]

        def fill(part: int, start: int, stop: int, target: Array) -> None:
            body, own_part = places[part]
            body.fill(own_part, start, stop, target)

        arrays = [array for body in bodies for array in body.arrays]
        return cls([part for body in bodies for part in body.parts], fill, arrays)

    def write_into(self, target: pa.Buffer) -> tuple[int, int]:
        """Writes the body at the start of ``target``; returns its first byte and its size."""
        places, room = self._laid_out()
        views = _views(memoryview(target), places)
        for part, (place, array) in enumerate(zip(views, self.arrays, strict=True)):
            if array is None:
                self.fill(part, 0, len(place), place)
            else:
                place[...] = array
        return 0, room

    def to_buffer(self) -> pa.Buffer:
        """Returns the body as one buffer; a single array that exists already is not copied.

        Otherwise the buffer is memory that this thread reuses once nobody refers to it.
        """
        if len(self.parts) == 1 and self.arrays[0] is not None:
            return self.rows(0, 0, len(self.arrays[0]))
        buffer = reused_buffer(self.room)
        self.write_into(buffer)
        return buffer

    def rows(self, part: int, start: int, stop: int) -> pa.Buffer:
        """Returns rows ``[start, stop)`` of a part, in place if possible, or in reused memory."""
        array = self.arrays[part]
        if array is not None and array.flags.c_contiguous:
            return pa.py_buffer(array[start:stop])
        dtype, (_, *shape) = self.parts[part]
        rest = (stop - start, *shape)
        buffer = reused_buffer(part_bytes((dtype, rest)))
        self.fill(part, start, stop, np.ndarray(rest, dtype, memoryview(buffer)))
        return buffer

    def without(self, parts: Collection[int]) -> LateBody | None:
        """Returns a body without these parts, or None if no part is left."""
        left = [part for part in range(len(self.parts)) if part not in parts]
        if not left:
            return None

        def fill(part: int, start: int, stop: int, target: Array) -> None:
            self.fill(left[part], start, stop, target)

        return LateBody(
            [self.parts[part] for part in left], fill, [self.arrays[part] for part in left]
        )


def _copy_rows(arrays: Sequence[Array], part: int, start: int, stop: int, target: Array) -> None:
    target[...] = arrays[part][start:stop]


def reused_buffer(size: int) -> pa.Buffer:
    """Returns ``size`` bytes of memory that this thread reuses once nobody refers to it."""
    # A slice of a buffer would be read-only.
    return pa.py_buffer(buffers.empty((-(-size // 4),)).view(np.uint8)[:size])


class SplitBody(NamedTuple):
    """A received body whose large arrays travelled separately; ``rest`` holds the others."""

    large: list[pa.Buffer]
    rest: pa.Buffer | None


Body: TypeAlias = "pa.Buffer | LateBody | None"
Received: TypeAlias = "pa.Buffer | SplitBody | None"


Message: TypeAlias = "tuple[Header, Body]"
"""A request or a reply to send."""


class Call(NamedTuple):
    """A request as it arrived, with its header decoded."""

    header: Header
    body: Received


def is_large(part: BodyPart) -> bool:
    """True if the array travels separately, over connections that send large arrays so."""
    return part_bytes(part) >= LARGE_BYTES


def part_bytes(part: BodyPart) -> int:
    """Returns the bytes of an array."""
    return int(_dtype(part[0]).itemsize) * math.prod(part[1])


_dtype: Callable[[str | np.dtype[Any]], np.dtype[Any]] = functools.lru_cache(maxsize=64)(np.dtype)


def body_arrays(body: Received, parts: Sequence[BodyPart]) -> list[Array]:
    """Returns the arrays in a received body; an aligned body is not copied and must stay alive.

    Raises DataLossError if the size of the body is not what the parts need.
    """
    if not isinstance(body, SplitBody):
        return _arrays_of(body, parts)
    large = [part for part in parts if is_large(part)]
    if len(large) != len(body.large):
        raise DataLossError(
            f"{len(body.large)} large arrays came with a message, expected {len(large)}"
        )
    came = [_arrays_of(*each) for each in zip(body.large, ([part] for part in large), strict=True)]
    alone = iter([array for arrays in came for array in arrays])
    others = iter(_arrays_of(body.rest, [part for part in parts if not is_large(part)]))
    return [next(alone if is_large(part) else others) for part in parts]


def claim_parts(keys: int) -> list[BodyPart]:
    """Returns the parts in the body of a claim of so many keys: see ``Shard.claim``."""
    return [*[("int64", (keys,))] * 3, ("uint8", (keys,))]


def split_body(body: Received, parts: Sequence[BodyPart]) -> tuple[Received, Received]:
    """Splits a received body into its first arrays, which are ``parts``, and all that follow.

    Raises DataLossError if the body is too short for ``parts``.
    """
    if not isinstance(body, SplitBody):
        return _split_buffer(body, parts)
    large = sum(is_large(part) for part in parts)
    if large > len(body.large):
        raise DataLossError(
            f"{len(body.large)} large arrays came with a message, expected {large} and more"
        )
    first, rest = _split_buffer(body.rest, [part for part in parts if not is_large(part)])
    return SplitBody(body.large[:large], first), SplitBody(body.large[large:], rest)


def _split_buffer(
    body: pa.Buffer | None, parts: Sequence[BodyPart]
) -> tuple[pa.Buffer | None, pa.Buffer | None]:
    if body is None or not parts:
        return None, body
    _, size = _layout(parts)
    if body.size < size:
        raise DataLossError(f"a message's body has {body.size} bytes, expected {size} and more")
    rest = min(-(-size // _ALIGNMENT) * _ALIGNMENT, body.size)
    return body.slice(0, size), body.slice(rest)


def _arrays_of(body: pa.Buffer | None, parts: Sequence[BodyPart]) -> list[Array]:
    if not parts:
        return []
    places, size = _layout(parts)
    if body is None or body.size != size:
        raise DataLossError(
            f"a message's body has {0 if body is None else body.size} bytes, expected {size}"
        )
    return _views(memoryview(aligned(body)).toreadonly(), places)


def _layout(parts: Sequence[BodyPart]) -> tuple[list[Place], int]:
    places, end = [], 0
    for dtype, shape in parts:
        kind = _dtype(dtype)
        start = -(-end // _ALIGNMENT) * _ALIGNMENT
        places.append((shape, kind, start))
        end = start + kind.itemsize * math.prod(shape)
    return places, end


def _views(data: memoryview, places: Sequence[Place]) -> list[Array]:
    return [np.ndarray(shape, kind, data, start) for shape, kind, start in places]
