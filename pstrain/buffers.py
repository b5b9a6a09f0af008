"""A pool of memory for the large arrays of a step, reused by the thread that allocated it.

Fresh memory costs a page fault per 4 KB: 8 of 18 ms of a step at batch 4,096. Knows nothing of what
arrays hold. Invariant: memory is handed out again only when no array refers to it any more, so
reuse cannot be observed; each thread has a pool of its own, of at most ``LIMIT_BYTES``. Blocks are
aligned to a cache line.
"""

from __future__ import annotations

import math
import sys
import threading
from collections import defaultdict, deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pstrain.kernels.prefetch import aligned_empty

LIMIT_BYTES = 128 << 20
SMALLEST_BYTES = 64 << 10

# Sizes with the same leading bits share a class, whose blocks are searched first.
_CLASS_BITS = 4


class _Pool(threading.local):
    """The blocks of one thread, oldest first, and the indices of those that served each class."""

    def __init__(self) -> None:
        self.blocks: list[NDArray[np.float32]] = []
        self.by_class: defaultdict[int, deque[int]] = defaultdict(deque)


_pool = _Pool()


def empty(shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Returns an uninitialised float32 array, which the caller may keep as long as it likes.

    Arrays below ``SMALLEST_BYTES`` come from the allocator, which caches small ones itself.
    """
    size = math.prod(shape)
    if size * 4 < SMALLEST_BYTES:
        return np.empty(shape, dtype=np.float32)
    blocks = _pool.blocks
    # A search through all blocks, some tens of times per step, made a sixth of a step's calls.
    bits = size.bit_length()
    known = _pool.by_class[bits << _CLASS_BITS | size >> bits - _CLASS_BITS]
    for _ in range(len(known)):
        # The block that was handed out longest ago is the most likely to be free.
        index = known[0]
        known.rotate(-1)
        if _is_free(blocks[index], size):
            return blocks[index][:size].reshape(shape)
    for index, block in enumerate(blocks):
        if _is_free(block, size):
            known.append(index)
            return block[:size].reshape(shape)
    block = aligned_empty((size + size // 16,), "float32")
    _make_room(block.nbytes)
    if block.nbytes <= LIMIT_BYTES:
        blocks.append(block)
    return block[:size].reshape(shape)


def zeros(shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Returns an array like :func:`empty`, filled with 0."""
    array = empty(shape)
    array.fill(0)
    return array


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """Returns a read-only view, so that a kernel is compiled once, whoever owns the array."""
    view = array.view()
    view.flags.writeable = False
    return view


def held_bytes() -> int:
    """Returns the bytes that this thread's pool keeps, in use or not."""
    return sum(block.nbytes for block in _pool.blocks)


def _is_free(block: NDArray[np.float32], size: int) -> bool:
    """True if ``size`` values fit the block and no array refers to it."""
    # An array cut out of a block refers to the block's own base memory.
    return size <= block.size <= 2 * size and sys.getrefcount(block.base) == _UNREFERENCED


# The reference count of memory that only its block refers to; it depends on the interpreter.
_UNUSED = aligned_empty((1,), "float32")
_UNREFERENCED = sys.getrefcount(_UNUSED.base)


def _make_room(wanted_bytes: int) -> None:
    """Drops the oldest blocks from the pool; blocks in use live on until their arrays die."""
    blocks = _pool.blocks
    held = held_bytes()
    while blocks and held + wanted_bytes > LIMIT_BYTES:
        held -= blocks.pop(0).nbytes
        _pool.by_class.clear()  # indices of blocks have changed
