"""Which changes of which closures a parameter server has applied.

Pure: no clock, no lock, no network. Invariant: ``claim`` answers True at most once for a pair
(closure, sequence), whatever the order of claims, marks and restores.
"""

from __future__ import annotations

from typing import Any


class Ledger:
    """Applied (closure, sequence) pairs of one session. Not thread-safe.

    A closure's changes are numbered from 0 in the order it makes them; they are held as one
    integer with a bit for each. Closures below the low-water mark are finished everywhere, so
    whatever still arrives from them is late and refused.
    """

    def __init__(self) -> None:
        self._applied: dict[int, int] = {}
        self._low_water = 0

    def claim(self, closure: int, sequence: int) -> bool:
        """True if the change is new and must be applied now, False if it was, or comes late."""
        if closure < self._low_water:
            return False
        bit = 1 << sequence
        seen = self._applied.get(closure, 0)
        if seen & bit:
            return False
        self._applied[closure] = seen | bit
        return True

    def advance(self, low_water: int) -> None:
        """Forgets closures below ``low_water``; a mark lower than the present one is ignored."""
        if low_water <= self._low_water:
            return
        self._low_water = low_water
        self._applied = {c: seen for c, seen in self._applied.items() if c >= low_water}

    def __len__(self) -> int:
        return len(self._applied)

    def state(self) -> dict[str, Any]:
        """JSON form, for checkpoints."""
        return {
            "low_water": self._low_water,
            "applied": [[closure, seen] for closure, seen in sorted(self._applied.items())],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Adds what ``state`` (from :meth:`state`) has seen to what this ledger has seen."""
        for closure, seen in state["applied"]:
            self._applied[closure] = self._applied.get(closure, 0) | seen
        self.advance(state["low_water"])
