"""A save asks the present trainers for the positions of their data, and waits for no others."""

from __future__ import annotations

import threading
from typing import Any

from pstrain.coordinator.orders import AskPosition, Outbox
from pstrain.coordinator.scheduler import Scheduler
from tests.unit.pstrain.coordinator.scheduling_cases import scheduler

TIMEOUT_S = 30.0


class StreamAnsweringAfterJoin:
    """A trainer's stream that answers once another trainer has joined."""

    def __init__(self, made: Scheduler) -> None:
        self._made = made

    def put(self, item: Any) -> None:
        if isinstance(item, AskPosition):
            threading.Thread(target=self._answer, daemon=True).start()

    def _answer(self) -> None:
        # Waits for the lock, which the asking thread releases while it waits.
        self._made.trainer_joined(1, 1, Outbox())
        self._made.barrier.position(0, "here")


def test_positions_do_not_wait_for_trainer_that_joins_after_the_request() -> None:
    made, _ = scheduler()
    made.trainer_silenced(0)
    made.trainer_joined(0, 1, StreamAnsweringAfterJoin(made))  # type: ignore[arg-type]
    with made.barrier.held(TIMEOUT_S):
        assert made.barrier.positions("data", TIMEOUT_S) == {0: "here"}
    made.stop()
