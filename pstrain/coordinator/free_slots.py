"""Slots of trainers on which closures may start: those of the trainers that have fewest come first.

Pure. Invariant: whoever comes, goes, starts or ends costs the same, however many trainers there
are; a trainer is in the line of as many slots as it uses, and in none where it has no free one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain


def _no_trainers() -> defaultdict[int, dict[int, None]]:
    return defaultdict(dict)


@dataclass(slots=True)
class FreeSlots:
    """Not thread-safe. It iterates over trainers, once for each free slot, as they are to be used.

    Among trainers that use as many, who has waited longest comes first.
    """

    _slots: dict[int, int] = field(default_factory=dict)
    _used: dict[int, int] = field(default_factory=dict)
    _lines: defaultdict[int, dict[int, None]] = field(default_factory=_no_trainers)
    _count: int = 0
    _most: int = 0  # that any trainer had

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        if not self._count:
            return
        before: list[int] = []  # those that would have started as many by now
        for used in range(self._most):
            line = self._lines.get(used, {})
            yield from line
            yield from before
            before = [t for t in chain(line, before) if used + 1 < self._slots[t]]

    def of(self, trainer: int) -> int:
        """How many a trainer has."""
        return self._slots.get(trainer, 0) - self._used.get(trainer, 0)

    def has_below(self, used: int) -> bool:
        """Whether a trainer with a free slot uses fewer than so many."""
        return any(self._lines.get(fewer) for fewer in range(used))

    def add(self, trainer: int, slots: int) -> None:
        """A trainer that runs nothing."""
        self._slots[trainer], self._used[trainer] = slots, 0
        self._lines[0][trainer] = None
        self._count += slots
        self._most = max(self._most, slots)

    def discard(self, trainer: int) -> None:
        """A trainer is to get no more, if it is there."""
        self._count -= self.of(trainer)
        self._slots.pop(trainer, None)
        used = self._used.pop(trainer, 0)
        self._lines[used].pop(trainer, None)

    def take(self, trainer: int) -> None:
        """One of its free slots is in use."""
        self._move(trainer, 1)

    def give_back(self, trainer: int) -> None:
        """One that it used is free."""
        self._move(trainer, -1)

    def _move(self, trainer: int, by: int) -> None:
        used = self._used[trainer]
        self._lines[used].pop(trainer, None)
        self._used[trainer] = used = used + by
        self._count -= by
        if used < self._slots[trainer]:
            self._lines[used][trainer] = None
