"""Both ends of a message stream over a Flight exchange.

A message is opaque header bytes and an optional opaque body, which travels as the single value of
a one-row batch of a fixed schema: neither side copies it. A batch without rows is a control
message of this module (the greeting that opens an exchange, or the error that ends it), so that an
error of any size reaches the client as the class it was raised as.

Knows nothing of what headers and bodies mean, nor of connections. Invariant: no call of the
client's end outlives its timeout.
"""

from __future__ import annotations

import json
import logging
import struct
import threading
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, TypeVar

import pyarrow as pa

from dataservice.errors import (
    CancelledError,
    DataLossError,
    DataServiceError,
    DeadlineExceededError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
    error_from_dict,
    error_to_dict,
)
from dataservice.runtime.sockets import sever_connections, sever_connections_to
from dataservice.runtime.threads import Watchdog

__all__ = ["MAX_BODY_BYTES", "TRANSPORT_ERRORS", "Exchange", "Message", "ServerChannel"]

logger = logging.getLogger(__name__)

MAX_BODY_BYTES = (1 << 31) - (1 << 20)
TRANSPORT_ERRORS = (pa.ArrowException, OSError)

Handler = TypeVar("Handler")

_SCHEMA = pa.schema([pa.field("body", pa.large_binary(), nullable=False)])
_EMPTY_BODY = pa.py_buffer(b"")
# Not by `pa.array`, which imports pandas wherever it is installed: a third of a second.
_NO_ROWS = pa.Array.from_buffers(pa.large_binary(), 0, [None, pa.py_buffer(bytes(8)), _EMPTY_BODY])
_CONTROL = pa.RecordBatch.from_arrays([_NO_ROWS], schema=_SCHEMA)
_CANCEL_GRACE_S = 0.3
_ALIGNMENT = 16
# Of all other protobuf fields before the body, counted modulo the alignment.
_FIELDS_BYTES = 14
_PADDINGS = [bytes([extra]) + bytes(extra) for extra in range(_ALIGNMENT)]
_OFFSETS = struct.Struct("<qq")


class Message(NamedTuple):
    """Header bytes and body of one message.

    The body usually starts at a multiple of 16 bytes, but need not. `handed`: a body that was not
    written, from a sender in this process.
    """

    header: bytes
    body: pa.Buffer | None
    handed: object = None


def _body_batch(buffer: pa.Buffer) -> pa.RecordBatch:
    if buffer.size > MAX_BODY_BYTES:
        raise InvalidArgumentError(
            f"a body of {buffer.size} bytes exceeds {MAX_BODY_BYTES}; send it in parts"
        )
    offsets = pa.py_buffer(_OFFSETS.pack(0, buffer.size))
    column = pa.Array.from_buffers(pa.large_binary(), 1, [None, offsets, buffer])
    return pa.RecordBatch.from_arrays([column], schema=_SCHEMA)


def _write(writer: Any, header: bytes, body: Any) -> None:
    if body is None:
        if not header:
            raise InvalidArgumentError("a message needs a header or a body, this one has neither")
        writer.write_metadata(header)
    else:
        buffer = body if isinstance(body, pa.Buffer) else pa.py_buffer(body)
        padding = _padding(len(header), buffer.size)
        writer.write_with_metadata(_body_batch(buffer), padding + header)


