"""Runs everything in this process, one step after the other.

Knows no coordinator. Invariant: the data position is saved and restored in the same way as that of
a per-worker iterator.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

import dataservice
from pstrain.errors import InvalidArgumentError, UnimplementedError
from pstrain.execution.executor import Report, StepFunction, Steps
from pstrain.trainer.context import InputContext
from pstrain.trainer.resources import TrainerIterator, open_dataset

if TYPE_CHECKING:
    from pstrain.checkpoints.manager import CheckpointManager


class Worker(Protocol):
    """What this module needs of a V1 worker: one of several programs that train the same values."""

    @property
    def input_context(self) -> InputContext: ...

    def begin_steps(self) -> None:
        """Notes that training steps come next."""

    def guarded(self, call: Callable[[], Report]) -> Report:
        """Returns ``call()``, repeated if the values that it changes were lost and restored."""

    def advance(self, steps: int) -> None:
        """Notes that ``steps`` steps have been made."""


class _Epochs:
    """A dataset whose ``iter`` gives the next epoch each time."""

    def __init__(self, source: Any, context: InputContext, first_epoch: int = 0) -> None:
        self._source, self._context = source, context
        self._epoch = first_epoch

    def __iter__(self) -> _LocalIterator:
        epoch, self._epoch = self._epoch, self._epoch + 1
        return _LocalIterator(self._source, epoch, self._context, self._note_epoch)

    def _note_epoch(self, epoch: int) -> None:
        """Notes that an iterator was moved to ``epoch``: the next iterator has the one after."""
        self._epoch = epoch + 1


class _LocalIterator:
    """An iterator over one epoch, in this process."""

    def __init__(
        self, source: Any, epoch: int, context: InputContext, moved: Callable[[int], None]
    ) -> None:
        self._source, self._context, self._moved = source, context, moved
        self._open(epoch)

    def __iter__(self) -> _LocalIterator:
        return self

    def __next__(self) -> Any:
        return next(self._reader)

    def state_dict(self) -> dict[str, Any]:
        """Returns the JSON-able position; UnimplementedError if the data has none to save."""
        return {"epoch": self.epoch, "reader": self._reader.position()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if not state.keys() <= {"epoch", "reader", "is_known"}:
            raise InvalidArgumentError(
                "the position was saved while the trainers of a cluster read the data "
                f"({', '.join(state)}), and one process cannot continue from it: train on a "
                "cluster again, or give callbacks.Checkpoint(..., resume=False)"
            )
        self.close()
        self._open(int(state["epoch"]))
        self._moved(self.epoch)
        if state.get("reader") is not None:
            self._reader.load_state_dict(state["reader"])
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


class _Taken:
    """The elements of one call; if the call is repeated, it gets the same elements first."""

    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator
        self._elements: list[Any] = []
        self._at = 0

    def begin(self) -> None:
        self._at = 0

    def __iter__(self) -> _Taken:
        return self

    def __next__(self) -> Any:
        if self._at == len(self._elements):
            self._elements.append(next(self._iterator))
        self._at += 1
        return self._elements[self._at - 1]


class _OwnValues:
    """Values in this process, or restored by the worker itself: no loss takes them back."""

    checkpoint = None

    def rolling_back(self, manager: CheckpointManager) -> AbstractContextManager[None]:  # noqa: ARG002
        return nullcontext()

    def wait_rolled_back(self, error: Exception) -> bool:  # noqa: ARG002
        return False

    def check_intact(self) -> None: ...

    def end_restoring(self, is_behind: Callable[[], bool]) -> bool:
        return not is_behind()


class LocalExecutor:
    """Runs everything in this process. ``is_alone``: no other process trains the same values.

    ``worker``: the V1 worker that this process is, if any. Dataset functions then build this
    worker's share for training; evaluation reads the whole data.
    """

    def __init__(self, *, is_alone: bool = True, worker: Worker | None = None) -> None:
        self.resumes, self.is_at_end = is_alone, False
        self.recovery = _OwnValues()
        self._worker = worker

    def dataset(self, data: Any, first_epoch: int = 0) -> _Epochs:
        context = InputContext() if self._worker is None else self._worker.input_context
        return _Epochs(data, context, first_epoch)

    def run(self, function: StepFunction, iterator: Any, steps: Steps) -> Iterator[Report]:
        if self._worker is not None:
            self._worker.begin_steps()
        for report in self._reports(function, iterator, steps):
            if self._worker is not None:
                self._worker.advance(report["steps"])
            yield report

    def _reports(self, function: StepFunction, iterator: Any, steps: Steps) -> Iterator[Report]:
        """Yields the reports of one call after the other, until the steps or the data end."""
        self.is_at_end = False
        made = steps.done
        while steps.wants_more(made):
            report = self._call(function, iterator, steps.next_call(made))
            made += report["steps"]
            self.is_at_end = report["ended"]
            yield report
            if report["ended"]:
                return

    def _call(self, function: StepFunction, iterator: Any, steps: int) -> Report:
        if self._worker is None:
            return function(iterator, steps)
        taken = _Taken(iterator)

        def call() -> Report:
            taken.begin()
            return function(taken, steps)

        return self._worker.guarded(call)

    def run_once(
        self,
        function: StepFunction,
        data: Any,
        steps: Steps,
        *,
        is_in_order: bool = False,  # noqa: ARG002
    ) -> Generator[Report, None, None]:
        iterator = iter(_Epochs(data, InputContext()))
        try:
            yield from self._reports(function, iterator, steps)
        finally:
            iterator.close()

    def unreported(self) -> list[Report]:
        return []

    def give_up(self) -> None: ...
