"""Bodies as senders pass them: bytes, a buffer, or a `Body` that writes itself into given memory.

Responsible for their sizes and for writing them. Knows no packets and no segments. Invariant: a
body never writes more bytes than `room_for` returned.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from dataservice.runtime.exchanges.message import check_sizes


class Body(Protocol):
    """A body that writes itself into given memory, such as a record batch that encodes itself."""

    @property
    def room(self) -> int:
        """The least number of bytes that `write_into` needs."""

    def write_into(self, target: pa.Buffer) -> tuple[int, int]:
        """Writes the body; returns the first byte and the number of bytes that are to be sent."""


AnyBody: TypeAlias = pa.Buffer | bytes | Body


def room_for(header: bytes, body: AnyBody | None) -> int:
    """Returns the bytes that header and body need; raises InvalidArgumentError if too many."""
    if body is None:
        size = 0
    elif isinstance(body, pa.Buffer):
        size = body.size
    elif isinstance(body, bytes):
        size = len(body)
    else:
        size = body.room
    check_sizes(len(header), size)
    return size + len(header)


def contiguous(body: AnyBody) -> pa.Buffer | bytes:
    """Returns a body as one piece of memory; only a `Body` is written to get it."""
    if isinstance(body, pa.Buffer | bytes):
        return body
    target = pa.allocate_buffer(body.room)
    first, size = body.write_into(target)
    return target.slice(first, size)


def write_into(body: AnyBody, target: pa.Buffer) -> tuple[int, int]:
    """Writes a body into `target`; returns its first byte and its size."""
    if isinstance(body, pa.Buffer | bytes):
        data = np.frombuffer(body, np.uint8)
        np.copyto(np.frombuffer(target, np.uint8)[: data.size], data)
        return 0, data.size
    first, size = body.write_into(target)
    return first, size
