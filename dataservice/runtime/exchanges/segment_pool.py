"""Which segment of shared memory carries the next body: reuse one, make one, drop one, or wait.

Responsible for ids and capacities. Pure: knows no memory, no sockets and no time. A sender lends
segments to its peer and gets them back by release. The peer may hold up to `HELD_BYTES` and
`HELD_SEGMENTS` for as long as it likes and returns all others at once. So a sender that waits until
no more than that is lent never waits for ever: the bounds cannot cause a dead-lock, whatever a
consumer keeps.

Invariant: free and lent segments together never exceed `POOL_BYTES`, except by one segment that
alone is larger than the difference of the two bounds.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from dataservice.errors import DataLossError

# A reader buffers 24 elements of about 1 MiB; these, and some that the consumer uses, can be read
# in place.
HELD_BYTES: Final = 44 << 20
# Each segment also costs both sides a descriptor.
HELD_SEGMENTS: Final = 32
# Room for a frame in flight besides, which hides the switch between two processes.
POOL_BYTES: Final = HELD_BYTES + (20 << 20)
POOL_SEGMENTS: Final = 2 * HELD_SEGMENTS

_SMALLEST_BYTES: Final = 64 << 10
_STEPS_PER_DOUBLING: Final = 8


def capacity_for(size: int) -> int:
    """Returns the capacity of a segment for a body of `size`: rounded up by at most an eighth.

    At least 64 KiB. The bodies of a stream differ a little in size; a segment that fits one should
    fit the next.
    """
    if size <= _SMALLEST_BYTES:
        return _SMALLEST_BYTES
    step: int = (1 << (size - 1).bit_length()) // (2 * _STEPS_PER_DOUBLING)
    return -(-size // step) * step


class Allocation(NamedTuple):
    """The place for a body. `is_new`: the segment must be made; `retired` ones must be unmapped."""

    segment: int
    capacity: int
    is_new: bool
    retired: tuple[int, ...] = ()


class SegmentPool:
    """The segments of one sender. Not thread safe."""

    def __init__(self) -> None:
        self._free: dict[int, int] = {}  # capacity by id, in order of release
        self._lent: dict[int, int] = {}
        self._lent_bytes = 0
        self._next = 0

    @property
    def lent_bytes(self) -> int:
        """The capacity of the segments that the peer has."""
        return self._lent_bytes

    @property
    def total_bytes(self) -> int:
        """The capacity of all segments, lent and free."""
        return self._lent_bytes + sum(self._free.values())

    def allocate(self, size: int) -> Allocation | None:
        """Lends a segment for `size` bytes; returns None if a release must come first."""
        found = self.reuse(size)
        if found is not None:
            return Allocation(found, self._lent[found], False)
        capacity = capacity_for(size)
        if not self._may_add(capacity):
            return None
        retired = self._retire_for(capacity)
        segment = self._next
        self._next += 1
        self._lent[segment] = capacity
        self._lent_bytes += capacity
        return Allocation(segment, capacity, True, retired)

    def reuse(self, size: int) -> int | None:
        """Lends the smallest free segment that fits; returns None if there is none.

        Of equal ones it is the one used last, which may still be in a CPU cache.
        """
        best, best_capacity = None, 0
        for segment, capacity in self._free.items():
            if capacity >= size and (best is None or capacity <= best_capacity):
                best, best_capacity = segment, capacity
        if best is not None:
            self._lent[best] = self._free.pop(best)
            self._lent_bytes += best_capacity
        return best

    def release(self, segment: int) -> None:
        """Takes back a segment; raises DataLossError for one that the peer does not have."""
        capacity = self._lent.pop(segment, None)
        if capacity is None:
            raise DataLossError(f"a peer released segment {segment}, which it does not hold")
        self._lent_bytes -= capacity
        self._free[segment] = capacity

    def drop(self, segment: int) -> None:
        """Forgets a free segment of which the peer was never told."""
        del self._free[segment]

    def _may_add(self, capacity: int) -> bool:
        if len(self._lent) >= POOL_SEGMENTS:
            return False
        return self._lent_bytes + capacity <= POOL_BYTES or self._lent_bytes <= HELD_BYTES

    def _retire_for(self, capacity: int) -> tuple[int, ...]:
        """Drops free segments until a new one fits into the bounds, the longest unused first."""
        retired = []
        while self._free and (
            self.total_bytes + capacity > POOL_BYTES
            or len(self._lent) + len(self._free) >= POOL_SEGMENTS
        ):
            segment = next(iter(self._free))
            del self._free[segment]
            retired.append(segment)
        return tuple(retired)
