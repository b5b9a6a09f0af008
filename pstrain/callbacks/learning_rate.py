"""Another learning rate for each epoch."""

from __future__ import annotations

from collections.abc import Callable

from pstrain.callbacks.base import Callback


class LearningRateSchedule(Callback):
    """Before each epoch the model's optimizer goes on with the rate ``schedule(epoch)``.

    Epochs count from 0. The optimizer's counter and slots stay.
    """

    def __init__(self, schedule: Callable[[int], float]) -> None:
        self._schedule = schedule

    def on_epoch_begin(self, epoch: int) -> None:
        self.model.optimizer = self.model.optimizer.with_learning_rate(self._schedule(epoch))
