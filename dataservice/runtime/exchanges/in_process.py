"""Message streams within one process: each side gets the objects that the other side sends.

The third transport beside `flight` and `local_server`, for a client in the server's process: the
same handlers, calls and errors at both ends, and no byte is written. Responsible for finding a
server by the address that it announces. A forked child finds none, since it has none of the
server's threads. Knows nothing of what headers and bodies mean.

A body that could write itself is handed over as it is; the receiver must not change it, since the
sender may send it again.

Invariant: no client call outlives its time-out, `InProcessServer.stop` is bounded in time, and per
direction at most `_MAX_BYTES`, or one message, were sent and not yet received.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

import pyarrow as pa

from dataservice.errors import (
    CancelledError,
    DataServiceError,
    DeadlineExceededError,
    FailedPreconditionError,
    UnauthenticatedError,
    UnavailableError,
)
from dataservice.runtime.auth import WRONG_TOKEN, tokens_equal
from dataservice.runtime.bounded_queue import BoundedQueue
from dataservice.runtime.exchanges.bodies import AnyBody
from dataservice.runtime.exchanges.message import (
    Message,
    check_message,
    error_from_payload,
    error_payload,
    find_handler,
)
from dataservice.runtime.threads import RECHECK_S, end_threads

logger = logging.getLogger(__name__)

InProcessHandler = Callable[[dict[str, Any], "InProcessChannel"], None]

_MAX_MESSAGES: Final = 64
_MAX_BYTES: Final = 8 << 20


class _ExchangeState:
    """The state that both ends of an exchange share: two queues, and how the exchange ended."""

    def __init__(self) -> None:
        self.to_server: BoundedQueue[Message] = BoundedQueue(_MAX_MESSAGES, _MAX_BYTES)
        self.to_client: BoundedQueue[Message] = BoundedQueue(_MAX_MESSAGES, _MAX_BYTES)
        self.is_cut = False
        self.error: bytes | None = None  # the error with which the handler ended
        self.is_done = False  # the handler has ended without an error

    def cut(self) -> None:
        """Ends all calls of both ends and drops what was not received. Idempotent."""
        self.is_cut = True
        self.to_server.close(discard=True)
        self.to_client.close(discard=True)


def _message(header: bytes, body: AnyBody | None) -> tuple[Message, int]:
    """Returns a message and its size in bytes."""
    if body is None:
        check_message(header, body)
        return Message(header, None), len(header)
    if isinstance(body, bytes | pa.Buffer):
        buffer = pa.py_buffer(body)
        return Message(header, buffer), len(header) + buffer.size
    return Message(header, None, body), len(header) + body.room


class InProcessChannel:
    """The server's end of one exchange, given to its handler; see `FlightChannel`."""

    shares_memory: ClassVar[bool] = True

    def __init__(self, state: _ExchangeState, stopping: threading.Event) -> None:
        self._state = state
        self._stopping = stopping

    def recv(self) -> Message | None:
        try:
            return self._retry_until_done(lambda: self._state.to_server.get(timeout_s=RECHECK_S))
        except CancelledError:
            if self.cancelled():
                raise
            return None

    def send(self, header: bytes, body: AnyBody | None = None) -> None:
        message, size = _message(header, body)
        self._retry_until_done(
            lambda: self._state.to_client.put(message, size, timeout_s=RECHECK_S)
        )

    def cancelled(self) -> bool:
        return self._stopping.is_set() or self._state.is_cut

    def _retry_until_done(self, act: Callable[[], Any]) -> Any:
        """Calls `act` until it does not time out; raises CancelledError once the server stops."""
        while True:
            if self._stopping.is_set():
                raise CancelledError("the server stops")
            try:
                return act()
            except DeadlineExceededError:
                continue
            except CancelledError as error:
                raise CancelledError("the client in this process is gone") from error


