"""Ends training when a measure no longer gets better."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dataservice.runtime.arguments import integer_at_least
from pstrain import foreign_names
from pstrain.callbacks.base import Callback, Logs
from pstrain.callbacks.monitor import Monitor
from pstrain.foreign_names import instead_of


class EarlyStopping(Callback):
    """Stops after ``patience`` epochs (at least one) in which ``monitor`` did not improve.

    To improve is to get better than the best so far, at first ``baseline``, by more than
    ``min_delta``. ``mode``: "min" for losses, "max" for scores, "auto" by the name. The first
    ``start_from_epoch`` epochs do not count. A name that the logs do not have raises ValueError at
    the end of the first epoch. ``stopped_epoch`` is the last epoch of a training that was ended.
    """

    @instead_of("EarlyStopping", foreign_names.EARLY_STOPPING)
    def __init__(
        self,
        monitor: str = "val_loss",
        min_delta: float = 0.0,
        patience: int = 0,
        verbose: int = 0,
        mode: str = "auto",
        baseline: float | None = None,
        *,
        start_from_epoch: int = 0,
    ) -> None:
        self._monitor = Monitor(monitor, mode=mode, min_delta=min_delta, baseline=baseline)
        self._patience, self._verbose = integer_at_least(patience, 0, "patience"), verbose
        self._start_from_epoch = integer_at_least(start_from_epoch, 0, "start_from_epoch")
        self._bad_epochs = 0
        self.stopped_epoch = 0

    def state_dict(self) -> dict[str, Any]:
        return {"best": self._monitor.best, "bad_epochs": self._bad_epochs}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._monitor.best = state["best"]
        self._bad_epochs, self.stopped_epoch = state["bad_epochs"], 0

    def on_train_begin(self) -> None:
        self._monitor.reset()
        self._bad_epochs = self.stopped_epoch = 0

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        value = self._monitor.value(logs, "EarlyStopping")
        if epoch < self._start_from_epoch:
            return
        if self._monitor.improves(value):
            self._bad_epochs = 0
            return
        self._bad_epochs += 1
        if self._bad_epochs >= max(1, self._patience):
            self.stop_training = True
            self.stopped_epoch = epoch
            if self._verbose:
                print(f"epoch {epoch + 1}: {self._monitor.name} no longer improves; stopping")
        if not self._monitor.is_due(epoch, self.params):
            return
