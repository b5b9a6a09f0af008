"""Which results of a trainer travel together, and that none waits for nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from pstrain.trainer.outlet import HOLD_MAX_S, HOLD_S, Outlet
from pstrain.wire import trainer_pb2 as pb


def _result(closure: int, **fields: Any) -> pb.RunReply:
    return pb.RunReply(results=[pb.ClosureResult(id=closure, value=b"1", **fields)])


def _ids(reply: pb.RunReply) -> list[int]:
    return [result.id for result in reply.results]


class _Patient(threading.Event):
    """Waits no time, but says how long it would have; meanwhile something happens."""

    def __init__(self) -> None:
        super().__init__()
        self.waited_s: list[float] = []
        self.meanwhile: Callable[[], None] = lambda: None

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        if not self.is_set():
            self.waited_s.append(timeout)
            self.meanwhile()
        return self.is_set()


def _outlet(to_do: int, *items: Any) -> tuple[Outlet, _Patient]:
    patient = _Patient()
    outlet = Outlet(lambda: to_do, patient)
    for item in items:
        outlet.put(item)
    return outlet, patient


def test_what_has_ended_travels_together() -> None:
    for to_do in (0, 4):
        outlet, _ = _outlet(to_do, _result(2), _result(3))
        assert _ids(outlet.with_following(_result(1))) == [1, 2, 3]


def test_while_there_is_enough_to_do_a_result_waits_for_those_that_follow() -> None:
    outlet, patient = _outlet(2, _result(2))

    def meanwhile() -> None:
        outlet.put(_result(3))
        assert not patient.is_set()  # nobody is woken for it
        outlet.put(_result(4))

    patient.meanwhile = meanwhile
    assert _ids(outlet.with_following(_result(1))) == [1, 2, 3, 4]
    assert patient.waited_s == [2 * HOLD_S]


def test_a_result_for_which_somebody_may_wait_is_sent_at_once() -> None:
    for reply, to_do in (
        (_result(1), 1),
        (_result(1, needs_settling=True), 2),
        (_result(1, is_prepared=True), 2),
        (pb.RunReply(positions=[pb.Position(resource_id="r")]), 2),
        (pb.RunReply(services=["grpc://a:1"]), 2),
    ):
        outlet, patient = _outlet(to_do)
        outlet.with_following(reply)
        assert not patient.waited_s


def test_what_is_urgent_ends_the_wait_for_others() -> None:
    for item in (_result(2, needs_settling=True), pb.RunReply(services=["a"]), ValueError(), None):
        outlet, patient = _outlet(2)
        patient.meanwhile = lambda outlet=outlet, item=item: outlet.put(item)  # type: ignore[misc]
        outlet.with_following(_result(1))
        assert patient.is_set()
    to_do = [2, 2, 1]
    patient = _Patient()
    outlet = Outlet(lambda: to_do.pop(0), patient)
    outlet.put(_result(1))
    first = outlet.get()
    assert isinstance(first, pb.RunReply)
    patient.meanwhile = lambda: outlet.put(_result(2))
    assert _ids(outlet.with_following(first)) == [1, 2]
    assert patient.is_set()


def test_what_came_while_nobody_held_results_back_is_not_forgotten() -> None:
    """It was put, urgently, before the first of its message was taken."""
    outlet, patient = _outlet(2, _result(1), _result(2, needs_settling=True))
    first = outlet.get()
    assert isinstance(first, pb.RunReply)
    assert _ids(outlet.with_following(first)) == [1, 2]
    assert not patient.waited_s


def test_the_end_and_errors_are_left_in_place() -> None:
    for end in (None, ValueError("x")):
        outlet, patient = _outlet(2, end)
        assert _ids(outlet.with_following(_result(1))) == [1]
        assert not patient.waited_s
        assert outlet.get() is end


def test_the_more_there_is_to_do_the_longer_a_result_waits() -> None:
    waits = []
    for to_do in (2, 4, 1_000):
        outlet, patient = _outlet(to_do)
        outlet.with_following(_result(1))
        waits += patient.waited_s
    assert waits[0] < waits[1] < waits[2] <= HOLD_MAX_S


def test_a_message_stays_small() -> None:
    outlet, patient = _outlet(2, *(_result(k) for k in range(1, 100)))
    assert _ids(outlet.with_following(_result(0))) == list(range(64))
    assert not patient.waited_s
