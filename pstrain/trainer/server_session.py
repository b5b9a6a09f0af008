"""Requests to all parameter servers of a session, and their replies.

Knows no variables, and nothing of what messages change. Invariant: all that is asked is of one
session, in which servers serve nobody else; who does not answer a plain request in time is lost.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from dataservice.runtime.auth import TlsConfig, resolve_token
from pstrain.config import ParameterConfig
from pstrain.errors import DeadlineExceededError, ServerLostError
from pstrain.paramserver import messages
from pstrain.trainer.connections import Connections, Request
from pstrain.trainer.outgoing import Answer, Answers, Header, Message, Pulls, both


class ServerSession:
    """Of the servers at ``addresses``, which are connected to on first use. Thread-safe.

    Threads that call at the same time use streams of their own, so their requests run side by side.
    """

    # What users do about a lost server, besides starting it again.
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
            share_memory=self._config.share_memory,
        )

    @property
    def addresses(self) -> tuple[str, ...]:
        """Of the parameter servers, by index."""
        return self._connections.addresses

    def ask_all(
        self, headers: Mapping[int, Header], *, timeout_s: float, repeat: bool = True
    ) -> dict[int, Header]:
        """Replies of servers to messages without a body."""
        requests = {ps: self._request(header) for ps, header in headers.items()}
        replies = self._ask(requests, timeout_s=timeout_s, repeat=repeat)
        return {ps: reply.header for ps, reply in replies.items()}

    @property
    def config(self) -> ParameterConfig:
        return self._config

    def change_session(self, session: str) -> None:
        """All that is asked from now on is of another session."""
        self.session = session

    def begin_session(
        self, ps: int, replaced: str | None = None, incarnation: str | None = None
    ) -> bool:
        """Makes this session the current one of a server, which drops all variables of others.

        Whether the server wants to be told when the program has ended. ``replaced``: the only one
        that it may take the place of; AbortedError where there is another. ``incarnation``: the
        only one that may be without a session; ServerRestartedError for another.
        """
        named = {"session": self.session, "replaced": replaced, "incarnation": incarnation}
        reply = self._action(ps, "reset", named)
        return bool(json.loads(reply)["ends_with_program"])

    def advance(self, low_water: int) -> None:
        """Tells all servers that closures below ``low_water`` have ended for good."""
        for ps in range(len(self.addresses)):
            self._action(ps, "advance", {"session": self.session, "low_water": low_water})

    def fence(self, trainer: str) -> dict[int, Header]:
        """Has all servers listen no more to a trainer; what each of them had of it."""
        message: Message = ({"kind": "fence", "trainer": trainer}, None)
        return self.exchange(dict.fromkeys(range(len(self.addresses)), message))

    def complete(self, trainer: str, keys: Mapping[int, list[list[int]]]) -> None:
        """Has servers apply what they hold of a fenced trainer's parts ``keys``, and no more."""
        header = {"kind": "complete", "trainer": trainer}
        self.exchange({ps: ({**header, "keys": mine}, None) for ps, mine in keys.items()})

    def status(self, ps: int, *, timeout_s: float | None = None) -> dict[str, Any]:
        """What a server says of itself: session, incarnation, shards, requests, ..."""
        status: dict[str, Any] = json.loads(self._action(ps, "status", {}, timeout_s))
        return status

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
        """Replies by server; raises the first error among them once all have been read.

        Who does not answer a plain request in time is lost: it is frozen or cut off. Only what has
        a ``timeout_s`` of its own, such as a part of a checkpoint, may just take too long.
        """
        try:
            replies = self._connections.ask(
                requests, timeout_s or self._config.request_timeout_s, repeat=repeat
            )
        except DeadlineExceededError as error:
            if timeout_s is not None:
                raise
            raise ServerLostError(f"{error}: it is frozen or cut off") from error
        return {
            ps: Answer(messages.decode_reply(reply.header), reply.body)
            for ps, reply in replies.items()
        }

    def _work_through(self, headers: Mapping[int, Header]) -> None:
        """Asks servers for what takes them long until nothing is left: each time for a bit of it.

        So no request takes long, however large a table is.
        """
        while headers:
            replies = self._ask({ps: self._request(header) for ps, header in headers.items()})
            headers = {ps: header for ps, header in headers.items() if replies[ps].header["left"]}

    def exchange(self, messages_by_ps: Mapping[int, Message]) -> dict[int, Header]:
        """One message to each of some servers, sent again where its reply may be lost; replies."""
        return {ps: reply.header for ps, reply in self._answers(messages_by_ps).items()}

    def exchange_with(self, messages_by_ps: Mapping[int, Message], pulls: Pulls) -> Answers:
        """The same, and in one message with each the pull from that server, which is done after it.

        Replies to the pulls that went along; one that was refused says so in its header.
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
        timeout_s = timeout_s or self._config.request_timeout_s
        return self._connections.action(ps, name, json.dumps(request).encode(), timeout_s)
