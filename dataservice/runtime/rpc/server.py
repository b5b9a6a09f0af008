"""The serving end of gRPC calls.

Responsible for turning calls into calls of Python methods and exceptions into statuses. Knows
nothing of what the services do. Invariant: no handler runs, and no request is parsed, before the
token and the version of the protocol were checked.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from dataservice.config import CONTROL_MAX_THREADS
from dataservice.errors import (
    CancelledError,
    DataServiceError,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    UnauthenticatedError,
)
from dataservice.runtime.addresses import format_address
from dataservice.runtime.auth import TOKEN_METADATA_KEY, WRONG_TOKEN, TlsConfig, tokens_equal
from dataservice.runtime.listening import refused
from dataservice.runtime.process.forking import check_not_forked, left_to_parent
from dataservice.runtime.rpc.conventions import (
    ERROR_METADATA_KEY,
    OTHER_PROTOCOL,
    PROTOCOL_METADATA_KEY,
    SERVER_OPTIONS,
    encode_error,
    method_kind,
    method_path,
    serialize,
    snake_case,
)
from dataservice.vocabulary import PROTOCOL_VERSION

logger = logging.getLogger(__name__)

_STOP_MARGIN_S: Final = 5.0
_DETAILS_MAX_CHARS: Final = 1_000
_PROTOCOL_VERSION: Final = str(PROTOCOL_VERSION)
# Spoken by callers that do not tell a version.
_FIRST_VERSION: Final = "1"


class RpcServer:
    """A server of protobuf services on one port.

    A call of ``LeaseWindows`` runs ``implementation.lease_windows(request)`` on a thread of its
    own. A streaming reply is returned as an iterator; a streaming request arrives as an iterator.
    If the client goes away, the iterator of requests raises CancelledError, or it just ends, since
    gRPC cannot always tell the two apart; so a handler must not take the end of requests as a
    commit. At most ``max_threads`` calls run at once; further calls are refused and raise
    UnavailableError at the caller. Thread-safe after ``start``.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        token: str,
        tls: TlsConfig | None = None,
        max_threads: int = CONTROL_MAX_THREADS,
    ) -> None:
        check_not_forked(f"a server at {host}:{port}")
        self._host = host
        self._wanted_port = port
        self._tls = tls
        self._handlers = _Handlers(token)
        self._pool = ThreadPoolExecutor(max_threads, thread_name_prefix="rpc-server")
        self._server = left_to_parent(
            grpc.server(self._pool, options=SERVER_OPTIONS, maximum_concurrent_rpcs=max_threads)
        )
        self._server.add_generic_rpc_handlers((self._handlers,))
        self._lock = threading.Lock()
        self._bound_port: int | None = None
        self._stopped = False

    def add_service(self, service: ServiceDescriptor, implementation: object) -> None:
        """Serves ``service`` by ``implementation``; only before ``start``."""
        if self._bound_port is not None:
            raise FailedPreconditionError("services must be added before the server starts")
        self._handlers.add(service, implementation)

    def start(self) -> None:
        """Binds the port and serves; does nothing if the server runs already.

        Raises AddressInUseError if the port is taken.
        """
        with self._lock:
            if self._stopped:
                raise FailedPreconditionError("a stopped server cannot start again; make a new one")
            if self._bound_port is None:
                self._bound_port = self._bind()
                self._server.start()

    def _bind(self) -> int:
        # A probe goes first, since gRPC tells only on standard error why it cannot bind.
        _check_bindable(self._host, self._wanted_port)
        address = format_address(self._host, self._wanted_port)
        pair = None if self._tls is None else self._tls.read_server_pair()
        try:
            if pair is None:
                return int(self._server.add_insecure_port(address))
            credentials = grpc.ssl_server_credentials([pair])
            return int(self._server.add_secure_port(address, credentials))
        except RuntimeError as error:
            _check_bindable(self._host, self._wanted_port)
            raise FailedPreconditionError(f"cannot listen on {address}: {error}") from error

    @property
    def port(self) -> int:
        """The bound port."""
        if self._bound_port is None:
            raise FailedPreconditionError("the server has no port before it starts")
        return self._bound_port

    def stop(self, grace_s: float = 0.5) -> None:
        """Refuses new calls, gives running calls ``grace_s``, and frees the port. Idempotent.

        Returns within ``grace_s`` plus 5 s even if a handler does not.
        """
        with self._lock:
            self._stopped = True
        finished = self._server.stop(grace_s)
        if not finished.wait(grace_s + _STOP_MARGIN_S):
            logger.warning("calls still run on port %s after its server stopped", self._bound_port)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def __enter__(self) -> RpcServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _check_bindable(host: str, port: int) -> None:
    """Raises an error if nothing can listen on the address."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise refused(host, port, error) from error


class _Handlers(grpc.GenericRpcHandler):
    """The look-up of handlers: finds the handler of a call after checking its metadata."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._by_path: dict[str, Any] = {}

    def add(self, service: ServiceDescriptor, implementation: object) -> None:
        found = {m: getattr(implementation, snake_case(m.name), None) for m in service.methods}
        functions = {method: function for method, function in found.items() if callable(function)}
        if missing := [snake_case(method.name) for method in found.keys() - functions.keys()]:
            raise InvalidArgumentError(
                f"{type(implementation).__name__} lacks methods of {service.full_name}: "
                f"{', '.join(sorted(missing))}"
            )
        for method, function in functions.items():
            self._by_path[method_path(method)] = _method_handler(method, function)

    def service(self, handler_call_details: Any) -> Any:
        # Checked before the request is read, so that a stranger cannot make the server parse it.
        metadata = dict(handler_call_details.invocation_metadata)
        if not tokens_equal(self._token, metadata.get(TOKEN_METADATA_KEY)):
            return _rejecting(UnauthenticatedError(WRONG_TOKEN))
        spoken = metadata.get(PROTOCOL_METADATA_KEY, _FIRST_VERSION)
        if spoken != _PROTOCOL_VERSION:
            return _rejecting(_other_protocol(spoken))
        return self._by_path.get(handler_call_details.method)


