"""Large arrays of a step, reused by the thread that made them.

Fresh memory costs a page fault per 4 KB: 8 of 18 ms of a step at batch 4,096. Invariant: memory
is handed out again only when no array refers to it any more, so reuse cannot be seen; each thread
has its own, at most ``LIMIT_BYTES`` of it. It begins with a cache line.
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

# Sizes that differ by less are looked for in the same blocks first.
_CLASS_BITS = 4


class _Kept(threading.local):
    """Blocks of one thread, oldest first, and which of them served sizes of a class."""

    def __init__(self) -> None:
        self.blocks: list[NDArray[np.float32]] = []
        self.by_class: defaultdict[int, deque[int]] = defaultdict(deque)


_kept = _Kept()


def empty(shape: tuple[int, ...]) -> NDArray[np.float32]:
    """An uninitialised float32 array of ``shape``, which the caller may keep as long as it likes.

    Arrays below ``SMALLEST_BYTES`` come from the allocator, which keeps those at hand itself.
    """
    size = math.prod(shape)
    if size * 4 < SMALLEST_BYTES:
        return np.empty(shape, dtype=np.float32)
    blocks = _kept.blocks
    # To look through all blocks, some tens of times a step, took a sixth of its calls.
    bits = size.bit_length()
    known = _kept.by_class[bits << _CLASS_BITS | size >> bits - _CLASS_BITS]
    for _ in range(len(known)):
        # The one that was given out longest ago has come back most likely.
        index = known[0]
        known.rotate(-1)
        if _is_free(blocks[index], size):
            return blocks[index][:size].reshape(shape)
    for index, each in enumerate(blocks):
        if _is_free(each, size):
            known.append(index)
            return each[:size].reshape(shape)
    block = aligned_empty((size + size // 16,), "float32")
    _make_room(block.nbytes)
    if block.nbytes <= LIMIT_BYTES:
        blocks.append(block)
    return block[:size].reshape(shape)


def zeros(shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Like :func:`empty`, filled with 0."""
    array = empty(shape)
    array.fill(0)
    return array


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """A view that cannot be written to: a kernel is compiled once for what anybody may own."""
    view = array.view()
    view.flags.writeable = False
    return view


def held_bytes() -> int:
    """Bytes that this thread keeps, in use or not."""
    return sum(block.nbytes for block in _kept.blocks)


def _is_free(block: NDArray[np.float32], size: int) -> bool:
    """Whether a block fits and nobody holds any of it."""
    # Every array cut out of a block refers to the memory that the block is cut out of.
    return size <= block.size <= 2 * size and sys.getrefcount(block.base) == _UNREFERENCED


# What memory that only its block refers to counts, which depends on the interpreter.
_UNUSED = aligned_empty((1,), "float32")
_UNREFERENCED = sys.getrefcount(_UNUSED.base)


def _make_room(wanted_bytes: int) -> None:
    """Lets go of the oldest blocks; those in use live on until their arrays die."""
    blocks = _kept.blocks
    held = sum(block.nbytes for block in blocks)
    while blocks and held + wanted_bytes > LIMIT_BYTES:
        held -= blocks.pop(0).nbytes
        _kept.by_class.clear()  # their numbers have changed
