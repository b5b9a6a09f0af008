"""Slots of long polls: how many may wait at once, and the pause of polls without a slot."""

from __future__ import annotations

import heapq
from itertools import pairwise

import pytest

from dataservice.dispatcher.long_polls import LongPolls


def test_slots_are_limited_and_free_again_when_left() -> None:
    long_polls = LongPolls(2, 100.0)
    with long_polls.slot() as first, long_polls.slot() as second, long_polls.slot() as third:
        assert first.take()
        assert first.take(), "its own slot, not another one"
        assert second.take()
        assert not third.take()
        first.leave()
        assert third.take()
    assert long_polls.taken == 0


def test_slot_is_freed_when_wait_raises() -> None:
    long_polls = LongPolls(1, 100.0)
    with pytest.raises(ZeroDivisionError), long_polls.slot() as slot:
        assert slot.take() / 0
    assert long_polls.taken == 0


def test_poll_that_does_not_wait_takes_no_slot() -> None:
    long_polls = LongPolls(1, 100.0)
    with long_polls.slot():
        assert long_polls.taken == 0
    assert long_polls.taken == 0


def test_poll_without_slot_pauses_before_next_attempt() -> None:
    assert LongPolls(0, 100.0).pause_s(1_000.0) == 0.5


@pytest.mark.parametrize("polls", [100, 1_000, 2_500])
def test_polls_without_slot_return_at_bounded_rate(polls: int) -> None:
    long_polls, due_s, seen = LongPolls(0, 100.0), [0.0] * polls, []
    while len(seen) < 20 * polls:
        now_s = due_s[0]
        seen.append(now_s)
        heapq.heapreplace(due_s, now_s + long_polls.pause_s(now_s))
    later = [now_s for now_s in seen if now_s > 1.0]
    assert len(later) / (later[-1] - later[0]) < 101.0
    gaps = [after - before for before, after in pairwise(later)]
    assert min(gaps) == pytest.approx(0.01), "one after the other"


def test_pause_of_poll_without_slot_is_bounded() -> None:
    long_polls = LongPolls(0, 100.0)
    pauses_s = [long_polls.pause_s(0.0) for _ in range(10_000)]
    assert max(pauses_s) <= 30.0
    assert min(pauses_s) >= 0.5


def test_pause_is_minimal_again_after_rush_of_polls() -> None:
    long_polls = LongPolls(0, 100.0)
    for _ in range(2_000):
        long_polls.pause_s(0.0)
    assert long_polls.pause_s(60.0) == 0.5
