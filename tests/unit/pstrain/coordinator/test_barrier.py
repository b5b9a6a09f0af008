"""A save waits for what can still end, and asks only the present trainers for their positions."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from pstrain.coordinator.decide import DecidedClosure
from pstrain.coordinator.lost_trainers import Settlement
from pstrain.coordinator.orders import AskPosition, Outbox
from pstrain.coordinator.scheduler import Scheduler
from pstrain.errors import DeadlineExceededError, FailedPreconditionError
from tests.unit.pstrain.coordinator.scheduling_cases import Cluster, scheduler

TIMEOUT_S = 3.0


class StreamAnsweringAfterJoin:
    """A trainer's stream that answers once another trainer has joined."""

    def __init__(self, made: Scheduler) -> None:
        self._made = made

    def put(self, item: Any) -> None:
        if isinstance(item, AskPosition):
            threading.Thread(target=self._answer, daemon=True).start()

    def _answer(self) -> None:
        # Waits for the lock, which the asking thread releases while it waits.
        self._made.trainers.joined(1, 1, Outbox())
        self._made.barrier.position(0, "here")


def test_positions_do_not_wait_for_trainer_that_joins_after_the_request() -> None:
    made, _ = scheduler()
    made.trainers.silence(0)
    made.trainers.joined(0, 1, StreamAnsweringAfterJoin(made))  # type: ignore[arg-type]
    with made.barrier.held(TIMEOUT_S):
        assert made.barrier.positions("data", TIMEOUT_S) == {0: "here"}
    made.stop()


def test_closures_start_only_after_outermost_barrier_was_left() -> None:
    cluster = Cluster()
    barrier = cluster.scheduler.barrier
    with barrier.held(TIMEOUT_S):
        cluster.submit()
        with barrier.held(TIMEOUT_S):
            assert barrier.is_held_here()
        assert barrier.is_held_here()
        with pytest.raises(FailedPreconditionError, match="no closure runs inside"):
            barrier.check_not_held()
        assert cluster.outbox.empty()
    assert not barrier.is_held_here()
    barrier.check_not_held()
    assert cluster.run() == 0


def test_scheduling_goes_on_after_barrier_that_could_not_be_entered() -> None:
    cluster = Cluster()
    for _ in range(2):
        cluster.submit()
    held = cluster.scheduler.barrier.held(0)
    with pytest.raises(DeadlineExceededError, match="closures to end, to save"), held:
        pass
    assert [cluster.run() for _ in range(2)] == [0, 1]


def partly_committed() -> Scheduler:
    """Returns a scheduler with a closure of which a lost trainer has committed a part."""
    made, _ = scheduler()
    closure = made.submit("f", b"", None).closure
    made.trainers.silence(0)
    made.trainers.lost(0, Settlement({closure: DecidedClosure(0, 1)}, {}, {}))
    assert made._core.state.has_partly_committed
    return made


def test_barrier_does_not_wait_for_closures_held_by_restore() -> None:
    # The restore waits for the save, which holds the lock of the checkpoint.
    made = partly_committed()
    made.rollback.hold()
    with made.barrier.held(TIMEOUT_S):
        assert made._core.state.has_partly_committed
    made.rollback.resume()
    made.stop()


def test_wait_for_partly_committed_closures_ends_when_restore_begins() -> None:
    made = partly_committed()
    waits = made._core.changed.wait

    def wait(timeout_s: float | None = None) -> bool:
        if not made._core.rolling_back:
            made.rollback.hold()
        return waits(timeout_s)

    made._core.changed.wait = wait  # type: ignore[method-assign]
    with made.barrier.held(TIMEOUT_S):
        assert made._core.state.has_partly_committed
    made.stop()
