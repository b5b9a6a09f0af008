"""Checks coordinated reads at every step, whatever fails.

C1: in each step all consumers get their elements of one round: the same round number, of the same
worker, from the same group of its elements. C2: a consumer's rounds come in order, none twice.
C3: a round has the same elements whichever consumer gets it, and whenever. C4: no consumer hands
out an element before it was told where the others stand, and none is told to go on behind where it
is. C5: after the last fault the steps go on. I5: the state is what the disk says.

A consumer's step is the number of elements that its program has taken. A consumer that comes back
begins with the first step that one of those who stayed has yet to make. Only if the elements of a
step are lost that some consumers have taken already, the others make the step with other elements.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from dataservice.dispatcher import events as ev
from dataservice.dispatcher import round_events as facts
from dataservice.dispatcher.round_table import RoundTable
from dataservice.errors import DataServiceError, FailedPreconditionError
from tests.simulation.fibers import Fiber, running, wait
from tests.simulation.shadow import Shadow, Violation

Source = tuple[int, str, int]


class RoundsChecker(Shadow):
    """Watches durable frames and the elements that consumers hand out."""

    def __init__(self, consumers: int) -> None:
        super().__init__()
        self.steps = [0] * consumers  # the step that comes next
        self.taken: Counter[int] = Counter()
        self.left_out = self.split_steps = 0
        self._next = [0] * consumers  # the round that comes next
        self._newcomers = set(range(consumers))
        self._readers: dict[int, str] = {}
        self._sources: dict[int, Source] = {}
        self._rounds: dict[int, Source] = {}
        self._split: set[int] = set()
        self._expelled: set[str] = set()
        self._lost_workers = 0
        self._waiting: list[Fiber] = []

    # The dispatcher

    def _before(self, event: ev.Event) -> None:
        match event:
            case facts.ConsumerJoined():
                self._newcomers.add(event.consumer_index)
                self._readers[event.consumer_index] = event.reader_id
            case ev.ReaderLost() | ev.ReaderReleased():
                self._expelled.add(event.reader_id)
            case ev.WorkerLost():
                self._lost_workers += 1
            case facts.RoundsAligned():
                self._align(event.begins)

    def table(self) -> RoundTable | None:
        """Returns the round table according to the disk, or None."""
        return next((i.rounds for i in self.shadow.iterations.values()), None)

    def _align(self, begins: tuple[int, ...]) -> None:
        """Checks and applies an alignment, when all consumers stand still.

        A consumer that came back makes the first step that one of the others has yet to make.
        """
        stayed = [i for i in range(len(self.steps)) if i not in self._newcomers]
        left_out = {begins[index] - self._next[index] for index in stayed}
        if min(left_out, default=0) < 0:
            raise Violation(f"C4: consumers are at {self._next}, and told to go on at {begins}")
        if len(left_out) > 1:
            raise Violation(f"C4: consumers at {self._next} leave out {left_out}")
        if max(left_out, default=0) and not self._lost_workers:
            raise Violation("C4: rounds are left out, and no worker was lost")
        steps = [self.steps[index] for index in stayed]
        if max(left_out, default=0):
            self.left_out += 1
            self._split |= set(range(min(steps), max(steps)))
            self.split_steps = len(self._split)
            # Only dead consumers had made these steps; the next to make one fixes its elements.
            for step in [step for step in self._sources if step >= max(steps)]:
                del self._sources[step]
        for index in self._newcomers:
            self.steps[index] = min(steps) if steps else max(self.steps)
        self._next = list(begins)
        self._newcomers.clear()
        self._wake()

    # Consumers

    def took(self, node: Any, taken: Any) -> int:
        """Called when an element reaches the program; returns the step that it makes with it.

        Returns -1 for a consumer that was replaced.
        """
        index = node.index
        if node.name in self._expelled or self._readers.get(index) != node.name:
            return -1
        (span,) = taken.spans
        row = taken.batch.to_pylist()[0]
        group, place = divmod(row["element"], len(self.steps))
        source = (span.window, row["maker"], group)
        self._check(node, source, place, span.first_row == row["element"])
        step = self.steps[index]
        known = self._sources.setdefault(step, source)
        if known != source and step not in self._split:
            raise Violation(f"C1: in step {step} {node.name} gets {source}, and others {known}")
        self.steps[index] += 1
        self._next[index] = span.window + 1
        self.taken[index] += 1
        self._wake()
        return step

    def _check(self, node: Any, source: Source, place: int, is_numbered: bool) -> None:
        index, number = node.index, source[0]
        if index in self._newcomers:
            raise Violation(f"C4: {node.name} hands out {source} before it was told to begin")
        if number != self._next[index]:
            raise Violation(f"C2: {node.name} gets {source}, and is at {self._next[index]}")
        if place != index or not is_numbered:
            raise Violation(f"C1: {node.name} gets the element of consumer {place}")
        if self._rounds.setdefault(number, source) != source:
            raise Violation(f"C3: round {number} is {source} and {self._rounds[number]}")

    def failed(self, node: Any, error: DataServiceError) -> None:
        """Called when a consumer raises an error to its user."""
        if node.name in self._expelled and isinstance(error, FailedPreconditionError):
            return
        raise Violation(f"{node.name} fails: {error!r}") from error

    # Steps that all make together

    def is_over_for_all(self, step: int) -> bool:
        return min(self.steps) > step

    def wait_for_step(self) -> None:
        """Has the running program wait for the others."""
        self._waiting.append(running())
        wait(None)

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for fiber in waiting:
            fiber.wake()
