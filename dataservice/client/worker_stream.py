"""One reader's stream from one worker: a thread that receives and decodes frames.

Responsible for the exchange with the worker, its credit and its time-outs. Knows the frame format,
but no windows and no dispatcher. Invariant: at its end a stream that was not dropped calls exactly
one of `on_end`, `on_broken` and `on_failure`; after that, or after a drop, it passes no frame on.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from dataservice.dataset.columns import encoded_bytes
from dataservice.errors import (
    CancelledError,
    DataLossError,
    DataServiceError,
    DeadlineExceededError,
    InternalError,
    UnavailableError,
)
from dataservice.runtime.auth import TlsConfig
from dataservice.runtime.checksum import aligned, checksum
from dataservice.runtime.exchanges.message import Message
from dataservice.runtime.exchanges.transport import AnyExchange, open_exchange
from dataservice.runtime.frames import BatchBody, decode_batch
from dataservice.runtime.threads import StoppableThread
from dataservice.wire.elements import EXCHANGE, FrameKind, Header, RowSpan, pack_credit, unpack

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 5.0
# A worker sends a keepalive frame each second; one that misses this many is frozen.
SILENCE_S = 10.0
# Errors that a replay may cure. All others come from the data or the program and go to the user.
_TRANSIENT = (UnavailableError, DeadlineExceededError, CancelledError, DataLossError)


def _refuse(*_: object) -> None:
    raise InternalError("a worker sent a kind of frame that this reader did not ask for")


class StreamEvents(NamedTuple):
    """The callbacks of a stream, called on the stream's thread.

    `on_open` gets the worker's address and the protocol by which elements travel. `on_frame` gets
    the header, the rows and their size in bytes, and may wait for room. `on_missed` gets the number
    of elements that were dropped because the reader was slow. `on_broken` gets an error after which
    the stream may be opened again, `on_failure` any error that this cannot cure.
    """

    on_open: Callable[[str, str], None]
    on_frame: Callable[[WorkerStream, Header, pa.RecordBatch | None, int], None]
    on_broken: Callable[[WorkerStream, DataServiceError], None]
    on_failure: Callable[[BaseException], None]
    on_end: Callable[[WorkerStream], None] = _refuse
    on_missed: Callable[[int], None] = _refuse
    on_omitted: Callable[[bytes], None] = _refuse
    on_bookmark: Callable[[bytes], None] = _refuse


def failure_of(error: BaseException) -> DataServiceError:
    """Returns the error that a reader raises if one of its threads ended with `error`."""
    if isinstance(error, DataServiceError):
        return error
    return InternalError(f"a thread of the reader failed: {error!r}")


class WorkerStream:
    """A stream of the elements that one worker has for one reader.

    `command["credit"]`, at least 2, bounds the elements in flight. With `command["confirm_end"]`
    the worker waits at the end for confirmation that they arrived. If the worker sends nothing,
    not even a keepalive frame, for `SILENCE_S`, the stream counts as broken.
    """

    def __init__(
        self,
        worker_id: str,
        address: str,
        command: dict[str, Any],
        schema: pa.Schema,
        events: StreamEvents,
        *,
        token: str,
        tls: TlsConfig | None,
        protocol: str | None,
    ) -> None:
        self.worker_id = worker_id
        self.address = address
        self._command = {**command, "exchange": EXCHANGE, "worker": worker_id}
        self._credit = int(command["credit"])
        self._confirms_end = bool(command.get("confirm_end"))
        self._schema = schema
        self._events = events
        self._token = token
        self._tls = tls
        self._protocol = protocol
        self.is_heard = False  # the worker has said something
        self._dropped = False
        # As many as may be in flight; the worker has confirmation of all earlier ones.
        self._taken: deque[tuple[int, int]] = deque(maxlen=self._credit)
        self._has_all = False  # everything arrived, and the worker knows that
        self._lock = threading.Lock()
        self._exchange: AnyExchange | None = None
        self._thread = StoppableThread(
            self._run,
            owner=f"reader {command['reader']}",
            name=f"stream-{address}",
            on_failure=events.on_failure,
        )

    def start(self) -> None:
        """Starts receiving."""
        self._thread.start()

    def record_taken(self, spans: Sequence[RowSpan]) -> None:
        """Records that a frame was taken, so that no other reader may get it."""
        self._taken.append((spans[0].window, spans[0].first_row))

    def leave(self, timeout_s: float) -> None:
        """Tells the worker which frames were taken; to be called before `drop`.

        The worker offers frames without confirmation to other readers. Uses an exchange of its own,
        since a worker that is producing rows does not listen on the stream.
        """
        if not self._taken or self._has_all or self._dropped:
            return
        try:
            with open_exchange(
                self.address,
                {**self._command, "taken": list(self._taken)},
                protocol=self._protocol,
                token=self._token,
                tls=self._tls,
                timeout_s=timeout_s,
            ) as exchange:
                exchange.recv(timeout_s)
        except DataServiceError as error:
            logger.info("worker %s may offer frames again: %s", self.address, error)

    def drop(self) -> None:
        """Ends the stream without waiting; no more frames are passed on. Idempotent."""
        with self._lock:
            self._dropped = True
            exchange = self._exchange
        if exchange is not None:
            exchange.cancel()

    def is_dropped(self) -> bool:
        return self._dropped

    def stop(self, timeout_s: float) -> bool:
        """Waits for the thread to end, unless it is the caller's own; to be called after `drop`."""
        return self._thread.stop(timeout_s)

    def _run(self, _stop: threading.Event) -> None:
        try:
            self._receive()
        except _TRANSIENT as error:
            if not self._dropped:
                self._events.on_broken(self, error)
        except DataServiceError as error:
            if not self._dropped:
                self._events.on_failure(error)

    def _receive(self) -> None:
        with open_exchange(
            self.address,
            self._command,
            protocol=self._protocol,
            token=self._token,
            tls=self._tls,
            timeout_s=CONNECT_TIMEOUT_S,
        ) as exchange:
            with self._lock:
                self._exchange = exchange
            self._events.on_open(self.address, exchange.protocol)
            self._converse(exchange)

    def _converse(self, exchange: AnyExchange) -> None:
        taken = 0
        while not self._dropped:
            header = self._next_frame(exchange)
            if header.kind is FrameKind.END:
                if self._confirms_end:
                    self._confirm_end(exchange, taken)
                self._events.on_end(self)
                return
            if header.kind in (FrameKind.DATA, FrameKind.MISSED):
                taken += header.elements if header.kind is FrameKind.DATA else 1
                # Half of the credit at a time, so that the worker always has some left while this
                # thread waits.
                if taken >= self._credit // 2:
                    exchange.send(pack_credit(taken))
                    taken = 0

    def _next_frame(self, exchange: AnyExchange) -> Header:
        """Receives a frame and passes its content on.

        A method of its own, so that its locals end with it: the error that ends a stream is kept,
        and its traceback would keep the last frame in memory for ever.
        """
        message = exchange.recv(SILENCE_S)
        if message is None:
            raise UnavailableError(f"worker {self.address} ended its stream early")
        self.is_heard = True
        header = unpack(message.header)
        if header.kind is FrameKind.OMITTED:
            self._events.on_omitted(header.notes)
        if header.kind is FrameKind.BOOKMARK:
            self._events.on_bookmark(header.notes)
        if header.kind in (FrameKind.DATA, FrameKind.MISSED):
            self._pass_on(header, message, is_checked=not exchange.shares_memory)
        return header

    def _pass_on(self, header: Header, message: Message, *, is_checked: bool) -> None:
        if header.kind is FrameKind.MISSED:
            self._events.on_missed(header.rows)
            return
        handed, body = message.handed, message.body
        if isinstance(handed, BatchBody):
            self._events.on_frame(self, header, self._taken_over(handed.batch), handed.size)
            return
        batch = self._decode(header, body, is_checked=is_checked)
        # Measured after decoding, since a compressed body takes less room.
        self._events.on_frame(self, header, batch, 0 if batch is None else encoded_bytes(batch))

    def _taken_over(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns a batch from a worker in this process with the schema of the job's elements."""
        if batch.schema.equals(self._schema, check_metadata=True):
            return batch
        try:
            return pa.RecordBatch.from_arrays(batch.columns, schema=self._schema)
        except (pa.ArrowException, ValueError) as error:
            raise DataLossError(
                f"worker {self.address} made a batch of another schema: {error}"
            ) from error

    def _confirm_end(self, exchange: AnyExchange, taken: int) -> None:
        """Tells the worker that all frames arrived, so that it need not offer them again."""
        try:
            exchange.send(pack_credit(taken))
            exchange.done_writing()
            while exchange.recv(CONNECT_TIMEOUT_S) is not None:
                pass
            self._has_all = True
        except _TRANSIENT as error:
            logger.info("worker %s may offer frames again: %s", self.address, error)

    def _decode(
        self, header: Header, body: pa.Buffer | None, *, is_checked: bool = True
    ) -> pa.RecordBatch | None:
        if body is None:
            return None
        body = aligned(body)
        if is_checked and checksum(body) != header.checksum:
            raise DataLossError(
                f"{body.size} bytes from worker {self.address} do not match their checksum"
            )
        batch = decode_batch(body, self._schema)
        if batch.num_rows != header.rows:
            raise DataLossError(
                f"worker {self.address} sent {batch.num_rows} rows under a header for {header.rows}"
            )
        return batch
