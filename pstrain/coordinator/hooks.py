"""What parameters ask of their coordinator: to let no closure run, and to wait for a restore.

Invariant: parameters do not keep the coordinator alive; without it there is nothing to wait for.
"""

from __future__ import annotations

import weakref
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


class Coordinator(Protocol):
    """Who schedules."""

    def barrier(self) -> AbstractContextManager[None]: ...
    def outlast(self, error: Exception | None) -> bool: ...


class Barrier:
    """A coordinator's barrier."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = weakref.ref(coordinator)

    def __call__(self) -> AbstractContextManager[None]:
        coordinator = self._coordinator()
        return nullcontext() if coordinator is None else coordinator.barrier()


class Outlast:
    """A coordinator's wait for restores."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = weakref.ref(coordinator)

    def __call__(self, error: Exception | None) -> bool:
        coordinator = self._coordinator()
        return coordinator is not None and coordinator.outlast(error)
