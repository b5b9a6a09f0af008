"""Listening on a TCP port: whether the network can reach it, and errors that say what to choose.

Knows nothing of what is served. Invariants: a host that may be reachable from other machines counts
as reachable, and is refused unless the server has TLS or its user has explicitly accepted an
unencrypted network; a listener that could not be bound is closed.
"""

from __future__ import annotations

import errno
import ipaddress
import socket
from typing import Final

from dataservice.errors import (
    AddressInUseError,
    DataServiceError,
    InvalidArgumentError,
    InvalidTypeError,
)
from dataservice.runtime.addresses import LAST_PORT
from dataservice.runtime.arguments import check_true_or_false, is_integer, path_of

_BACKLOG: Final = 1_024


def is_loopback(host: str) -> bool:
    """True if only processes of this machine can reach a server bound to ``host``.

    Names are not looked up: of all names only ``localhost`` counts as loopback.
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False


def check_listener(
    host: object,
    port: object,
    *,
    token: object,
    tls_cert_path: object,
    tls_key_path: object,
    insecure_network: object,
) -> None:
    """Raises InvalidArgumentError unless a server may listen with these settings.

    Above all, others on the network must not be able to read the token and the data.
    """
    if not is_integer(port) or not 0 <= port <= LAST_PORT:  # type: ignore[operator]
        raise InvalidArgumentError(f"port must be an integer from 0 to {LAST_PORT}, got {port!r}")
    if not isinstance(host, str) or not host:
        raise InvalidArgumentError(
            f"host must be a non-empty string such as '127.0.0.1', got {host!r}"
        )
    check_true_or_false(insecure_network=insecure_network)
    # The message leaves the value out, since it may be the secret token as another type.
    if token is not None and not isinstance(token, str):
        raise InvalidTypeError(f"token must be None or text, got {type(token).__name__}")
    for name, path in (("tls_cert_path", tls_cert_path), ("tls_key_path", tls_key_path)):
        if path is not None:
            path_of(path, name)
    if (tls_cert_path is None) != (tls_key_path is None):
        raise InvalidArgumentError(
            f"tls_cert_path and tls_key_path go together, got tls_cert_path={tls_cert_path!r} and "
            f"tls_key_path={tls_key_path!r}"
        )
    if not is_loopback(host) and tls_cert_path is None and not insecure_network:
        raise InvalidArgumentError(
            f"host={host!r} can be reached from the network, where token and data would travel "
            "unencrypted; set tls_cert_path and tls_key_path (--tls-cert, --tls-key), or accept "
            "that with insecure_network=True (--insecure-network)"
        )


def listen(host: str, port: int) -> socket.socket:
    """Returns a listener on a port; 0 binds any free one.

    Raises AddressInUseError if the port is taken, InvalidArgumentError if the address is not one of
    this machine or the port may not be opened.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        # A name with IPv4 and IPv6 addresses, such as localhost, is served on IPv4, which most
        # clients try first.
        family, kind, protocol, _, place = min(found, key=lambda info: info[0] != socket.AF_INET)
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise refused(host, port, error) from error
    try:
        # Allows a port that was served a moment ago; a port in use is refused all the same.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6 and hasattr(socket, "IPV6_V6ONLY"):
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(place)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise refused(host, port, error) from error
    return listener


def refused(host: str, port: int, error: OSError) -> DataServiceError:
    """Returns what to raise if ``error`` kept a server from listening."""
    if error.errno == errno.EADDRINUSE:
        return AddressInUseError(
            f"port {port} on {host} is already in use; choose another --port, or 0 for a free one"
        )
    return InvalidArgumentError(
        f"cannot listen on port {port} of host {host!r} ({error.strerror or error}): choose a "
        "--host of this machine and a --port that you may open"
    )
