"""Turns leased windows into frames in a bounded buffer.

Knows threads and pipelines, nothing of gRPC or Flight. Several windows may be computed at the same
time, but their rows leave in the order of the leases.
Invariant: frames come out in order, followed by the error or the end; the threads of a closed
producer end by themselves within a second.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, NamedTuple

import pyarrow as pa

from dataservice.dataset.columns import encoded_bytes
from dataservice.errors import CancelledError
from dataservice.runtime.threads import StoppableThread
from dataservice.sharding import Split
from dataservice.worker.failures import outcome_of, reportable
from dataservice.worker.leases import Lease, LeaseFeed
from dataservice.worker.outgoing import Sink
from dataservice.worker.rebatch import Element, Rebatcher
from dataservice.worker.task import Pipeline

logger = logging.getLogger(__name__)

_RECHECK_S = 1.0


class _Rows(NamedTuple):
    lease: Lease
    batch: pa.RecordBatch
    first_row: int
    size_bytes: int


class _Ticket:
    """A window that is being computed: its rows so far, in order. Guarded by the feed's lock."""

    __slots__ = ("done", "end_row", "failure", "lease", "pieces")

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.pieces: deque[_Rows] = deque()
        self.end_row = lease.start_row
        self.done = False
        self.failure: Exception | None = None


_FLUSH = object()
_ENDED = object()


