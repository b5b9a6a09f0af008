"""Elements on their way out of a worker: a bounded buffer of frames, and sending them on a channel.

An element is encoded when it is sent: for shared memory, directly into the segment that the reader
maps; for Flight, into a buffer with a checksum. Only a compressed element is encoded beforehand.
Knows nothing of leases or pipelines.
Invariant: frames come out in the order in which they were put, except those that are put back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple, Protocol, TypeVar

import pyarrow as pa

from dataservice.dataset.columns import encoded_bytes
from dataservice.dataset.omission_log import OmissionOutbox
from dataservice.errors import CancelledError, DeadlineExceededError, UnavailableError
from dataservice.runtime.bounded_queue import BoundedQueue
from dataservice.runtime.checksum import checksum
from dataservice.runtime.exchanges.bodies import Body
from dataservice.runtime.exchanges.message import Message
from dataservice.runtime.frames import BatchEncoder, Compression, encode_batch
from dataservice.runtime.threads import RECHECK_S
from dataservice.wire.elements import RowSpan, elements_in, pack_bookmark, pack_data
from dataservice.worker.production import WaitTimer
from dataservice.worker.rebatch import Element

# A wait for a reader that takes longer than this is a long one.
_LONG_S = 1.0
_MAX_FRAMES = 8


class Channel(Protocol):
    """The connection to one reader, on which frames are sent and credit is received."""

    @property
    def shares_memory(self) -> bool: ...

    def send(self, header: bytes, body: pa.Buffer | Body | None = None) -> None: ...

    def recv(self) -> Message | None: ...

    def cancelled(self) -> bool: ...


class FrameSource(Protocol):
    """What a stream takes its frames from."""

    def get(self, timeout_s: float) -> Frame | None: ...

    def take_notes(self, *, is_last: bool) -> bytes | None: ...


class FrameSink(Protocol):
    """What a producer puts its elements into.

    It counts the rows that it took and measures how long it waited for readers.
    """

    rows: int
    wait_timer: WaitTimer
    omissions: OmissionOutbox

    @property
    def size_bytes(self) -> int: ...

    def put(self, element: Element) -> None: ...

    def end(self, failure: Exception | None = None) -> None: ...

    def discard(self) -> None: ...


Sink = TypeVar("Sink", bound=FrameSink)


class Frame(NamedTuple):
    """Rows, and the windows that they come from.

    `payload` is the rows, to be encoded when they are sent, or their compressed form; None if
    spans end without rows, or if `header` is the whole message. `size_bytes` is the size of the
    payload as it is sent.
    """

    rows: int
    spans: tuple[RowSpan, ...]
    payload: pa.RecordBatch | pa.Buffer | None
    divisible: bool = False
    header: bytes | None = None
    size_bytes: int = 0
    element_rows: int = 0
    more_follows: bool = False
    bookmark: bytes = b""

    @property
    def elements(self) -> int:
        """Number of elements that a reader cuts the frame into."""
        return elements_in(self.rows, self.element_rows)


def frame_of(element: Element, compression: Compression | None) -> Frame:
    """Returns the frame of an element; compresses it here, once for all readers that get it."""
    batch = element.batch
    if batch is None or not batch.num_rows:
        return Frame(0, element.spans, None, more_follows=element.more_follows)
    packed = None if compression is None else encode_batch(batch, compression=compression)
    return Frame(
        batch.num_rows,
        element.spans,
        batch if packed is None else packed,
        element.divisible,
        size_bytes=encoded_bytes(batch) if packed is None else packed.size,
        element_rows=element.element_rows,
        more_follows=element.more_follows,
        bookmark=element.bookmark,
    )


class FrameSender:
    """A sender of the frames of one stream."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._encoder = BatchEncoder()

    def send(self, frame: Frame) -> None:
        """Encodes and sends a frame; waits while the reader does not read."""
        if frame.bookmark:
            self._channel.send(pack_bookmark(frame.bookmark))
        if frame.header is not None:
            self._channel.send(frame.header)
        elif frame.payload is None:
            self._channel.send(_header(frame, 0))
        elif self._channel.shares_memory:
            body = frame.payload
            if not isinstance(body, pa.Buffer):
                body = self._encoder.body_of(body, frame.size_bytes)
            self._channel.send(_header(frame, 0), body)
        else:
            body = frame.payload
            if not isinstance(body, pa.Buffer):
                body = encode_batch(body)
            self._channel.send(_header(frame, checksum(body)), body)


