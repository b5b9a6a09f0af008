"""Datasets that this process reads by itself: an iterator for each epoch, with a saved position.

Knows neither trainers nor loops. Invariant: the data position is saved and restored in the same way
as that of a per-worker iterator.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import dataservice
from dataservice.runtime.arguments import is_integer
from pstrain.errors import InvalidArgumentError, UnimplementedError
from pstrain.trainer.context import InputContext, call_with_context
from pstrain.trainer.resources import TrainerIterator, open_dataset


class Epochs:
    """A dataset whose ``iter`` gives the next epoch each time. Thread-safe."""

    def __init__(self, source: Any, context: InputContext, first_epoch: int = 0) -> None:
        self._source, self._context = source, context
        self._epoch = first_epoch
        self._lock = threading.Lock()

    @property
    def element_spec(self) -> Any:
        """The Arrow schema of the elements; a dataset function is called here to learn it."""
        return element_spec(self._source)

    def __iter__(self) -> EpochIterator:
        with self._lock:
            epoch, self._epoch = self._epoch, self._epoch + 1
        return EpochIterator(self._source, epoch, self._context, self._note_epoch)

    def __repr__(self) -> str:
        return f"<Epochs of {self._source!r}>"

    def _note_epoch(self, epoch: int) -> None:
        """Notes that an iterator was moved to ``epoch``: the next iterator has the one after."""
        with self._lock:
            self._epoch = epoch + 1


class EpochIterator:
    """An iterator over one epoch, in this process."""

    def __init__(
        self, source: Any, epoch: int, context: InputContext, moved: Callable[[int], None]
    ) -> None:
        self._source, self._context, self._moved = source, context, moved
        self._open(epoch)

    def __iter__(self) -> EpochIterator:
        return self

    def __next__(self) -> Any:
        return next(self._reader)

    def get_next(self) -> Any:
        """Does what ``next(iterator)`` does, as in TensorFlow."""
        return next(self._reader)

    def __repr__(self) -> str:
        return f"<EpochIterator of epoch {self.epoch}>"

    def state_dict(self) -> dict[str, Any]:
        """Returns the JSON-able position; UnimplementedError if the data has none to save."""
        return {"epoch": self.epoch, "reader": self._reader.position()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a position of one process, or of a data service that trainers read."""
        epoch = saved_epoch(state)
        if not state.keys() <= {"epoch", "reader", "is_known", "service"}:
            raise InvalidArgumentError(
                "the position was saved while the trainers of a cluster read the data "
                f"({', '.join(state)}), and one process cannot continue from it: train on a "
                "cluster again, or give callbacks.Checkpoint(..., resume=False)"
            )
        self.close()
        self._open(epoch)
        self._moved(epoch)
        position = state.get("reader") or state.get("service")
        if position is not None:
            self._reader.load_state_dict(position)
        else:
            self.rewind()

    def rewind(self) -> None:
        """Has a data service, if one counts the rows, give out the whole epoch again."""
        try:
            state = self._reader.state_dict()
        except (UnimplementedError, AttributeError):
            return
        if dataservice.is_service_state(state):
            self._reader.load_state_dict(dataservice.rewound_state(state))

    def close(self) -> None:
        self._reader.close()

    def _open(self, epoch: int) -> None:
        source, context, self.epoch = self._source, self._context, epoch
        self._reader = TrainerIterator(lambda: open_dataset(source, epoch, context))


def saved_epoch(state: Any) -> int:
    """Returns the epoch of a saved position; InvalidArgumentError if it is no position."""
    epoch: Any = state.get("epoch") if isinstance(state, Mapping) else None
    if not is_integer(epoch) or epoch < 0:
        raise InvalidArgumentError(
            f"not a position of a per-worker iterator: {state!r}; load what state_dict() returned"
        )
    return int(epoch)


def element_spec(source: Any) -> Any:
    """Returns the Arrow schema of a dataset's elements, or of one that a function makes here."""
    while callable(source) and not hasattr(source, "element_spec"):
        source = call_with_context(source, InputContext())
    if not hasattr(source, "schema") and not hasattr(source, "element_spec"):
        raise InvalidArgumentError(
            "only a Dataset tells the schema of its elements, and this is a "
            f"{type(source).__name__}: have the dataset function return a Dataset"
        )
    return source.schema if hasattr(source, "schema") else source.element_spec