class WindowProducer(Generic[Sink]):
    """A producer of leased windows, for one stream of one reader or for a cache that all read.

    A frame holds up to `run` elements.
    """

    def __init__(
        self,
        feed: LeaseFeed,
        pipeline: Pipeline,
        frames: Sink,
        *,
        threads: int,
        buffer_bytes: int,
        name: str,
        run: int = 1,
    ) -> None:
        self.frames = frames
        self._run = run
        self._feed = feed
        self._lock = feed.lock
        self._news = feed.news
        self._room = threading.Condition(feed.lock)
        self._pipeline = pipeline
        self._max_held_bytes = max(1, buffer_bytes // 2)
        self._max_parallel = threads
        self._held_bytes = 0
        self._tickets: deque[_Ticket] = deque()
        # Splits of the windows that the current element has rows of, to be named in errors.
        self._splits: dict[int, Sequence[Split]] = {}
        self._closed = False
        # Whether windows were under way or leases in store when `_next_step` last returned.
        self.more_follows = False
        self._threads = [
            self._new_thread(self._compute, name, f"compute-{index}") for index in range(threads)
        ]
        self._threads.append(self._new_thread(self._assemble, name, "assemble"))

    def _new_thread(
        self, run: Callable[[threading.Event], None], owner: str, name: str
    ) -> StoppableThread:
        return StoppableThread(run, owner=owner, name=name, on_failure=self._end)

    def start(self) -> None:
        """Starts the threads that lease and compute windows."""
        self._feed.start()
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stops without waiting. Idempotent."""
        with self._lock:
            self._close_held()
        self._feed.stop()
        self.frames.discard()

    def _close_held(self) -> None:
        """Closes the producer and drops all rows, as none will be sent."""
        self._closed = True
        for ticket in self._tickets:
            # Its thread runs on for a moment, and the error that ends it may refer to the ticket.
            ticket.pieces.clear()
        self._tickets.clear()
        self._held_bytes = 0
        self._news.notify_all()
        self._room.notify_all()

    def is_closed(self) -> bool:
        return self._closed

    def join(self, deadline_s: float) -> None:
        """After `close`: waits for the threads until this time of the monotonic clock."""
        for thread in self._threads:
            thread.stop(max(0.0, deadline_s - time.monotonic()))

    def _compute(self, _stop: threading.Event) -> None:
        while (ticket := self._next_ticket()) is not None:
            self._run_window(ticket)

    def _next_ticket(self) -> _Ticket | None:
        """Waits for a lease and returns its ticket; None if no lease will come."""
        with self._lock:
            while not self._closed and not self._feed.is_over_held():
                # A reader that stalls must not hoard windows that others could have.
                may_begin = len(self._tickets) <= self._max_parallel
                lease = self._feed.take_held() if may_begin else None
                if lease is not None:
                    ticket = _Ticket(lease)
                    self._tickets.append(ticket)
                    return ticket
                self._news.wait(_RECHECK_S)
            return None

    def _run_window(self, ticket: _Ticket) -> None:
        failure = outcome_of(lambda: self._compute_window(ticket))
        with self._lock:
            ticket.failure = failure
            ticket.done = True
            self._news.notify_all()

    def _compute_window(self, ticket: _Ticket) -> None:
        rows = self._pipeline.run_window(ticket.lease, self.is_closed, self.frames.omissions)
        for batch, first_row in rows:
            self._hold(ticket, batch, first_row)

    def _hold(self, ticket: _Ticket, batch: pa.RecordBatch, first_row: int) -> None:
        """Stores rows; waits for room, except where they are the rows that have to go out next."""
        rows = _Rows(ticket.lease, batch, first_row, encoded_bytes(batch))
        with self._lock:
            while not self._closed and not self._has_room(ticket):
                self._room.wait(_RECHECK_S)
            if self._closed:
                raise CancelledError("the stream was closed")
            ticket.pieces.append(rows)
            ticket.end_row = first_row + batch.num_rows
            self._held_bytes += rows.size_bytes
            if ticket is self._tickets[0]:
                self._news.notify_all()

    def _has_room(self, ticket: _Ticket) -> bool:
        if self._held_bytes < self._max_held_bytes:
            return True
        return ticket is self._tickets[0] and not ticket.pieces

    def _assemble(self, _stop: threading.Event) -> None:
        self._end(outcome_of(self._store_elements))

    def _store_elements(self) -> None:
        finish = self._pipeline.open_tail(
            self.is_closed, lambda window: self._splits.get(window, ()), self.frames.omissions
        )
        divisible = self._pipeline.is_divisible
        for element in self._elements():
            self.frames.put(finish(element), divisible=divisible, more_follows=self.more_follows)
            for span in element.spans:
                if span.final:
                    self._splits.pop(span.window, None)

    def _end(self, failure: BaseException | None) -> None:
        """Ends the frames, with the failure if there is one, and closes the producer."""
        self.frames.end(None if failure is None else reportable(failure))
        with self._lock:
            self._close_held()

    def _elements(self) -> Iterator[Element]:
        rebatcher = self._pipeline.rebatcher(self._run)
        ends_passes = self._pipeline.ends_passes
        epoch: int | None = None
        while (step := self._next_step(rebatcher)) is not _ENDED:
            if step is _FLUSH:
                yield from rebatcher.flush()
            elif isinstance(step, _Ticket):
                lease = step.lease
                yield from rebatcher.end_window(lease.window, lease.generation, step.end_row)
            elif isinstance(step, _Rows):
                lease = step.lease
                if ends_passes and lease.epoch != epoch:
                    yield from rebatcher.flush()
                    epoch = lease.epoch
                self._splits[lease.window] = lease.splits
                yield from rebatcher.add(
                    step.batch, lease.window, lease.generation, step.first_row, step.size_bytes
                )

    def _next_step(self, rebatcher: Rebatcher) -> object:
        """Waits for the next step: rows to add, a complete window, `_FLUSH` or `_ENDED`."""
        with self._lock:
            while not self._closed:
                step = self._head_held()
                self.more_follows = bool(self._tickets) or self._feed.holds_any_held()
                if step is not None:
                    return step
                if rebatcher.holds_anything and self._must_flush_held(rebatcher):
                    return _FLUSH
                if not self._tickets and self._feed.is_over_held():
                    self._feed.raise_failure_held()
                    return _ENDED
                self._news.wait(_RECHECK_S)
            return _ENDED

    def _must_flush_held(self, rebatcher: Rebatcher) -> bool:
        """True if what the rebatcher holds has to go out although no rows come to complete it."""
        nothing_leased = not self._tickets and self._feed.is_dry_held()
        return nothing_leased or rebatcher.holds_only_ends or not rebatcher.is_batched

    def _head_held(self) -> _Rows | _Ticket | None:
        """Takes rows of the first window, or the complete window; None if neither is there.

        Raises the error that the window failed with, once all its rows were taken.
        """
        if not self._tickets:
            return None
        head = self._tickets[0]
        if head.pieces:
            rows = head.pieces.popleft()
            self._held_bytes -= rows.size_bytes
            self._room.notify_all()
            return rows
        if not head.done:
            return None
        self._tickets.popleft()
        # The next window may now exceed the limit, and another window may begin.
        self._room.notify_all()
        self._news.notify_all()
        if head.failure is not None:
            raise head.failure
        return head
