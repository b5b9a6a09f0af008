"""Free slots of trainers, on which closures may start: trainers that use the fewest come first.

Pure. Invariant: each change takes constant time, however many trainers there are; a trainer with a
free slot is in the line of trainers that use as many slots as it does, other trainers in none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import chain


class FreeSlots:
    """Iterates over trainers, once for each free slot, in the order of use. Not thread-safe.

    Among trainers that use the same number of slots, the one that has waited longest comes first.
    """

    def __init__(self) -> None:
        self._slots: dict[int, int] = {}
        self._used: dict[int, int] = {}
        self._lines: defaultdict[int, dict[int, None]] = defaultdict(dict)
        self._count = 0
        self._most = 0  # the most slots that any trainer had

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        if not self._count:
            return
        before: list[int] = []  # trainers of earlier lines, which would use as many slots by now
        for used in range(self._most):
            line = self._lines.get(used, {})
            yield from line
            yield from before
            before = [t for t in chain(line, before) if used + 1 < self._slots[t]]

    def of(self, trainer: int) -> int:
        """Returns how many free slots ``trainer`` has."""
        return self._slots.get(trainer, 0) - self._used.get(trainer, 0)

    def has_below(self, used: int) -> bool:
        """True if a trainer with a free slot uses fewer than ``used`` slots."""
        return any(self._lines.get(fewer) for fewer in range(used))

    def add(self, trainer: int, slots: int) -> None:
        """Adds a trainer that runs nothing."""
        self._slots[trainer], self._used[trainer] = slots, 0
        self._lines[0][trainer] = None
        self._count += slots
        self._most = max(self._most, slots)

    def discard(self, trainer: int) -> None:
        """Removes a trainer, if it is there."""
        self._count -= self.of(trainer)
        self._slots.pop(trainer, None)
        used = self._used.pop(trainer, 0)
        self._lines[used].pop(trainer, None)

    def take(self, trainer: int) -> None:
        """Marks one free slot of ``trainer`` as used."""
        self._move(trainer, 1)

    def give_back(self, trainer: int) -> None:
        """Marks one used slot of ``trainer`` as free."""
        self._move(trainer, -1)

    def _move(self, trainer: int, by: int) -> None:
        used = self._used[trainer]
        self._lines[used].pop(trainer, None)
        self._used[trainer] = used = used + by
        self._count -= by
        if used < self._slots[trainer]:
            self._lines[used][trainer] = None
