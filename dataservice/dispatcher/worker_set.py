"""The versioned set of all workers, so that readers are told only what has changed.

Pure; not thread-safe. A version depends on the ids in the set alone: a restarted dispatcher has the
same version for the same workers, and no journal is needed. Invariant: an update applied to the set
of the version asked for gives the set of the update's version.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

from dataservice.dispatcher.events import WorkerRegistered
from dataservice.vocabulary import WorkerId

# A reader that missed more changes gets the whole set.
CHANGES_KEPT: Final = 1_000


class WorkersUpdate(NamedTuple):
    """All workers or, with `is_change`, those that came and went since the version asked for.

    `version` is 0 for an empty set that is not that of all workers. `readers` is how many readers
    share the workers' rows.
    """

    version: int
    workers: tuple[WorkerRegistered, ...]
    lost: tuple[WorkerId, ...] = ()
    is_change: bool = False
    readers: int = 0

    @property
    def has_changes(self) -> bool:
        """True unless the update only says that nothing has changed."""
        return not self.is_change or bool(self.workers or self.lost)


class _Change(NamedTuple):
    before: int
    worker_id: WorkerId


def _digest(text: str) -> int:
    """Returns 64 bits of an id; the version of a set is the exclusive or over its members."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


class WorkerSet:
    """The ids of the registered workers and the latest changes of that set."""

    def __init__(self) -> None:
        self.version = 0
        self._ids: set[WorkerId] = set()
        self._changes: deque[_Change] = deque(maxlen=CHANGES_KEPT)

    def add(self, worker_id: WorkerId) -> None:
        """Adds a worker. Idempotent."""
        if worker_id not in self._ids:
            self._ids.add(worker_id)
            self._record_change(worker_id)

    def drop(self, worker_id: WorkerId) -> None:
        """Removes a worker. Idempotent."""
        if worker_id in self._ids:
            self._ids.remove(worker_id)
            self._record_change(worker_id)

    def _record_change(self, worker_id: WorkerId) -> None:
        self._changes.append(_Change(self.version, worker_id))
        self.version ^= _digest(worker_id)

    def version_with(self, more: str) -> int:
        """Returns a version that depends on the ids in the set and on `more`."""
        return self.version ^ _digest(more)

    def since(self, known: int, workers: Mapping[WorkerId, WorkerRegistered]) -> WorkersUpdate:
        """Returns what a reader that knows the version `known` (0: none) has to learn.

        `workers` must hold exactly the workers that were added and not dropped.
        """
        touched = self._touched_since(known)
        if touched is None:
            return WorkersUpdate(self.version, tuple(workers.values()))
        return WorkersUpdate(
            self.version,
            tuple(workers[worker_id] for worker_id in touched if worker_id in workers),
            tuple(worker_id for worker_id in touched if worker_id not in workers),
            is_change=True,
        )

    def _touched_since(self, known: int) -> list[WorkerId] | None:
        """Returns the workers that came or went since version `known`, in order.

        None if the changes since then are not all kept, or if `known` is 0.
        """
        if not known:
            return None
        touched: dict[WorkerId, None] = {}
        if known != self.version:
            for change in reversed(self._changes):
                touched[change.worker_id] = None
                if change.before == known:
                    break
            else:
                return None
        return list(reversed(touched))
