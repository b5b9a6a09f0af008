"""Ends training when the loss is no longer a number."""

from __future__ import annotations

import logging
import math

from pstrain.callbacks.base import Callback, Logs

logger = logging.getLogger(__name__)


class TerminateOnNaN(Callback):
    """Stops training once the epoch's loss is NaN or infinite, and logs a warning.

    Steps that are in progress then still end. With it, metrics are computed at each report; some,
    such as AUC, refuse NaN themselves, with an error.
    """

    def on_train_batch_end(self, batch: int, logs: Logs) -> None:
        if not math.isfinite(logs["loss"]) and not self.stop_training:
            logger.warning("the loss is %s after step %d: training stops", logs["loss"], batch)
            self.stop_training = True
