"""A worker's part in coordinated reads: groups its elements into rounds, one for each consumer.

A round is filled when its first consumer asks for it: with the next n elements of this worker's
pass over the endless dataset, the k-th for consumer k. Knows pipelines and the channel it is given,
but not how rounds are dealt out to workers. Invariant: under one generation, a round consists of
the same n elements however often and by whichever consumers it is asked for, until all consumers
are done with it; the elements that wait for consumers are bounded in rounds and bytes.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pyarrow as pa

from dataservice.errors import CancelledError, FailedPreconditionError, UnavailableError
from dataservice.runtime.threads import RECHECK_S
from dataservice.wire.elements import KEEPALIVE, RowSpan, asks_of, unpack
from dataservice.worker.failures import outcome_of
from dataservice.worker.flow_control import KEEPALIVE_S
from dataservice.worker.outgoing import Channel, Frame, FrameSender, frame_of
from dataservice.worker.plan_thread import PlanThread
from dataservice.worker.production import WaitTimer
from dataservice.worker.rebatch import Element
from dataservice.worker.task import Pipeline

# As many as the dispatcher deals out to one worker at once: while consumers read from another
# worker, this worker computes the rounds that they will read next.
AHEAD_ROUNDS = 8
_END_OF_SEQUENCE = (
    "Encountered end of sequence on a round-robin read iterator: coordinated reads need a dataset "
    "that never ends; add `.repeat()`"
)


class NumberedElement(NamedTuple):
    """An element of a round; `number` counts this worker's elements."""

    number: int
    frame: Frame


# Stands for an element of a round that no consumer needs any more.
_GONE = NumberedElement(0, Frame(0, (), None))


class RoundBuffer:
    """A store of groups of n elements, which wait for a round or belong to one. Thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self.rows = 0
        self.wait_timer = WaitTimer()
        self._max_bytes = max_bytes
        self._bytes = 0
        self._ahead: deque[tuple[NumberedElement, ...]] = deque()
        self._given: dict[int, tuple[int, tuple[NumberedElement, ...]]] = {}
        self._low = 0
        self._failure: Exception | None = None
        self._closed = False
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)

    @property
    def size_bytes(self) -> int:
        return self._bytes

    def put(self, group: tuple[NumberedElement, ...]) -> None:
        """Stores the elements of a future round; waits for room. CancelledError once closed."""
        with self._lock:
            if not self._has_room():
                with self.wait_timer.waiting():
                    self._wait_for_room()
            if self._closed:
                raise CancelledError("the rounds were given up")
            self._ahead.append(group)
            self._bytes += _size(group)
            self.rows += sum(element.frame.rows for element in group)
            self._changed.notify_all()

    def _wait_for_room(self) -> None:
        while not self._closed and not self._has_room():
            self._changed.wait(RECHECK_S)

    def _has_room(self) -> bool:
        # Consumers that wait must get a round, however many bytes the rounds given out still take.
        return not self._ahead or (
            len(self._ahead) < AHEAD_ROUNDS and self._bytes < self._max_bytes
        )

    def get(
        self, number: int, generation: int, consumer: int, timeout_s: float
    ) -> NumberedElement | None:
        """Returns a consumer's element of a round; None if there was none within the time.

        Returns an element without rows for a round that all consumers are done with, or that has
        been dealt out again under a later generation. Raises the error that the pipeline failed
        with.
        """
        deadline_s = time.monotonic() + timeout_s
        with self._lock:
            while True:
                group = self._group_locked(number, generation)
                if group is not None:
                    return group[consumer] if group else _GONE
                if self._failure is not None:
                    raise self._failure
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    return None
                self._changed.wait(left_s)

    def _group_locked(self, number: int, generation: int) -> tuple[NumberedElement, ...] | None:
        """Returns the elements of a round; () if it is over, None if there are none yet."""
        known, group = self._given.get(number, (-1, ()))
        if number < self._low or generation < known:
            return ()
        if generation == known:
            return group
        if not self._ahead:
            return None
        self._bytes -= _size(group)
        group = self._ahead.popleft()
        self._given[number] = (generation, group)
        self._changed.notify_all()
        return group

    def release(self, low: int) -> None:
        """Drops the rounds below `low`, with which all consumers are done."""
        with self._lock:
            if low <= self._low:
                return
            self._low = low
            for number in [number for number in self._given if number < low]:
                self._bytes -= _size(self._given.pop(number)[1])
            self._changed.notify_all()

    def end(self, failure: Exception) -> None:
        """Notes that no element follows, with the reason; elements in store still come out."""
        with self._lock:
            self._failure = self._failure or failure
            self._changed.notify_all()

    def discard(self) -> None:
        """Drops all elements and wakes all waiting threads."""
        with self._lock:
            self._closed = True
            self._failure = UnavailableError("the worker gave the rounds up")
            self._ahead.clear()
            self._given.clear()
            self._bytes = 0
            self._changed.notify_all()


def _size(group: Iterable[NumberedElement]) -> int:
    return sum(element.frame.size_bytes for element in group)


class RoundProducer(PlanThread):
    """A producer that runs a whole plan for all consumers of an iteration."""

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        epoch: int,
        consumers: int,
        buffer_bytes: int,
        name: str,
        variant: str,
    ) -> None:
        self.frames = RoundBuffer(buffer_bytes)
        self._pipeline = pipeline
        self._epoch = epoch
        self._consumers = consumers
        self._variant = variant
        super().__init__(self.frames, owner=name, name="rounds")

    def _run(self, _stop: threading.Event) -> None:
        failure = outcome_of(self._store_groups)
        self.frames.end(failure or FailedPreconditionError(_END_OF_SEQUENCE))

    def _store_groups(self) -> None:
        group: list[NumberedElement] = []
        for number, batch in enumerate(self._elements()):
            frame = frame_of(Element(batch, ()), self._pipeline.compression)
            group.append(NumberedElement(number, frame))
            if len(group) == self._consumers:
                self.frames.put(tuple(group))
                group.clear()

    def _elements(self) -> Iterator[pa.RecordBatch]:
        """Yields the elements: record batches of a batched plan, else single rows."""
        batches = self._pipeline.run_whole(self._epoch, self.is_closed, variant=self._variant)
        if self._pipeline.is_batched:
            yield from batches
            return
        for batch in batches:
            for row in range(batch.num_rows):
                yield batch.slice(row, 1)


def serve_rounds(rounds: RoundBuffer, consumer: int, channel: Channel) -> None:
    """Sends a consumer its element of each round that it asks for, until the consumer leaves."""
    sender = FrameSender(channel)
    while (message := channel.recv()) is not None:
        low, asks = asks_of(unpack(message.header))
        rounds.release(low)
        for ask in asks:
            for number in range(ask.first, ask.end):
                element = _await(rounds, number, ask.generation, consumer, channel)
                place = RowSpan(number, ask.generation, element.number, element.number + 1)
                sender.send(element.frame._replace(spans=(place,)))


def _await(
    rounds: RoundBuffer, number: int, generation: int, consumer: int, channel: Channel
) -> NumberedElement:
    """Waits for an element; sends a keep-alive for each second that it takes."""
    while (element := rounds.get(number, generation, consumer, KEEPALIVE_S)) is None:
        if channel.cancelled():
            raise CancelledError("the consumer has gone")
        channel.send(KEEPALIVE)
    return element
