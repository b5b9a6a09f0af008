"""A checksum of message bodies that costs less than sending them.

Four multiply-and-rotate lanes over 64-bit words, in the manner of xxHash. Every step can be
inverted, so a change within one aligned word is noticed for certain; other damage passes once in
2^64. Several times as fast as zlib's CRC-32, without the GIL. Not for what an attacker
chooses.
Invariants: the value depends on the bytes alone, not on alignment or machine; a process that
sends and receives by shared memory alone never loads Numba for it.
"""

from __future__ import annotations

import functools
from typing import Any, Final

import numpy as np
import pyarrow as pa

_WORD_BYTES: Final = 8


def checksum(body: Any) -> int:
    """The 64-bit checksum of `body`, any contiguous bytes. The first call loads the kernel."""
    data = np.frombuffer(body, np.uint8)
    whole = data.size - data.size % _WORD_BYTES
    words = np.require(data[:whole].view("<u8"), np.uint64, "A")
    rest = int.from_bytes(data[whole:].tobytes(), "little")
    return int(load_kernel()(words, np.uint64(rest), np.uint64(data.size)))


@functools.cache
def load_kernel() -> Any:
    """Loads what `checksum` runs, a second's work; for those who know that they will need it."""
    from dataservice.runtime.checksum_kernel import mix

    return mix


def aligned(body: pa.Buffer) -> pa.Buffer:
    """`body`, or a copy at an address fit for columns; what Flight receives often needs one."""
    if body.address % _WORD_BYTES == 0:
        return body
    copy = pa.allocate_buffer(body.size)
    np.copyto(np.frombuffer(copy, np.uint8), np.frombuffer(body, np.uint8))
    return copy
