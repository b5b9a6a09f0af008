"""Reduces the learning rate when a monitored value stops improving."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dataservice.runtime.arguments import integer_at_least, non_negative
from pstrain.callbacks.base import Callback, Logs
from pstrain.callbacks.learning_rate import rate_now
from pstrain.callbacks.monitor import Monitor
from pstrain.errors import InvalidArgumentError
from pstrain.porting import foreign_arguments
from pstrain.porting.foreign_arguments import refuse_arguments


class ReduceLROnPlateau(Callback):
    """Multiplies the learning rate by ``factor`` after ``patience`` epochs without improvement.

    A value improves if it is better than the best so far by more than ``min_delta``; ``mode`` as in
    EarlyStopping. After a reduction, ``cooldown`` epochs are not counted. The rate does not fall
    below ``min_lr``. If the optimizer follows a schedule, the schedule is replaced by ``factor``
    times its rate for the next step. The rate is in the logs as ``learning_rate``; it is kept when
    training ends.
    """

    @refuse_arguments("ReduceLROnPlateau", foreign_arguments.PLATEAU)
    def __init__(
        self,
        monitor: str = "val_loss",
        factor: float = 0.1,
        patience: int = 10,
        verbose: int = 0,
        mode: str = "auto",
        min_delta: float = 1e-4,
        cooldown: int = 0,
        min_lr: float = 0.0,
    ) -> None:
        self._monitor = Monitor(monitor, mode=mode, min_delta=min_delta)
        self._factor = non_negative(factor, "factor")
        if factor >= 1:
            raise InvalidArgumentError(f"factor must be below 1, got {factor}")
        self._patience = integer_at_least(patience, 0, "patience")
        self._cooldown = integer_at_least(cooldown, 0, "cooldown")
        self._least = non_negative(min_lr, "min_lr")
        self._verbose = verbose
        self._bad_epochs = self._cooldown_left = 0
        self._first: Any = None
        self._reduced: float | None = None

    def on_train_begin(self) -> None:
        self._monitor.reset()
        self._monitor.follow(self.model)
        self._bad_epochs = self._cooldown_left = 0
        self._first, self._reduced = self.model.optimizer.learning_rate, None

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        logs["learning_rate"] = rate = rate_now(self.model.optimizer)
        if not self._monitor.is_due(epoch, self.params):
            return
        value = self._monitor.value(logs, "ReduceLROnPlateau")
        self._cooldown_left = max(0, self._cooldown_left - 1)
        if self._monitor.improves(value) or self._cooldown_left:
            self._bad_epochs = 0
            return
        self._bad_epochs += 1
        if self._bad_epochs >= self._patience and rate > self._least:
            self._reduce(epoch, rate)

    def _reduce(self, epoch: int, rate: float) -> None:
        self._reduced = max(rate * self._factor, self._least)
        self.model.optimizer.learning_rate = self._reduced
        self._bad_epochs, self._cooldown_left = 0, self._cooldown
        if self._verbose:
            print(f"epoch {epoch + 1}: learning rate {self._reduced:g} from here on")

    def state_dict(self) -> dict[str, Any]:
        return {
            "best": self._monitor.best,
            "bad_epochs": self._bad_epochs,
            "rests": self._cooldown_left,
            "reduced": self._reduced,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._monitor.best = state["best"]
        self._bad_epochs, self._cooldown_left = state["bad_epochs"], state["rests"]
        if state["reduced"] != self._reduced:
            self._reduced = state["reduced"]
            rate = self._first if self._reduced is None else self._reduced
            self.model.optimizer.learning_rate = rate
