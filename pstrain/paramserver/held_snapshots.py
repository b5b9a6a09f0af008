"""The snapshots that a parameter server holds, by the ids that clients gave them.

Knows nothing of their contents. Thread-safe. Invariant: nothing is kept for a snapshot after it was
dropped, even if the request to take it arrives, or arrives again, only then.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from typing import Final

from pstrain.errors import NotFoundError
from pstrain.paramserver.snapshot import Snapshot

Named = list[tuple[str, Snapshot]]

# A request is delayed for minutes at most, and nobody saves this often in that time.
_ENDED_REMEMBERED: Final = 1024


class HeldSnapshots:
    """The held snapshots, each a list of snapshots of shards with their variables' names."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[str, Named] = {}
        self._ended: deque[str] = deque(maxlen=_ENDED_REMEMBERED)

    def __len__(self) -> int:
        return len(self._held)

    def find(self, snapshot: str) -> Named | None:
        """Returns a snapshot, or None if it is not taken yet; NotFoundError if it was dropped."""
        with self._lock:
            self._check(snapshot)
            return self._held.get(snapshot)

    def hold(self, snapshot: str, taken: Named) -> Named:
        """Holds a snapshot until it is dropped.

        Closes it and raises NotFoundError if it was dropped while it was taken.
        """
        try:
            with self._lock:
                self._check(snapshot)
                self._held[snapshot] = taken
        except NotFoundError:
            _close(taken)
            raise
        return taken

    def drop(self, snapshot: str) -> None:
        """Closes the snapshot, and refuses to hold it from now on. Idempotent."""
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