class InProcessServer:
    """A server of named exchanges for clients in this process, with a thread per open exchange.

    `address` is the address that the server announces elsewhere; clients find it by that.
    """

    def __init__(
        self, address: str, *, token: str, exchanges: Mapping[str, InProcessHandler]
    ) -> None:
        self.address = address
        self._token = token
        self._exchanges = dict(exchanges)
        self._stopping = threading.Event()
        self._open: dict[_ExchangeState, threading.Thread] = {}
        self._lock = threading.Lock()

    def start(self) -> InProcessServer:
        """Makes the server findable; raises FailedPreconditionError if the address is taken."""
        if _servers.setdefault(self.address, self) is not self:
            raise FailedPreconditionError(
                f"another server of this process announces {self.address} too"
            )
        return self

    def stop(self, grace_s: float = 0.5, timeout_s: float = 5.0) -> None:
        """Refuses new clients, lets busy handlers finish for `grace_s`, then cuts their exchanges.

        Idle handlers, which wait for a message, end at once. Idempotent; bounded by `timeout_s`.
        """
        self._stopping.set()
        if _servers.get(self.address) is self:
            del _servers[self.address]
        deadline_s = time.monotonic() + timeout_s
        with self._lock:
            serving = dict(self._open)
        for state in serving:
            state.to_server.close()
        late = end_threads(serving, _ExchangeState.cut, grace_s=grace_s, deadline_s=deadline_s)
        if late:
            logger.warning("%d exchanges of %s have not ended", late, self.address)

    def open(self, command: Mapping[str, Any], token: str) -> InProcessExchange:
        """Begins an exchange, or raises the error for which it is refused."""
        if not tokens_equal(self._token, token):
            raise UnauthenticatedError(f"{self.address} refused the call: {WRONG_TOKEN}")
        # Encoded and decoded, so that handlers get the same values as over other transports: lists
        # for tuples, strings for keys.
        handler, decoded = find_handler(self._exchanges, json.dumps(command).encode())
        state = _ExchangeState()
        thread = threading.Thread(
            target=self._serve,
            args=(state, handler, decoded),
            name=f"in-process-{self.address}",
            daemon=True,
        )
        with self._lock:
            if self._stopping.is_set():
                raise UnavailableError(f"{self.address} is stopping")
            # Started under the lock, since `stop` joins every thread that it finds in `_open`.
            thread.start()
            self._open[state] = thread
        return InProcessExchange(state, self.address, str(command.get("exchange")))

    def _serve(
        self, state: _ExchangeState, handler: InProcessHandler, command: dict[str, Any]
    ) -> None:
        channel = InProcessChannel(state, self._stopping)
        try:
            handler(command, channel)
            state.is_done = True
        except DataServiceError as error:
            if isinstance(error, CancelledError) and channel.cancelled():
                logger.debug("exchange ended: %s", error)
            else:
                state.error = error_payload(error)
        except Exception as error:
            logger.exception("an exchange within this process failed")
            state.error = error_payload(error)
        finally:
            state.to_server.close(discard=True)
            state.to_client.close()
            with self._lock:
                self._open.pop(state, None)


_servers: dict[str, InProcessServer] = {}
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_servers.clear)


def connect(address: str, command: Mapping[str, Any], *, token: str) -> InProcessExchange | None:
    """Opens an exchange with this process's server that announces `address`; None if none does."""
    server = _servers.get(address)
    return None if server is None else server.open(command, token)


def is_served_here(address: str) -> bool:
    """True if a server of this process announces `address`."""
    return address in _servers


class InProcessExchange:
    """The client's end of one exchange; calls and errors are those of `FlightExchange`."""

    protocol: ClassVar[str] = "in_process"
    shares_memory: ClassVar[bool] = True

    def __init__(self, state: _ExchangeState, address: str, name: str) -> None:
        self._state = state
        self._subject = f"the exchange {name!r} with {address}"
        self._error: DataServiceError | None = None
        self._cancelled = False

    def send(
        self,
        header: bytes,
        body: AnyBody | None = None,
        *,
        timeout_s: float = 30.0,
    ) -> None:
        message, size = _message(header, body)
        self._check()
        try:
            self._state.to_server.put(message, size, timeout_s=timeout_s)
        except DeadlineExceededError as error:
            raise self._keep(DeadlineExceededError(f"{self._subject}: {error}")) from error
        except CancelledError as error:
            raise self._end() or self._keep(
                UnavailableError(f"{self._subject}: the server has ended it")
            ) from error

    def recv(self, timeout_s: float) -> Message | None:
        self._check()
        try:
            return self._state.to_client.get(timeout_s=timeout_s)
        except DeadlineExceededError as error:
            raise self._keep(DeadlineExceededError(f"{self._subject}: {error}")) from error
        except CancelledError as closed:
            reason = self._end()
            if reason is not None:
                raise reason from closed
            return None

    def done_writing(self) -> None:
        self._check()
        self._state.to_server.close()

    def cancel(self) -> None:
        self._cancelled = True
        self._state.cut()

    def close(self) -> None:
        self.cancel()

    def __enter__(self) -> InProcessExchange:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
        if self._cancelled:
            raise self._keep(CancelledError(f"{self._subject} was cancelled"))

    def _end(self) -> DataServiceError | None:
        """Returns the error that explains a closed queue; None if the handler ended without one."""
        if self._cancelled:
            return self._keep(CancelledError(f"{self._subject} was cancelled"))
        if self._state.error is not None:
            return self._keep(error_from_payload(self._state.error))
        if self._state.is_done:
            return None
        return self._keep(UnavailableError(f"{self._subject}: the server stopped"))

    def _keep(self, error: DataServiceError) -> DataServiceError:
        """Ends the exchange with an error, unless it has ended with one; returns that error."""
        if self._error is None:
            self._error = error
            self._state.cut()
        return self._error
