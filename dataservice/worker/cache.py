"""A sliding window over an endless sequence, which each trainer reads from its own position.

Pure: knows no threads, no Arrow, no network. Items are opaque and have a size. Invariants: the
window holds consecutive items of at most `max_bytes` together; the trainer that is ahead of all
others never misses an item, provided that items are added only while `has_room_ahead`; a trainer
that falls behind the window continues at its start and is told how many items it missed.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final, Generic, TypeVar

from dataservice.errors import InvalidArgumentError

Item = TypeVar("Item")

# Trainers come and go during an endless job. The positions of those that read last are kept; any
# other trainer begins at the window's start.
MAX_TRAINERS: Final = 10_000


class SlidingWindow(Generic[Item]):
    """Items [first, end) of a sequence, and how far each trainer has read. Not thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self.first = 0
        self.end = 0
        self.size_bytes = 0
        self._max_bytes = max_bytes
        self._items: deque[tuple[Item, int]] = deque()
        self._next: OrderedDict[str, int] = OrderedDict()
        self._furthest = 0
        self._ahead_bytes = 0

    @property
    def ahead(self) -> int:
        """Number of items that no trainer has taken yet."""
        return self.end - self._furthest

    def check_size(self, size_bytes: int) -> None:
        """Raises InvalidArgumentError for an item that is larger than the window may be."""
        if size_bytes > self._max_bytes:
            raise InvalidArgumentError(
                f"an element of {size_bytes} bytes does not fit the cross-trainer cache of "
                f"{self._max_bytes} bytes; make batches smaller, or give the workers a larger "
                "cross_trainer_cache_size_bytes (--cross-trainer-cache-size-bytes)"
            )

    def has_room_ahead(self, size_bytes: int) -> bool:
        """True if an item can be added without dropping one that no trainer has taken."""
        return not self.ahead or self._ahead_bytes + size_bytes <= self._max_bytes

    def add(self, item: Item, size_bytes: int) -> None:
        """Adds the next item of the sequence and drops the oldest items to make room for it.

        To be called while `has_room_ahead`. InvalidArgumentError if the item is larger than the
        window may be.
        """
        self.check_size(size_bytes)
        self._items.append((item, size_bytes))
        self.end += 1
        self.size_bytes += size_bytes
        self._ahead_bytes += size_bytes
        while self.size_bytes > self._max_bytes:
            self.size_bytes -= self._items.popleft()[1]
            self.first += 1

    def catch_up(self, trainer: str) -> int:
        """Moves a trainer whose next item was dropped to the oldest; returns how many it missed.

        A new trainer begins at the oldest item and has missed none.
        """
        at = self._next.setdefault(trainer, self.first)
        self._next.move_to_end(trainer)
        if len(self._next) > MAX_TRAINERS:
            self._next.popitem(last=False)
        missed = max(0, self.first - at)
        self._next[trainer] = at + missed
        return missed

    def take(self, trainer: str) -> Item | None:
        """After `catch_up`: takes the trainer's next item; None if it has yet to be added."""
        at = self._next.get(trainer, self.first)
        if at >= self.end:
            return None
        item, size_bytes = self._items[at - self.first]
        self._next[trainer] = at + 1
        if at >= self._furthest:
            self._furthest = at + 1
            self._ahead_bytes -= size_bytes
        return item

    def clear(self) -> None:
        """Drops all items as if all trainers had taken them."""
        self._items.clear()
        self.first = self._furthest = self.end
        self.size_bytes = self._ahead_bytes = 0
