"""Which results of a trainer travel together, and that none waits for nothing."""

from __future__ import annotations

import queue
from typing import Any

from pstrain.trainer import service
from pstrain.trainer.service import with_following
from pstrain.wire import trainer_pb2 as pb


def _result(closure: int, **fields: Any) -> pb.RunReply:
    return pb.RunReply(results=[pb.ClosureResult(id=closure, value=b"1", **fields)])


def _queue(*items: Any) -> queue.SimpleQueue[Any]:
    found: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for item in items:
        found.put(item)
    return found


def _ids(reply: pb.RunReply) -> list[int]:
    return [result.id for result in reply.results]


class _Patient:
    """A queue whose next item comes only for who waits."""

    def __init__(self, item: Any) -> None:
        self._item = item
        self.waited_s: list[float] = []

    def get_nowait(self) -> Any:
        raise queue.Empty

    def get(self, timeout: float) -> Any:
        self.waited_s.append(timeout)
        if len(self.waited_s) > 1:
            raise queue.Empty
        return self._item


def test_what_has_ended_travels_together() -> None:
    ended = _queue(_result(2), _result(3))
    assert _ids(with_following(_result(1), ended, _queue())) == [1, 2, 3]


def test_while_there_is_enough_to_do_a_result_waits_for_the_next() -> None:
    ended: Any = _Patient(_result(2))
    waiting = _queue(*(pb.Closure(id=k) for k in (3, 4)))
    assert _ids(with_following(_result(1), ended, waiting)) == [1, 2]
    assert ended.waited_s[0] <= 2 * service.HOLD_S


def test_a_result_for_which_somebody_may_wait_is_sent_at_once() -> None:
    waiting = _queue(*(pb.Closure(id=k) for k in (3, 4)))
    for reply, left in (
        (_result(1), _queue(pb.Closure(id=3))),
        (_result(1, needs_settling=True), waiting),
        (_result(1, is_prepared=True), waiting),
        (pb.RunReply(positions=[pb.Position(resource_id="r")]), waiting),
        (pb.RunReply(services=["grpc://a:1"]), waiting),
    ):
        ended: Any = _Patient(_result(2))
        with_following(reply, ended, left)
        assert not ended.waited_s


def test_the_end_and_errors_are_left_in_place() -> None:
    error = ValueError("x")
    for end in (None, error):
        ended = _queue(end)
        assert _ids(with_following(_result(1), ended, _queue())) == [1]
        assert ended.get_nowait() is end


def test_the_more_there_is_to_do_the_longer_a_result_waits() -> None:
    waits = []
    for to_do in (2, 4, 1_000):
        ended: Any = _Patient(_result(2))
        with_following(_result(1), ended, _queue(*(pb.Closure(id=k) for k in range(to_do))))
        waits.append(ended.waited_s[0])
    assert waits[0] < waits[1] < waits[2] <= service.HOLD_MAX_S
