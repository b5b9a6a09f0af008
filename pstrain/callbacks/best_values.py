"""The values that a model had when it was best, kept beside the training to be taken back.

Parameter servers write and read them by themselves: they do not pass through this process. Knows
nothing of what best is. Invariant: of what was saved here the newest is there, and nothing else.
"""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING, Any

from pstrain.checkpoints import manifest
from pstrain.errors import InvalidArgumentError

if TYPE_CHECKING:
    from pstrain.checkpoints.checkpoint import Checkpoint


class BestValues:
    """Of one model, in ``directory``; None: in a temporary one, if they are in this process."""

    def __init__(self, model: Any, directory: str | None) -> None:
        from pstrain.checkpoints.checkpoint import Checkpoint

        if directory is None and model.strategy is not None:
            raise InvalidArgumentError(
                "restore_best_weights of a model on parameter servers needs a place that their "
                "hosts see too: write EarlyStopping(..., directory=...)"
            )
        self._checkpoint: Checkpoint = Checkpoint(model=model)
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if directory is None:
            self._temporary = tempfile.TemporaryDirectory()
            directory = self._temporary.name
        self._directory = directory
        self.path: str | None = None

    def save(self) -> None:
        """In the place of those that were saved before."""
        before = self.path
        self.path = str(self._checkpoint.save(self._directory, name="best"))
        if before is not None:
            manifest.remove(before)

    def go_on(self, path: str | None) -> bool:
        """Those that an earlier program saved stand for its best; False where they are gone."""
        if self.path is None and path is not None and os.path.isdir(path):
            self.path = path
        return path is None or self.path is not None

    def restore(self) -> None:
        """Takes the model back to the values, if any were saved."""
        if self.path is not None:
            self._checkpoint.restore(self.path)

    def close(self) -> None:
        """Removes what is temporary."""
        if self._temporary is not None:
            self._temporary.cleanup()
