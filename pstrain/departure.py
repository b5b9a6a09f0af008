"""Tells the servers of a cluster that the program has ended, so that they may end with it.

Knows addresses and a session, not what was trained. Invariant: servers are told only of an end
without an uncaught exception and, if it came by `sys.exit`, with status 0. After any other end the
servers stay, and a program that is started again finds them.
"""

from __future__ import annotations

import functools
import json
import logging
import sys
import threading
import time
from typing import Any

from dataservice.errors import DataServiceError
from dataservice.runtime.auth import TlsConfig, resolve_token
from dataservice.runtime.ending import end_with_program
from dataservice.runtime.rpc import RpcClient
from dataservice.runtime.socket_client import SocketClient
from pstrain.cluster import ClusterResolver, ClusterSpec
from pstrain.wire import trainer_pb2 as pb

logger = logging.getLogger(__name__)

_TIMEOUT_S = 1.0
_TOTAL_S = 5.0


class _Departure:
    """The notification of one cluster's servers; the cluster has one session at a time."""

    def __init__(self, spec: ClusterSpec, token: str, tls: TlsConfig | None) -> None:
        self.session = ""
        self._spec, self._token, self._tls = spec, token, tls

    def tell(self) -> None:
        """Tells all servers that can be reached, within ``_TOTAL_S``.

        A server that is not told ends after a grace period without clients.
        """
        if failed():
            return
        give_up_at_s = time.monotonic() + _TOTAL_S
        tellers = {"worker": self._tell_trainer, "ps": self._tell_server}
        for job, tell in tellers.items():
            for index in self._spec.task_indices(job):
                if time.monotonic() > give_up_at_s:
                    logger.warning("no time is left to tell all servers that the program ends")
                    return
                try:
                    tell(self._spec.task_address(job, index))
                except DataServiceError as error:
                    logger.debug("%s:%d is not told that the program ends: %s", job, index, error)

    def _tell_trainer(self, address: str) -> None:
        service = pb.DESCRIPTOR.services_by_name["Trainer"]
        client = RpcClient(address, service, token=self._token, tls=self._tls)
        try:
            client.call("Leave", pb.LeaveRequest(session=self.session), timeout_s=_TIMEOUT_S)
        finally:
            client.close()

    def _tell_server(self, address: str) -> None:
        client = SocketClient(address, token=self._token, tls=self._tls)
        body = json.dumps({"session": self.session}).encode()
        client.action("leave", body, timeout_s=_TIMEOUT_S)


# Kept here because a strategy may be garbage-collected before its program ends.
_departures: dict[ClusterSpec, _Departure] = {}


def tell_at_end(resolver: ClusterResolver, session: str, tls: TlsConfig | None) -> None:
    """Has the cluster's servers told when the program ends, in the name of its newest session."""
    spec = resolver.cluster_spec()
    departure = _departures.get(spec)
    if departure is None:
        token = resolve_token(getattr(resolver, "token", None))
        departure = _departures[spec] = _Departure(spec, token, tls)
        _note_statuses()
        end_with_program(departure, _Departure.tell)
    departure.session = session


def failed() -> bool:
    """True if an uncaught exception has ended the program, or a statement at an interactive prompt.

    Also true if the last argument of `sys.exit` was a status other than 0, or a message.
    """
    last: Any = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    status = getattr(sys.exit, "status", None)
    return last is not None or not (status is None or status == 0)


def _note_statuses() -> None:
    """Wraps `sys.exit` to keep the main thread's status: Python records no SystemExit.

    A SystemExit that the program raises itself is not seen, nor is a call of a reference to
    `sys.exit` that was taken before.
    """
    given = sys.exit
    if hasattr(given, "status"):
        return

    @functools.wraps(given)
    def noting_exit(status: Any = None, /) -> Any:
        if threading.current_thread() is threading.main_thread():
            noting_exit.status = status  # type: ignore[attr-defined]
        given(status)

    noting_exit.status = None  # type: ignore[attr-defined]
    sys.exit = noting_exit
