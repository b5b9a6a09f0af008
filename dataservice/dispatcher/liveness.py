"""Who has not been heard of for too long.

Pure: the caller brings the time. Renewing costs a dictionary write; looking for the expired costs
only what may have expired, never a scan of everyone. Invariant: every key has exactly one entry
in the heap, at or before its deadline.
"""

from __future__ import annotations

import heapq
from typing import Final, Generic, TypeVar

_DROPPED: Final = float("-inf")

Key = TypeVar("Key", bound=str)


class Deadlines(Generic[Key]):
    """Keys that expire unless they are renewed. Not thread-safe."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._deadlines: dict[Key, float] = {}
        self._heap: list[tuple[float, Key]] = []

    def renew(self, key: Key, now_s: float) -> None:
        """Gives the key a whole timeout from now on."""
        deadline = now_s + self.timeout_s
        if key not in self._deadlines:
            heapq.heappush(self._heap, (deadline, key))
        self._deadlines[key] = deadline

    def renew_all(self, now_s: float) -> None:
        """Renews every key."""
        for key, deadline in self._deadlines.items():
            if deadline != _DROPPED:
                self._deadlines[key] = now_s + self.timeout_s

    def drop(self, key: Key) -> None:
        """Forgets a key; one that is unknown is ignored."""
        # Its entry in the heap stays until it comes up; a key that returns must not have two.
        if key in self._deadlines:
            self._deadlines[key] = _DROPPED

    def expired(self, now_s: float) -> list[Key]:
        """Removes and returns the keys whose deadline has passed."""
        gone: list[Key] = []
        while self._heap and self._heap[0][0] <= now_s:
            _, key = heapq.heappop(self._heap)
            deadline = self._deadlines[key]
            if deadline > now_s:
                heapq.heappush(self._heap, (deadline, key))
                continue
            del self._deadlines[key]
            if deadline != _DROPPED:
                gone.append(key)
        return gone
