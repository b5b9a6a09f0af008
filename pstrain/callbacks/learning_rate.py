"""Sets the learning rate of each epoch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from dataservice.runtime.arguments import check_callable, non_negative
from pstrain.callbacks.base import POSITIONAL, Callback, Logs


class LearningRateScheduler(Callback):
    """Sets the rate of the model's optimizer to ``schedule(epoch)`` before each epoch.

    Epochs count from 0. A schedule of two arguments also gets the rate of the epoch before, also
    when training continues from a checkpoint. The optimizer keeps its counter and slots. The rate
    is in the logs as ``learning_rate``.
    """

    def __init__(self, schedule: Callable[..., float], verbose: int = 0) -> None:
        check_callable("schedule", schedule)
        self._schedule, self._verbose = schedule, verbose
        self._wants_rate = _arguments_of(schedule) > 1
        self._epoch, self._before = -1, 0.0
        self._restored: float | None = None

    def on_train_begin(self) -> None:
        self._epoch, self._before = -1, rate_now(self.model.optimizer)
        self._restored = None

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self._epoch, "before": self._before, "rate": self._rate_so_far()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if state:
            self._epoch, self._before = state["epoch"], state["before"]
            self._restored = state["rate"]

    def on_epoch_begin(self, epoch: int) -> None:
        if epoch != self._epoch:  # an epoch that continues from a checkpoint has begun before
            self._epoch, self._before = epoch, self._rate_so_far()
        self._restored = None
        arguments = (epoch, self._before) if self._wants_rate else (epoch,)
        rate = non_negative(self._schedule(*arguments), f"the learning rate of epoch {epoch}")
        if self._verbose:
            print(f"epoch {epoch + 1}: learning rate {rate:g}")
        self.model.optimizer = self.model.optimizer.with_learning_rate(rate)

    def _rate_so_far(self) -> float:
        return rate_now(self.model.optimizer) if self._restored is None else self._restored

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:  # noqa: ARG002
        logs["learning_rate"] = float(self.model.optimizer.spec.learning_rate)


LearningRateSchedule = LearningRateScheduler


def rate_now(optimizer: Any) -> float:
    """Returns the optimizer's rate; if it follows a schedule, the rate of the next step."""
    rate = optimizer.learning_rate
    return float(rate(int(optimizer.iterations)) if callable(rate) else rate)


def _arguments_of(function: Callable[..., float]) -> int:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 1
    return sum(p.default is p.empty and p.kind in POSITIONAL for p in parameters)
