"""Deadlines of clients, which expire unless they are renewed.

Pure: the caller passes the time. Renewing costs a dictionary write; finding the expired keys visits
only those that may have expired, never all. Invariants: a key has exactly one entry in the heap, at
or before its deadline; a deadline is never moved to an earlier time.
"""

from __future__ import annotations

import heapq
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=str)


class Deadlines(Generic[Key]):
    """Keys that expire unless they are renewed. Not thread-safe."""

    def __init__(self) -> None:
        self._deadlines: dict[Key, float] = {}
        self._dropped: set[Key] = set()
        self._heap: list[tuple[float, Key]] = []

    def __len__(self) -> int:
        return len(self._deadlines) - len(self._dropped)

    def __contains__(self, key: object) -> bool:
        return key in self._deadlines and key not in self._dropped

    def renew(self, key: Key, deadline_s: float) -> None:
        """Lets the key live until `deadline_s`, or until its present deadline if that is later."""
        known_s = self._deadlines.get(key)
        if known_s is None:
            heapq.heappush(self._heap, (deadline_s, key))
            self._deadlines[key] = deadline_s
            return
        self._dropped.discard(key)
        if deadline_s > known_s:
            self._deadlines[key] = deadline_s

    def renew_all(self, deadline_s: float) -> None:
        """Renews every key that was not dropped."""
        for key, known_s in self._deadlines.items():
            if key not in self._dropped:
                self._deadlines[key] = max(known_s, deadline_s)

    def drop(self, key: Key) -> None:
        """Forgets a key; an unknown key is ignored."""
        # The heap entry stays until it is popped, so that a key that returns does not get a second.
        if key in self._deadlines:
            self._dropped.add(key)

    def overdue(self, now_s: float) -> list[Key]:
        """Returns the keys whose deadline has passed, of all that are there."""
        return [k for k, at_s in self._deadlines.items() if at_s <= now_s and k in self]

    def expired(self, now_s: float) -> list[Key]:
        """Removes and returns the keys whose deadline has passed."""
        gone: list[Key] = []
        while self._heap and self._heap[0][0] <= now_s:
            _, key = heapq.heappop(self._heap)
            deadline_s = self._deadlines[key]
            if deadline_s > now_s:
                heapq.heappush(self._heap, (deadline_s, key))
                continue
            del self._deadlines[key]
            if key in self._dropped:
                self._dropped.remove(key)
            else:
                gone.append(key)
        return gone
