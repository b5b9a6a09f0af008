"""How the address of a server is written and parsed: ``host:port``, an IPv6 host in brackets.

Knows no schemes, no name look-up and no sockets. Invariant: ``split_address`` inverts
``format_address``.
"""

from __future__ import annotations

from typing import Final

from dataservice.errors import InvalidArgumentError

LAST_PORT: Final = 65_535


def split_address(address: str, *, any_port: bool = False) -> tuple[str, int]:
    """Returns host (IPv6 without brackets) and port of ``host:port``; the port is in 1..65535.

    With ``any_port`` the port may also be 0, by which a new server asks for a free port.
    """
    host, separator, port_text = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if bracketed:
        host = host[1:-1]
    if not separator or not host or (":" in host and not bracketed) or "/" in host:
        raise InvalidArgumentError(
            f"address {address!r} is not of the form HOST:PORT (an IPv6 host goes in brackets)"
        )
    first = 0 if any_port else 1
    port = int(port_text) if port_text.isascii() and port_text.isdigit() else -1
    if not first <= port <= LAST_PORT:
        raise InvalidArgumentError(
            f"address {address!r} has port {port_text!r}; a port is a number from {first} to "
            f"{LAST_PORT}"
        )
    return host, port


def format_address(host: str, port: int) -> str:
    """Returns ``host:port``, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
