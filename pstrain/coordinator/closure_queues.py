"""The closures that wait, in queues or for the values of others, and what decides their order.

Pure. Knows neither runs nor rounds, nor which trainers are there. Invariant: a closure that was
added and not removed is in one place: the queue for any trainer, that of the trainer which it is
bound to, or the graph of those that lack an input. No queue of a trainer is empty.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from itertools import chain

from pstrain.coordinator.dependencies import Dependencies
from pstrain.coordinator.priority_queue import PriorityQueue


class ClosureQueues:
    """The waiting closures. Not thread-safe.

    ``waiting``: those that any trainer may run. ``bound``: by closure, the only trainer that may
    run it, from before it is added until :meth:`forget`; such closures wait in ``bound_waiting``,
    by trainer. ``priorities``: likewise, if not 0. ``dependencies``: closures that wait for others
    to end, in no queue; ``bound_blocked``: how many of these are bound to each trainer.
    """

    def __init__(self) -> None:
        self.waiting = PriorityQueue()
        self.bound: dict[int, int] = {}
        self.bound_waiting: dict[int, PriorityQueue] = {}
        self.bound_blocked: Counter[int] = Counter()
        self.priorities: dict[int, int] = {}
        self.dependencies = Dependencies()

    def __len__(self) -> int:
        queued = len(self.waiting) + sum(map(len, self.bound_waiting.values()))
        return queued + len(self.dependencies)

    def __bool__(self) -> bool:
        return bool(self.waiting or self.bound_waiting or self.dependencies)

    def __iter__(self) -> Iterator[int]:
        return chain(self.waiting, *self.bound_waiting.values(), self.dependencies)

    def count_bound(self, trainer: int) -> int:
        """Returns how many closures wait that are bound to ``trainer``."""
        return len(self.bound_waiting.get(trainer, ())) + self.bound_blocked[trainer]

    def rank(self, closure: int) -> tuple[int, int]:
        """Returns the sort key of closures that may start: the least starts first."""
        return -self.priorities.get(closure, 0), closure

    def note_options(self, closure: int, trainer: int | None, priority: int) -> None:
        """Notes the only trainer of a closure, if it is bound to one, and its priority."""
        if trainer is not None:
            self.bound[closure] = trainer
        if priority:
            self.priorities[closure] = priority

    def add(self, closure: int, inputs: Collection[int] = ()) -> None:
        """Adds a closure behind all of its priority, once its ``inputs`` have ended."""
        if inputs:
            self.dependencies.add(closure, inputs)
            self._count_blocked(closure, 1)
        else:
            self._queue_of(closure).append(closure, self.priorities.get(closure, 0))

    def add_first(self, closure: int) -> None:
        """Adds a closure before all of its priority."""
        self._queue_of(closure).appendleft(closure, self.priorities.get(closure, 0))

    def put_back(self, closure: int) -> None:
        """Adds a closure that any trainer may run, behind those of its priority put back before."""
        self.waiting.put_back(closure, self.priorities.get(closure, 0))

    def release(self, ended: int, *, in_order: bool) -> None:
        """Queues the closures that waited only for the value of ``ended``.

        ``in_order``: each among the others by its number.
        """
        for closure in self.dependencies.finished(ended):
            self._count_blocked(closure, -1)
            if in_order:
                self.waiting.insert(closure)
            else:
                self.add(closure)

    def remove(self, closure: int) -> None:
        """Removes a closure that starts, or ends without having started."""
        if closure in self.dependencies.missing:
            self.dependencies.drop(closure)
            self._count_blocked(closure, -1)
        elif closure not in self.bound:  # without further calls, as for most closures
            self.waiting.remove(closure, self.priorities.get(closure, 0))
        else:
            queue = self._queue_of(closure)
            queue.remove(closure, self.priorities.get(closure, 0))
            if not queue:
                del self.bound_waiting[self.bound[closure]]

    def forget(self, closure: int) -> None:
        """Forgets the options of a closure that has ended."""
        self.bound.pop(closure, None)
        self.priorities.pop(closure, None)

    def _queue_of(self, closure: int) -> PriorityQueue:
        """Returns the queue in which a closure waits."""
        if closure not in self.bound:
            return self.waiting
        return self.bound_waiting.setdefault(self.bound[closure], PriorityQueue())

    def _count_blocked(self, closure: int, more: int) -> None:
        if closure in self.bound:
            self.bound_blocked[self.bound[closure]] += more
