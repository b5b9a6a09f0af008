"""Closures that wait, in the order in which they are to start.

Pure. Invariant: whoever comes, goes or is looked at first costs the same, however many wait.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator


class Line:
    """Ids of closures, each at most once. Not thread-safe."""

    __slots__ = ("_order",)

    def __init__(self) -> None:
        self._order: OrderedDict[int, None] = OrderedDict()

    @property
    def first(self) -> int:
        """Who starts next; only where somebody waits."""
        return next(iter(self._order))

    def append(self, closure: int) -> None:
        self._order[closure] = None

    def appendleft(self, closure: int) -> None:
        self._order[closure] = None
        self._order.move_to_end(closure, last=False)

    def insert(self, closure: int) -> None:
        """Behind the older ones at the front, of which there are few."""
        earlier = []
        while self._order and self.first < closure:
            earlier.append(self._order.popitem(last=False)[0])
        self.appendleft(closure)
        for each in reversed(earlier):
            self.appendleft(each)

    def remove(self, closure: int) -> None:
        del self._order[closure]

    def __contains__(self, closure: object) -> bool:
        return closure in self._order

    def __iter__(self) -> Iterator[int]:
        return iter(self._order)

    def __len__(self) -> int:
        return len(self._order)

    def __repr__(self) -> str:
        return f"<Line {list(self._order)}>"
