"""The operator that reads ahead on a thread of its own.

The thread owns the stream below from the first `next` on. If rows count as consumed when they are
acknowledged, rows that a lost reader had may follow an end, so each `next` that comes to an end
asks the stream below anew. Invariant: each element travels with the position after it, so that a
saved position never includes elements that were only read ahead.
"""

from __future__ import annotations

import dataclasses
import threading
import weakref
from typing import ClassVar, Final, NamedTuple

import pyarrow as pa

from dataservice.dataset.node import register_node
from dataservice.dataset.operators.base import Operator
from dataservice.dataset.stream import BatchStream, RunContext, State
from dataservice.errors import CancelledError, DeadlineExceededError, InternalError
from dataservice.runtime.arguments import integer_at_least
from dataservice.runtime.bounded_queue import BoundedQueue
from dataservice.runtime.threads import StoppableThread

_POLL_S: Final = 0.5
_STOP_TIMEOUT_S: Final = 10.0


@register_node
@dataclasses.dataclass(frozen=True, eq=False)
class Prefetch(Operator):
    """Keeps up to `buffer_size` record batches ready; with 0, each is made when it is asked for."""

    kind: ClassVar[str] = "prefetch"
    buffer_size: int

    def __post_init__(self) -> None:
        size = integer_at_least(self.buffer_size, 0, "prefetch buffer_size (-1: AUTOTUNE)")
        object.__setattr__(self, "buffer_size", size)

    def input_context(self, context: RunContext) -> RunContext:
        return context

    def attach(self, stream: BatchStream, context: RunContext) -> BatchStream:
        return _PrefetchStream(stream, self.buffer_size, context) if self.buffer_size else stream


class _Element(NamedTuple):
    """A step of the stream: a batch, the end, or the error that was raised."""

    batch: pa.RecordBatch | None
    state: State  # after the batch
    location: str
    error: BaseException | None


class _PrefetchStream(BatchStream):
    def __init__(self, stream: BatchStream, buffer_size: int, context: RunContext) -> None:
        self._stream = stream
        self._context = context
        self._queue: BoundedQueue[_Element] = BoundedQueue(buffer_size)
        self._thread: StoppableThread | None = None
        self._state: State = {}  # set when the thread starts; a restore needs a fresh stream
        self._location = ""
        self._ended = False
        self._may_go_on = context.receipt_sources is not None
        # A stream that is dropped without close() must not leave a thread behind.
        weakref.finalize(self, self._queue.close, discard=True)

    def __next__(self) -> pa.RecordBatch:
        if self._ended:
            raise StopIteration
        asks_now = self._thread is None
        if asks_now:
            self._start()
        element = self._take()
        if element.error is not None:
            self._ended = True
            raise element.error
        if element.batch is None:
            self._state = element.state
            if self._may_go_on:
                self._leave_stream()
                if not asks_now:
                    return next(self)  # this end was read ahead, and may not be one any more
            self._ended = not self._may_go_on
            raise StopIteration
        self._state, self._location = element.state, element.location
        return element.batch

    def _start(self) -> None:
        stream, queue, may_go_on = self._stream, self._queue, self._may_go_on
        self._state = stream.state()

        def run(stop: threading.Event) -> None:
            _read_ahead(stream, queue, stop, may_go_on=may_go_on)

        self._thread = StoppableThread(run, owner="dataset", name="prefetch")
        self._thread.start()

    def _leave_stream(self) -> None:
        """Waits for the thread, which has come to the end, to let go of the stream below."""
        assert self._thread is not None
        self._thread.stop(_STOP_TIMEOUT_S)
        self._thread = None

    def _take(self) -> _Element:
        assert self._thread is not None
        interrupts = self._context.interrupts
        while True:
            interrupts.let_through()
            try:
                return self._queue.get(timeout_s=interrupts.poll_s(_POLL_S))
            except DeadlineExceededError:
                self._context.check()
                if not self._thread.is_alive() and not len(self._queue):
                    raise InternalError(
                        "the prefetching thread ended without a result and without an error"
                    ) from None

    def state(self) -> State:
        return self._stream.state() if self._thread is None else self._state

    def restore(self, state: State) -> None:
        self._stream.restore(state)

    def state_after(self, state: State, rows: int) -> State | None:
        return self._stream.state_after(state, rows)

    def close(self) -> None:
        self._ended = True
        self._queue.close(discard=True)
        thread = self._thread
        if thread is not None:
            thread.stop(_STOP_TIMEOUT_S)
        if thread is None or (self._may_go_on and not thread.is_alive()):
            self._stream.close()

    def location(self) -> str:
        return self._location


def _read_ahead(
    stream: BatchStream, queue: BoundedQueue[_Element], stop: threading.Event, *, may_go_on: bool
) -> None:
    """Puts all elements into the queue and closes the stream, unless it ended and ``may_go_on``."""
    stays_open = False
    try:
        more = True
        while more and not stop.is_set():
            element = _step(stream)
            more = element.batch is not None
            was_put = _put(queue, element, stop)
            stays_open = was_put and may_go_on and not more and element.error is None
    except CancelledError:
        return
    finally:
        if not stays_open:
            stream.close()


def _step(stream: BatchStream) -> _Element:
    try:
        batch = next(stream, None)
        return _Element(batch, stream.state(), stream.location(), None)
    except BaseException as error:
        return _Element(None, {}, "", error)


def _put(queue: BoundedQueue[_Element], element: _Element, stop: threading.Event) -> bool:
    """Waits for room as long as the reader lives; False if told to stop.

    Raises CancelledError once the queue is closed.
    """
    while not stop.is_set():
        try:
            queue.put(element, timeout_s=_POLL_S)
            return True
        except DeadlineExceededError:
            continue
    return False
