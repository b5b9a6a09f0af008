"""The fixed list of workers: decides which of its places an address takes.

Pure text matching, after tf.data service: a place names an exact address, or a host whose port is
left out or written as `%port%` or `%port_name%`. The first free place that matches is bound to the
address. `localhost`, `127.0.0.1` and `::1` are one host, but a place that spells the host as the
address does is preferred. Invariant: a bound place belongs to its address alone, so a worker has
the same index after each of its restarts.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Final

from dataservice.errors import FailedPreconditionError, InvalidArgumentError

_SCHEME: Final = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*://")
_PORT: Final = re.compile(r":(\w+|%port(?:_\w+)?%)$")
_OPEN_PORT: Final = re.compile(r"^%port(?:_\w+)?%$")
_ADDRESSES_KEPT: Final = 1 << 16
_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})


def check_places(places: Sequence[str]) -> None:
    """Raises InvalidArgumentError if an address is listed twice, as one place would stay empty."""
    seen: set[tuple[str, str]] = set()
    for place in places:
        host, port = _split(place)
        if not port or _OPEN_PORT.match(port):
            continue
        address = ("localhost" if host in _LOOPBACK else host, port)
        if address in seen:
            raise InvalidArgumentError(
                f"worker_addresses names {place} twice, and one worker can be there: give each "
                f"worker an address of its own, or name the host without a port, got {list(places)}"
            )
        seen.add(address)


def find_place(places: Sequence[str], bound: Mapping[int, str], address: str) -> int:
    """Returns the index that `address` has or may take; FailedPreconditionError for no match."""
    for index, taken in bound.items():
        if taken == address:
            return index
    fitting = [
        index
        for index, place in enumerate(places)
        if index not in bound and place_matches(place, address)
    ]
    if fitting:
        host = _split(address)[0]
        return next((i for i in fitting if _split(places[i])[0] == host), fitting[0])
    described = "; ".join(describe_place(places, bound, index) for index in range(len(places)))
    raise FailedPreconditionError(
        f"The worker's address {address} is not configured, or other workers are already running "
        f"at the configured host. The dispatcher's worker_addresses: {described}. Set the worker's "
        "worker_address to one that matches; a restarted worker must come back on the port that "
        "its place is bound to"
    )


def place_matches(place: str, address: str) -> bool:
    """True if a worker at `address` may take a place that is configured as `place`."""
    if place == address:
        return True
    host, port = _split(place)
    address_host, address_port = _split(address)
    if port and _OPEN_PORT.match(port) is None and port != address_port:
        return False
    return host == address_host or {host, address_host} <= _LOOPBACK


def describe_place(places: Sequence[str], bound: Mapping[int, str], index: int) -> str:
    """Describes a place for messages: its number, its configuration, and its bound address."""
    binding = bound.get(index)
    known = "" if binding in (None, places[index]) else f" (bound to {binding})"
    return f"worker {index} of {len(places)} at {places[index]}{known}"


# Each registration is compared with all places, of which there may be thousands.
@functools.lru_cache(maxsize=_ADDRESSES_KEPT)
def _split(address: str) -> tuple[str, str]:
    """Splits into host without brackets and port or ""; a bare IPv6 host has no port."""
    text = _SCHEME.sub("", address)
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        return host, rest.removeprefix(":")
    port = _PORT.search(text)
    if port is None or _is_bare_ipv6(text):
        return text, ""
    return text[: port.start()], port[1]


def _is_bare_ipv6(text: str) -> bool:
    return text.count(":") > 1 and re.fullmatch(r"[0-9A-Fa-f:.]+(%\w+)?", text) is not None
