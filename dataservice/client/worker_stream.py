"""One reader's stream from one worker: a thread that receives and decodes frames.

Knows exchanges and the frame format, nothing of windows or of the dispatcher. Invariant: after the
stream has ended, broken or been dropped, exactly one of the callbacks said so, and no frame is
passed on any more.
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
from dataservice.runtime.frames import BatchBody, decode_batch
from dataservice.runtime.message import Message
from dataservice.runtime.threads import StoppableThread
from dataservice.runtime.transport import AnyExchange, open_exchange
from dataservice.wire.elements import EXCHANGE, FrameKind, Header, RowSpan, pack_credit, unpack

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 5.0
# A worker sends a sign of life each second; many missed ones mean that it is frozen.
SILENCE_S = 10.0
# What may pass on replay; all else is wrong with the data or the program and is the user's.
_TRANSIENT = (UnavailableError, DeadlineExceededError, CancelledError, DataLossError)


def _refuse(*_: object) -> None:
    raise InternalError("a worker sent a kind of frame that this reader did not ask for")


class StreamEvents(NamedTuple):
    """What happens on a stream; called on its thread.

    `on_open` gets the protocol that elements come by. `on_frame` gets the bytes that the rows take
    besides, and may wait for room; `on_missed` the number of elements that were dropped because
    the reader was slow. `on_failure` gets any error that opening the stream again cannot mend.
    """

    on_open: Callable[[WorkerStream, str], None]
    on_frame: Callable[[WorkerStream, Header, pa.RecordBatch | None, int], None]
    on_broken: Callable[[WorkerStream, DataServiceError], None]
    on_failure: Callable[[BaseException], None]
    on_end: Callable[[WorkerStream], None] = _refuse
    on_missed: Callable[[int], None] = _refuse
    on_omitted: Callable[[bytes], None] = _refuse
    on_bookmark: Callable[[bytes], None] = _refuse


def failure_of(error: BaseException) -> DataServiceError:
    """What a reader raises when one of its threads ended with `error`."""
    if isinstance(error, DataServiceError):
        return error
    return InternalError(f"a thread of the reader failed: {error!r}")


class WorkerStream:
    """Receives the elements that a worker has for a reader.

    `command["credit"]`, at least 2, bounds the frames under way; with `command["confirm_end"]` the
    worker waits for word that they arrived. A worker that gives no sign of
    life for `silence_s` counts as broken.
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
        silence_s: float,
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
        self._silence_s = silence_s
        self._protocol = protocol
        self.is_heard = False  # the worker has said something
        self._dropped = False
        # More than may be under way were confirmed.
        self._taken: deque[tuple[int, int]] = deque(maxlen=self._credit)
        self._has_all = False  # and the worker knows it
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

    def note_taken(self, spans: Sequence[RowSpan]) -> None:
        """A frame was taken, so that no other reader may get it."""
        self._taken.append((spans[0].window, spans[0].first_row))

    def leave(self, timeout_s: float) -> None:
        """Before `drop`: tells the worker which frames were taken, as it offers again what it has
        no word of. Not on the stream itself, where a worker that makes rows does not listen.
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
        """Passes nothing on any more and ends the stream, without waiting. Idempotent."""
        with self._lock:
            self._dropped = True
            exchange = self._exchange
        if exchange is not None:
            exchange.cancel()

    def is_dropped(self) -> bool:
        return self._dropped

    def stop(self, timeout_s: float) -> bool:
        """After `drop`: waits for the thread, unless it is the caller's own."""
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
            self._events.on_open(self, exchange.protocol)
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
                # Half at a time: while this thread waits, the worker always has some left.
                if taken >= self._credit // 2:
                    exchange.send(pack_credit(taken))
                    taken = 0

    def _next_frame(self, exchange: AnyExchange) -> Header:
        """Receives a frame and passes its content on.

        Nothing here outlives it: the error that ends a stream is kept, and with its traceback it
        would keep the frame before in memory for ever.
        """
        message = exchange.recv(self._silence_s)
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
        # What came compressed takes more room now.
        self._events.on_frame(self, header, batch, 0 if batch is None else encoded_bytes(batch))

    def _taken_over(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A batch of a worker in this process, as it would be if it had come by bytes."""
        if batch.schema.equals(self._schema, check_metadata=True):
            return batch
        try:
            return pa.RecordBatch.from_arrays(batch.columns, schema=self._schema)
        except (pa.ArrowException, ValueError) as error:
            raise DataLossError(
                f"worker {self.address} made a batch of another schema: {error}"
            ) from error

    def _confirm_end(self, exchange: AnyExchange, taken: int) -> None:
        """Tells the worker that all frames arrived, so that it need not keep them for others."""
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
