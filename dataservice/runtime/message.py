"""A message of an exchange, and what all transports make of errors and of commands.

Knows no transport, nor what headers and bodies mean. Invariant: an error of any size reaches the
client as the class it was raised as.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Final, NamedTuple, TypeVar

import pyarrow as pa

from dataservice.errors import (
    DataLossError,
    DataServiceError,
    InvalidArgumentError,
    NotFoundError,
    error_from_dict,
    error_to_dict,
)

__all__ = [
    "ACTION",
    "HELLO_TIMEOUT_S",
    "MAX_BODY_BYTES",
    "MAX_HEADER_BYTES",
    "Kind",
    "Message",
    "Received",
    "check_header",
    "check_message",
    "check_size",
    "error_from_payload",
    "error_payload",
    "find_handler",
]

MAX_BODY_BYTES: Final = (1 << 31) - (1 << 20)
MAX_HEADER_BYTES: Final = 64 << 20
# The exchange of one request and one reply.
ACTION: Final = "action"
# Within that time a client says what it wants, and a server whether it has it.
HELLO_TIMEOUT_S: Final = 5.0

Handler = TypeVar("Handler")


class Message(NamedTuple):
    """Header bytes and body of one message.

    The body usually starts at a multiple of 16 bytes, but need not. `handed`: a body that was not
    written, from a sender in this process.
    """

    header: bytes
    body: pa.Buffer | None
    handed: object = None


class Kind(IntEnum):
    """What is said over a connection."""

    OPEN = 1  # from a client: who it is and what it wants; from a server: accepted
    MESSAGE = 2
    DONE = 3  # nothing more will be sent
    ERROR = 4  # the exchange ended with the error in the header
    # Where memory is lent:
    RELEASE = 5  # of a segment that the receiver of this packet had lent
    RETIRE = 6  # the receiver may forget a segment


class Received(NamedTuple):
    """What the peer at the other end of a connection said."""

    kind: Kind
    header: bytes
    body: pa.Buffer | None


def check_message(header: bytes, body: object) -> None:
    """InvalidArgumentError for one that says nothing."""
    if body is None and not header:
        raise InvalidArgumentError("a message needs a header or a body, this one has neither")


def check_header(header: bytes) -> None:
    """InvalidArgumentError for one that no connection takes."""
    if len(header) > MAX_HEADER_BYTES:
        raise InvalidArgumentError(
            f"a header of {len(header)} bytes exceeds {MAX_HEADER_BYTES}; put it into the body"
        )


def check_size(body_bytes: int) -> None:
    """InvalidArgumentError for a body that no transport takes."""
    if body_bytes > MAX_BODY_BYTES:
        raise InvalidArgumentError(
            f"a body of {body_bytes} bytes exceeds {MAX_BODY_BYTES}; send it in parts"
        )


def error_payload(error: BaseException, max_chars: int | None = None) -> bytes:
    """An error as bytes for the wire, each of its texts cut to `max_chars`."""

    def cut(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: cut(inner) for key, inner in value.items()}
        return value[:max_chars]

    return json.dumps(cut(error_to_dict(error))).encode()


def error_from_payload(payload: bytes) -> DataServiceError:
    """The error that `error_payload` encoded."""
    try:
        return error_from_dict(json.loads(payload))
    except ValueError as error:
        return DataLossError(f"the peer told an error that cannot be read: {error}")


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
