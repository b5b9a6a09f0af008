"""Which results of a trainer are sent in one message, and how long results are held back."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest

from pstrain.coordinator.run_times import AHEAD_S
from pstrain.trainer import result_queue
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


def _queue_of(to_do: int, *ended: Any) -> ResultQueue:
    made = ResultQueue(lambda: to_do)
    for each in ended:
        made.put(each)
    return made


def _taken(made: ResultQueue) -> list[int]:
    message = made.take()
    assert isinstance(message, pb.RunReply)
    return [result.id for result in message.results]


@pytest.mark.usefixtures("patient")
def test_ended_results_are_sent_in_one_message() -> None:
    assert _taken(_queue_of(0, _result(1), _result(2), _result(3))) == [1, 2, 3]


@pytest.mark.usefixtures("patient")
def test_results_are_held_until_as_many_have_ended_as_remain_to_do() -> None:
    made = _queue_of(3, _result(1))
    found: list[list[int]] = []
    taking = threading.Thread(target=lambda: found.append(_taken(made)))
    taking.start()
    for closure in (2, 3):
        made.put(_result(closure))
    taking.join(DEADLINE_S / 2)
    assert found == [[1, 2, 3]]


class EndingWhileAwaited:
    """Stands for a queue's condition: closures of ``run_s`` each end while the queue waits."""

    def __init__(self, closures: int, run_s: float) -> None:
        self.left = closures
        self._run_s = run_s
        self.queue = ResultQueue(lambda: self.left)
        self.queue._changed = self  # type: ignore[assignment]

    def notify(self) -> None: ...

    def wait_for(self, is_over: Callable[[], object], timeout_s: float = DEADLINE_S) -> None:
        while not is_over() and (timeout_s := timeout_s - self._run_s) >= 0:
            self.left -= 1
            self.queue.put(_result(self.left))


@pytest.mark.parametrize("closures", [20, 50, 100])
def test_half_of_the_work_queued_ahead_travels_in_one_message(closures: int) -> None:
    running = EndingWhileAwaited(closures, AHEAD_S / closures)
    assert len(_taken(running.queue)) == closures // 2


def test_results_are_sent_after_hold_time_without_further_results() -> None:
    assert _taken(_queue_of(1_000, _result(1))) == [1]


@pytest.mark.usefixtures("patient")
def test_urgent_results_positions_and_services_are_sent_at_once() -> None:
    for urgent in (
        _result(2, needs_settling=True),
        _result(2, is_prepared=True),
        pb.RunReply(positions=[pb.Position(resource_id="r")]),
        pb.RunReply(services=["grpc://a:1"]),
    ):
        made = _queue_of(1_000, _result(1), urgent)
        assert _taken(made)[0] == 1
        made.put(_result(3))
        assert not made._is_due()


@pytest.mark.usefixtures("patient")
def test_end_of_stream_and_errors_come_after_earlier_results() -> None:
    error = ValueError("x")
    for end in (None, error):
        made = _queue_of(1_000, _result(1), end, _result(2))
        assert _taken(made) == [1]
        assert made.take() is end
        assert _taken(made) == [2]


@pytest.mark.usefixtures("patient")
def test_result_messages_are_bounded_in_count_and_size() -> None:
    many = range(2 * RESULTS_PER_MESSAGE + 1)
    made = _queue_of(0, *(_result(closure) for closure in many))
    found = [_taken(made) for _ in range(3)]
    assert [len(each) for each in found] == [RESULTS_PER_MESSAGE, RESULTS_PER_MESSAGE, 1]
    assert list(itertools.chain(*found)) == list(many)
    large = pb.RunReply(results=[pb.ClosureResult(id=1, value=bytes(1 << 20))])
    made = _queue_of(0, large, _result(2))
    assert [_taken(made), _taken(made)] == [[1], [2]]
