"""The set of all workers under a version, so that readers are told only what changed.

Pure; not thread-safe. A version follows from the ids of the set alone: a restarted dispatcher has
the same one for the same workers, and nothing of it needs a journal. Invariant: applying an update
to the set that it was asked for gives the set of its version.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

from dataservice.dispatcher.parties import Worker
from dataservice.vocabulary import WorkerId

# A reader that missed more changes gets the whole set.
CHANGES_KEPT: Final = 1_000


class MembersUpdate(NamedTuple):
    """All workers, or with `is_change` what came and went since the version asked for.

    `version` 0: the set is not that of all workers, and has none. `readers` share what they make.
    """

    version: int
    workers: tuple[Worker, ...]
    lost: tuple[WorkerId, ...] = ()
    is_change: bool = False
    readers: int = 0

    @property
    def has_news(self) -> bool:
        """Whether it tells more than that nothing has changed."""
        return not self.is_change or bool(self.workers or self.lost)


class _Change(NamedTuple):
    before: int
    worker_id: WorkerId


def _digest(worker_id: str) -> int:
    """64 bits; those of all workers together, by exclusive or, are the version of their set."""
    return int.from_bytes(hashlib.blake2b(worker_id.encode(), digest_size=8).digest(), "little")


class Members:
    """Follows the workers that there are, and the latest changes of them."""

    def __init__(self) -> None:
        self.version = 0
        self._ids: set[WorkerId] = set()
        self._changes: deque[_Change] = deque(maxlen=CHANGES_KEPT)

    def add(self, worker_id: WorkerId) -> None:
        """A worker came; one that is there already changes nothing."""
        if worker_id not in self._ids:
            self._ids.add(worker_id)
            self._note(worker_id)

    def drop(self, worker_id: WorkerId) -> None:
        """A worker went; one that is not there changes nothing."""
        if worker_id in self._ids:
            self._ids.remove(worker_id)
            self._note(worker_id)

    def _note(self, worker_id: WorkerId) -> None:
        self._changes.append(_Change(self.version, worker_id))
        self.version ^= _digest(worker_id)

    def since(self, known: int, workers: Mapping[WorkerId, Worker]) -> MembersUpdate:
        """What a reader has to learn that knows a version, 0 for none.

        `workers` are those that were added and not dropped.
        """
        touched = self._touched_since(known)
        if touched is None:
            return MembersUpdate(self.version, tuple(workers.values()))
        return MembersUpdate(
            self.version,
            tuple(workers[worker_id] for worker_id in touched if worker_id in workers),
            tuple(worker_id for worker_id in touched if worker_id not in workers),
            is_change=True,
        )

    def _touched_since(self, known: int) -> list[WorkerId] | None:
        """Whoever came or went since then, in order; None where that is not known any more."""
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
