"""Keeps the values of a model's best epoch during training, so that they can be restored.

Parameter servers write and read the values themselves; these do not pass through this process.
Knows nothing of what makes an epoch the best. Invariant: only the newest saved values are kept,
together with the fields that were saved with them.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from pstrain.checkpoints import manifest
from pstrain.errors import InvalidArgumentError

_NAME: Final = "best"

if TYPE_CHECKING:
    from pstrain.checkpoints.checkpoint import Checkpoint


class BestValues:
    """The best values of one model, kept in ``directory``.

    None: a temporary directory; InvalidArgumentError if the values are on parameter servers.
    """

    def __init__(self, model: Any, directory: str | None) -> None:
        from pstrain.checkpoints.checkpoint import Checkpoint

        strategy = model.strategy
        if directory is None and getattr(strategy, "parameters", None) is not None:
            raise InvalidArgumentError(
                "restore_best_weights of a model on parameter servers needs a directory that "
                "the hosts of the servers see too: write EarlyStopping(..., directory=...)"
            )
        self.is_kept_here: bool = strategy is None or strategy.extended.should_checkpoint
        self._when_all_are_done = getattr(strategy, "when_all_are_done", _at_once)
        self._said = _SavedFields()
        self._checkpoint: Checkpoint = Checkpoint(model=model, said=self._said)
        self._values: Checkpoint = Checkpoint(model=model)
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if directory is None:
            self._temporary = tempfile.TemporaryDirectory()
            directory = self._temporary.name
        self._directory = directory
        self.path: str | None = None

    @property
    def said(self) -> Mapping[str, Any]:
        """The fields that were saved with the values."""
        return self._said.fields

    def save(self, **said: Any) -> None:
        """Saves the present values with the fields ``said``, and removes those saved before."""
        before, self._said.fields = self.path, said
        self.path = str(self._checkpoint.save(self._directory, name=_NAME))
        if before is not None:
            manifest.remove(before)

    def go_on(self, path: str | None) -> bool:
        """Adopts the values that an earlier program saved at ``path``; False if they are gone.

        If that program has replaced them since, adopts the newer ones in the same directory.
        """
        if self.path is None and path is not None:
            self.path = path if os.path.isdir(path) else _newest(os.path.dirname(path))
            if self.path is not None:
                saved = manifest.read(self.path)["objects"].get("said", {})
                self._said.fields = saved.get("state", {})
        return path is None or self.path is not None

    def restore(self) -> None:
        """Restores the saved values, if any, into the model, and closes.

        In the V1 form it does so once all workers have finished training.
        """
        self._when_all_are_done(self._restore)

    def _restore(self) -> None:
        try:
            if self.path is not None:
                self._values.restore(self.path)
        finally:
            self.close()

    def close(self) -> None:
        """Removes the temporary directory, if there is one."""
        if self._temporary is not None:
            self._temporary.cleanup()


class _SavedFields:
    """A mapping of fields that can be saved as an object of a checkpoint."""

    def __init__(self) -> None:
        self.fields: Mapping[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        return dict(self.fields)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.fields = state


def _newest(directory: str) -> str | None:
    found = manifest.checkpoints(directory)
    return next((p for p in reversed(found) if os.path.basename(p).startswith(f"{_NAME}-")), None)


def _at_once(call: Callable[[], Any]) -> None:
    call()
