"""The calling end of gRPC calls.

Responsible for turning Python calls into gRPC calls and statuses into exceptions. Knows nothing of
what the services do. Invariant: every failure is raised as a DataServiceError that names the peer,
or as the error that the peer itself raised.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any, cast

import grpc
import grpc.aio
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from dataservice.config import CONTROL_CALL_TIMEOUT_S
from dataservice.errors import (
    CancelledError,
    DataServiceError,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    UnauthenticatedError,
    UnavailableError,
    error_from_dict,
)
from dataservice.runtime.auth import TOKEN_METADATA_KEY, TlsConfig
from dataservice.runtime.process.forking import Origin, check_not_forked, left_to_parent
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
from dataservice.runtime.rpc.streams import CUT_OFF, RequestSource, RpcStream
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
        self._credentials = tls and grpc.ssl_channel_credentials(tls.read_roots())
        self._was_answered = False
        self._metadata = (
            (TOKEN_METADATA_KEY, token),
            (PROTOCOL_METADATA_KEY, str(PROTOCOL_VERSION)),
        )
        self._closed = threading.Event()
        self._streams: set[RpcStream] = set()
        self._channel = self._open(grpc)
        left_to_parent(self._channel)
        self._methods = {method.name: method for method in service.methods}
        self._stubs = {
            method.name: _stub(self._channel, method)
            for method in service.methods
            if not method.server_streaming
        }

    def _open(self, interface: Any) -> Any:
        """Makes a channel of ``grpc`` or ``grpc.aio``."""
        if self._credentials is None:
            return interface.insecure_channel(self.address, options=CLIENT_OPTIONS)
        return interface.secure_channel(self.address, self._credentials, options=CLIENT_OPTIONS)

    def call(self, method: str, request: Any, *, timeout_s: float = CONTROL_CALL_TIMEOUT_S) -> Any:
        """Returns the reply to one request, or to an iterator of requests if the method streams.

        Blocks up to ``timeout_s``. Raises what the server raised, UnavailableError if the server
        cannot be reached, DeadlineExceededError if it does not answer in time, CancelledError if
        the client is closed meanwhile.
        """
        described = self._checked(method, request, streaming=False)
        if described.client_streaming:
            request = iter(request)
        try:
            reply = self._stubs[method](request, timeout=timeout_s, metadata=self._metadata)
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
        self, method: str, request: Message | RequestSource, *, timeout_s: float | None = None
    ) -> RpcStream:
        """Returns the replies of a method that answers with a stream; does not block.

        The stream has a connection of its own.
        """
        described = self._checked(method, request, streaming=True)

        def begin() -> tuple[Any, Any]:
            channel = self._open(grpc.aio)
            left_to_parent(channel)
            only = () if described.client_streaming else (request,)
            stub = _stub(channel, described)
            return channel, stub(*only, timeout=timeout_s, metadata=self._metadata)

        def error_of(error: BaseException, was_connected: bool) -> DataServiceError:
            self._was_answered = self._was_answered or was_connected
            if isinstance(error, grpc.RpcError):
                return self._error_of(error, method, timeout_s)
            return self._error_of_own(error, method)

        requests = cast("RequestSource", request) if described.client_streaming else None
        stream = RpcStream(begin, requests, error_of, self._streams.discard)
        self._streams.add(stream)
        stream.start()
        if self._closed.is_set():
            stream.cancel()
        return stream

    def close(self) -> None:
        """Cancels running calls and drops the connection. Idempotent; from any thread."""
        self._closed.set()
        # In a forked child the connection belongs to the parent, and gRPC may be unusable.
        if self._origin.is_here:
            self._channel.close()
            for stream in tuple(self._streams):
                stream.cancel()

    def __enter__(self) -> RpcClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _checked(self, name: str, request: Any, *, streaming: bool) -> MethodDescriptor:
        """Returns method ``name``; raises if it or ``request`` is not of that kind."""
        self._origin.check(f"the client of {self._peer}")
        if self._closed.is_set():
            raise self._closed_error()
        method = self._methods.get(name)
        if method is None or method.server_streaming != streaming:
            raise InvalidArgumentError(
                f"{name!r} is not a {'streaming' if streaming else 'single-reply'} method of "
                f"{self._peer}; methods: {', '.join(self._methods)}"
            )
        expected = GetMessageClass(method.input_type)
        if not method.client_streaming and not isinstance(request, expected):
            raise InvalidArgumentError(
                f"{name} takes a {expected.__name__}, got a {type(request).__name__}"
            )
        return method

    def _closed_error(self) -> CancelledError:
        return CancelledError(f"the client of {self._peer} is closed")

    def _cancelled_error(self, method: str) -> CancelledError:
        if self._closed.is_set():
            return self._closed_error()
        return CancelledError(f"{method} to {self._peer} was cancelled")

    def _error_of_own(self, error: BaseException, method: str) -> DataServiceError:
        """Returns the error that stands for one that ended a stream at this end."""
        if isinstance(error, asyncio.CancelledError):
            return self._cancelled_error(method)
        if isinstance(error, DataServiceError):
            return error
        failure = InternalError(
            f"{method} to {self._peer} failed at this end: {type(error).__name__}: {error}"
        )
        failure.__cause__ = error
        return failure

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
        if status is grpc.StatusCode.CANCELLED and (cancellable or self._closed.is_set()):
            return self._cancelled_error(method)
        if status is grpc.StatusCode.CANCELLED:
            return UnavailableError(f"{self._peer} ended {method}: it is shutting down")
        if status is grpc.StatusCode.RESOURCE_EXHAUSTED and details == TOO_MANY_CALLS:
            # A matter of the moment and not of this call, so callers that retry should do so.
            return UnavailableError(
                f"{self._peer} refused {method}: it already runs as many calls as it can"
            )
        if details == CUT_OFF:
            return UnavailableError(f"the connection to {self._peer} broke during {method}")
        messages = {
            grpc.StatusCode.UNAVAILABLE: f"cannot reach {self._peer}: {details}{self._remedy()}",
            grpc.StatusCode.DEADLINE_EXCEEDED: (
                f"{self._peer} did not answer {method} within {timeout_s or 0:g} s"
            ),
            grpc.StatusCode.UNIMPLEMENTED: (
                f"{self._peer} does not know {method}: it is another kind of server, or not "
                "of the same version"
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


def _stub(channel: Any, method: MethodDescriptor) -> Any:
    return getattr(channel, method_kind(method))(
        method_path(method),
        request_serializer=serialize,
        response_deserializer=GetMessageClass(method.output_type).FromString,
    )
