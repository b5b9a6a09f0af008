"""Runs everything in this process, one step after the other.

Knows no coordinator. Invariant: the position in the data is saved and restored as that of a
per-worker iterator is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import dataservice
from pstrain.errors import InvalidArgumentError, UnimplementedError
from pstrain.execution.executor import Report, StepFunction, share_of
from pstrain.trainer.context import InputContext
from pstrain.trainer.resources import TrainerIterator, open_dataset

if TYPE_CHECKING:
    from pstrain.checkpoints.manager import CheckpointManager


class _Epochs:
    """Makes the next epoch's iterator at each ``iter``."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self._epoch = 0

    def __iter__(self) -> _LocalIterator:
        epoch, self._epoch = self._epoch, self._epoch + 1
        return _LocalIterator(self._source, epoch, self._note_epoch)

    def _note_epoch(self, epoch: int) -> None:
        """An iterator was moved to an epoch: the next one follows it."""
        self._epoch = epoch + 1


class _LocalIterator:
    """One epoch in this process."""

    def __init__(self, source: Any, epoch: int, moved: Callable[[int], None]) -> None:
        self._source, self._moved = source, moved
        self._open(epoch)

    def __iter__(self) -> _LocalIterator:
        return self

    def __next__(self) -> Any:
        return next(self._reader)

    def state_dict(self) -> dict[str, Any]:
        """JSON-able; UnimplementedError for data whose position cannot be saved."""
        return {"epoch": self.epoch, "reader": self._reader.position()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if not state.keys() <= {"epoch", "reader", "is_known"}:
            raise InvalidArgumentError(
                "the position is of data that a cluster's trainers read "
                f"({', '.join(state)}), which one process cannot go on from: train on a cluster as "
                "then, or give callbacks.Checkpoint(..., resume=False)"
            )
        self.close()
        self._open(int(state["epoch"]))
        self._moved(self.epoch)
        if state.get("reader") is not None:
            self._reader.load_state_dict(state["reader"])
        else:
            self.rewind()

    def rewind(self) -> None:
        """A data service that counts its rows gives out all of the epoch again."""
        try:
            state = self._reader.state_dict()
        except (UnimplementedError, AttributeError):
            return
        if dataservice.is_service_state(state):
            self._reader.load_state_dict(dataservice.rewound_state(state))

    def close(self) -> None:
        self._reader.close()

    def _open(self, epoch: int) -> None:
        source, self.epoch = self._source, epoch
        self._reader = TrainerIterator(lambda: open_dataset(source, epoch, InputContext()))


class LocalExecutor:
    """Runs everything in this process; ``is_alone``: which is the only one of its training."""

    def __init__(self, *, is_alone: bool = True) -> None:
        self.resumes = is_alone

    def dataset(self, data: Any) -> _Epochs:
        return _Epochs(data)

    def run(
        self,
        function: StepFunction,
        iterator: Any,
        steps: int | None,
        steps_per_execution: int,
        done: int = 0,
    ) -> Iterator[Report]:
        while steps is None or done < steps:
            report = function(iterator, share_of(steps, done, steps_per_execution))
            done += report["steps"]
            yield report
            if report["ended"]:
                return

    def run_once(
        self, function: StepFunction, data: Any, steps: int | None, steps_per_execution: int
    ) -> Iterator[Report]:
        iterator = iter(self.dataset(data))
        try:
            yield from self.run(function, iterator, steps, steps_per_execution)
        finally:
            iterator.close()

    def unreported(self) -> list[Report]:
        return []

    @property
    def checkpoint(self) -> None:
        return None

    def going_back(self, manager: CheckpointManager) -> AbstractContextManager[None]:  # noqa: ARG002
        return nullcontext()

    def went_back(self, error: Exception) -> bool:  # noqa: ARG002
        return False

    def confirm(self) -> None: ...

    def retire(self, is_behind: Callable[[], bool]) -> bool:
        return not is_behind()
