"""The slots that trainers use, and those that are free: trainers that use the fewest come first.

Pure. Invariant: each change takes constant time, however many trainers there are; a trainer is in
the line of those that use as many slots as it does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Set
from itertools import chain
from operator import itemgetter
from typing import Self


class FreeSlots:
    """Iterates over trainers, once for each free slot, in the order of use. Not thread-safe.

    Among trainers that use the same number of slots, the one that has waited longest comes first. A
    trainer may use more slots than it has, for closures that wait there. A view has only some of
    the trainers, and follows all changes; each change takes time for each view.
    """

    def __init__(self) -> None:
        self._slots: dict[int, int] = {}
        self._used: dict[int, int] = {}
        self._lines: dict[int, dict[int, None]] = {}  # none of them empty
        self._count = 0
        self._most = 0  # the most slots that any trainer had
        self._views: list[FreeSlots] = []

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        if not self._count:
            return
        before: list[int] = []  # trainers of earlier lines, which would use as many slots by now
        for used in range(self._most):
            line = self._lines.get(used, {})
            yield from (t for t in line if used < self._slots[t])
            yield from before
            before = [t for t in chain(line, before) if used + 1 < self._slots[t]]

    def among(self, trainers: Collection[int]) -> list[int]:
        """Returns the slots of these trainers only, in the order of use."""
        if len(trainers) >= self._count:
            return [trainer for trainer in self if trainer in trainers]
        slots = [
            (used, trainer)
            for trainer in trainers
            for used in range(self._used.get(trainer, 0), self._slots.get(trainer, 0))
        ]
        return [trainer for _, trainer in sorted(slots, key=itemgetter(0))]

    def using_below(self, used: int, among: Collection[int]) -> Iterator[int]:
        """Yields those of ``among`` that use fewer than ``used`` slots."""
        lines = [line for number, line in self._lines.items() if number < used]
        if sum(map(len, lines)) < len(among):
            return (trainer for trainer in chain(*lines) if trainer in among)
        return (trainer for trainer in among if self._used.get(trainer, used) < used)

    def by_use(self) -> Iterator[tuple[int, int]]:
        """Yields (slots that it uses, trainer) of all trainers, those that use the fewest first."""
        for used in sorted(self._lines):
            for trainer in self._lines[used]:
                yield used, trainer

    def has(self, trainer: int) -> bool:
        """True if ``trainer`` was added, whether it has a free slot or not."""
        return trainer in self._used

    def of(self, trainer: int) -> int:
        """Returns how many free slots ``trainer`` has."""
        return max(self._slots.get(trainer, 0) - self._used.get(trainer, 0), 0)

    def has_below(self, used: int) -> bool:
        """True if a trainer with a free slot uses fewer than ``used`` slots."""
        first = next(iter(self), None)
        return first is not None and self._used[first] < used

    def add(self, trainer: int, slots: int, used: int = 0) -> None:
        """Adds a trainer that uses ``used`` of its slots."""
        self._slots[trainer], self._used[trainer] = slots, used
        self._line(used)[trainer] = None
        self._count += self.of(trainer)
        self._most = max(self._most, slots)
        for view in self._views:
            view.add(trainer, slots, used)

    def discard(self, trainer: int) -> None:
        """Removes a trainer, if it is there."""
        self._count -= self.of(trainer)
        self._slots.pop(trainer, None)
        used = self._used.pop(trainer, None)
        if used is not None:
            self._leave_line(used, trainer)
        for view in self._views:
            view.discard(trainer)

    def take(self, trainer: int) -> None:
        """Counts one slot of ``trainer`` more as used."""
        self._move(trainer, 1)

    def give_back(self, trainer: int) -> None:
        """Counts one slot of ``trainer`` less as used."""
        self._move(trainer, -1)

    def _move(self, trainer: int, by: int) -> None:
        used, free = self._used[trainer], self.of(trainer)
        self._leave_line(used, trainer)
        self._used[trainer] = used + by
        self._line(used + by)[trainer] = None
        self._count += self.of(trainer) - free
        for view in self._views:
            view._follow(trainer, by)

    def _follow(self, trainer: int, by: int) -> None:
        """Follows, as a view, a change of a trainer that may not be in it."""
        if self.has(trainer):
            self._move(trainer, by)

    def without(self, trainers: Set[int]) -> Self:
        """Returns a view without ``trainers``; those that are added later are in it."""
        view = self._of_none()
        for used, trainer in self.by_use():
            if trainer not in trainers:
                view.add(trainer, self._slots[trainer], used)
        self._views.append(view)
        return view

    def drop_view(self, view: FreeSlots) -> None:
        """Ends a view: it follows no more changes."""
        self._views.remove(view)

    def _of_none(self) -> Self:
        """Returns an object like this one, without trainers."""
        return type(self)()

    def _line(self, used: int) -> dict[int, None]:
        return self._lines.setdefault(used, {})

    def _leave_line(self, used: int, trainer: int) -> None:
        line = self._lines[used]
        del line[trainer]
        if not line:
            del self._lines[used]
