"""Which results of a trainer are sent together, and that none is held back for long."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import pytest

from pstrain.coordinator.run_times import AHEAD_S
from pstrain.trainer import result_queue
from pstrain.trainer.committing import HELD_S
from pstrain.trainer.result_queue import RESULTS_PER_MESSAGE, ResultQueue
from pstrain.wire import trainer_pb2 as pb

DEADLINE_S = 30.0


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the time limits so long that only the other rules end a wait for more results."""
    monkeypatch.setattr(result_queue, "HOLD_S", DEADLINE_S)
    monkeypatch.setattr(result_queue, "HOLD_MAX_S", DEADLINE_S)


def _result(closure: int, **fields: Any) -> pb.RunReply:
    return pb.RunReply(results=[pb.ClosureResult(id=closure, value=b"1", **fields)])


def _reports(to_do: int, *ended: Any) -> ResultQueue:
    made = ResultQueue(lambda: to_do)
    for each in ended:
        made.put(each)
    return made


def _taken(made: ResultQueue) -> list[int]:
    message = made.take()
    assert isinstance(message, pb.RunReply)
    return [result.id for result in message.results]


@pytest.mark.usefixtures("patient")
def test_what_has_ended_travels_together() -> None:
    assert _taken(_reports(0, _result(1), _result(2), _result(3))) == [1, 2, 3]


@pytest.mark.usefixtures("patient")
def test_results_wait_until_as_many_have_ended_as_are_left_to_do() -> None:
    made = _reports(3, _result(1))
    found: list[list[int]] = []
    taking = threading.Thread(target=lambda: found.append(_taken(made)))
    taking.start()
    for closure in (2, 3):
        made.put(_result(closure))
    taking.join(DEADLINE_S / 2)
    assert found == [[1, 2, 3]]


def test_half_of_the_work_that_may_wait_here_ends_before_its_results_go_by_time() -> None:
    assert result_queue.HOLD_MAX_S >= AHEAD_S / 2


def test_an_end_is_held_as_long_as_its_result_may_lie_here_and_looked_for_no_more_often() -> None:
    assert 2 * HELD_S == result_queue.HOLD_MAX_S


def test_results_do_not_wait_for_long() -> None:
    assert _taken(_reports(1_000, _result(1))) == [1]


@pytest.mark.usefixtures("patient")
def test_what_somebody_may_wait_for_is_taken_at_once() -> None:
    for urgent in (
        _result(2, needs_settling=True),
        _result(2, is_prepared=True),
        pb.RunReply(positions=[pb.Position(resource_id="r")]),
        pb.RunReply(services=["grpc://a:1"]),
    ):
        made = _reports(1_000, _result(1), urgent)
        assert _taken(made)[0] == 1
        made.put(_result(3))
        assert not made._is_due()


@pytest.mark.usefixtures("patient")
def test_the_end_and_errors_come_after_what_ended_before_them() -> None:
    error = ValueError("x")
    for end in (None, error):
        made = _reports(1_000, _result(1), end, _result(2))
        assert _taken(made) == [1]
        assert made.take() is end
        assert _taken(made) == [2]


@pytest.mark.usefixtures("patient")
def test_messages_are_bounded() -> None:
    many = range(2 * RESULTS_PER_MESSAGE + 1)
    made = _reports(0, *(_result(closure) for closure in many))
    found = [_taken(made) for _ in range(3)]
    assert [len(each) for each in found] == [RESULTS_PER_MESSAGE, RESULTS_PER_MESSAGE, 1]
    assert list(itertools.chain(*found)) == list(many)
    large = pb.RunReply(results=[pb.ClosureResult(id=1, value=bytes(1 << 20))])
    made = _reports(0, large, _result(2))
    assert [_taken(made), _taken(made)] == [[1], [2]]
