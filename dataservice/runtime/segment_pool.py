"""Which piece of shared memory carries the next body: reuse, make, drop, or wait.

Pure bookkeeping of ids and capacities, without memory, sockets or time. A sender lends segments to
its peer and gets them back by release. The peer holds at most `HELD_BYTES` and `HELD_SEGMENTS`
for as long as it likes and returns the rest at once, so a sender that waits until no more than
that is lent is always served: no pair of bounds here can dead-lock, whatever a consumer keeps.

Invariant: free and lent segments together never exceed `POOL_BYTES`, except by one segment that
alone is larger than the difference of the two bounds.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from dataservice.errors import DataLossError

__all__ = [
    "HELD_BYTES",
    "HELD_SEGMENTS",
    "POOL_BYTES",
    "POOL_SEGMENTS",
    "Place",
    "SegmentPool",
    "capacity_for",
]

# A reader buffers 24 elements of about 1 MiB; those and some in the consumer's hands stay where
# they are.
HELD_BYTES: Final = 44 << 20
# Each also costs both sides a descriptor.
HELD_SEGMENTS: Final = 32
# What is under way besides: a frame, which hides a switch between two processes.
POOL_BYTES: Final = HELD_BYTES + (20 << 20)
POOL_SEGMENTS: Final = 2 * HELD_SEGMENTS

_SMALLEST_BYTES: Final = 64 << 10
_STEPS_PER_DOUBLING: Final = 8


def capacity_for(size: int) -> int:
    """Bytes of a segment for a body of `size`: rounded up by at most an eighth.

    Bodies of a stream differ a little in size; segments that fit one should fit the next.
    """
    if size <= _SMALLEST_BYTES:
        return _SMALLEST_BYTES
    step: int = (1 << (size - 1).bit_length()) // (2 * _STEPS_PER_DOUBLING)
    return -(-size // step) * step


class Place(NamedTuple):
    """Where a body goes. `is_new`: the segment has to be made; `retired` are to be unmapped."""

    segment: int
    capacity: int
    is_new: bool
    retired: tuple[int, ...] = ()


class SegmentPool:
    """The segments of one sender. Not thread safe."""

    def __init__(self) -> None:
        self._free: dict[int, int] = {}  # by id, the one released last at the end
        self._lent: dict[int, int] = {}
        self._lent_bytes = 0
        self._next = 0

    @property
    def lent_bytes(self) -> int:
        """Capacity of what the peer has."""
        return self._lent_bytes

    @property
    def total_bytes(self) -> int:
        """Capacity of all segments there are."""
        return self._lent_bytes + sum(self._free.values())

    def place(self, size: int) -> Place | None:
        """Lends a segment for `size` bytes; None when a release must come first."""
        found = self._best_free(size)
        if found is not None:
            capacity = self._free.pop(found)
            self._lend(found, capacity)
            return Place(found, capacity, False)
        capacity = capacity_for(size)
        if not self._may_add(capacity):
            return None
        retired = self._retire_for(capacity)
        segment = self._next
        self._next += 1
        self._lend(segment, capacity)
        return Place(segment, capacity, True, retired)

    def has_free(self, size: int) -> bool:
        """Whether a segment for `size` bytes is there, so that none has to be made."""
        return self._best_free(size) is not None

    def release(self, segment: int) -> None:
        """The peer needs it no more. DataLossError for one that it does not have."""
        capacity = self._lent.pop(segment, None)
        if capacity is None:
            raise DataLossError(f"a peer released segment {segment}, which it does not hold")
        self._lent_bytes -= capacity
        self._free[segment] = capacity

    def drop(self, segment: int) -> None:
        """Forgets a free segment that the peer never heard of."""
        del self._free[segment]

    def _best_free(self, size: int) -> int | None:
        """The smallest that fits, of equal ones that used last: it may still be in a cache."""
        best, best_capacity = None, 0
        for segment, capacity in self._free.items():
            if capacity >= size and (best is None or capacity <= best_capacity):
                best, best_capacity = segment, capacity
        return best

    def _may_add(self, capacity: int) -> bool:
        if len(self._lent) >= POOL_SEGMENTS:
            return False
        return self._lent_bytes + capacity <= POOL_BYTES or self._lent_bytes <= HELD_BYTES

    def _retire_for(self, capacity: int) -> tuple[int, ...]:
        """Drops free segments that do not fit beside a new one, those unused for longest first."""
        retired = []
        while self._free and (
            self.total_bytes + capacity > POOL_BYTES
            or len(self._lent) + len(self._free) >= POOL_SEGMENTS
        ):
            segment = next(iter(self._free))
            del self._free[segment]
            retired.append(segment)
        return tuple(retired)

    def _lend(self, segment: int, capacity: int) -> None:
        self._lent[segment] = capacity
        self._lent_bytes += capacity
