"""The callables that are sent to trainers when a function runs on a cluster.

Knows no coordinator, which trainers, where this module is imported, do not need. Invariant: a
wrapped function's report is only added to: the trainer, a bookmark, the time to read a range.
"""

from __future__ import annotations

import time
from typing import Any

from pstrain.execution.element_ranges import Bookmark
from pstrain.execution.executor import NotingFunction, Report, StepFunction
from pstrain.trainer.context import get_current_worker_index
from pstrain.trainer.staging import note


class OnTrainer:
    """Runs a function; adds its trainer to the report. Notes are committed with the changes."""

    def __init__(self, function: StepFunction) -> None:
        self._function = function

    def __call__(self, iterator: Any, steps: int) -> Report:
        function = self._function
        if isinstance(function, NotingFunction):
            report = function.run(iterator, steps, note)
        else:
            report = function(iterator, steps)
        return {**report, "trainer": get_current_worker_index()}


class OnRange:
    """Runs a function over a range of elements; the time to read them counts as waiting.

    Adds to the report a bookmark of its trainer's reader, at which other readers may begin.
    """

    def __init__(self, function: StepFunction) -> None:
        self._function = function

    def __call__(
        self, readers: Any, start: int, count: int, near: Bookmark | None = None
    ) -> Report:
        began_s = time.perf_counter()
        reader = next(readers)
        elements = reader.read(start, count, near)
        read_s = time.perf_counter() - began_s
        report = self._function(iter(elements), count)
        for name in ("wait_s", "busy_s"):
            if name in report:
                report[name] += read_s
        return {**report, "bookmark": reader.bookmark}
