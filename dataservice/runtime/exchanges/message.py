"""The message of an exchange, and the encoding of errors and commands that all transports share.

Responsible for size limits, error payloads and the look-up of handlers. Knows no transport, nor
what headers and bodies mean. Invariant: an error of any size reaches the client under the class
with which it was raised.
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

MAX_BODY_BYTES: Final = (1 << 31) - (1 << 20)
MAX_HEADER_BYTES: Final = 64 << 20
# The name of the exchange that has one request and one reply.
ACTION: Final = "action"
# The time in which a client must send its command, and a server must accept it.
HELLO_TIMEOUT_S: Final = 5.0

Handler = TypeVar("Handler")


class Message(NamedTuple):
    """The header bytes and the body of one message.

    The body usually starts at a multiple of 16 bytes, but need not. `handed` is a body that a
    sender in this process handed over as an object instead of writing it.
    """

    header: bytes
    body: pa.Buffer | None
    handed: object = None


class Kind(IntEnum):
    """The kind of a packet on a connection."""

    OPEN = 1  # from a client: its token and its command; from a server: accepted
    MESSAGE = 2
    DONE = 3  # nothing more will be sent
    ERROR = 4  # the exchange ended with the error in the header
    # Only on connections that lend memory:
    RELEASE = 5  # gives back a segment that the receiver of this packet had lent
    RETIRE = 6  # the receiver may forget a segment


class Received(NamedTuple):
    """A packet from the peer at the other end of a connection."""

    kind: Kind
    header: bytes
    body: pa.Buffer | None


def check_message(header: bytes, body: object) -> None:
    """Raises InvalidArgumentError for a message with neither header nor body."""
    if body is None and not header:
        raise InvalidArgumentError("a message needs a header or a body, this one has neither")


def check_sizes(header_bytes: int, body_bytes: int) -> None:
    """Raises InvalidArgumentError for a header or body larger than the largest."""
    if header_bytes > MAX_HEADER_BYTES:
        raise InvalidArgumentError(
            f"a header of {header_bytes} bytes exceeds {MAX_HEADER_BYTES}; put it into the body"
        )
    if body_bytes > MAX_BODY_BYTES:
        raise InvalidArgumentError(
            f"a body of {body_bytes} bytes exceeds {MAX_BODY_BYTES}; send it in parts"
        )


def error_payload(error: BaseException, max_chars: int | None = None) -> bytes:
    """Encodes an error for the wire, with each of its texts cut to `max_chars`."""

    def cut(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: cut(inner) for key, inner in value.items()}
        return value[:max_chars]

    return json.dumps(cut(error_to_dict(error))).encode()


def error_from_payload(payload: bytes) -> DataServiceError:
    """Decodes what `error_payload` encoded; returns a DataLossError if that is not possible."""
    try:
        return error_from_dict(json.loads(payload))
    except ValueError as error:
        return DataLossError(f"the peer told an error that cannot be read: {error}")


def find_handler(
    exchanges: Mapping[str, Handler], command: bytes
) -> tuple[Handler, dict[str, Any]]:
    """Returns the handler that a command names, and the decoded command.

    Raises InvalidArgumentError for a malformed command, NotFoundError for an unknown name.
    """
    try:
        decoded = json.loads(command)
        name = decoded["exchange"]
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidArgumentError(f"not an exchange command: {command[:80]!r}") from error
    if name not in exchanges:
        raise NotFoundError(f"no exchange {name!r}; there are {sorted(exchanges)}")
    return exchanges[name], decoded
