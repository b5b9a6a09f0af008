"""Ends training when a measure no longer gets better."""

from __future__ import annotations

import math

from pstrain.callbacks.base import Callback
from pstrain.errors import InvalidArgumentError


class EarlyStopping(Callback):
    """Stops after ``patience`` epochs in which ``monitor`` did not improve by ``min_delta``.

    ``mode``: "min" for losses, "max" for scores such as AUC. A name that the logs do not have
    raises ValueError at the end of the first epoch.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        *,
        patience: int = 0,
        min_delta: float = 0.0,
        mode: str = "min",
    ) -> None:
        if mode not in ("min", "max"):
            raise InvalidArgumentError(f'mode is "min" or "max", got {mode!r}')
        self._monitor, self._patience, self._min_delta = monitor, patience, min_delta
        self._sign = 1.0 if mode == "min" else -1.0
        self._best, self._bad_epochs = math.inf, 0

    def on_train_begin(self) -> None:
        self._best, self._bad_epochs = math.inf, 0

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:  # noqa: ARG002
        if self._monitor not in logs:
            raise InvalidArgumentError(
                f"EarlyStopping watches {self._monitor!r}; the logs have {sorted(logs)}"
            )
        value = self._sign * logs[self._monitor]
        if value < self._best - self._min_delta:
            self._best, self._bad_epochs = value, 0
            return
        self._bad_epochs += 1
        self.stop_training = self._bad_epochs > self._patience
