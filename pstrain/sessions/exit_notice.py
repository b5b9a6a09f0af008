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
from dataservice.runtime.exchanges.socket_client import SocketClient
from dataservice.runtime.process.ending import end_with_program
from dataservice.runtime.rpc import RpcClient
from pstrain.cluster import ClusterResolver, ClusterSpec
from pstrain.wire import trainer_pb2 as pb

logger = logging.getLogger(__name__)

_TIMEOUT_S = 1.0
_TOTAL_S = 5.0


class _ExitNotice:
    """The notification of one cluster's servers; the cluster has one session at a time."""

    def __init__(self, spec: ClusterSpec, token: str, tls: TlsConfig | None) -> None:
        self.session = ""
        self._spec, self._token, self._tls = spec, token, tls

    def send(self) -> None:
        """Tells all servers that can be reached, within ``_TOTAL_S``.

        A server that is not told ends after a grace period without clients.
        """
        if has_program_failed():
            return
        give_up_at_s = time.monotonic() + _TOTAL_S
        notifiers = {"worker": self._notify_trainer, "ps": self._notify_server}
        for job, notify in notifiers.items():
            for index in self._spec.task_indices(job):
                if time.monotonic() > give_up_at_s:
                    logger.warning("no time is left to tell all servers that the program ends")
                    return
                try:
                    notify(self._spec.task_address(job, index))
                except DataServiceError as error:
                    logger.debug("%s:%d is not told that the program ends: %s", job, index, error)

    def _notify_trainer(self, address: str) -> None:
        service = pb.DESCRIPTOR.services_by_name["Trainer"]
        with RpcClient(address, service, token=self._token, tls=self._tls) as client:
            client.call("Leave", pb.LeaveRequest(session=self.session), timeout_s=_TIMEOUT_S)

    def _notify_server(self, address: str) -> None:
        client = SocketClient(address, token=self._token, tls=self._tls)
        body = json.dumps({"session": self.session}).encode()
        client.action("leave", body, timeout_s=_TIMEOUT_S)


# Kept here because a strategy may be garbage-collected before its program ends.
_exit_notices: dict[ClusterSpec, _ExitNotice] = {}


def notify_at_exit(resolver: ClusterResolver, session: str, tls: TlsConfig | None) -> None:
    """Has the cluster's servers told when the program ends, in the name of its newest session."""
    spec = resolver.cluster_spec()
    notice = _exit_notices.get(spec)
    if notice is None:
        token = resolve_token(getattr(resolver, "token", None))
        notice = _exit_notices[spec] = _ExitNotice(spec, token, tls)
        _record_exit_status()
        end_with_program(notice, _ExitNotice.send)
    notice.session = session


def has_program_failed() -> bool:
    """True if an uncaught exception has ended the program, or a statement at an interactive prompt.

    Also true if the last argument of `sys.exit` was a status other than 0, or a message.
    """
    last: Any = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    status = getattr(sys.exit, "status", None)
    return last is not None or not (status is None or status == 0)


def _record_exit_status() -> None:
    """Wraps `sys.exit` to keep the main thread's status: Python records no SystemExit.

    A SystemExit that the program raises itself is not seen, nor is a call of a reference to
    `sys.exit` that was taken before.
    """
    given = sys.exit
    if hasattr(given, "status"):
        return

    @functools.wraps(given)
    def recording_exit(status: Any = None, /) -> Any:
        if threading.current_thread() is threading.main_thread():
            recording_exit.status = status  # type: ignore[attr-defined]
        given(status)

    recording_exit.status = None  # type: ignore[attr-defined]
    sys.exit = recording_exit
