"""Round tracker of one consumer: rounds to request and hand out, roll calls, pacing of calls."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from dataservice.client.rounds import (
    GROUP_S,
    MIN_GAP_S,
    POLL_FIRST_S,
    Answer,
    Block,
    RoundPacing,
    RoundTracker,
)
from dataservice.client.wait_limits import MissingConsumersWait
from dataservice.errors import DeadlineExceededError
from dataservice.wire.elements import Ask, asks_of, pack_asks, unpack
from tests.unit.dataservice.dispatcher.round_cluster import answer_of


def tracker_with(answer: Answer, window: int = 8) -> RoundTracker[str]:
    tracker: RoundTracker[str] = RoundTracker(window, 1_000)
    tracker.apply_answer(tracker.report(), answer)
    return tracker


class TestRoundTracker:
    def test_rounds_are_requested_once_within_window_from_reachable_workers(self) -> None:
        tracker = tracker_with(answer_of(Block(0, 8, "a", 0), Block(8, 16, "b", 0)), window=10)
        assert tracker.asks({"a"}) == {"a": [Ask(0, 8, 0)]}
        assert tracker.asks({"a", "b"}) == {"b": [Ask(8, 10, 0)]}
        tracker.forget_worker("a")
        tracker.receive("b", 9, 0, "x", 1)
        assert tracker.asks({"a", "b"}) == {"a": [Ask(0, 8, 0)]}

    def test_tracker_lacks_work_while_window_has_room_and_nothing_to_request(self) -> None:
        tracker = tracker_with(answer_of(Block(0, 4, "a", 0)), window=4)
        assert tracker.lacks_work()
        tracker.asks({"a"})
        assert not tracker.lacks_work()
        for number in range(4):
            tracker.receive("a", number, 0, f"e{number}", 1)
        assert not tracker.lacks_work(), "full"
        tracker.apply_answer(tracker.report(), answer_of(Block(0, 4, "a", 0), complete=4))
        tracker.take()
        assert tracker.lacks_work(), "the others may have gone on, too"

    def test_complete_rounds_are_handed_out_in_order(self) -> None:
        block = Block(0, 8, "a", 0)
        tracker = tracker_with(answer_of(block))
        for number in (1, 0, 3):
            tracker.receive("a", number, 0, f"e{number}", 1)
        assert (tracker.received, tracker.take()) == (2, None)
        tracker.apply_answer(tracker.report(), answer_of(block, complete=3))
        assert [tracker.take() for _ in range(3)] == ["e0", "e1", None]

    def test_reassigned_rounds_are_dropped_and_complete_rounds_kept(self) -> None:
        tracker = tracker_with(answer_of(Block(0, 8, "a", 0)))
        tracker.asks({"a"})
        for number in range(4):
            tracker.receive("a", number, 0, f"a{number}", 1)
        blocks = (Block(0, 2, "a", 0), Block(2, 8, "b", 1))
        tracker.apply_answer(tracker.report(), answer_of(*blocks, version=1, complete=2))
        assert tracker.received == 2
        tracker.receive("a", 4, 0, "late", 1)
        tracker.receive("a", 2, 0, "late", 1)
        assert tracker.asks({"a", "b"}) == {"b": [Ask(2, 8, 1)]}
        assert [tracker.take() for _ in range(3)] == ["a0", "a1", None]

    def test_tracker_continues_at_round_set_by_answer_or_seek(self) -> None:
        tracker = tracker_with(answer_of(Block(0, 8, "a", 0)))
        for number in range(4):
            tracker.receive("a", number, 0, f"a{number}", 1)
        tracker.apply_answer(tracker.report(), answer_of(Block(0, 8, "a", 0), complete=4, begin=3))
        assert tracker.take() == "a3"
        tracker.seek(7)
        assert (tracker.report().sought, tracker.report().consumed) == (7, 7)
        tracker.apply_answer(tracker.report(), answer_of(Block(0, 8, "a", 0), complete=4, begin=7))
        assert tracker.report().sought == 0

    def test_large_elements_narrow_the_window(self) -> None:
        tracker = tracker_with(answer_of(Block(0, 8, "a", 0)))
        assert tracker.window == 8
        tracker.receive("a", 0, 0, "large", 250)
        assert tracker.window == 4
        tracker.receive("a", 1, 0, "huge", 10_000)
        assert tracker.window == 2

    def test_roll_call_holds_rounds_until_its_report_is_answered(self) -> None:
        block = Block(0, 8, "a", 0)
        tracker = tracker_with(answer_of(block))
        tracker.receive("a", 0, 0, "x", 1)
        tracker.apply_answer(tracker.report(), Answer((block,), 0, 0, 0, 0, roll=3))
        assert (tracker.is_waited_for(), tracker.take()) == (True, None)
        report = tracker.report()
        assert report.roll == 3
        tracker.apply_answer(report, Answer((block,), 0, 1, 0, 0, roll=3))
        assert (tracker.is_waited_for(), tracker.take()) == (False, "x")

    def test_report_of_received_rounds_is_awaited_once_none_are_in_flight(self) -> None:
        tracker = tracker_with(answer_of(Block(0, 2, "a", 0)))
        tracker.asks({"a"})
        tracker.receive("a", 0, 0, "x", 1)
        assert not tracker.is_waited_for()
        tracker.receive("a", 1, 0, "y", 1)
        assert (tracker.is_waited_for(), tracker.unreported) == (True, 2)
        tracker.apply_answer(tracker.report(), answer_of(Block(0, 2, "a", 0)))
        assert (tracker.is_waited_for(), tracker.unreported) == (False, 0)


def test_round_pacing_depends_on_waiting_and_unreported_rounds() -> None:
    pacing = RoundPacing(1.0, 0.0)
    quiet: dict[str, Any] = {"urgent": False, "waits": False, "unreported": 0, "window": 16}
    assert pacing.due_s(**quiet) == 0.0, "the first call is due at once"
    pacing.record_call(10.0, progress=True)
    assert pacing.due_s(**quiet) == 11.0
    assert pacing.due_s(**{**quiet, "unreported": 1}) == 10.0 + GROUP_S
    assert pacing.due_s(**{**quiet, "unreported": 4}) == 10.0 + MIN_GAP_S
    assert pacing.due_s(**{**quiet, "waits": True}) == 10.0 + POLL_FIRST_S
    pacing.record_call(20.0, progress=False)
    assert pacing.due_s(**{**quiet, "waits": True}) == 20.0 + 2 * POLL_FIRST_S


def test_missing_consumers_are_warned_of_and_time_out_but_late_ones_do_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    wait = MissingConsumersWait(0, 3, 20.0)
    with caplog.at_level(logging.WARNING):
        assert wait.check(False, [1], [], 0.0) is None
        for now_s in (1.0, 5.0, 12.0):
            assert wait.check(True, [2, 1], [], now_s) is None
        assert [r.getMessage() for r in caplog.records] == [
            "consumer 0 of 3 waits for consumer_index 1, 2 (missing)"
        ]
        error = wait.check(True, [1], [], 21.0)
        assert isinstance(error, DeadlineExceededError)
        assert "consumer_index 1," in str(error)
        for now_s in (22.0, 60.0, 100.0):
            assert wait.check(True, [], [2], now_s) is None, "who is there is waited for"
    assert "consumer_index 2 (behind)" in caplog.messages[-1]


def test_unpacking_asks_inverts_packing() -> None:
    asks = [Ask(3, 9, 1), Ask(12, 13, 2)]
    assert asks_of(unpack(pack_asks(asks, 7))) == (7, asks)
