"""The free slots of trainers, and apart from them of those that `ssp` may let start a closure.

Pure. Invariant: a trainer with a free slot that is not too far ahead of the slowest is among the
near ones; each change takes constant time, on average, however many trainers there are.
"""

from __future__ import annotations

from typing import Self

from pstrain.coordinator.clocks import Clocks
from pstrain.coordinator.free_slots import FreeSlots


class NearSlots(FreeSlots):
    """All free slots, as in FreeSlots, and in ``near`` those of trainers that may start closures.

    A trainer is far if its clock, with the closures that it holds, exceeds the least of ``clocks``
    by more than ``staleness``. A change of a clock counts from the next change of slots on, which
    must follow. Not thread-safe.
    """

    def __init__(self, clocks: Clocks, staleness: int) -> None:
        super().__init__()
        self.near = FreeSlots()
        self._clocks = clocks
        self._staleness = staleness
        self._limit = staleness
        self._far: dict[int, dict[int, None]] = {}  # by the clock they will have; none empty
        self._far_at: dict[int, int] = {}

    def add(self, trainer: int, slots: int, used: int = 0) -> None:
        super().add(trainer, slots, used)
        self._place(trainer)

    def discard(self, trainer: int) -> None:
        super().discard(trainer)
        self._displace(trainer)
        self._follow_slowest()

    def _of_none(self) -> Self:
        return type(self)(self._clocks, self._staleness)

    def _move(self, trainer: int, by: int) -> None:
        super()._move(trainer, by)
        self._place(trainer)

    def _follow(self, trainer: int, by: int) -> None:
        super()._follow(trainer, by)
        self._follow_slowest()

    def _place(self, trainer: int) -> None:
        self._displace(trainer)
        self._follow_slowest()
        at = self._clocks[trainer] + self._used[trainer]
        if at <= self._limit:
            self._bring_near(trainer)
        else:
            self._far_at[trainer] = at
            self._far.setdefault(at, {})[trainer] = None

    def _displace(self, trainer: int) -> None:
        self.near.discard(trainer)
        at = self._far_at.pop(trainer, None)
        if at is not None:
            line = self._far[at]
            del line[trainer]
            if not line:
                del self._far[at]

    def _follow_slowest(self) -> None:
        """Brings trainers near that the slowest has caught up with."""
        limit = self._clocks.slowest + self._staleness
        if limit == self._limit:
            return
        self._limit = limit
        for at in sorted(at for at in self._far if at <= limit):
            for trainer in self._far.pop(at):
                del self._far_at[trainer]
                self._bring_near(trainer)

    def _bring_near(self, trainer: int) -> None:
        self.near.add(trainer, self._slots[trainer], self._used[trainer])
