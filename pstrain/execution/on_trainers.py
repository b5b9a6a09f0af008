"""What trainers are sent when a function runs on a cluster.

Knows no coordinator: a trainer imports this, and has no use for what schedules it.
"""

from __future__ import annotations

import time
from typing import Any

from pstrain.element_ranges import Bookmark
from pstrain.execution.executor import Noting, Report, StepFunction
from pstrain.trainer.context import get_current_worker_index
from pstrain.trainer.staging import note


class OnTrainer:
    """Adds to a report which trainer made it; what is noted is known with the steps' changes."""

    def __init__(self, function: StepFunction) -> None:
        self._function = function

    def __call__(self, iterator: Any, steps: int) -> Report:
        function = self._function
        if isinstance(function, Noting):
            report = function.run(iterator, steps, note)
        else:
            report = function(iterator, steps)
        return {**report, "trainer": get_current_worker_index()}


class OnRange:
    """Runs a function over a range of elements; waiting for them counts as it does elsewhere.

    Adds to a report how far its trainer's reader is, from where others may go on.
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
