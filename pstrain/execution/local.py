"""Runs everything in this process, one step after the other.

Knows no coordinator. Invariant: calls are made in their order, each when the one before has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

from pstrain.execution.executor import Report, StepFunction, Steps
from pstrain.trainer.context import InputContext
from pstrain.trainer.epochs import Epochs

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

    def dataset(self, data: Any, first_epoch: int = 0) -> Epochs:
        context = InputContext() if self._worker is None else self._worker.input_context
        return Epochs(data, context, first_epoch)

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
        iterator = iter(Epochs(data, InputContext()))
        try:
            yield from self._reports(function, iterator, steps)
        finally:
            iterator.close()

    def unreported(self) -> list[Report]:
        return []

    def give_up(self) -> None: ...