def _header(frame: Frame, body_checksum: int) -> bytes:
    return pack_data(
        frame.rows,
        body_checksum,
        frame.spans,
        divisible=frame.divisible,
        element_rows=frame.element_rows,
        more_follows=frame.more_follows,
    )


def _give_back_freed_memory() -> None:
    """Returns freed memory to the system; until its next allocation the allocator would keep it."""
    pa.default_memory_pool().release_unused()


class FrameBuffer:
    """A queue of frames that is bounded in bytes and is ended by the end or by an error."""

    def __init__(self, max_bytes: int, compression: Compression | None) -> None:
        self.rows = 0
        self.wait_timer = WaitTimer()
        self.omissions = OmissionOutbox()
        self._compression = compression
        self._queue: BoundedQueue[Frame] = BoundedQueue(_MAX_FRAMES, max_bytes)
        self._failure: Exception | None = None
        self._returned: deque[Frame] = deque()

    @property
    def size_bytes(self) -> int:
        return self._queue.size_bytes

    def put(self, element: Element) -> None:
        """Stores an element as a frame; waits for room. CancelledError once closed."""
        frame = frame_of(element, self._compression)
        if not self._queue.try_put(frame, frame.size_bytes):
            with self.wait_timer.waiting():
                self._wait_for_room(frame)
        self.rows += frame.rows

    def _wait_for_room(self, frame: Frame) -> None:
        timeout_s = _LONG_S
        while True:
            try:
                self._queue.put(frame, frame.size_bytes, timeout_s=timeout_s)
                return
            except DeadlineExceededError:
                if timeout_s != RECHECK_S:
                    timeout_s = RECHECK_S
                    _give_back_freed_memory()

    def get(self, timeout_s: float) -> Frame | None:
        """Takes the next frame; None if there was none within the time.

        After the last frame, raises the error that the producer failed with, or CancelledError at
        the normal end.
        """
        try:
            return self._returned.popleft()
        except IndexError:
            pass
        try:
            return self._queue.get(timeout_s=timeout_s)
        except DeadlineExceededError:
            return None
        except CancelledError:
            if self._failure is not None:
                raise self._failure from None
            raise

    def take_notes(self, *, is_last: bool) -> bytes | None:
        """Removes and returns notes of omitted rows and operators' times; None if there are none.

        What is omitted from a window is noted before the window's last frame is stored. Times are
        noted only now and then; pass `is_last` with a last frame to get all of them.
        """
        return self.omissions.take(is_last=is_last or self._queue.closed)

    def put_back(self, frames: Iterable[Frame]) -> None:
        """Puts back frames, in order, that were taken but did not arrive; they come out next."""
        self._returned.extendleft(reversed(tuple(frames)))

    def has_returned(self) -> bool:
        """True if frames that were put back wait to be taken."""
        return bool(self._returned)

    def end(self, failure: Exception | None = None) -> None:
        """Marks the end, or a failure, after the frames in store, which still come out."""
        self._failure = self._failure or failure
        self._queue.close()

    def discard(self) -> None:
        """Drops all frames and wakes all waiting threads.

        `get` then raises UnavailableError, unless a failure is known or only the end was left.
        """
        if not self._queue.closed or len(self._queue) or self._returned:
            self._failure = self._failure or UnavailableError("the worker gave the stream up")
        self._queue.close(discard=True)
        self._returned.clear()
