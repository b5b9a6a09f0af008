"""A parameter server: sessions and a store, reached through a port or through shared memory.

Executes the requests of one coordinator and its trainers, and decides nothing itself. Invariant:
there is one session at a time, and a request of any other session is refused, so a coordinator or
trainer that was replaced cannot touch the values of its successor.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import threading
from collections import Counter, deque
from contextlib import nullcontext
from typing import Any

from dataservice.errors import DataServiceError
from dataservice.runtime.auth import TlsConfig, resolve_token
from dataservice.runtime.exchanges.connection_channel import ConnectionChannel, Requests
from dataservice.runtime.exchanges.local_address import NotLocalError
from dataservice.runtime.exchanges.local_server import LocalServer
from dataservice.runtime.exchanges.socket_server import SocketServer
from dataservice.runtime.identity import new_id
from dataservice.runtime.threads import wait_until
from pstrain.compiling import prepare_kernels
from pstrain.errors import AbortedError, ServerRestartedError
from pstrain.paramserver import messages, pieces
from pstrain.paramserver.headers import ACTIONS, check_header
from pstrain.paramserver.messages import Call
from pstrain.paramserver.requests import answer
from pstrain.paramserver.sharing import Helpers
from pstrain.paramserver.store import Store
from pstrain.sessions.ids import is_older
from pstrain.sessions.presence import Presence

logger = logging.getLogger(__name__)

_KERNELS = (
    "updates",
    "adaptive",
    "bfloat16",
    "initializers",
    "snapshots",
    "marks",
    "claims",
    "scatter",
)
_SESSIONS_REMEMBERED = 256
# Requests take milliseconds, so most threads that are still busy only wait for the next request.
_GRACE_S = 0.1


class ParameterServer:
    """A parameter server at ``host:port``, on a free port for 0. Empty until a session begins.

    ``token`` None uses the token of this user. Checkpoints are written to and read from this
    machine's view of the file system.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        token: str | None = None,
        tls: TlsConfig | None = None,
    ) -> None:
        self.presence = Presence()
        self._sessions = Sessions()
        self._helpers = Helpers()
        self._token = resolve_token(token)
        self._exchanges = {messages.EXCHANGE: Requests(self._answer_one, self.presence)}
        self._local: LocalServer | None = None
        self._server = SocketServer(
            host,
            port,
            token=self._token,
            tls=tls,
            exchanges={
                **self._exchanges,
                messages.IDENTITY: Requests(self._tell_identity, nullcontext()),
            },
            actions={
                "reset": self._reset,
                "advance": self._advance,
                "leave": self._leave,
                "status": self._status,
            },
        )
        self._stopped = threading.Event()
        self._requests: Counter[str] = Counter()

    @property
    def address(self) -> str:
        """The ``host:port`` on which the server listens, once it has started."""
        return self._server.address

    @property
    def port(self) -> int:
        return self._server.port

    def start(self) -> None:
        """Binds the port and serves; raises AddressInUseError if the port is taken.

        Kernels that were never compiled on this machine are compiled first, so that no request
        waits for the compiler.
        """
        prepare_kernels(_KERNELS)
        self._server.start()
        self._share_memory()

    def _share_memory(self) -> None:
        local = LocalServer(self.address, token=self._token, exchanges=self._exchanges)
        try:
            self._local = local.start()
        except NotLocalError as reason:
            logger.info("trainers on this host use TCP: %s", reason)

    def join(self) -> None:
        """Blocks until :meth:`stop`."""
        wait_until(self._stopped.wait)

    def stop(self) -> None:
        """Stops serving and frees the port; the values are lost. Idempotent."""
        if self._local is not None:
            self._local.stop(grace_s=_GRACE_S)
        self._server.stop(grace_s=_GRACE_S)
        self._helpers.stop()
        self._stopped.set()

    def __enter__(self) -> ParameterServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _answer_one(self, channel: ConnectionChannel) -> bool:
        """Answers one request, and returns False at the end of the stream.

        The memory of the request is freed before the next one is awaited.
        """
        message = pieces.receive(channel.recv)
        if message is None:
            return False
        with self._helpers.working():
            self._reply(message, channel)
        return True

    def _tell_identity(self, channel: ConnectionChannel) -> bool:
        if channel.recv() is None:
            return False
        channel.send(json.dumps(self._sessions.identity()).encode())
        return True

    def _reply(self, message: pieces.Arrived, channel: ConnectionChannel) -> None:
        try:
            header, body = self._answer(message)
        except DataServiceError as error:
            channel.send(messages.encode_error(error))
            return
        if channel.shares_memory:
            channel.send(messages.encode_header(header), body)
        else:
            pieces.send(channel.send, messages.encode_header(header), body)

    def _answer(self, message: pieces.Arrived) -> tuple[dict[str, Any], Any]:
        header = messages.decode_header(message.header)
        store = self._sessions.store(header.get("session"))
        reply = answer(store, Call(header, message.body))
        # Threads count without a lock: a lost count matters less than a lock on every request.
        self._requests[str(header["kind"])] += 1
        return reply

    def _reset(self, body: bytes) -> bytes:
        request = _request("reset", body)
        self._sessions.begin(
            request["session"], request.get("replaced"), request.get("incarnation")
        )
        return json.dumps({"ends_with_program": self.presence.decides_end}).encode()

    def _advance(self, body: bytes) -> bytes:
        request = _request("advance", body)
        self._sessions.store(request["session"]).advance(request["low_water"])
        return b""

    def _leave(self, body: bytes) -> bytes:
        if self._sessions.is_current(_request("leave", body)["session"]):
            self.presence.record_program_end()
        return b""

    def _status(self, _body: bytes) -> bytes:
        status = {**self._sessions.status(), "requests": dict(self._requests), "pid": os.getpid()}
        return json.dumps(status).encode()


