"""The calling end of gRPC calls.

Responsible for turning Python calls into gRPC calls and statuses into exceptions. Knows nothing of
what the services do. Invariant: every failure is raised as a DataServiceError that names the peer,
or as the error that the peer itself raised.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from dataservice.config import CONTROL_CALL_TIMEOUT_S
from dataservice.errors import (
    CancelledError,
    DataServiceError,
    FailedPreconditionError,
    InvalidArgumentError,
    UnauthenticatedError,
    UnavailableError,
    error_from_dict,
)
from dataservice.runtime.auth import TOKEN_METADATA_KEY, TlsConfig
from dataservice.runtime.forking import Origin, check_not_forked, left_to_parent
from dataservice.runtime.retry import retry_until
from dataservice.runtime.rpc.conventions import (
    CLIENT_OPTIONS,
    ERROR_METADATA_KEY,
    OTHER_PROTOCOL,
    PROTOCOL_METADATA_KEY,
    TOO_MANY_CALLS,
    decode_error,
    method_kind,
    method_path,
    serialize,
    snake_case,
)
from dataservice.runtime.tls_probe import explained
from dataservice.vocabulary import PROTOCOL_VERSION, parse_target


class RpcClient:
    """A client of one service at one address, with a connection of its own.

    Connects at the first call and reconnects by itself after a loss. Thread-safe. Not usable in a
    forked child: calls, and making a new client there, raise FailedPreconditionError.
    """

    def __init__(
        self,
        address: str,
        service: ServiceDescriptor,
        *,
        token: str,
        tls: TlsConfig | None = None,
    ) -> None:
        self.address = parse_target(address)
        self._peer = f"the {snake_case(service.name).replace('_', ' ')} at {self.address}"
        check_not_forked(f"a client of {self._peer}")
        self._origin = Origin()
        self._tls = tls
        self._was_answered = False
        self._metadata = (
            (TOKEN_METADATA_KEY, token),
            (PROTOCOL_METADATA_KEY, str(PROTOCOL_VERSION)),
        )
        self._closed = threading.Event()
        if tls is None:
            self._channel = grpc.insecure_channel(self.address, options=CLIENT_OPTIONS)
        else:
            credentials = grpc.ssl_channel_credentials(tls.read_roots())
            self._channel = grpc.secure_channel(self.address, credentials, options=CLIENT_OPTIONS)
        left_to_parent(self._channel)
        self._methods = {method.name: method for method in service.methods}
        self._stubs = {method.name: self._stub(method) for method in service.methods}

    def _stub(self, method: MethodDescriptor) -> Any:
        return getattr(self._channel, method_kind(method))(
            method_path(method),
            request_serializer=serialize,
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )

    def call(self, method: str, request: Any, *, timeout_s: float = CONTROL_CALL_TIMEOUT_S) -> Any:
        """Returns the reply to one request, or to an iterator of requests if the method streams.

        Blocks up to ``timeout_s``. Raises what the server raised, UnavailableError if the server
        cannot be reached, DeadlineExceededError if it does not answer in time, CancelledError if
        the client is closed meanwhile.
        """
        stub, request = self._prepare(method, request, streaming=False)
        try:
            reply = stub(request, timeout=timeout_s, metadata=self._metadata)
        except grpc.RpcError as error:
            raise self._error_of(error, method, timeout_s, cancellable=False) from None
        except ValueError:
            if not self._closed.is_set():
                raise
            raise self._closed_error() from None
        self._was_answered = True
        return reply

    def call_retrying(
        self,
        method: str,
        request: Message | Callable[[], Message],
        *,
        timeout_s: float,
        attempt_timeout_s: float = CONTROL_CALL_TIMEOUT_S,
        should_stop: Callable[[], bool] | None = None,
        on_wait: Callable[[float], None] | None = None,
    ) -> Any:
        """Does what ``call`` does, but retries up to ``timeout_s`` if the server cannot be reached.

        The request may arrive more than once. A function in place of a request makes a new one for
        each attempt. Logs a warning after 2 s and every 10 s. ``should_stop`` is asked between
        attempts; to interrupt an attempt, ``close`` the client.
        """

        def attempt(limit_s: float) -> Any:
            made = request() if callable(request) else request
            return self.call(method, made, timeout_s=limit_s)

        return retry_until(
            attempt,
            waiting_for=f"{self._peer} ({method})",
            timeout_s=timeout_s,
            attempt_timeout_s=attempt_timeout_s,
            wait=self._closed.wait,
            should_stop=should_stop,
            on_wait=on_wait,
        )

    def stream(
        self, method: str, request: Message | Iterable[Message], *, timeout_s: float | None = None
    ) -> RpcStream:
        """Returns the replies of a method that answers with a stream; does not block.

        A thread of gRPC draws the requests, and only the end of the iterator stops that thread. So
        an iterator of requests that waits must end when the stream ends.
        """
        stub, request = self._prepare(method, request, streaming=True)
        try:
            call = stub(request, timeout=timeout_s, metadata=self._metadata)
        except ValueError:
            if not self._closed.is_set():
                raise
            raise self._closed_error() from None
        return RpcStream(call, lambda error: self._error_of(error, method, timeout_s))

    def close(self) -> None:
        """Cancels running calls and drops the connection. Idempotent; from any thread."""
        self._closed.set()
        # In a forked child the connection belongs to the parent, and gRPC may be unusable.
        if self._origin.is_here:
            self._channel.close()

    def __enter__(self) -> RpcClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _prepare(self, name: str, request: Any, *, streaming: bool) -> tuple[Any, Any]:
        """Returns the stub of method ``name`` and its argument, after checking both."""
        self._origin.check(f"the client of {self._peer}")
        if self._closed.is_set():
            raise self._closed_error()
        method = self._methods.get(name)
        if method is None or method.server_streaming != streaming:
            raise InvalidArgumentError(
                f"{name!r} is not a {'streaming' if streaming else 'single-reply'} method of "
                f"{self._peer}; methods: {', '.join(self._methods)}"
            )
        if method.client_streaming:
            return self._stubs[name], iter(request)
        expected = GetMessageClass(method.input_type)
        if not isinstance(request, expected):
            raise InvalidArgumentError(
                f"{name} takes a {expected.__name__}, got a {type(request).__name__}"
            )
        return self._stubs[name], request

    def _closed_error(self) -> CancelledError:
        return CancelledError(f"the client of {self._peer} is closed")

    def _error_of(
        self,
        error: grpc.RpcError,
        method: str,
        timeout_s: float | None,
        *,
        cancellable: bool = True,
    ) -> DataServiceError:
        """Returns the error of the error tree that ``error`` stands for.

        For a call that cannot be cancelled here, status CANCELLED means that the server shuts down.
        """
        for key, value in error.trailing_metadata() or ():
            if key == ERROR_METADATA_KEY:
                return self._remote_error(value)
        status, details = error.code(), error.details()
        if status is grpc.StatusCode.CANCELLED and self._closed.is_set():
            return self._closed_error()
        if status is grpc.StatusCode.CANCELLED and not cancellable:
            return UnavailableError(f"{self._peer} ended {method}: it is shutting down")
        if status is grpc.StatusCode.RESOURCE_EXHAUSTED and details == TOO_MANY_CALLS:
            # A matter of the moment and not of this call, so callers that retry should do so.
            return UnavailableError(
                f"{self._peer} refused {method}: it already runs as many calls as it can"
            )
        messages = {
            grpc.StatusCode.UNAVAILABLE: f"cannot reach {self._peer}: {details}{self._remedy()}",
            grpc.StatusCode.DEADLINE_EXCEEDED: (
                f"{self._peer} did not answer {method} within {timeout_s or 0:g} s"
            ),
            grpc.StatusCode.CANCELLED: f"{method} to {self._peer} was cancelled",
            grpc.StatusCode.UNIMPLEMENTED: (
                f"{self._peer} does not know {method}; are both ends of the same version?"
            ),
        }
        message = messages.get(status, f"{method} to {self._peer} failed: {details}")
        failure = error_from_dict({"code": status.name, "message": message})
        if isinstance(failure, UnavailableError) and not self._was_answered:
            ca_path = None if self._tls is None else self._tls.ca_path
            return explained(failure, self.address, by_tls=self._tls is not None, ca_path=ca_path)
        return failure

    def _remedy(self) -> str:
        """Returns the advice for a client that was never answered, "" for others."""
        known = "; check host and port, and that it is running there"
        return "" if self._was_answered else known

    def _remote_error(self, body: bytes) -> DataServiceError:
        error = decode_error(body)
        is_refusal = isinstance(error, UnauthenticatedError) or (
            isinstance(error, FailedPreconditionError) and error.message.startswith(OTHER_PROTOCOL)
        )
        if is_refusal:
            return type(error)(f"{self._peer} refused the call: {error.message}")
        return error


class RpcStream:
    """The replies of a streaming call, in order; iteration blocks until the next one.

    Iteration raises the server's error if the call failed, CancelledError after ``cancel``. One
    thread may iterate; any thread may cancel.
    """

    def __init__(self, call: Any, error_of: Callable[[grpc.RpcError], DataServiceError]) -> None:
        self._call = call
        self._error_of = error_of

    def __iter__(self) -> RpcStream:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._call)
        except grpc.RpcError as error:
            raise self._error_of(error) from None

    def cancel(self) -> None:
        """Ends the call; a blocked iteration returns at once."""
        self._call.cancel()
