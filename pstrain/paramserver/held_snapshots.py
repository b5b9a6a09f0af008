"""The snapshots that a parameter server holds, by the ids that clients gave them.

Knows nothing of what is in them. Invariant: nothing is kept for a snapshot after its end was told,
also where the request to take it comes, or comes again, only then. Thread-safe.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from typing import Final

from pstrain.errors import NotFoundError
from pstrain.paramserver.snapshot import Snapshot

Named = list[tuple[str, Snapshot]]

# A request waits for minutes at most, in which nobody saves so often.
_ENDED_REMEMBERED: Final = 1024


class HeldSnapshots:
    """Each a list of shards' snapshots with the names of their variables."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[str, Named] = {}
        self._ended: deque[str] = deque(maxlen=_ENDED_REMEMBERED)

    def __len__(self) -> int:
        return len(self._held)

    def find(self, snapshot: str) -> Named | None:
        """None for one that may yet be taken; NotFoundError for one that has ended."""
        with self._lock:
            self._check(snapshot)
            return self._held.get(snapshot)

    def hold(self, snapshot: str, taken: Named) -> Named:
        """Until it is dropped, which it may have been while it was taken: NotFoundError then."""
        try:
            with self._lock:
                self._check(snapshot)
                self._held[snapshot] = taken
        except NotFoundError:
            _close(taken)
            raise
        return taken

    def drop(self, snapshot: str) -> None:
        """Nothing is kept for it from now on. Idempotent."""
        with self._lock:
            if snapshot not in self._ended:
                self._ended.append(snapshot)
            taken = self._held.pop(snapshot, [])
        _close(taken)

    def _check(self, snapshot: str) -> None:
        if snapshot in self._ended:
            raise NotFoundError(f"snapshot {snapshot} was given up; save again")


def _close(taken: Iterable[tuple[str, Snapshot]]) -> None:
    for _, each in taken:
        each.close()
