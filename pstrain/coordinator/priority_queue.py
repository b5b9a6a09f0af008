"""The queue of waiting closures, in the order in which they start: by priority, then by arrival.

Pure. Invariant: adding, removing and looking at the first take the same time however many closures
wait; the time depends only on the number of different priorities.
"""

from __future__ import annotations

import bisect
import itertools
from collections import OrderedDict
from collections.abc import Iterator


class PriorityQueue:
    """Ids of closures, each at most once, with priorities; higher ones first. Not thread-safe.

    Each priority has two lines: before the line of those that wait for the first time, that of
    those that were put back.
    """

    __slots__ = ("_others", "_others_count", "_places", "_plain")

    def __init__(self) -> None:
        self._plain: OrderedDict[int, None] = OrderedDict()  # most closures: new, of priority 0
        self._others: dict[int, OrderedDict[int, None]] = {}  # by place in the queue; none empty
        self._others_count = 0
        self._places: list[int] = []  # those of ``_others``, from first to last; that of plain is 0

    @property
    def first(self) -> int:
        """The closure that starts next; the queue must not be empty."""
        return next(iter(self))

    def append(self, closure: int, priority: int = 0) -> None:
        """Adds a closure behind all of its priority."""
        (self._other(_place(priority)) if priority else self._plain)[closure] = None

    def put_back(self, closure: int, priority: int = 0) -> None:
        """Adds a closure behind those of its priority that were put back, before all others."""
        self._other(_place(priority) - 1)[closure] = None

    def appendleft(self, closure: int, priority: int = 0) -> None:
        """Adds a closure before all of its priority."""
        order = self._front(priority)
        order[closure] = None
        order.move_to_end(closure, last=False)

    def insert(self, closure: int, priority: int = 0) -> None:
        """Adds a closure behind the older ones at the front of its priority; there are few."""
        order = self._front(priority)
        earlier = []
        while order and next(iter(order)) < closure:
            earlier.append(order.popitem(last=False)[0])
        for each in (closure, *reversed(earlier)):
            order[each] = None
            order.move_to_end(each, last=False)

    def remove(self, closure: int, priority: int = 0) -> None:
        if not self._others:
            del self._plain[closure]
            return
        place = _place(priority)
        if closure in self._others.get(place - 1, ()):
            place -= 1
        if not place:
            del self._plain[closure]
            return
        del self._others[place][closure]
        self._others_count -= 1
        if not self._others[place]:
            del self._others[place]
            self._places.remove(place)

    def _front(self, priority: int) -> OrderedDict[int, None]:
        """Returns the first line of a priority, to which one closure is to be added."""
        place = _place(priority)
        if place - 1 in self._others:
            return self._other(place - 1)
        return self._other(place) if priority else self._plain

    def _other(self, place: int) -> OrderedDict[int, None]:
        """Returns the line at a place other than 0, and counts one more closure in it."""
        self._others_count += 1
        if place not in self._others:
            self._others[place] = OrderedDict()
            bisect.insort(self._places, place)
        return self._others[place]

    def __contains__(self, closure: object) -> bool:
        return closure in self._plain or any(closure in each for each in self._others.values())

    def __iter__(self) -> Iterator[int]:
        if not self._others:
            return iter(self._plain)
        middle = bisect.bisect_left(self._places, 0)
        before = [self._others[place] for place in self._places[:middle]]
        after = [self._others[place] for place in self._places[middle:]]
        return itertools.chain(*before, self._plain, *after)

    def __len__(self) -> int:
        return len(self._plain) + self._others_count

    def __repr__(self) -> str:
        return f"<PriorityQueue {list(self)}>"


def _place(priority: int) -> int:
    """Returns the place of the line of a priority; the line before it is of those put back."""
    return -2 * priority
