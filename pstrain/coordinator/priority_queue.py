"""The queue of waiting closures, in the order in which they start: by priority, then by arrival.

Pure. Invariant: adding, removing and looking at the first take the same time however many closures
wait; the time depends only on the number of different priorities.
"""

from __future__ import annotations

import bisect
import itertools
import operator
from collections import OrderedDict
from collections.abc import Iterator


class PriorityQueue:
    """Ids of closures, each at most once, with priorities; higher ones first. Not thread-safe."""

    __slots__ = ("_others", "_others_count", "_plain", "_priorities")

    def __init__(self) -> None:
        self._plain: OrderedDict[int, None] = OrderedDict()  # closures of priority 0, as most are
        self._others: dict[int, OrderedDict[int, None]] = {}
        self._others_count = 0
        self._priorities: list[int] = []  # priorities in ``_others``, highest first

    @property
    def first(self) -> int:
        """The closure that starts next; the queue must not be empty."""
        return next(iter(self))

    def append(self, closure: int, priority: int = 0) -> None:
        """Adds a closure behind all of its priority."""
        (self._other(priority) if priority else self._plain)[closure] = None

    def appendleft(self, closure: int, priority: int = 0) -> None:
        """Adds a closure before all of its priority."""
        order = self._other(priority) if priority else self._plain
        order[closure] = None
        order.move_to_end(closure, last=False)

    def insert(self, closure: int, priority: int = 0) -> None:
        """Adds a closure behind the older ones at the front of its priority; there are few."""
        order = self._other(priority) if priority else self._plain
        earlier = []
        while order and next(iter(order)) < closure:
            earlier.append(order.popitem(last=False)[0])
        for each in (closure, *reversed(earlier)):
            order[each] = None
            order.move_to_end(each, last=False)

    def remove(self, closure: int, priority: int = 0) -> None:
        if not priority:
            del self._plain[closure]
            return
        del self._others[priority][closure]
        self._others_count -= 1
        if not self._others[priority]:
            del self._others[priority]
            self._priorities.remove(priority)

    def _other(self, priority: int) -> OrderedDict[int, None]:
        """Returns the queue of a priority other than 0, and counts one more closure in it."""
        self._others_count += 1
        if priority not in self._others:
            self._others[priority] = OrderedDict()
            bisect.insort(self._priorities, priority, key=operator.neg)
        return self._others[priority]

    def __contains__(self, closure: object) -> bool:
        return closure in self._plain or any(closure in each for each in self._others.values())

    def __iter__(self) -> Iterator[int]:
        if not self._others:
            return iter(self._plain)
        middle = bisect.bisect_left(self._priorities, 0, key=operator.neg)
        higher = [self._others[priority] for priority in self._priorities[:middle]]
        lower = [self._others[priority] for priority in self._priorities[middle:]]
        return itertools.chain(*higher, self._plain, *lower)

    def __len__(self) -> int:
        return len(self._plain) + self._others_count

    def __repr__(self) -> str:
        return f"<PriorityQueue {list(self)}>"
