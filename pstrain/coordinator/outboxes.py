"""The queues of orders to trainers, and the iterators that each trainer must have.

Knows no closure and no connection. Invariant: a trainer is sent every iterator that is in use
before any other order.
"""

from __future__ import annotations

from collections.abc import Set

from pstrain.coordinator.orders import DefineResource, DropResource, Order, Outbox


class Outboxes:
    """The queues to connected trainers. Callers hold the scheduler's lock, except for `drop`."""

    def __init__(self) -> None:
        self._outboxes: dict[int, Outbox] = {}
        self._resources: dict[str, tuple[bytes, object]] = {}

    def __bool__(self) -> bool:
        return bool(self._outboxes)

    @property
    def trainers(self) -> Set[int]:
        """The trainers that are connected."""
        return self._outboxes.keys()

    def open(self, trainer: int, outbox: Outbox) -> None:
        """Adds a trainer that has connected, and sends it the iterators in use."""
        for resource_id, (pickled, _) in list(self._resources.items()):
            outbox.put(DefineResource(resource_id, pickled))
        self._outboxes[trainer] = outbox

    def close(self, trainer: int) -> bool:
        """Ends a trainer's stream; False if it was not connected."""
        outbox = self._outboxes.pop(trainer, None)
        if outbox is None:
            return False
        outbox.put(None)
        return True

    def close_all(self) -> None:
        """Ends all streams; their trainers count as connected until each is closed."""
        self.put_all(None)

    def put(self, trainer: int, item: Order | None) -> None:
        """Sends to a trainer, which must be connected."""
        self._outboxes[trainer].put(item)

    def put_if_connected(self, trainer: int, item: Order | None) -> None:
        """Sends to a trainer if it is connected."""
        if trainer in self._outboxes:
            self.put(trainer, item)

    def put_all(self, item: Order | None) -> None:
        """Sends to all connected trainers."""
        for outbox in self._outboxes.values():
            outbox.put(item)

    def define(self, resource_id: str, pickled: bytes, kept: object = None) -> None:
        """Has every trainer make an iterator, also trainers that connect later.

        ``kept``: what the pickled form refers to, which must live until :meth:`drop`.
        """
        self._resources[resource_id] = pickled, kept
        self.put_all(DefineResource(resource_id, pickled))

    def drop(self, resource_id: str) -> None:
        """Has every trainer close an iterator. Any thread may call it, even inside another call."""
        self._resources.pop(resource_id, None)
        for outbox in list(self._outboxes.values()):
            outbox.put(DropResource(resource_id))
