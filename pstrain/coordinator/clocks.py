"""The clocks of live trainers: the closures that each finished, plus the slowest when it joined.

A trainer that has nothing to run, and perhaps never will, is left out: no other waits for it, and
it is not behind the others, like one that joins. Pure. Invariant: the least clock falls only when
trainers are removed; a change, and the least clock, take the same time however many trainers there
are, as long as their clocks are near each other.
"""

from __future__ import annotations

from collections import Counter


class Clocks:
    """The clocks by trainer. Not thread-safe."""

    def __init__(self) -> None:
        self._clocks: dict[int, int] = {}
        self._counts: Counter[int] = Counter()  # trainers that are not left out, by clock; none 0
        self._left_out: set[int] = set()
        self._most = 0  # the largest clock so far

    @property
    def slowest(self) -> int:
        """The least clock that is counted; the largest ever if none is; 0 without trainers."""
        return min(self._counts, default=self._most if self._clocks else 0)

    def __contains__(self, trainer: int) -> bool:
        return trainer in self._clocks

    def __getitem__(self, trainer: int) -> int:
        clock = self._clocks[trainer]
        return max(clock, self.slowest) if trainer in self._left_out else clock

    def __setitem__(self, trainer: int, clock: int) -> None:
        self._uncount(trainer)
        self._clocks[trainer] = clock
        self._most = max(self._most, clock)
        if trainer not in self._left_out:
            self._counts[clock] += 1

    def discard(self, trainer: int) -> None:
        """Removes a trainer, if it is there."""
        self._uncount(trainer)
        self._clocks.pop(trainer, None)
        self._left_out.discard(trainer)

    def leave_out(self, trainer: int) -> None:
        """Leaves a trainer out of the least clock, until :meth:`count`."""
        if trainer in self._clocks:
            self._uncount(trainer)
            self._left_out.add(trainer)

    def count(self, trainer: int) -> None:
        """Counts a trainer that was left out, from the slowest of the others on."""
        if trainer in self._left_out:
            clock = self._clocks[trainer] = self[trainer]
            self._left_out.discard(trainer)
            self._counts[clock] += 1

    def count_all(self) -> None:
        """Counts all trainers that were left out."""
        for trainer in list(self._left_out):
            self.count(trainer)

    def slowest_but(self, trainer: int) -> int:
        """Returns the least clock of the others that are counted, or its own if none are."""
        own = self[trainer]
        is_alone = trainer not in self._left_out and self._counts[own] == 1
        others = (clock for clock in self._counts if clock != own or not is_alone)
        return min(others, default=own)

    def _uncount(self, trainer: int) -> None:
        """Takes a trainer out of the counts, if it is in them."""
        clock = self._clocks.get(trainer)
        if clock is None or trainer in self._left_out:
            return
        self._counts[clock] -= 1
        if not self._counts[clock]:
            del self._counts[clock]
