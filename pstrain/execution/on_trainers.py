"""What trainers are sent when a function runs on a cluster.

Knows no coordinator: a trainer imports this, and has no use for what schedules it.
"""

from __future__ import annotations

from typing import Any

from pstrain.execution.executor import Report, StepFunction
from pstrain.trainer.context import get_current_worker_index


class OnTrainer:
    """Adds to a report which trainer made it."""

    def __init__(self, function: StepFunction) -> None:
        self._function = function

    def __call__(self, iterator: Any, steps: int) -> Report:
        return {**self._function(iterator, steps), "trainer": get_current_worker_index()}


class OnChunk:
    """Runs a function over the elements of one chunk."""

    def __init__(self, function: StepFunction) -> None:
        self._function = function

    def __call__(self, readers: Any, chunk: int, steps: int) -> Report:
        return self._function(iter(next(readers).read(chunk)), steps)
