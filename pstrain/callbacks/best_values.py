"""The values that a model had when it was best, kept beside the training to be taken back.

Parameter servers write and read them by themselves: they do not pass through this process. Knows
nothing of what best is. Invariant: of what was saved here the newest is there, with what was said
of it, and nothing else.
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
    """Of one model, in ``directory``; None: in a temporary one, if they are in this process."""

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
        self._said = _Said()
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
        """What was said of them when they were saved."""
        return self._said.fields

    def save(self, **said: Any) -> None:
        """In the place of those that were saved before, with what is said of them."""
        before, self._said.fields = self.path, said
        self.path = str(self._checkpoint.save(self._directory, name=_NAME))
        if before is not None:
            manifest.remove(before)

    def go_on(self, path: str | None) -> bool:
        """Those that an earlier program saved stand for its best; False where they are gone.

        Where it has replaced those at ``path`` since, the newer ones do.
        """
        if self.path is None and path is not None:
            self.path = path if os.path.isdir(path) else _newest(os.path.dirname(path))
            if self.path is not None:
                saved = manifest.read(self.path)["objects"].get("said", {})
                self._said.fields = saved.get("state", {})
        return path is None or self.path is not None

    def restore(self) -> None:
        """Takes the model back to the values, if any were saved, and closes.

        In the V1 form when no worker trains any more.
        """
        self._when_all_are_done(self._restore)

    def _restore(self) -> None:
        try:
            if self.path is not None:
                self._values.restore(self.path)
        finally:
            self.close()

    def close(self) -> None:
        """Removes what is temporary."""
        if self._temporary is not None:
            self._temporary.cleanup()


class _Said:
    """Fields, as an object of a checkpoint."""

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
