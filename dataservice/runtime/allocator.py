"""Settings of the C library's allocator for a process that makes and drops large arrays.

By default the C library gives memory back to the kernel as soon as an array at the end of its heap
is freed, and the next array pays for fresh pages: a page costs as much as computing what fits into
it. Threads that come and go spread over all heaps, and each heap keeps what it has; so there are no
more heaps than threads can run at once. Knows nothing of who allocates. Invariant: it changes speed
and how much free memory a process keeps, nothing else; where the C library has no such settings, it
does nothing.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Final

from dataservice.runtime.cores import available_cores

__all__ = ["keep_freed_memory"]

# As <malloc.h> of glibc numbers them.
_TRIM_THRESHOLD: Final = -1
_TOP_PAD: Final = -2
_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8

# Of each of the library's heaps: a few chunks of rows with all their columns.
_KEPT_BYTES: Final = 128 << 20
_GROWN_BYTES: Final = 4 << 20
# Larger arrays are mapped, and unmapped when they are freed, so that they leave no holes.
_MAPPED_FROM_BYTES: Final = 16 << 20


def keep_freed_memory() -> bool:
    """Lets this process keep what it frees, up to a bound; call it before threads start.

    Returns whether the C library could be told.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # not glibc
        return False
    settings = (
        (_TRIM_THRESHOLD, _KEPT_BYTES),
        (_TOP_PAD, _GROWN_BYTES),
        (_MMAP_THRESHOLD, _MAPPED_FROM_BYTES),
        (_ARENA_MAX, available_cores()),
    )
    return all(mallopt(name, value) == 1 for name, value in settings)
