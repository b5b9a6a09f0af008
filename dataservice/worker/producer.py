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
from dataservice.runtime.threads import RECHECK_S, StoppableThread
from dataservice.sharding import Split
from dataservice.worker.failures import outcome_of, reportable
from dataservice.worker.leases import Lease, LeaseFeed
from dataservice.worker.outgoing import Sink
from dataservice.worker.rebatch import Element, Rebatcher
from dataservice.worker.task import Pipeline

logger = logging.getLogger(__name__)


class _Rows(NamedTuple):
    lease: Lease
    batch: pa.RecordBatch
    first_row: int
    size_bytes: int


class _OpenWindow:
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
        self._changed = feed.changed
        self._room = threading.Condition(feed.lock)
        self._pipeline = pipeline
        self._max_held_bytes = max(1, buffer_bytes // 2)
        self._max_parallel = threads
        self._held_bytes = 0
        self._windows: deque[_OpenWindow] = deque()
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
            self._close_locked()
        self._feed.stop()
        self.frames.discard()

    def _close_locked(self) -> None:
        """Closes the producer and drops all rows, as none will be sent."""
        self._closed = True
        for window in self._windows:
            # Its thread runs on for a moment, and the error that ends it may refer to the window.
            window.pieces.clear()
        self._windows.clear()
        self._held_bytes = 0
        self._changed.notify_all()
        self._room.notify_all()

    def is_closed(self) -> bool:
        return self._closed

    def join(self, deadline_s: float) -> None:
        """After `close`: waits for the threads until this time of the monotonic clock."""
        for thread in self._threads:
            thread.stop(max(0.0, deadline_s - time.monotonic()))

    def _compute(self, _stop: threading.Event) -> None:
        while (window := self._next_window()) is not None:
            self._run_window(window)

    def _next_window(self) -> _OpenWindow | None:
        """Waits for a lease and returns its window; None if no lease will come."""
        with self._lock:
            while not self._closed and not self._feed.is_over_locked():
                # A reader that stalls must not hoard windows that others could have.
                may_begin = len(self._windows) <= self._max_parallel
                lease = self._feed.take_locked() if may_begin else None
                if lease is not None:
                    window = _OpenWindow(lease)
                    self._windows.append(window)
                    return window
                self._changed.wait(RECHECK_S)
            return None

    def _run_window(self, window: _OpenWindow) -> None:
        failure = outcome_of(lambda: self._compute_window(window))
        with self._lock:
            window.failure = failure
            window.done = True
            self._changed.notify_all()

    def _compute_window(self, window: _OpenWindow) -> None:
        rows = self._pipeline.run_window(window.lease, self.is_closed, self.frames.omissions)
        for batch, first_row in rows:
            self._hold(window, batch, first_row)

    def _hold(self, window: _OpenWindow, batch: pa.RecordBatch, first_row: int) -> None:
        """Stores rows; waits for room, except where they are the rows that have to go out next."""
        rows = _Rows(window.lease, batch, first_row, encoded_bytes(batch))
        with self._lock:
            while not self._closed and not self._has_room(window):
                self._room.wait(RECHECK_S)
            if self._closed:
                raise CancelledError("the stream was closed")
            window.pieces.append(rows)
            window.end_row = first_row + batch.num_rows
            self._held_bytes += rows.size_bytes
            if window is self._windows[0]:
                self._changed.notify_all()

    def _has_room(self, window: _OpenWindow) -> bool:
        if self._held_bytes < self._max_held_bytes:
            return True
        return window is self._windows[0] and not window.pieces

    def _assemble(self, _stop: threading.Event) -> None:
        self._end(outcome_of(self._store_elements))

    def _store_elements(self) -> None:
        finish = self._pipeline.open_tail(
            self.is_closed, lambda window: self._splits.get(window, ()), self.frames.omissions
        )
        divisible = self._pipeline.is_divisible
        for element in self._elements():
            self.frames.put(
                finish(element)._replace(divisible=divisible, more_follows=self.more_follows)
            )
            for span in element.spans:
                if span.final:
                    self._splits.pop(span.window, None)

    def _end(self, failure: BaseException | None) -> None:
        """Ends the frames, with the failure if there is one, and closes the producer."""
        self.frames.end(None if failure is None else reportable(failure))
        with self._lock:
            self._close_locked()

    def _elements(self) -> Iterator[Element]:
        rebatcher = self._pipeline.rebatcher(self._run)
        ends_passes = self._pipeline.ends_passes
        epoch: int | None = None
        while (step := self._next_step(rebatcher)) is not _ENDED:
            if step is _FLUSH:
                yield from rebatcher.flush()
            elif isinstance(step, _OpenWindow):
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
                step = self._head_locked()
                self.more_follows = bool(self._windows) or self._feed.holds_any_locked()
                if step is not None:
                    return step
                if rebatcher.holds_anything and self._must_flush_locked(rebatcher):
                    return _FLUSH
                if not self._windows and self._feed.is_over_locked():
                    self._feed.raise_failure_locked()
                    return _ENDED
                self._changed.wait(RECHECK_S)
            return _ENDED

    def _must_flush_locked(self, rebatcher: Rebatcher) -> bool:
        """True if what the rebatcher holds has to go out although no rows come to complete it."""
        nothing_leased = not self._windows and self._feed.is_dry_locked()
        return nothing_leased or rebatcher.holds_only_ends or not rebatcher.is_batched

    def _head_locked(self) -> _Rows | _OpenWindow | None:
        """Takes rows of the first window, or the complete window; None if neither is there.

        Raises the error that the window failed with, once all its rows were taken.
        """
        if not self._windows:
            return None
        head = self._windows[0]
        if head.pieces:
            rows = head.pieces.popleft()
            self._held_bytes -= rows.size_bytes
            self._room.notify_all()
            return rows
        if not head.done:
            return None
        self._windows.popleft()
        # The next window may now exceed the limit, and another window may begin.
        self._room.notify_all()
        self._changed.notify_all()
        if head.failure is not None:
            raise head.failure
        return head
