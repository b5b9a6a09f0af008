"""Evicts keys of online columns during training, so that new keys get rows of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dataservice.runtime.arguments import integer_at_least
from pstrain.callbacks.base import Callback, Logs, reads_logs_where


class Evict(Callback):
    """Calls ``model.evict(keep)`` every ``every_steps`` steps: the oldest keys give up their rows.

    ``keep``: a dict of numbers by column, or a number if there is a single online column. It should
    leave room for the new keys of ``every_steps`` steps, below nine tenths of the capacity. Which
    keys are the oldest is known to within ``every_steps`` steps, so a thousand is better than a
    million. ``evicted`` counts the keys evicted by this fit. Training stops meanwhile, and each
    trainer asks the servers for its keys again afterwards. Not for the V1 form.
    """

    def __init__(self, keep: Mapping[str, int] | int, *, every_steps: int = 1_000) -> None:
        self._keep = dict(keep) if isinstance(keep, Mapping) else keep
        self._every_steps = integer_at_least(every_steps, 1, "every_steps")
        self._reported = self._steps = 0
        self._begins = True
        self.evicted = 0

    def on_train_begin(self) -> None:
        self.model.checked_online().limits(self._keep)
        self._reported = self._steps = self.evicted = 0
        self._begins = True

    def on_epoch_begin(self, epoch: int) -> None:  # noqa: ARG002
        # Keys used from here on are newer than those of before the fit, or of a checkpoint.
        if self._begins:
            self._begins = False
            self.model.evict({})

    def on_train_batch_begin(self, batch: int) -> None:
        self._reported = batch

    @reads_logs_where(lambda _self, _batch: False)
    def on_train_batch_end(self, batch: int, logs: Logs) -> None:  # noqa: ARG002
        self._steps += batch - self._reported
        if self._steps >= self._every_steps:
            self._steps = 0
            self.evicted += self.model.evict(self._keep)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._begins = True
        self._steps = int(state.get("steps", 0))
        self.evicted = int(state.get("evicted", 0))

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self._steps, "evicted": self.evicted}
