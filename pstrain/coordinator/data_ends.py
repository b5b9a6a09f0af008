"""Where data have ended: the trainers at the end of each iterator, and the closures that met one.

Knows nothing of why data may come back: the state says when all this is to be forgotten. Invariant:
a closure is at its end on a trainer if all the iterators at whose end it was, anywhere, have ended
there, whichever closure met these ends. Noting an end, and asking where a closure may go on, take
the same time however many trainers and closures there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Final

from pstrain.coordinator.free_slots import FreeSlots

Needs = frozenset[str]
"""Iterators of which a closure needs at least one to have data left."""

NOTHING: Final[Needs] = frozenset()

_NOWHERE: Final[frozenset[int]] = frozenset()


class DataEnds:
    """The ends of data that trainers have met. Not thread-safe.

    ``reads``: by closure, the iterators among its arguments. ``trainers``: those at any end;
    without any there is nothing to ask, and nothing to note but ends. ``free``: the slots of all
    trainers. ``renewals``: how often data may have come back. ``releases``: how many requests that
    services give back what lost trainers held are under way: data will come back.
    """

    def __init__(self, free: FreeSlots) -> None:
        self.reads: dict[int, Needs] = {}
        self.trainers: set[int] = set()
        self.renewals = 0
        self.releases = 0
        self._free = free
        self._needs: dict[int, Needs] = {}  # by closure that met an end
        self._ended_on: dict[str, set[int]] = {}
        self._waiting: dict[Needs, dict[int, None]] = {}
        # Of needs that were asked for: where they have ended, and the free slots elsewhere.
        self._at_end: dict[Needs, set[int]] = {}
        self._elsewhere: dict[Needs, FreeSlots] = {}

    def needs_of(self, closure: int) -> Needs:
        """Returns what a closure was at the end of, or else what it may read."""
        return self._needs.get(closure) or self.reads.get(closure, NOTHING)

    def at_end(self, needs: Needs) -> Set[int]:
        """Returns the trainers on which all the iterators in ``needs`` have ended."""
        known = self._at_end.get(needs)
        if known is not None:
            return known
        if not needs or not all(iterator in self._ended_on for iterator in needs):
            return _NOWHERE
        found = set.intersection(*(self._ended_on[iterator] for iterator in needs))
        self._at_end[needs] = found
        self._elsewhere[needs] = self._free.without(found)
        return found

    def slots_elsewhere(self, needs: Needs) -> FreeSlots:
        """Returns the free slots of all trainers but those :meth:`at_end`."""
        return self._elsewhere[needs] if self.at_end(needs) else self._free

    def waiting(self) -> Iterator[tuple[Needs, dict[int, None]]]:
        """Yields the closures that met an end and wait, by what they need."""
        yield from self._waiting.items()

    def note(self, closure: int, trainer: int, iterators: Needs) -> None:
        """Notes that a closure met the end of ``iterators`` on a trainer, and waits."""
        needs = iterators
        if self._needs.get(closure, iterators) != iterators:
            # It reads other iterators on other trainers, so it has to be tried on each of them.
            needs = _alone(closure)
        self._needs[closure] = needs
        self._waiting.setdefault(needs, {})[closure] = None
        self.trainers.add(trainer)
        for iterator in iterators | needs:
            self._ended_on.setdefault(iterator, set()).add(trainer)
        for asked, found in self._at_end.items():
            if trainer not in found and all(trainer in self._ended_on[each] for each in asked):
                found.add(trainer)
                self._elsewhere[asked].discard(trainer)

    def leave_queue(self, closure: int) -> None:
        """Notes that a closure starts, or ends; does nothing if it met no end."""
        needs = self._needs.get(closure)
        if needs is None:
            return
        line = self._waiting.get(needs, {})
        line.pop(closure, None)
        if not line:
            self._waiting.pop(needs, None)

    def end(self, closure: int) -> None:
        """Notes that a closure has ended, or that a run which went on is undone.

        Does nothing if it met no end.
        """
        self.leave_queue(closure)
        if self._needs.pop(closure, None) == (own := _alone(closure)):
            for iterator in own:
                del self._ended_on[iterator]
            if self._at_end.pop(own, None) is not None:
                self._free.drop_view(self._elsewhere.pop(own))

    def forget(self) -> None:
        """Forgets all ends, as there may be data again."""
        self.renewals += 1
        self._needs.clear()
        self.trainers.clear()
        self._ended_on.clear()
        self._waiting.clear()
        self._at_end.clear()
        for view in self._elsewhere.values():
            self._free.drop_view(view)
        self._elsewhere.clear()


def _alone(closure: int) -> Needs:
    """Returns what stands for the needs of a closure that shares them with no other."""
    return frozenset({f"closure {closure}"})
