"""Ranges run ahead of an old one that is late, within bounds."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from pstrain.coordinator.remote_value import RemoteValue
from pstrain.execution.ahead import Ahead, Dealt
from pstrain.execution.dealing import Range


class Owner:
    def awaited(self, closure: int, *, blocks: bool) -> None: ...

    def cancel(self, closure: int, timeout_s: float | None) -> None: ...

    def describe(self, closure: int) -> str:
        return str(closure)


class Run:
    """Closures of an Ahead with room for two."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.noted: list[int] = []
        self.is_ready = False
        self.ahead = Ahead(2, lambda: self.is_ready, self._note)
        self.values: list[RemoteValue] = []

    def _note(self, report: dict[str, Any]) -> None:
        self.noted.append(report["steps"])

    def fill(self) -> None:
        while self.ahead.has_room:
            number = len(self.values)
            value = RemoteValue(number, self.changed, Owner())
            self.values.append(value)
            self.ahead.add(Dealt(value, Range(number, 1)))

    def end(self, number: int, ended: bool = False) -> None:
        self.values[number]._set({"steps": number, "ended": ended}, None)


def test_those_that_end_before_an_old_one_make_room() -> None:
    run = Run()
    for number in range(1, 6):
        run.fill()
        assert len(run.values) == number + 1
        run.end(number)
        run.ahead.wait()
    assert run.noted == [1, 2, 3, 4, 5]
    run.end(0)
    assert [run.ahead.pop() for _ in range(6)] == [Range(number, 1) for number in range(6)]
    assert sorted(run.noted) == list(range(6))


def test_where_all_room_is_taken_by_who_is_late_others_who_are_ready_get_more() -> None:
    run = Run()
    run.fill()
    run.is_ready = True
    assert run.ahead.has_room
    run.end(0)  # its report is heard first
    assert not run.ahead.has_room


def test_there_is_a_bound_behind_which_the_oldest_is_waited_for() -> None:
    run = Run()
    run.is_ready = True
    run.fill()
    assert len(run.values) == 32
    for number in range(1, 32):
        run.end(number)
    threading.Timer(0.01, lambda: _end_oldest(run)).start()
    run.ahead.wait()
    assert run.values[0].has_ended


def test_who_joins_while_others_are_late_is_given_work_at_once() -> None:
    run = Run()
    run.fill()
    assert not run.ahead.has_room

    def join() -> None:
        with run.changed:
            run.is_ready = True
            run.changed.notify_all()

    threading.Timer(0.01, join).start()
    run.ahead.wait()
    assert run.ahead.has_room


def test_an_end_asks_nothing_of_those_that_still_run(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run()
    asked: list[int] = []
    run.is_ready = True
    run.fill()

    def has_ended(value: RemoteValue) -> bool:
        asked.append(value.closure)
        return value._is_ready

    monkeypatch.setattr(RemoteValue, "has_ended", property(has_ended))
    run.end(1)
    run.end(0)
    run.ahead.wait()
    assert run.noted == [1, 0]
    assert set(asked) <= {0}


def _end_oldest(run: Run) -> None:
    with run.changed:
        run.end(0)
        run.changed.notify_all()


@pytest.mark.parametrize("number", [0, 1])
def test_the_end_of_the_data_is_known_before_its_report_is_heard(number: int) -> None:
    run = Run()
    run.fill()
    run.end(number, ended=True)
    run.ahead.wait()
    assert run.ahead.has_met_end
    run.values[1 - number]._set(None, ValueError("this one failed"))
    run.ahead.pop()
    run.ahead.pop()
    assert run.noted == [number]
