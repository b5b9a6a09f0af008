"""Chooses the transport of an exchange: by reference in a process, shared memory on a host, Flight.

Responsible for this choice and for the error if the protocol that was asked for cannot be used.
Knows all transports, but nothing of what travels. Invariant: an exchange for which a protocol was
named uses that protocol or fails with the reason.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

from dataservice.errors import FailedPreconditionError
from dataservice.runtime.arguments import check_choice
from dataservice.runtime.auth import TlsConfig
from dataservice.runtime.exchanges.connection_exchange import ConnectionExchange
from dataservice.runtime.exchanges.flight import FlightClient
from dataservice.runtime.exchanges.flight_exchange import FlightExchange
from dataservice.runtime.exchanges.in_process import InProcessExchange, connect
from dataservice.runtime.exchanges.local_address import NotLocalError, dial
from dataservice.runtime.exchanges.local_connection import LocalConnection
from dataservice.vocabulary import DATA_TRANSFER_PROTOCOLS, LOCAL, SHARED_MEMORY

logger = logging.getLogger(__name__)

AnyExchange: TypeAlias = FlightExchange | ConnectionExchange | InProcessExchange

_PROBE_S: Final = 2.0


@contextmanager
def open_exchange(
    address: str,
    command: Mapping[str, Any],
    *,
    protocol: str | None,
    token: str,
    tls: TlsConfig | None,
    timeout_s: float,
) -> Iterator[AnyExchange]:
    """Opens an exchange with the server at `address`, which ends with the context.

    `protocol` None passes bodies by reference if the server is in this process, through shared
    memory if it is on this host and runs as this user, and else through Flight. Raises the error
    with which the server refused the exchange, and FailedPreconditionError if `protocol` excludes
    the network but only the network reaches the server.
    """
    check_choice("protocol", protocol, (LOCAL, *DATA_TRANSFER_PROTOCOLS, None))
    deadline_s = time.monotonic() + timeout_s
    if protocol in (None, LOCAL):
        own = connect(address, command, token=token)
        if own is not None:
            with own:
                yield own
            return
    if protocol in (None, LOCAL, SHARED_MEMORY):
        try:
            local = _through_memory(address, command, token, timeout_s)
        except NotLocalError as reason:
            if protocol is not None:
                _explain(address, protocol, reason, token=token, tls=tls)
            logger.debug("Flight to %s, as memory cannot be shared: %s", address, reason)
        else:
            with local:
                yield local
            return
    client = FlightClient(address, token=token, tls=tls)
    try:
        left_s = max(deadline_s - time.monotonic(), 0.001)
        with client.exchange(command, timeout_s=left_s) as exchange:
            yield exchange
    finally:
        client.close()


def open_local(
    address: str, command: Mapping[str, Any], *, token: str, timeout_s: float
) -> ConnectionExchange | None:
    """Opens an exchange through shared memory; None if the server shares none with this process."""
    try:
        return _through_memory(address, command, token, timeout_s)
    except NotLocalError as reason:
        logger.debug("memory cannot be shared with %s: %s", address, reason)
        return None


def _through_memory(
    address: str, command: Mapping[str, Any], token: str, timeout_s: float
) -> ConnectionExchange:
    connection = LocalConnection(dial(address))
    return ConnectionExchange(connection, address, command, token=token, timeout_s=timeout_s)


def _explain(
    address: str, protocol: str, reason: NotLocalError, *, token: str, tls: TlsConfig | None
) -> None:
    """Raises the reason why memory cannot be shared, or UnavailableError if the server is dead."""
    client = FlightClient(address, token=token, tls=tls)
    try:
        client.ping(timeout_s=_PROBE_S)
    finally:
        client.close()
    raise FailedPreconditionError(
        f"data_transfer_protocol={protocol!r} cannot be used with {address}: {reason}; run "
        f"both on one host as one user, or leave data_transfer_protocol as None"
    ) from reason
