"""Requests to all parameter servers of a session, and their replies.

Knows no variables, and nothing of what messages change. Invariant: every request names the session,
and servers serve one session at a time; a server that does not answer a plain request in time is
lost.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from dataservice.runtime.auth import TlsConfig, resolve_token
from dataservice.runtime.exchanges.connection_exchange import ConnectionExchange
from pstrain.config import ParameterConfig
from pstrain.errors import DeadlineExceededError, ServerLostError, UnavailableError
from pstrain.paramserver import messages
from pstrain.paramserver.messages import Header, Message
from pstrain.trainer.connections import Connections, Request
from pstrain.trainer.outgoing import Answer, Answers, Pulls, both


class ServerSession:
    """A session on the servers at ``addresses``, connected to on first use. Thread-safe.

    Threads that call at the same time use separate streams, so their requests run in parallel.
    """

    # What users have to do about a lost server, besides starting it again.
    remedy: ClassVar[str] = (
        ", call strategy.begin(), restore a checkpoint and go on, with a new "
        "ClusterCoordinator(strategy) if you have one; with ClusterCoordinator(strategy, "
        "checkpoint=manager) all but the start is done for you"
    )

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        token: str | None,
        session: str,
        tls: TlsConfig | None,
        config: ParameterConfig | None,
    ) -> None:
        self.session = session
        self._config = config or ParameterConfig()
        self._connections = Connections(
            addresses,
            token=resolve_token(token),
            tls=tls,
            remedy=self.remedy,
            connect_timeout_s=self._config.request_timeout_s,
            share_memory=self._config.share_memory,
        )

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses of the parameter servers, by index."""
        return self._connections.addresses

    def ask_all(
        self, headers: Mapping[int, Header], *, timeout_s: float, repeat: bool = True
    ) -> dict[int, Header]:
        """Sends messages without a body; returns the headers of the replies."""
        requests = {ps: self._request(header) for ps, header in headers.items()}
        replies = self._ask(requests, timeout_s=timeout_s, repeat=repeat)
        return {ps: reply.header for ps, reply in replies.items()}

    @property
    def config(self) -> ParameterConfig:
        return self._config

    def change_session(self, session: str) -> None:
        """Sends all further requests in another session."""
        self.session = session

    def begin_session(
        self, ps: int, replaced: str | None = None, incarnation: str | None = None
    ) -> bool:
        """Makes this session the current one of a server, which drops all variables of others.

        Returns whether the server wants to be told when the program has ended. ``replaced``: the
        only session whose place it may take; AbortedError if the server has another. A server
        without a session must have ``incarnation``; ServerRestartedError if it has another.
        """
        named = {"session": self.session, "replaced": replaced, "incarnation": incarnation}
        reply = self._action(ps, "reset", named)
        return bool(json.loads(reply)["ends_with_program"])

    def advance(self, low_water: int) -> None:
        """Tells all servers that closures below ``low_water`` have ended for good."""
        for ps in range(len(self.addresses)):
            self._action(ps, "advance", {"session": self.session, "low_water": low_water})

    def fence(self, trainer: str) -> dict[int, Header]:
        """Refuses all further requests of ``trainer``; returns, by server, what it left there."""
        message: Message = ({"kind": "fence", "trainer": trainer}, None)
        return self.exchange(dict.fromkeys(range(len(self.addresses)), message))

    def complete(self, trainer: str, keys: Mapping[int, list[list[int]]]) -> None:
        """Has servers apply the parts ``keys`` that they hold of a fenced trainer, and no more."""
        header = {"kind": "complete", "trainer": trainer}
        self.exchange({ps: ({**header, "keys": mine}, None) for ps, mine in keys.items()})

    def status(self, ps: int, *, timeout_s: float | None = None) -> dict[str, Any]:
        """Returns a server's status: session, incarnation, shards, requests, ..."""
        status: dict[str, Any] = json.loads(self._action(ps, "status", {}, timeout_s))
        return status

    def open_identity_stream(self, ps: int, timeout_s: float) -> ConnectionExchange:
        """Opens a stream over which a server says, for each message, who it is.

        Requests of this session do not use it.
        """
        return self._connections.open_stream(ps, messages.IDENTITY, timeout_s)

    def sessions(self, *, timeout_s: float) -> list[str | None]:
        """Returns the session of each server; None for one that has none or does not answer."""
        found: list[str | None] = []
        for ps in range(len(self.addresses)):
            try:
                found.append(self.status(ps, timeout_s=timeout_s)["session"])
            except (UnavailableError, DeadlineExceededError):
                found.append(None)
        return found

    def close(self) -> None:
        """Closes all connections. Idempotent."""
        self._connections.close()

    def _request(self, header: Header, body: Any = None) -> Request:
        return Request(messages.encode_header({"session": self.session, **header}), body)

    def _answers(self, messages_by_ps: Mapping[int, Message]) -> Answers:
        return self._ask({ps: self._request(*each) for ps, each in messages_by_ps.items()})

    def _ask(
        self,
        requests: Mapping[int, Request],
        *,
        repeat: bool = True,
        timeout_s: float | None = None,
    ) -> Answers:
        """Returns replies by server; raises the first error among them once all have been read.

        Only a request with its own ``timeout_s``, such as a part of a checkpoint, may be just slow.
        """
        with self._lost_if_late(timeout_s) as limit_s:
            replies = self._connections.ask(requests, limit_s, repeat=repeat)
        return {
            ps: Answer(messages.decode_reply(reply.header), reply.body)
            for ps, reply in replies.items()
        }

    def _work_through(self, headers: Mapping[int, Header]) -> None:
        """Repeats requests for a long task, a piece of it each time, until nothing is left.

        So no single request takes long, however large a table is.
        """
        while headers:
            replies = self._ask({ps: self._request(header) for ps, header in headers.items()})
            headers = {ps: header for ps, header in headers.items() if replies[ps].header["left"]}

    def exchange(self, messages_by_ps: Mapping[int, Message]) -> dict[int, Header]:
        """Sends a message to each of these servers, again if a reply may be lost.

        Returns the headers of the replies.
        """
        return {ps: reply.header for ps, reply in self._answers(messages_by_ps).items()}

    def exchange_with(self, messages_by_ps: Mapping[int, Message], pulls: Pulls) -> Answers:
        """As :meth:`exchange`, with the pull from the same server, done afterwards, in one message.

        Returns replies to those pulls; a pull that was refused says so in its header.
        """
        replies = self._ask(
            {
                ps: self._request(*(both(message, pulls[ps]) if ps in pulls else message))
                for ps, message in messages_by_ps.items()
            }
        )
        with_pulls = {ps: reply for ps, reply in replies.items() if ps in pulls}
        for reply in with_pulls.values():
            messages.checked(reply.header["first"])
        return {ps: Answer(reply.header["then"], reply.body) for ps, reply in with_pulls.items()}

    def _action(self, ps: int, name: str, request: Header, timeout_s: float | None = None) -> bytes:
        with self._lost_if_late(timeout_s) as limit_s:
            return self._connections.action(ps, name, json.dumps(request).encode(), limit_s)

    @contextmanager
    def _lost_if_late(self, timeout_s: float | None) -> Iterator[float]:
        """Yields the time-out of a request; ServerLostError after it if the request has none.

        A server that does not answer a plain request in time is lost: it is frozen or cut off.
        """
        try:
            yield timeout_s or self._config.request_timeout_s
        except DeadlineExceededError as error:
            if timeout_s is not None:
                raise
            raise ServerLostError(
                f"{error}: it is frozen or cut off. Start it again{self.remedy}"
            ) from error
