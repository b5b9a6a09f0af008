"""Bodies as senders give them: bytes, a buffer, or what writes itself where it is sent from.

Knows nothing of packets or segments. Invariant: what is written is never more than the room that
was said.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from dataservice.runtime.message import check_header, check_size
from dataservice.runtime.shared_memory import Body

__all__ = ["room_for", "write_into", "written"]


def room_for(header: bytes, body: pa.Buffer | bytes | Body | None) -> int:
    """Bytes that header and body need; InvalidArgumentError where that is too much."""
    check_header(header)
    if body is None:
        size = 0
    elif isinstance(body, pa.Buffer):
        size = body.size
    elif isinstance(body, bytes):
        size = len(body)
    else:
        size = body.room
    check_size(size)
    return size + len(header)


def written(body: Any) -> bytes:
    """A small body as bytes."""
    if isinstance(body, bytes):
        return body
    if isinstance(body, pa.Buffer):
        return bytes(body)
    target = pa.allocate_buffer(body.room)
    first, size = body.write_into(target)
    return bytes(target.slice(first, size))


def write_into(body: Any, target: pa.Buffer) -> tuple[int, int]:
    """Writes a body; its first byte and size."""
    if isinstance(body, pa.Buffer | bytes):
        data = np.frombuffer(body, np.uint8)
        np.copyto(np.frombuffer(target, np.uint8)[: data.size], data)
        return 0, data.size
    first, size = body.write_into(target)
    return first, size
