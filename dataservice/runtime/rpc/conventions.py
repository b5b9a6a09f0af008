"""The conventions between both ends of a call: paths, channel options, the encoding of errors.

Knows no servers, no clients and not gRPC itself. Invariant: an encoded error fits into the trailing
metadata of a call, however long its message or traceback.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message

from dataservice.config import (
    CONTROL_MAX_UNREAD_CALLS,
    CONTROL_MESSAGE_MAX_BYTES,
    CONTROL_METADATA_MAX_BYTES,
    KEEPALIVE_MIN_RECEIVE_INTERVAL_MS,
    KEEPALIVE_TIME_MS,
    KEEPALIVE_TIMEOUT_MS,
    RECONNECT_BACKOFF_MAX_MS,
    RECONNECT_BACKOFF_MIN_MS,
)
from dataservice.errors import DataServiceError, InternalError, error_from_dict, error_to_dict

ERROR_METADATA_KEY: Final = "x-dataservice-error-bin"
PROTOCOL_METADATA_KEY: Final = "x-dataservice-protocol"
OTHER_PROTOCOL: Final = "it speaks another version of the protocol"
# The text with which gRPC's own server refuses a call above the limit of running calls. It uses the
# same status in other cases too.
TOO_MANY_CALLS: Final = "Concurrent RPC limit exceeded!"
_FIELD_MAX_CHARS: Final = 32_000

_COMMON_OPTIONS: Final = (
    ("grpc.max_send_message_length", CONTROL_MESSAGE_MAX_BYTES),
    ("grpc.max_receive_message_length", CONTROL_MESSAGE_MAX_BYTES),
    ("grpc.max_metadata_size", CONTROL_METADATA_MAX_BYTES),
    ("grpc.absolute_max_metadata_size", CONTROL_METADATA_MAX_BYTES),
)
SERVER_OPTIONS: Final = (
    *_COMMON_OPTIONS,
    # With SO_REUSEPORT two servers would share a port without noticing.
    ("grpc.so_reuseport", 0),
    ("grpc.server.max_pending_requests", CONTROL_MAX_UNREAD_CALLS),
    ("grpc.server.max_pending_requests_hard_limit", CONTROL_MAX_UNREAD_CALLS),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", KEEPALIVE_MIN_RECEIVE_INTERVAL_MS),
    ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_MIN_RECEIVE_INTERVAL_MS),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_permit_without_calls", 1),
)
CLIENT_OPTIONS: Final = (
    *_COMMON_OPTIONS,
    ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.initial_reconnect_backoff_ms", RECONNECT_BACKOFF_MIN_MS),
    ("grpc.max_reconnect_backoff_ms", RECONNECT_BACKOFF_MAX_MS),
    # Despite its name this bounds the duration of one attempt to connect, 20 s by default.
    ("grpc.min_reconnect_backoff_ms", KEEPALIVE_TIME_MS + KEEPALIVE_TIMEOUT_MS),
    # A connection of its own, so that no client's stream holds up another one's heartbeats.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    ("grpc.service_config_disable_resolution", 1),
)


def method_path(method: MethodDescriptor) -> str:
    return f"/{method.containing_service.full_name}/{method.name}"


def method_kind(method: MethodDescriptor) -> str:
    """Returns the name of gRPC's factory for such a method, like ``unary_stream``."""
    sides = (method.client_streaming, method.server_streaming)
    return "_".join("stream" if streaming else "unary" for streaming in sides)


def snake_case(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def serialize(message: Message) -> bytes:
    return message.SerializeToString()


def encode_error(error: BaseException) -> bytes:
    """Encodes ``error`` as the value of ``ERROR_METADATA_KEY``."""
    encoded = _shortened(error_to_dict(error))
    return json.dumps(encoded, ensure_ascii=False).encode("utf-8", "replace")


def decode_error(body: bytes) -> DataServiceError:
    """Decodes what ``encode_error`` encoded; returns an InternalError if that is not possible."""
    try:
        encoded = json.loads(body)
    except ValueError as cause:
        return InternalError(f"a peer reported an unreadable error: {cause}")
    if not isinstance(encoded, dict):
        return InternalError(f"a peer reported an unreadable error: {encoded!r}")
    return error_from_dict(encoded)


def _shortened(value: Any) -> Any:
    """Returns ``value`` with the middle of very long strings cut out, as metadata is limited."""
    if isinstance(value, dict):
        return {key: _shortened(item) for key, item in value.items()}
    if len(value) <= _FIELD_MAX_CHARS:
        return value
    half = _FIELD_MAX_CHARS // 2
    return f"{value[:half]}\n[{len(value) - 2 * half} characters left out]\n{value[-half:]}"
