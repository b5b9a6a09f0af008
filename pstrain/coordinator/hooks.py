"""What parameters ask of their coordinator: to let no closure run, and to wait for a restore.

Invariant: parameters do not keep the coordinator alive; without it there is nothing to wait for.
"""

from __future__ import annotations

import weakref
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


class Scheduling(Protocol):
    """Who schedules."""

    def barrier(self) -> AbstractContextManager[None]: ...


class Recovery(Protocol):
    """Who restores."""

    def outlast(self, error: Exception | None) -> bool: ...


class Barrier:
    """A coordinator's barrier."""

    def __init__(self, coordinator: Scheduling) -> None:
        self._coordinator = weakref.ref(coordinator)

    def __call__(self) -> AbstractContextManager[None]:
        coordinator = self._coordinator()
        return nullcontext() if coordinator is None else coordinator.barrier()


class Outlast:
    """A coordinator's wait for restores."""

    def __init__(self, recovery: Recovery) -> None:
        self._recovery = weakref.ref(recovery)

    def __call__(self, error: Exception | None) -> bool:
        recovery = self._recovery()
        return recovery is not None and recovery.outlast(error)