def _request(action: str, body: bytes) -> dict[str, Any]:
    """Decodes and checks the request of an action."""
    request = messages.decode_header(body)
    check_header(ACTIONS, action, request)
    return request


class Sessions:
    """The current session's store, and the sessions that were replaced. Thread-safe."""

    def __init__(self) -> None:
        self._incarnation = new_id("ps")
        self._lock = threading.Lock()
        self._session: str | None = None
        self._store = Store()
        self._replaced: deque[str] = deque(maxlen=_SESSIONS_REMEMBERED)

    def begin(
        self, session: str, replaced: str | None = None, incarnation: str | None = None
    ) -> None:
        """Drops all variables and starts ``session``; does nothing if it is the current session.

        Raises AbortedError if ``session`` was replaced before or is older than the current session,
        or if ``replaced`` is given and the current session is another one: a coordinator that
        restores lost values must not displace its successor. A server without a session may have
        served that successor before a restart, so ServerRestartedError is raised if ``incarnation``
        is given and is not this server's.
        """
        with self._lock:
            if session == self._session:
                return
            is_behind = self._session is not None and is_older(session, self._session)
            if is_behind or session in self._replaced:
                raise AbortedError(_replaced(session))
            if replaced is not None and self._session not in (None, replaced):
                raise AbortedError(_replaced(replaced))
            if self._session is None and incarnation not in (None, self._incarnation):
                raise ServerRestartedError(
                    "this parameter server was restarted after its status was read: read the "
                    "status of all servers again"
                )
            if self._session is not None:
                logger.info("session %s replaces %s", session, self._session)
                self._replaced.append(self._session)
            self._session = session
            self._store = Store(first_version=secrets.randbits(52))

    def store(self, session: str | None) -> Store:
        """Returns the store of ``session``.

        Raises ServerRestartedError if the server has no session, as after a restart, and
        AbortedError if another session is the current one.
        """
        with self._lock:
            if session == self._session and session is not None:
                return self._store
            if self._session is None:
                raise ServerRestartedError(
                    "this parameter server holds no variables: it was started after the "
                    "session began; restore a checkpoint or create the model anew"
                )
        raise AbortedError(_replaced(session))

    def is_current(self, session: str) -> bool:
        """True if ``session`` is the current session."""
        with self._lock:
            return session == self._session

    def identity(self) -> dict[str, str | None]:
        """Returns, in JSON form, which process this is and which session it serves."""
        return {"incarnation": self._incarnation, "session": self._session}

    def status(self) -> dict[str, Any]:
        """Returns a summary, in JSON form, of what the server holds."""
        with self._lock:
            identity, store = self.identity(), self._store
        return {
            **identity,
            "shards": len(store.shards()),
            "size_bytes": store.size_bytes(),
            "snapshots": store.snapshots,
            "commits": store.commit_counts(),
        }


def _replaced(session: str | None) -> str:
    return (
        f"session {session} is over: another coordinator, or a newer ParameterServerStrategy of "
        "this program, took this parameter server over"
    )
