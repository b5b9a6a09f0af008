"""Records loss and AUC over time while a model is trained.

Knows only the logs of training. Invariant: only the time of training counts, not that of
evaluation.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from pstrain.callbacks import Callback

_EVERY_EXAMPLES = 8_192


class LossPoint(NamedTuple):
    """The mean loss of the examples since the previous point."""

    seconds: float
    loss: float


class TestPoint(NamedTuple):
    """The scores on the test rows after an epoch."""

    seconds: float
    auc: float
    loss: float


class Trace(Callback):
    """A callback that collects points; ``examples`` and ``seconds`` are of all epochs so far."""

    def __init__(self) -> None:
        self.losses: list[LossPoint] = []
        self.tests: list[TestPoint] = []
        self.examples = 0
        self.seconds = 0.0
        self._begun_s = 0.0
        self._epoch_s = 0.0
        self._seen = 0.0
        self._loss_sum = 0.0

    def on_epoch_begin(self, epoch: int) -> None:  # noqa: ARG002
        self._begun_s = time.perf_counter()
        self._epoch_s = self._seen = self._loss_sum = 0.0

    def on_train_batch_end(self, steps: int, logs: dict[str, float]) -> None:  # noqa: ARG002
        self._epoch_s = time.perf_counter() - self._begun_s
        seen, loss_sum = logs["examples"], logs["loss"] * logs["examples"]
        if seen - self._seen >= _EVERY_EXAMPLES:
            loss = (loss_sum - self._loss_sum) / (seen - self._seen)
            self.losses.append(LossPoint(self.seconds + self._epoch_s, loss))
            self._seen, self._loss_sum = seen, loss_sum

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:  # noqa: ARG002
        self.seconds += self._epoch_s
        self.examples += int(logs["examples"])
        if "val_auc" in logs:
            self.record_scores(auc=logs["val_auc"], loss=logs["val_loss"])

    def record_scores(self, *, auc: float, loss: float) -> None:
        """Records scores on the test rows."""
        self.tests.append(TestPoint(self.seconds, auc, loss))
