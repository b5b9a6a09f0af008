"""Ends training when a monitored value stops improving."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

from dataservice.runtime.arguments import check_true_or_false, integer_at_least, path_of
from pstrain.callbacks.base import Callback, Logs
from pstrain.callbacks.best_values import BestValues
from pstrain.callbacks.monitor import Monitor

logger = logging.getLogger(__name__)


class EarlyStopping(Callback):
    """Stops training after ``patience`` epochs (at least one) in which ``monitor`` did not improve.

    A value improves if it is better than the best so far, and than ``baseline``, by more than
    ``min_delta``. ``mode``: "min" for losses, "max" for scores; "auto": as ``more_is_better`` of
    the model's metric of that name says, otherwise by the name. The first ``start_from_epoch``
    epochs are not counted. A name that is not in the logs raises ValueError at the end of the first
    epoch. ``stopped_epoch``: the epoch after which training was stopped; ``best``: the best value,
    although it may not reach ``baseline``; ``best_epoch``: its epoch; ``wait``: consecutive epochs
    without improvement.

    ``restore_best_weights``: when training ends for any reason but an error, the model's values and
    the optimizer's slots, but not its count of steps, are restored from the best epoch. Until then
    they are kept on disk, in ``directory``. With a strategy the parameter servers write there, so
    ``directory`` must be given, and be the same place on all their hosts. In the V1 form each
    worker stops by its own measurements; the chief keeps the values of its own best epoch, and
    restores them when all workers are done, as the session ends, or when it trains again before
    that.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        min_delta: float = 0.0,
        patience: int = 0,
        verbose: int = 0,
        mode: str = "auto",
        baseline: float | None = None,
        restore_best_weights: bool = False,
        *,
        start_from_epoch: int = 0,
        directory: str | os.PathLike[str] | None = None,
    ) -> None:
        check_true_or_false(restore_best_weights=restore_best_weights)
        self._monitor = Monitor(monitor, mode=mode, min_delta=min_delta, baseline=baseline)
        self._patience, self._verbose = integer_at_least(patience, 0, "patience"), verbose
        self._start_from_epoch = integer_at_least(start_from_epoch, 0, "start_from_epoch")
        self._restores_best = restore_best_weights
        self._directory = None if directory is None else path_of(directory, "directory")
        self._values: BestValues | None = None
        self._bad_epochs = 0
        self.stopped_epoch = self.best_epoch = 0

    @property
    def best(self) -> float | None:
        """The best value of this training; None before the first value."""
        return self._monitor.best

    @property
    def wait(self) -> int:
        """The number of consecutive epochs without improvement."""
        return self._bad_epochs

    def state_dict(self) -> dict[str, Any]:
        path = None if self._values is None else self._values.path
        counts = {"bad_epochs": self._bad_epochs, "best_epoch": self.best_epoch}
        return {"best": self._monitor.best, **counts, "values": path}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._monitor.best = state["best"]
        self._bad_epochs, self.stopped_epoch = state["bad_epochs"], 0
        self.best_epoch = state.get("best_epoch", 0)
        if self._values is None:
            return
        if not self._values.adopt(state.get("values")):
            logger.warning(
                "the values of the best epoch were lost with the program that held them, so the "
                "search for the best epoch starts over; EarlyStopping(directory=...) keeps them"
            )
            self._monitor.reset()
        elif self._values.path != state.get("values"):
            # The kept values are of a later epoch and have replaced those of the state's best
            # epoch, so the later epoch stays the best one.
            self._monitor.best = self._values.saved_fields.get("best")
            self.best_epoch = self._values.saved_fields.get("best_epoch", 0)

    def on_train_begin(self) -> None:
        self._monitor.reset()
        self._monitor.follow(self.model)
        self._bad_epochs = self.stopped_epoch = self.best_epoch = 0
        if self._restores_best:
            values = BestValues(self.model, self._directory)
            self._values = values if values.is_kept_here else None

    def on_train_end(self) -> None:
        values, self._values = self._values, None
        if values is not None:
            values.restore()

    def on_train_error(self, error: BaseException) -> None:  # noqa: ARG002
        values, self._values = self._values, None
        if values is not None:
            values.close()

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        if not self._monitor.is_due(epoch, self.params):
            return
        value = self._monitor.value(logs, "EarlyStopping")
        if epoch < self._start_from_epoch:
            return
        is_better = self._monitor.improves(value)
        if is_better:
            self.best_epoch = epoch
        self._bad_epochs = 0 if self._is_improving(epoch) else self._bad_epochs + 1
        if self._values is not None and (is_better or self._values.path is None):
            self._values.save(best=self._monitor.best, best_epoch=self.best_epoch)
        if self._bad_epochs >= max(1, self._patience):
            self.stop_training = True
            self.stopped_epoch = epoch
            if self._verbose:
                print(f"epoch {epoch + 1}: {self._monitor.name} no longer improves; stopping")

    def _is_improving(self, epoch: int) -> bool:
        # The best epoch may lie ahead of one that is trained again, as its values are kept.
        if self._monitor.best is None or epoch > self.best_epoch:
            return False
        return self._monitor.beats_baseline(self._monitor.best)
