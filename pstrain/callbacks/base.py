"""The moments at which ``fit`` calls, and the list that passes each call on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class Callback:
    """Override what you need. All run in the training program, between reports of the trainers.

    ``model`` is the model; ``params`` has ``epochs`` and ``steps`` (None: whole epochs). Set
    ``stop_training`` to end after this epoch. ``logs`` may be added to at the end of an epoch.
    """

    model: Any = None
    params: Mapping[str, Any] = {}
    stop_training: bool = False

    def on_train_begin(self) -> None: ...

    def on_train_end(self) -> None: ...

    def on_epoch_begin(self, epoch: int) -> None: ...

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None: ...

    def on_train_batch_end(self, steps: int, logs: dict[str, float]) -> None:
        """``steps``: steps of this epoch so far; several may have ended since the last call."""


class CallbackList:
    """Calls each callback in turn."""

    def __init__(
        self, callbacks: Sequence[Callback], model: Any, *, epochs: int, steps: int | None
    ) -> None:
        self._callbacks = list(callbacks)
        for callback in self._callbacks:
            callback.model = model
            callback.params = {"epochs": epochs, "steps": steps}

    @property
    def stop_training(self) -> bool:
        return any(callback.stop_training for callback in self._callbacks)

    def train_begin(self) -> None:
        for callback in self._callbacks:
            callback.stop_training = False
            callback.on_train_begin()

    def train_end(self) -> None:
        for callback in self._callbacks:
            callback.on_train_end()

    def epoch_begin(self, epoch: int) -> None:
        for callback in self._callbacks:
            callback.on_epoch_begin(epoch)

    def epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        for callback in self._callbacks:
            callback.on_epoch_end(epoch, logs)

    def batch_end(self, steps: int, logs: dict[str, float]) -> None:
        for callback in self._callbacks:
            callback.on_train_batch_end(steps, logs)
