"""The queues of messages to trainers, and the iterators that each trainer has to have.

Knows no closure and no connection. Invariant: a trainer has heard of every iterator that is in use
before anything else.
"""

from __future__ import annotations

from collections.abc import Set

from pstrain.coordinator.orders import DefineResource, DropResource, Order, Outbox


class Outboxes:
    """Of the trainers that are connected. The scheduler's lock guards all but `drop`."""

    def __init__(self) -> None:
        self._outboxes: dict[int, Outbox] = {}
        self._resources: dict[str, bytes] = {}

    def __bool__(self) -> bool:
        return bool(self._outboxes)

    @property
    def trainers(self) -> Set[int]:
        """Who is connected."""
        return self._outboxes.keys()

    def open(self, trainer: int, outbox: Outbox) -> None:
        """A trainer is there."""
        for resource_id, pickled in list(self._resources.items()):
            outbox.put(DefineResource(resource_id, pickled))
        self._outboxes[trainer] = outbox

    def close(self, trainer: int) -> bool:
        """Ends a trainer's stream; False if it was not there."""
        outbox = self._outboxes.pop(trainer, None)
        if outbox is None:
            return False
        outbox.put(None)
        return True

    def close_all(self) -> None:
        """Ends all streams; their trainers count as connected until each is closed."""
        self.put_all(None)

    def put(self, trainer: int, item: Order | None) -> None:
        """For a trainer that is there."""
        self._outboxes[trainer].put(item)

    def put_if_there(self, trainer: int, item: Order | None) -> None:
        """For a trainer to which it matters only as long as it is there."""
        if trainer in self._outboxes:
            self.put(trainer, item)

    def put_all(self, item: Order | None) -> None:
        """For all that are there."""
        for outbox in self._outboxes.values():
            outbox.put(item)

    def define(self, resource_id: str, pickled: bytes) -> None:
        """Has every trainer make an iterator, also those that come later."""
        self._resources[resource_id] = pickled
        self.put_all(DefineResource(resource_id, pickled))

    def drop(self, resource_id: str) -> None:
        """Has every trainer close it. From any thread, also in the middle of another call."""
        self._resources.pop(resource_id, None)
        for outbox in list(self._outboxes.values()):
            outbox.put(DropResource(resource_id))
