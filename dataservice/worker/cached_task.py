"""One endless pass over a plan, which every trainer reads as a whole and at its own pace.

Knows threads and pipelines, nothing of gRPC or Flight. Each element is computed and compressed
once, whatever the number of trainers. Invariants: the trainer that is ahead drives production and
is never held back by others; a trainer that falls behind the window misses the elements that were
dropped from it, and is told how many. Delivery is at most once: elements in flight on a broken
stream are not sent again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from dataservice.dataset.division.static_sharding import Share
from dataservice.dataset.omission_log import OmissionOutbox
from dataservice.errors import (
    CancelledError,
    InvalidArgumentError,
    UnavailableError,
)
from dataservice.runtime.frames import Compression, encode_batch
from dataservice.runtime.threads import RECHECK_S
from dataservice.wire.elements import NO_WINDOW, RowSpan, pack_missed
from dataservice.worker.cache import SlidingWindow
from dataservice.worker.failures import outcome_of
from dataservice.worker.outgoing import Frame
from dataservice.worker.plan_thread import PlanThread
from dataservice.worker.production import WaitTimer
from dataservice.worker.rebatch import Element
from dataservice.worker.task import Pipeline

# Elements computed before any trainer asks, so that the one ahead need not wait for each.
_AHEAD: Final = 8
# The window holds at least this many chunks of rows; with fewer, a trainer that falls behind would
# miss most of the window.
_LEAST_PIECES: Final = 4


class CachedFrames:
    """A sliding window of encoded elements. Thread-safe."""

    def __init__(self, max_bytes: int, compression: Compression | None) -> None:
        self.rows = 0
        self.max_bytes = max_bytes
        self.wait_timer = WaitTimer()
        self.omissions = OmissionOutbox()
        self._compression = compression
        self._window: SlidingWindow[Frame] = SlidingWindow(max_bytes)
        self._failure: Exception | None = None
        self._closed = False
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._wanted = threading.Condition(self._lock)

    @property
    def size_bytes(self) -> int:
        return self._window.size_bytes

    def put(self, element: Element) -> None:
        """Encodes an element and adds it; waits until the trainer that is ahead needs it.

        Ignores an element without rows. The origin of the rows is replaced by their number in the
        pass, as trainers cannot ask for them again. CancelledError once closed,
        InvalidArgumentError for an element larger than the window.
        """
        batch = element.batch
        if batch is None or not batch.num_rows:
            return
        span = RowSpan(NO_WINDOW, 0, self.rows, self.rows + batch.num_rows)
        # Encoded here, once for all trainers; a slice would keep its whole batch in memory.
        payload = encode_batch(batch, compression=self._compression)
        size_bytes = payload.size
        frame = Frame(batch.num_rows, (span,), payload, size_bytes=size_bytes)
        self._window.check_size(size_bytes)
        with self._lock:
            if not self._closed and not self._is_wanted(size_bytes):
                with self.wait_timer.waiting():
                    self._wait_until_wanted(size_bytes)
            if self._closed:
                raise CancelledError("the cache was closed")
            self._window.add(frame, size_bytes)
            self.rows += frame.rows
            self._changed.notify_all()

    def _wait_until_wanted(self, size_bytes: int) -> None:
        while not self._closed and not self._is_wanted(size_bytes):
            self._wanted.wait(RECHECK_S)

    def _is_wanted(self, size_bytes: int) -> bool:
        return self._window.ahead < _AHEAD and self._window.has_room_ahead(size_bytes)

    def get(self, trainer: str, timeout_s: float) -> Frame | None:
        """Returns the trainer's next frame; None if there was none within the time.

        If the trainer missed elements, a frame that only says how many comes first. Raises the
        error that production failed with.
        """
        deadline_s = time.monotonic() + timeout_s
        with self._lock:
            while True:
                missed = self._window.catch_up(trainer)
                if missed:
                    return Frame(0, (), None, header=pack_missed(missed))
                frame = self._window.take(trainer)
                if frame is not None:
                    self._wanted.notify()
                    return frame
                if self._failure is not None:
                    raise self._failure
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    return None
                self._changed.wait(left_s)

    def end(self, failure: Exception | None = None) -> None:
        """Closes the window; trainers still get the elements in it, and then the failure."""
        with self._lock:
            self._failure = self._failure or failure or UnavailableError("the windows ended")
            self._closed = True
            self._changed.notify_all()
            self._wanted.notify_all()

    def of_trainer(self, trainer: str) -> TrainerFrames:
        """Returns the source that the streams of a trainer take frames from."""
        return TrainerFrames(self, trainer)

    def discard(self) -> None:
        """Drops all elements and wakes all waiting threads; readers turn to other workers."""
        self.end(UnavailableError("the worker gave the stream up"))
        with self._lock:
            self._window.clear()


class TrainerFrames:
    """The frames of one trainer; several streams of the same trainer share them."""

    def __init__(self, frames: CachedFrames, trainer: str) -> None:
        self._frames = frames
        self._trainer = trainer

    def get(self, timeout_s: float) -> Frame | None:
        """Returns the next frame, as `CachedFrames.get`."""
        return self._frames.get(self._trainer, timeout_s)

    def take_notes(self, *, is_last: bool) -> bytes | None:
        """Removes and returns notes of omitted rows, for the trainer that asks first."""
        return self._frames.omissions.take(is_last=is_last)


class CachedTask(PlanThread):
    """A producer that runs an endless plan, or a static share of it, into a sliding window."""

    def __init__(
        self,
        pipeline: Pipeline,
        frames: CachedFrames,
        *,
        name: str,
        share: Share | None = None,
        variant: str = "",
    ) -> None:
        self.frames = frames
        self._pipeline = pipeline
        self._share = share
        self._variant = variant
        super().__init__(self.frames, owner=name, name="cached-task")

    def _run(self, _stop: threading.Event) -> None:
        self.frames.end(outcome_of(self._store_elements) or _no_end(self.frames.rows))

    def _store_elements(self) -> None:
        # A job with a cache has one repetition, so its epoch is 0 and its run has no key.
        omitted = self.frames.omissions.open_run()
        for batch in self._pipeline.run_whole(
            0, self.is_closed, self._share, omitted, variant=self._variant
        ):
            for piece in self._pieces(batch):
                self.frames.put(Element(piece, ()))

    def _pieces(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yields the batch; unless it is an element, in parts of which the window holds several."""
        rows = batch.num_rows
        if not self._pipeline.is_batched:
            fitting = self.frames.max_bytes // _LEAST_PIECES * rows // max(1, batch.nbytes)
            rows = max(1, fitting)
        for first in range(0, batch.num_rows, rows):
            yield batch.slice(first, rows)


def _no_end(rows: int) -> Exception:
    return InvalidArgumentError(
        f"the dataset ended after {rows} rows on this worker, and one with a cross-trainer cache "
        "must not; end it with repeat()"
        if rows
        else "the dataset has no elements on this worker, and one with a cross-trainer cache must "
        "be endless; look for a filter that leaves nothing"
    )