def _padding(header_bytes: int, body_bytes: int) -> bytes:
    """What goes before a header so that the receiver finds the body at a multiple of 16 bytes.

    Arrow gives out a received body where it lies in gRPC's buffer, behind protobuf fields whose
    length depends on header and body alone; reading a misaligned one costs a copy, a third of
    the time of a large message. The first byte counts the ones that follow. Were Arrow to lay
    fields out differently, messages would be slower, not wrong.
    """
    body_field = _varint_bytes(_OFFSETS.size + -(-body_bytes // 8) * 8)
    for extra in range(_ALIGNMENT):
        total = header_bytes + 1 + extra
        if (_FIELDS_BYTES + _varint_bytes(total) + total + body_field) % _ALIGNMENT == 0:
            return _PADDINGS[extra]
    return _PADDINGS[0]


def _varint_bytes(value: int) -> int:
    return max(1, -(-value.bit_length() // 7))


def _unpack(chunk: Any) -> tuple[Message, bool]:
    """The message in a chunk, and whether it is a control message."""
    metadata = chunk.app_metadata
    header = b"" if metadata is None else metadata.to_pybytes()
    batch = chunk.data
    if batch is None:
        return Message(header, None), False
    if batch.num_rows == 0:
        return Message(header, None), True
    buffers = batch.column(0).buffers()
    if len(buffers) != 3 or not header:
        raise DataLossError("a peer sent a batch that is not a message of this protocol")
    return Message(header[1 + header[0] :], buffers[2] or _EMPTY_BODY), False


def error_payload(error: BaseException, max_chars: int | None = None) -> bytes:
    """An error as bytes for the wire, each of its texts cut to `max_chars`."""

    def cut(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: cut(inner) for key, inner in value.items()}
        return value[:max_chars]

    return json.dumps(cut(error_to_dict(error))).encode()


def error_from_payload(payload: bytes) -> DataServiceError:
    """The error that `error_payload` encoded."""
    return error_from_dict(json.loads(payload))


def find_handler(
    exchanges: Mapping[str, Handler], command: bytes
) -> tuple[Handler, dict[str, Any]]:
    """The handler that a command names, and the decoded command."""
    try:
        decoded = json.loads(command)
        name = decoded["exchange"]
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidArgumentError(f"not an exchange command: {command[:80]!r}") from error
    if name not in exchanges:
        raise NotFoundError(f"no exchange {name!r}; there are {sorted(exchanges)}")
    return exchanges[name], decoded


def _severing(writing: threading.Lock, address: str) -> Callable[[], None]:
    """Ends a write to a frozen peer: gRPC cannot cancel one that a full TCP connection holds up."""

    def sever() -> None:
        if writing.locked():
            sever_connections_to(address)

    return sever


class ServerChannel:
    """The server's end of one exchange, given to its handler.

    One thread may receive while another sends; sends from several threads are serialized.
    `CancelledError` from either means that the client is gone or the server stops: let it leave
    the handler, whose end ends the exchange.
    """

    shares_memory: ClassVar[bool] = False

    def __init__(
        self,
        context: Any,
        reader: Any,
        writer: Any,
        *,
        server_port: int,
        stopping: threading.Event,
    ) -> None:
        self.peer: str = context.peer()
        self.idle = False
        self._context = context
        self._reader = reader
        self._writer = writer
        self._server_port = server_port
        self._stopping = stopping
        self._send_lock = threading.Lock()

    def recv(self) -> Message | None:
        """The next message, or None when the client has finished sending.

        Waits as long as the client stays connected and the server runs; `abort` ends the wait.
        """
        self.idle = True
        try:
            chunk = self._reader.read_chunk()
        except StopIteration:
            if self._context.is_cancelled():
                raise CancelledError(f"the client at {self.peer} cancelled") from None
            return None
        except TRANSPORT_ERRORS as error:
            raise CancelledError(f"the client at {self.peer} is gone: {error}") from error
        finally:
            self.idle = False
        message, is_control = _unpack(chunk)
        if is_control:
            raise InvalidArgumentError("a client sent a control message")
        return message

    def send(self, header: bytes, body: pa.Buffer | bytes | None = None) -> None:
        """Send one message; waits while the client does not read."""
        with self._send_lock:
            try:
                _write(self._writer, header, body)
            except TRANSPORT_ERRORS as error:
                raise CancelledError(f"the client at {self.peer} is gone: {error}") from error

    def cancelled(self) -> bool:
        """Whether the client cancelled or is gone, or the server is stopping."""
        return self._stopping.is_set() or bool(self._context.is_cancelled())

    def abort(self) -> None:
        """Cut the client's connection, with all its exchanges, from any thread.

        For a client that is known to be dead but whose host keeps the connection open.
        """
        port = self.peer.rpartition(":")[2]
        if port.isdigit():
            sever_connections(self._server_port, int(port))

    def open(self) -> None:
        """Greet the client: the exchange is known and its token was accepted."""
        self._writer.begin(_SCHEMA)
        self._writer.write_with_metadata(_CONTROL, b"")

    def fail(self, error: BaseException) -> None:
        """Tell the client which error ended the exchange."""
        try:
            with self._send_lock:
                self._writer.write_with_metadata(_CONTROL, error_payload(error))
        except TRANSPORT_ERRORS as lost:
            logger.debug("the client at %s is gone, it misses the error: %s", self.peer, lost)


class Exchange:
    """The client's end of one exchange.

    One thread may receive while another sends. After any error the exchange is over: every later
    call raises that error again.
    """

    protocol: ClassVar[str] = "flight"
    shares_memory: ClassVar[bool] = False

    def __init__(
        self,
        name: str,
        writer: Any,
        reader: Any,
        address: str,
        translate: Callable[[Exception, str], DataServiceError],
    ) -> None:
        self._address = address
        self._translate = translate
        self._name = name
        self._writer = writer
        self._reader = reader
        self._request_lock = threading.Lock()
        self._send_lock = threading.Lock()
        self._recv_lock = threading.Lock()
        self._send_deadline = Watchdog.shared().deadline(reader.cancel)
        self._recv_deadline = Watchdog.shared().deadline(reader.cancel)
        self._sever_deadline = Watchdog.shared().deadline(_severing(self._send_lock, address))
        self._error: DataServiceError | None = None
        self._cancelled = False
        # Begun by the first send: a write that meets a stream which the server has ended already
        # makes Flight discard what the server sent.
        self._begun = False
        self._ended = False

    def send(
        self, header: bytes, body: pa.Buffer | bytes | None = None, *, timeout_s: float = 30.0
    ) -> None:
        """Send one message.

        Waits while the server does not read, at most `timeout_s`: DeadlineExceededError, and the
        exchange is over.
        """
        with self._send_lock:
            self._check()
            self._send_deadline.arm(timeout_s)
            self._sever_deadline.arm(timeout_s + _CANCEL_GRACE_S)
            try:
                if not self._begun:
                    self._begun = True
                    self._writer.begin(_SCHEMA)
                _write(self._writer, header, body)
            except TRANSPORT_ERRORS as error:
                raise self._send_failed(error) from error
            finally:
                self._send_deadline.disarm()
                self._sever_deadline.disarm()

    def recv(self, timeout_s: float) -> Message | None:
        """The next message, or None when the server has ended the stream.

        DeadlineExceededError after `timeout_s`, UnavailableError when the connection broke,
        CancelledError after `cancel`, and whatever the server's handler raised.
        """
        with self._recv_lock:
            self._check()
            if self._ended:
                return None
            self._recv_deadline.arm(timeout_s)
            try:
                chunk = self._reader.read_chunk()
            except StopIteration:
                self._end_of_stream()
                return None
            except TRANSPORT_ERRORS as error:
                raise self._failed(error) from error
            finally:
                self._recv_deadline.disarm()
            message, is_control = _unpack(chunk)
            if is_control and message.header:
                raise self._keep(error_from_payload(message.header))
            return message

    def request(
        self, header: bytes, body: pa.Buffer | bytes | None = None, *, timeout_s: float
    ) -> Message:
        """Send a message and receive its answer; requests of several threads take turns."""
        with self._request_lock:
            self.send(header, body, timeout_s=timeout_s)
            message = self.recv(timeout_s)
        if message is None:
            raise UnavailableError(f"{self._address} ended {self._name!r} without an answer")
        return message

    def done_writing(self) -> None:
        """Tell the server that nothing more is sent; its `recv` gives None."""
        with self._send_lock:
            self._check()
            try:
                self._writer.done_writing()
            except TRANSPORT_ERRORS as error:
                raise self._send_failed(error) from error

    def cancel(self) -> None:
        """End the exchange from any thread: calls under way raise CancelledError at once."""
        self._cancelled = True
        self._reader.cancel()
        if self._send_lock.locked():
            self._sever_deadline.arm(_CANCEL_GRACE_S)

    def close(self) -> None:
        """End the exchange, whatever its state, and free it. Idempotent, never waits for a peer.

        To let the server finish, call `done_writing` and receive until None first.
        """
        self.cancel()
        with self._send_lock, self._recv_lock:
            self._sever_deadline.arm(_CANCEL_GRACE_S)
            try:
                self._writer.close()
            except TRANSPORT_ERRORS as error:
                logger.debug("closed the exchange %r: %s", self._name, error)
            finally:
                self._sever_deadline.disarm()

    def __enter__(self) -> Exchange:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self, timeout_s: float) -> None:
        """Wait for the server's greeting."""
        if self.recv(timeout_s) is None:
            raise UnavailableError(f"{self._address} ended {self._name!r} before it began")

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
        if self._cancelled:
            raise CancelledError(f"the exchange {self._name!r} with {self._address} was cancelled")

    def _end_of_stream(self) -> None:
        if self._cancelled or self._recv_deadline.expired:
            raise self._failed(None)
        self._ended = True

    def _send_failed(self, error: Exception) -> DataServiceError:
        """A failed write only says that the stream is over; its reading side knows why."""
        if not (self._cancelled or self._send_deadline.expired) and self._error is None:
            try:
                while self.recv(1.0) is not None:
                    pass
            except DataServiceError as reason:
                return reason
        return self._failed(error)

    def _failed(self, error: Exception | None) -> DataServiceError:
        if self._error is not None:
            return self._error
        subject = f"the exchange {self._name!r} with {self._address}"
        if self._cancelled:
            return self._keep(CancelledError(f"{subject} was cancelled"))
        # Whichever side's deadline ended the stream, both sides fail for that reason.
        for side, deadline in (("recv", self._recv_deadline), ("send", self._send_deadline)):
            if deadline.expired:
                return self._keep(
                    DeadlineExceededError(
                        f"{subject}: {side} took longer than {deadline.timeout_s:.3g} s"
                    )
                )
        if error is None:
            return self._keep(UnavailableError(f"{subject} ended"))
        return self._keep(self._translate(error, self._address))

    def _keep(self, error: DataServiceError) -> DataServiceError:
        self._error = error
        return error
