"""Reports are read as closures end, and ready trainers get more closures while one is late."""

from __future__ import annotations

import threading

import pytest

from pstrain.coordinator.remote_value import RemoteValue
from pstrain.errors import CancelledError
from pstrain.execution.in_flight import InFlightCalls


class Owner:
    """An owner of values that cancels every closure but the first."""

    def __init__(self, values: list[RemoteValue]) -> None:
        self.values = values
        self.asked: list[int] = []

    def awaited(self, closure: int, *, blocks: bool) -> None: ...

    def cancel(self, closure: int, timeout_s: float | None) -> None:  # noqa: ARG002
        self.asked.append(closure)
        if closure:
            with self.values[closure]._changed:
                self.values[closure]._set(None, CancelledError("asked"))

    def describe(self, closure: int) -> str:
        return str(closure)


class Run:
    """``InFlightCalls`` with room for two closures, and the values of the closures added to it."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.is_ready = False
        self.in_flight: InFlightCalls[int] = InFlightCalls(2, lambda: self.is_ready)
        self.values: list[RemoteValue] = []
        self.owner = Owner(self.values)

    def fill(self, most: int = 32) -> None:
        while self.in_flight.has_room and len(self.values) < most:
            number = len(self.values)
            self.values.append(RemoteValue(number, self.changed, self.owner))
            self.in_flight.add(self.values[-1], number)

    def end(self, *numbers: int) -> None:
        for number in numbers:
            with self.changed:
                self.values[number]._set({"steps": number}, None)
                self.changed.notify_all()

    def heard(self) -> int:
        ended = self.in_flight.next_ended(or_room=False)
        assert ended is not None
        value, number = ended
        assert value is self.values[number]
        return number


def test_closures_ended_before_older_one_are_reported_and_make_room() -> None:
    run = Run()
    for number in range(1, 40):
        run.fill(40)
        assert len(run.values) == number + 1
        run.end(number)
        assert run.heard() == number
    run.end(0)
    assert run.heard() == 0
    assert not run.in_flight


def test_closures_are_reported_in_order_of_their_end() -> None:
    run = Run()
    run.fill()
    run.end(1, 0)
    assert [report["steps"] for report in run.in_flight.unreturned()] == [0, 1]
    assert [run.heard(), run.heard()] == [1, 0]
    assert not run.in_flight.unreturned()


def test_ready_trainer_gets_closure_while_late_closures_take_all_room() -> None:
    run = Run()
    run.fill()
    run.is_ready = True
    assert run.in_flight.has_room
    run.end(0)  # its report has to be read first
    assert not run.in_flight.has_room


def test_trainer_joining_while_closures_are_late_gets_work_at_once() -> None:
    run = Run()
    run.fill()
    assert not run.in_flight.has_room

    def join() -> None:
        with run.changed:
            run.is_ready = True
            run.changed.notify_all()

    threading.Timer(0.01, join).start()
    assert run.in_flight.next_ended(or_room=True) is None
    assert run.in_flight.has_room


def test_idle_trainer_gets_no_more_closures_while_others_run() -> None:
    run = Run()
    run.fill()
    run.end(1)
    run.heard()
    run.is_ready = True
    run.in_flight.note_idle(is_idle=True)
    assert not run.in_flight.has_room
    threading.Timer(0.01, run.end, (0,)).start()
    assert run.in_flight.next_ended(or_room=True) is not None  # waits for the closure that runs
    run.in_flight.note_idle(is_idle=True)
    assert run.in_flight.has_room  # no closure runs


@pytest.mark.parametrize("is_idle", [False, True])
def test_room_returns_when_closure_found_elements(is_idle: bool) -> None:
    run = Run()
    run.fill()
    run.end(1)
    run.heard()
    run.in_flight.note_idle(is_idle=True)
    run.in_flight.note_idle(is_idle=is_idle)
    assert run.in_flight.has_room is not is_idle


def test_next_ended_does_not_poll_running_closures(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run()
    asked: list[int] = []
    run.is_ready = True
    run.fill()

    def has_ended(value: RemoteValue) -> bool:
        asked.append(value.closure)
        return value._is_ready

    monkeypatch.setattr(RemoteValue, "has_ended", property(has_ended))
    run.end(1, 0)
    assert [run.heard(), run.heard()] == [1, 0]
    assert not asked


def test_give_up_cancels_newest_closures_first_and_waits_for_rest() -> None:
    run = Run()
    run.is_ready = True
    run.fill(3)
    assert not run.in_flight.give_up(0.01)
    assert run.owner.asked == [2, 1, 0]  # newest first: else a queued one would begin meanwhile
    assert [value.cancelled() for value in run.values] == [False, True, True]
    threading.Timer(0.01, run.end, (0,)).start()
    assert run.in_flight.give_up(60.0)
    assert run.values[0].has_value
