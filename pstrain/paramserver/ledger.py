"""The record of which changes of which closures a parameter server has applied.

Pure: no clock, no lock, no network. Invariant: ``add`` returns True at most once for a pair
(closure, sequence), whatever the order of additions, marks and restores.
"""

from __future__ import annotations

from typing import Any

_CLOSURES = 512
_SEQUENCES = 8


class Ledger:
    """The applied (closure, sequence) pairs of one session. Not thread-safe.

    A closure's changes are numbered from 0 in the order it makes them. Pairs are bits of blocks of
    512 closures by 8 sequences, so that a million closures of a few changes take a megabyte or
    two. Closures below the low-water mark have ended everywhere: their messages that still arrive
    are late and refused, and their blocks are forgotten.
    """

    def __init__(self) -> None:
        self._blocks: dict[tuple[int, int], int] = {}
        self._low_water = 0

    def add(self, closure: int, sequence: int) -> bool:
        """Returns True if the change must be applied now, False if it was applied or is late."""
        if closure < self._low_water:
            return False
        row, column = closure % _CLOSURES, sequence % _SEQUENCES
        key = (closure // _CLOSURES, sequence // _SEQUENCES)
        bit = 1 << (row * _SEQUENCES + column)
        seen = self._blocks.get(key, 0)
        if seen & bit:
            return False
        self._blocks[key] = seen | bit
        return True

    def has(self, closure: int, sequence: int) -> bool:
        """True if :meth:`add` would return False."""
        row, column = closure % _CLOSURES, sequence % _SEQUENCES
        seen = self._blocks.get((closure // _CLOSURES, sequence // _SEQUENCES), 0)
        return closure < self._low_water or bool(seen & 1 << (row * _SEQUENCES + column))

    def advance(self, low_water: int) -> None:
        """Raises the low-water mark; ignores a lower one."""
        if low_water <= self._low_water:
            return
        self._low_water = low_water
        first = low_water // _CLOSURES
        self._blocks = {key: seen for key, seen in self._blocks.items() if key[0] >= first}

    def __len__(self) -> int:
        """Returns the number of blocks held."""
        return len(self._blocks)

    def state(self) -> dict[str, Any]:
        """Returns the JSON form, for checkpoints."""
        blocks = [[*key, f"{seen:x}"] for key, seen in sorted(self._blocks.items())]
        return {"low_water": self._low_water, "applied": blocks}

    def restore(self, state: dict[str, Any]) -> None:
        """Adds the pairs and the low-water mark of ``state`` (from :meth:`state`)."""
        for closures, sequences, seen in state["applied"]:
            key = (closures, sequences)
            self._blocks[key] = self._blocks.get(key, 0) | int(seen, 16)
        self.advance(state["low_water"])
