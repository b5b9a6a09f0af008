"""Saves model and optimizer at the end of epochs."""

from __future__ import annotations

import os

from pstrain.callbacks.base import Callback


class Checkpoint(Callback):
    """Saves into ``directory`` after every ``every`` epochs; ``last_path`` is the newest."""

    def __init__(self, directory: str | os.PathLike[str], *, every: int = 1) -> None:
        self._directory, self._every = os.fspath(directory), every
        self.last_path: str | None = None

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:  # noqa: ARG002
        if (epoch + 1) % self._every == 0:
            from pstrain.checkpoint import Checkpoint as Saved

            saved = Saved(model=self.model, optimizer=self.model.optimizer)
            self.last_path = str(saved.save(self._directory))
