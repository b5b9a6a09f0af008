"""The clocks of live trainers: the closures that each finished, plus the slowest when it joined.

Pure. Invariant: a change, and the least clock, take the same time however many trainers there are,
as long as their clocks are near each other.
"""

from __future__ import annotations

from collections import Counter


class Clocks:
    """The clocks by trainer. Not thread-safe."""

    def __init__(self) -> None:
        self._clocks: dict[int, int] = {}
        self._counts: Counter[int] = Counter()  # trainers by clock, none 0

    @property
    def slowest(self) -> int:
        """The least clock; 0 without trainers."""
        return min(self._counts, default=0)

    def __contains__(self, trainer: int) -> bool:
        return trainer in self._clocks

    def __getitem__(self, trainer: int) -> int:
        return self._clocks[trainer]

    def __setitem__(self, trainer: int, clock: int) -> None:
        self._forget(trainer)
        self._clocks[trainer] = clock
        self._counts[clock] += 1

    def discard(self, trainer: int) -> None:
        """Removes a trainer, if it is there."""
        self._forget(trainer)

    def slowest_but(self, trainers: set[int]) -> int:
        """Returns the least clock of the others, or of all if there are no others."""
        left_out = Counter(self._clocks[trainer] for trainer in trainers & self._clocks.keys())
        others = (clock for clock, count in self._counts.items() if count > left_out[clock])
        return min(others, default=self.slowest)

    def _forget(self, trainer: int) -> None:
        clock = self._clocks.pop(trainer, None)
        if clock is None:
            return
        self._counts[clock] -= 1
        if not self._counts[clock]:
            del self._counts[clock]
