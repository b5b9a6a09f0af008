"""A checksum of message bodies that costs less than sending them.

Four multiply-and-rotate lanes over 64-bit words, in the manner of xxHash. Every step is invertible,
so damage within one aligned word is always detected; other damage is missed once in 2^64 cases.
Several times as fast as zlib's CRC-32, and without the GIL. Gives no protection against an
attacker. Knows nothing of messages.
Invariants: the value depends on the bytes alone, not on alignment or machine; a process that uses
only shared memory never loads Numba for it.
"""

from __future__ import annotations

import functools
from typing import Any, Final

import numpy as np
import pyarrow as pa

_WORD_BYTES: Final = 8


def checksum(body: Any) -> int:
    """Returns the 64-bit checksum of any contiguous bytes; the first call loads the kernel."""
    data = np.frombuffer(body, np.uint8)
    whole = data.size - data.size % _WORD_BYTES
    words = np.require(data[:whole].view("<u8"), np.uint64, "A")
    rest = int.from_bytes(data[whole:].tobytes(), "little")
    return int(load_kernel()(words, np.uint64(rest), np.uint64(data.size)))


@functools.cache
def load_kernel() -> Any:
    """Loads the kernel of `checksum`, which takes a second; for processes that will need it."""
    from dataservice.runtime.checksum_kernel import mix

    return mix


def aligned(body: pa.Buffer) -> pa.Buffer:
    """Returns `body`, or a copy aligned to 8 bytes; bodies received by Flight often need one."""
    if body.address % _WORD_BYTES == 0:
        return body
    copy = pa.allocate_buffer(body.size)
    np.copyto(np.frombuffer(copy, np.uint8), np.frombuffer(body, np.uint8))
    return copy
