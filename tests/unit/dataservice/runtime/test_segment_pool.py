"""A sender's pool of shared-memory segments: reuse, bounds, and release."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dataservice.errors import DataLossError
from dataservice.runtime.exchanges.segment_pool import (
    HELD_BYTES,
    HELD_SEGMENTS,
    POOL_BYTES,
    POOL_SEGMENTS,
    SegmentPool,
    capacity_for,
)

LARGEST = POOL_BYTES - HELD_BYTES


@given(st.integers(0, 1 << 33))
def test_capacity_fits_size_and_wastes_at_most_an_eighth(size: int) -> None:
    capacity = capacity_for(size)
    assert capacity >= size
    assert capacity <= max(64 << 10, size * 9 // 8 + 1)


def test_released_segments_are_reused_last_released_first() -> None:
    pool = SegmentPool()
    first, second = pool.allocate(100_000), pool.allocate(100_000)
    assert first is not None
    assert second is not None
    assert first.is_new
    assert second.is_new
    pool.release(first.segment)
    pool.release(second.segment)
    again = pool.allocate(100_000)
    assert again is not None
    assert not again.is_new
    assert again.segment == second.segment


def test_allocation_takes_smallest_free_segment_that_fits() -> None:
    pool = SegmentPool()
    places = [pool.allocate(size) for size in (1 << 20, 1 << 18, 1 << 22)]
    for place in places:
        assert place is not None
        pool.release(place.segment)
    found = pool.allocate(200_000)
    assert found is not None
    assert places[1] is not None
    assert found.segment == places[1].segment


def test_free_segments_that_are_too_small_are_retired_to_make_room() -> None:
    pool = SegmentPool()
    small = [pool.allocate(POOL_BYTES // 8) for _ in range(8)]
    for place in small:
        assert place is not None
        pool.release(place.segment)
    large = pool.allocate(POOL_BYTES // 4)
    assert large is not None
    assert large.is_new
    assert large.retired == tuple(place.segment for place in small[:2] if place)
    assert pool.total_bytes <= POOL_BYTES


def test_oversized_body_is_allocated_once_all_segments_are_released() -> None:
    pool = SegmentPool()
    before = pool.allocate(HELD_BYTES + 1)
    assert before is not None
    assert pool.allocate(POOL_BYTES * 2) is None
    pool.release(before.segment)
    huge = pool.allocate(POOL_BYTES * 2)
    assert huge is not None
    assert huge.retired == (before.segment,)


def test_second_release_of_segment_is_data_loss() -> None:
    pool = SegmentPool()
    place = pool.allocate(1)
    assert place is not None
    pool.release(place.segment)
    with pytest.raises(DataLossError, match="segment 0"):
        pool.release(place.segment)


class HoardingReceiver(RuleBasedStateMachine):
    """A receiver that keeps as many segments as it may, and returns them in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = SegmentPool()
        self.lent: dict[int, int] = {}

    @rule(size=st.integers(1, LARGEST))
    def send(self, size: int) -> None:
        place = self.pool.allocate(size)
        if place is None:
            over = sum(self.lent.values()) > HELD_BYTES or len(self.lent) > HELD_SEGMENTS
            assert over, "a sender waits for what the receiver may keep"
            return
        assert place.capacity >= size
        assert place.segment not in self.lent
        assert not set(place.retired) & set(self.lent)
        self.lent[place.segment] = place.capacity

    @precondition(lambda self: self.lent)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        segment = data.draw(st.sampled_from(sorted(self.lent)))
        del self.lent[segment]
        self.pool.release(segment)

    @invariant()
    def is_bounded(self) -> None:
        assert self.pool.lent_bytes == sum(self.lent.values())
        assert self.pool.total_bytes <= POOL_BYTES
        assert len(self.lent) <= POOL_SEGMENTS


TestHoardingReceiver = HoardingReceiver.TestCase
