"""What runs a function over a dataset until the data or the steps are used up.

The one place where training, evaluation and prediction differ between one process and a cluster.
Knows nothing of models. Invariant: a run ends when whoever reads has seen the end of its data, or
when the steps asked for are done, whichever comes first.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, Protocol

from pstrain.execution.resumption import Restorable

Report = dict[str, Any]
"""What a run of a function says: at least ``steps`` (how many it took) and ``ended`` (no data)."""

StepFunction = Callable[[Any, int], Report]
"""``(iterator, steps)``: takes at most so many elements; must not raise at the end of the data."""

Note = Callable[[Any], bool]
"""Is given what one step came to, as values that closures return; False: let it be the last."""


def unnoted(_step: Any) -> bool:
    """Nobody asks for notes where a report is heard in any case."""
    return True


class Noting(ABC):
    """A function that changes values at each step, and says what each came to.

    Where a trainer is lost that had begun, what is known of the steps that count is their notes.
    """

    def __call__(self, iterator: Any, steps: int) -> Report:
        return self.run(iterator, steps, unnoted)

    @abstractmethod
    def run(self, iterator: Any, steps: int, note: Note) -> Report:
        """The same; ``note`` is called after each step before the last, when all is changed."""

    @abstractmethod
    def report_of(self, notes: Iterable[Any]) -> Report:
        """What a run would have said that ended after these steps."""


def never() -> bool:
    """Nobody stops a run before its end."""
    return False


class Executor(Restorable, Protocol):
    """Where the functions run.

    ``is_at_end``: whether a run that is over met the end of its data, and nobody has any left.
    """

    is_at_end: bool

    def dataset(self, data: Any, first_epoch: int = 0) -> Any:
        """A handle of which each ``iter`` is the next epoch, the first time this one.

        What is such a handle already goes on with its own.
        """

    def run(
        self,
        function: StepFunction,
        iterator: Any,
        steps: int | None,
        steps_per_execution: int,
        done: int = 0,
        is_stopped: Callable[[], bool] = never,
    ) -> Iterator[Report]:
        """Yields reports as runs end, whichever began first; ``done`` steps were done before.

        Once ``is_stopped``, which is asked after a report, no more runs begin: those that are
        under way still end, and are reported.
        """

    def unreported(self) -> list[Report]:
        """Reports of the present :meth:`run` that are there and were not yielded yet."""

    def run_once(
        self,
        function: StepFunction,
        data: Any,
        steps: int | None,
        steps_per_execution: int,
        *,
        is_in_order: bool = False,
    ) -> Generator[Report, None, None]:
        """One pass over the first ``steps`` elements (None: all): reports as runs end.

        ``is_in_order``: in the order of the elements, where they have one that trainers share. One
        that is closed or interrupted before its end leaves nothing that runs on.
        """


def share_of(steps: int | None, done: int, steps_per_execution: int) -> int:
    """How many of the steps that are left (None: no end) one call of the function takes."""
    return steps_per_execution if steps is None else min(steps_per_execution, steps - done)


def take(iterator: Any, steps: int) -> Iterator[tuple[Any, float]]:
    """At most ``steps`` elements, each with the seconds it was waited for."""
    for _ in range(steps):
        started_s = time.perf_counter()
        try:
            element = next(iterator)
        except StopIteration:
            return
        yield element, time.perf_counter() - started_s
