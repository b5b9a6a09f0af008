"""Settings of the C library's allocator for a process that makes and drops large arrays.

By default the C library gives memory back to the kernel as soon as an array at the end of its heap
is freed, and the next array pays for fresh pages: a page costs as much as computing its contents.
Threads that come and go spread over all heaps, and each heap keeps its memory; so the number of
heaps is limited to the number of threads that can run at once. Knows nothing of who allocates.
Invariant: it changes only speed and the amount of free memory that a process keeps; if the C
library has no such settings, it does nothing.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Final

from dataservice.runtime.machine.cores import available_cores

# The numbers of these settings in glibc's <malloc.h>.
_TRIM_THRESHOLD: Final = -1
_TOP_PAD: Final = -2
_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8

# Memory that each heap keeps: a few chunks of rows with all their columns.
_KEPT_BYTES: Final = 128 << 20
_GROWN_BYTES: Final = 4 << 20
# Larger arrays are mapped, and unmapped when they are freed, so that they leave no holes.
_MAPPED_FROM_BYTES: Final = 16 << 20


def keep_freed_memory() -> bool:
    """Lets this process keep freed memory, up to a bound; call it before threads start.

    Returns whether the C library accepted the settings.
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
