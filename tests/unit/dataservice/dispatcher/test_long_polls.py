"""How many polls may wait for windows at once, and when those without a slot come again."""

from __future__ import annotations

import heapq
from itertools import pairwise

import pytest

from dataservice.dispatcher.long_polls import LongPolls


def test_so_many_may_wait_and_no_more() -> None:
    long_polls = LongPolls(2, 100.0)
    with long_polls.slot() as first, long_polls.slot() as second, long_polls.slot() as third:
        assert first.take()
        assert first.take(), "its own slot, not another one"
        assert second.take()
        assert not third.take()
        first.leave()
        assert third.take()
    assert long_polls.taken == 0


def test_a_seat_is_given_back_whatever_ends_the_wait() -> None:
    long_polls = LongPolls(1, 100.0)
    with pytest.raises(ZeroDivisionError), long_polls.slot() as slot:
        assert slot.take() / 0
    assert long_polls.taken == 0


def test_who_does_not_wait_takes_no_seat() -> None:
    long_polls = LongPolls(1, 100.0)
    with long_polls.slot():
        assert long_polls.taken == 0
    assert long_polls.taken == 0


def test_one_who_finds_no_seat_does_not_come_again_at_once() -> None:
    assert LongPolls(0, 100.0).pause_s(1_000.0) == 0.5


@pytest.mark.parametrize("polls", [100, 1_000, 2_500])
def test_however_many_are_sent_away_so_many_come_again_in_a_second(polls: int) -> None:
    long_polls, due_s, seen = LongPolls(0, 100.0), [0.0] * polls, []
    while len(seen) < 20 * polls:
        now_s = due_s[0]
        seen.append(now_s)
        heapq.heapreplace(due_s, now_s + long_polls.pause_s(now_s))
    later = [now_s for now_s in seen if now_s > 1.0]
    assert len(later) / (later[-1] - later[0]) < 101.0
    gaps = [after - before for before, after in pairwise(later)]
    assert min(gaps) == pytest.approx(0.01), "one after the other"


def test_nobody_is_sent_away_for_long_however_many_there_are() -> None:
    long_polls = LongPolls(0, 100.0)
    pauses_s = [long_polls.pause_s(0.0) for _ in range(10_000)]
    assert max(pauses_s) <= 30.0
    assert min(pauses_s) >= 0.5


def test_a_rush_that_is_over_is_forgotten() -> None:
    long_polls = LongPolls(0, 100.0)
    for _ in range(2_000):
        long_polls.pause_s(0.0)
    assert long_polls.pause_s(60.0) == 0.5