def _rejecting(error: DataServiceError) -> Any:
    """Returns the handler that ends a call of any kind with ``error``."""
    return grpc.stream_stream_rpc_method_handler(lambda _requests, context: _abort(context, error))


def _other_protocol(spoken: str | bytes) -> FailedPreconditionError:
    return FailedPreconditionError(
        f"{OTHER_PROTOCOL}: {_PROTOCOL_VERSION}, and this client speaks {spoken!s:.20}; install "
        "the same release at both ends"
    )


def _method_handler(method: MethodDescriptor, function: Callable[[Any], Any]) -> Any:
    """Returns the gRPC handler that runs ``function`` for ``method``."""
    reply_class = GetMessageClass(method.output_type)

    def checked(reply: Any) -> Message:
        if not isinstance(reply, reply_class):
            raise InternalError(
                f"{method.full_name} gave a {type(reply).__name__}, not a {reply_class.__name__}"
            )
        return reply

    def argument(request: Any) -> Any:
        return _requests(request) if method.client_streaming else request

    def one(request: Any, context: Any) -> Message:
        try:
            return checked(function(argument(request)))
        except Exception as error:
            raise _abort(context, error, method) from error

    def many(request: Any, context: Any) -> Iterator[Message]:
        try:
            for reply in function(argument(request)):
                yield checked(reply)
        except Exception as error:
            raise _abort(context, error, method) from error

    kind = method_kind(method)
    make = getattr(grpc, f"{kind}_rpc_method_handler")
    return make(
        many if method.server_streaming else one,
        request_deserializer=GetMessageClass(method.input_type).FromString,
        response_serializer=serialize,
    )


def _requests(messages: Iterator[Message]) -> Iterator[Message]:
    try:
        yield from messages
    except grpc.RpcError as error:
        raise CancelledError("the client cancelled the stream or went away") from error


def _abort(context: Any, error: Exception, method: MethodDescriptor | None = None) -> Exception:
    """Ends the call with ``error``; returns gRPC's own marker, which the caller must raise."""
    if isinstance(error, CancelledError):
        logger.debug("%s was cancelled: %s", method and method.full_name, error)
    elif not isinstance(error, DataServiceError):
        logger.error("%s failed", method and method.full_name, exc_info=error)
    context.set_trailing_metadata(((ERROR_METADATA_KEY, encode_error(error)),))
    try:
        context.abort(_status_of(error), str(error)[:_DETAILS_MAX_CHARS])
    except Exception as marker:
        return marker
    raise AssertionError("gRPC's abort always raises")


def _status_of(error: Exception) -> Any:
    codes = (vars(cls).get("code") for cls in type(error).__mro__)
    names = [code for code in codes if code in grpc.StatusCode.__members__]
    default = "UNKNOWN" if isinstance(error, DataServiceError) else "INTERNAL"
    return grpc.StatusCode[names[0] if names else default]
