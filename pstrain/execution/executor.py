"""Executors: they run a function over a dataset until the data or the steps are used up.

The one place where training, evaluation and prediction differ between one process and a cluster.
Knows nothing of models. Invariant: a run ends when all its readers have seen the end of their data,
or when the requested steps are done, whichever comes first.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pstrain.checkpoints.manager import CheckpointManager

Report = dict[str, Any]
"""The result of one call of a function: at least ``steps`` (taken) and ``ended`` (no data left)."""

StepFunction = Callable[[Any, int], Report]
"""Takes at most ``steps`` elements of ``iterator``; must not raise at the end of the data."""

Note = Callable[[Any], bool]
"""Takes the result of one step, of types that closures may return.

False if there is no room for it: the run has to end after this step.
"""


def discard_note(_step: Any) -> bool:
    """A Note that keeps nothing, for calls whose report cannot be lost."""
    return True


class NotingFunction(ABC):
    """A function that changes values at each step, and notes the result of each step.

    If its trainer is lost, the notes are what is known of the steps that were committed.
    """

    def __call__(self, iterator: Any, steps: int) -> Report:
        return self.run(iterator, steps, discard_note)

    @abstractmethod
    def run(self, iterator: Any, steps: int, note: Note) -> Report:
        """Runs the steps; calls ``note`` after each step but the last, once all is changed.

        Ends once ``note`` returns False.
        """

    @abstractmethod
    def report_of(self, notes: Iterable[Any]) -> Report:
        """Returns the report of a run that ended after the steps of these notes."""


def never() -> bool:
    """A condition that is never met."""
    return False


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of a run, up to ``total`` (None: to the end of the data), ``done`` included.

    ``done``: those that were made before. ``per_call``: how many one call of the function makes.
    Once ``is_stopped``, which is checked after each report, no more calls begin; those under way
    still end, and are reported. ``is_watched``: something acts on reports while the run goes on, so
    few calls are under way.
    """

    total: int | None = None
    per_call: int = 1
    done: int = 0
    is_stopped: Callable[[], bool] = never
    is_watched: bool = False

    def wants_more(self, made: int) -> bool:
        """True if another call is to begin after ``made`` steps."""
        return not self.is_stopped() and (self.total is None or made < self.total)

    def next_call(self, made: int) -> int:
        """Returns how many steps the call makes that begins after ``made`` steps."""
        return self.per_call if self.total is None else min(self.per_call, self.total - made)


class TrainedValues(Protocol):
    """The values that functions train, which may be lost with a parameter server and restored."""

    @property
    def checkpoint(self) -> CheckpointManager | None:
        """The CheckpointManager that the program gave to its coordinator, if any."""

    def rolling_back(self, manager: CheckpointManager) -> AbstractContextManager[None]:
        """Opens a scope in which a lost server takes everything back to the newest checkpoint."""

    def wait_rolled_back(self, error: Exception) -> bool:
        """Waits for the restore if a lost server caused ``error``; True if all is restored."""

    def check_intact(self) -> None:
        """Raises if trained values are lost."""

    def end_restoring(self, is_behind: Callable[[], bool]) -> bool:
        """Ends restoring for good; False if one is under way, or was done (``is_behind``)."""


class Executor(Protocol):
    """Runs functions over data, here or on trainers.

    ``is_at_end``: whether the last run met the end of its data, with no reader having any left.
    ``resumes``: whether a restarted program may take values back to a checkpoint by itself.
    """

    is_at_end: bool
    resumes: bool

    @property
    def recovery(self) -> TrainedValues:
        """The values that its functions train, and what is done about their loss."""

    def give_up(self) -> None:
        """Makes a run that was broken off change no more values. Blocks, bounded."""

    def dataset(self, data: Any, first_epoch: int = 0) -> Any:
        """Returns a handle whose ``iter`` gives the next epoch each time, from ``first_epoch`` on.

        ``data`` that is such a handle already is returned as it is, and keeps its own epoch.
        """

    def run(self, function: StepFunction, iterator: Any, steps: Steps) -> Iterator[Report]:
        """Makes ``steps``; yields the calls' reports in the order in which the calls end."""

    def unreported(self) -> list[Report]:
        """Returns the reports of the current :meth:`run` that have arrived and were not yielded."""

    def run_once(
        self,
        function: StepFunction,
        data: Any,
        steps: Steps,
        *,
        is_in_order: bool = False,
    ) -> Generator[Report, None, None]:
        """Makes ``steps`` in one pass over the data; yields the calls' reports.

        ``is_in_order``: yields them in the order of the elements, if trainers share such an order.
        If the generator is closed or interrupted before its end, the calls that it has scheduled
        are cancelled.
        """


def take(iterator: Any, steps: int) -> Iterator[tuple[Any, float]]:
    """Yields at most ``steps`` elements, each with the seconds that the wait for it took."""
    for _ in range(steps):
        started_s = time.perf_counter()
        try:
            element = next(iterator)
        except StopIteration:
            return
        yield element, time.perf_counter() - started_s
