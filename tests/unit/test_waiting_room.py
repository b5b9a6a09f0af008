"""How many polls may wait for windows at once, and when those without a seat come again."""

from __future__ import annotations

import heapq
from itertools import pairwise

import pytest

from dataservice.dispatcher.waiting_room import WaitingRoom


def test_so_many_may_wait_and_no_more() -> None:
    room = WaitingRoom(2, 100.0)
    with room.seat() as first, room.seat() as second, room.seat() as third:
        assert first.take()
        assert first.take(), "its own seat, not another one"
        assert second.take()
        assert not third.take()
        first.leave()
        assert third.take()
    assert room.taken == 0


def test_a_seat_is_given_back_whatever_ends_the_wait() -> None:
    room = WaitingRoom(1, 100.0)
    with pytest.raises(ZeroDivisionError), room.seat() as seat:
        assert seat.take() / 0
    assert room.taken == 0


def test_who_does_not_wait_takes_no_seat() -> None:
    room = WaitingRoom(1, 100.0)
    with room.seat():
        assert room.taken == 0
    assert room.taken == 0


def test_one_who_finds_no_seat_does_not_come_again_at_once() -> None:
    assert WaitingRoom(0, 100.0).pause_s(1_000.0) == 0.5


@pytest.mark.parametrize("polls", [100, 1_000, 2_500])
def test_however_many_are_sent_away_so_many_come_again_in_a_second(polls: int) -> None:
    room, due_s, seen = WaitingRoom(0, 100.0), [0.0] * polls, []
    while len(seen) < 20 * polls:
        now_s = due_s[0]
        seen.append(now_s)
        heapq.heapreplace(due_s, now_s + room.pause_s(now_s))
    later = [now_s for now_s in seen if now_s > 1.0]
    assert len(later) / (later[-1] - later[0]) < 101.0
    gaps = [after - before for before, after in pairwise(later)]
    assert min(gaps) == pytest.approx(0.01), "one after the other"


def test_nobody_is_sent_away_for_long_however_many_there_are() -> None:
    room = WaitingRoom(0, 100.0)
    pauses_s = [room.pause_s(0.0) for _ in range(10_000)]
    assert max(pauses_s) <= 30.0
    assert min(pauses_s) >= 0.5


def test_a_rush_that_is_over_is_forgotten() -> None:
    room = WaitingRoom(0, 100.0)
    for _ in range(2_000):
        room.pause_s(0.0)
    assert room.pause_s(60.0) == 0.5
