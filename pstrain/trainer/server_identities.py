"""Asks parameter servers who they are: all at once, over connections that stay open.

Draws no conclusions from the answers. Invariant: a server that is silent delays what the others
answer for no more than a moment, and no question outlives its time-out.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from dataservice.runtime.exchanges.connection_exchange import ConnectionExchange
from pstrain.errors import DataServiceError, UnavailableError

logger = logging.getLogger(__name__)

_QUESTION: Final = b"?"  # a message must have some content, which servers ignore
_TIMEOUT_S: Final = 5.0
# How long a call waits for answers. What comes later counts in a later call.
_PATIENCE_S: Final = 1.0
# What is left to receive an answer that has arrived while another was awaited.
_RECEIVE_MIN_S: Final = 0.001


class Identity(NamedTuple):
    """Which process a server is, and which session it serves, if any."""

    incarnation: str
    session: str | None


class _Found(NamedTuple):
    """What a thread has found out about a server, over which stream, and in which era it asked."""

    server: int
    answer: Identity | Exception
    stream: ConnectionExchange | None
    era: int


class ServerIdentities:
    """Asks the servers 0 to ``servers`` - 1. Not thread-safe.

    ``open_stream``: opens a stream to a server, within so many seconds. Owns streams and threads
    until :meth:`close`: one thread for each server to which no stream is open.
    """

    def __init__(
        self, open_stream: Callable[[int, float], ConnectionExchange], servers: int
    ) -> None:
        self._open = open_stream
        self._servers = range(servers)
        self._streams: dict[int, ConnectionExchange] = {}
        self._found: queue.SimpleQueue[_Found] = queue.SimpleQueue()
        self._being_asked: set[int] = set()
        self._era = 0
        self._is_closed = False

    def ask(self) -> dict[int, Identity | Exception]:
        """Returns who each server is, or why it cannot be asked; leaves out those that are silent.

        An answer that comes late is returned by a later call. A stream that ended says nothing yet:
        its server is asked again over another one.
        """
        deadline_s = time.monotonic() + _PATIENCE_S
        answers = self._over_streams(deadline_s)
        others = (each for each in self._servers if each not in answers)
        awaited = {each for each in others if self._begins_to_ask(each)}
        return {**answers, **self._answers_of_threads(awaited, deadline_s)}

    def forget(self) -> None:
        """Leaves out answers to what has been asked so far."""
        self._era += 1

    def close(self) -> None:
        """Closes the streams; threads that still ask end by their time-out. Idempotent."""
        self._is_closed = True
        for server in list(self._streams):
            self._close(server)
        self._discard_found()

    def _over_streams(self, deadline_s: float) -> dict[int, Identity | Exception]:
        asked = [server for server in list(self._streams) if self._send(server, deadline_s)]
        found = {server: self._receive(server, deadline_s) for server in asked}
        return {server: identity for server, identity in found.items() if identity is not None}

    def _send(self, server: int, deadline_s: float) -> bool:
        try:
            self._streams[server].send(_QUESTION, timeout_s=_left_s(deadline_s))
        except DataServiceError:
            self._close(server)
            return False
        return True

    def _receive(self, server: int, deadline_s: float) -> Identity | None:
        try:
            return _identity(self._streams[server], _left_s(deadline_s))
        except DataServiceError:
            self._close(server)
            return None

    def _close(self, server: int) -> None:
        self._streams.pop(server).close()

    def _begins_to_ask(self, server: int) -> bool:
        """Has a thread ask a server; False if one does so already, or there is none."""
        if server in self._being_asked:
            return False
        thread = threading.Thread(
            target=self._ask_anew,
            args=(server, self._era),
            name=f"ask-server-{server}",
            daemon=True,
        )
        try:
            thread.start()
        except RuntimeError as error:  # the system's limit of threads; the next call tries again
            logger.warning("parameter server %d cannot be asked who it is: %s", server, error)
            return False
        self._being_asked.add(server)
        return True

    def _answers_of_threads(
        self, awaited: set[int], deadline_s: float
    ) -> dict[int, Identity | Exception]:
        """Returns what threads have found, also in earlier calls; waits for ``awaited`` only."""
        answers: dict[int, Identity | Exception] = {}
        while awaited or not self._found.empty():
            try:
                found = self._found.get(timeout=_left_s(deadline_s))
            except queue.Empty:
                break
            awaited.discard(found.server)
            self._being_asked.discard(found.server)
            if found.stream is not None:
                self._streams[found.server] = found.stream
            if found.era == self._era:
                answers[found.server] = found.answer
        return answers

    # On threads

    def _ask_anew(self, server: int, era: int) -> None:
        deadline_s = time.monotonic() + _TIMEOUT_S
        stream = None
        try:
            stream = self._open(server, _TIMEOUT_S)
            stream.send(_QUESTION, timeout_s=_left_s(deadline_s))
            self._found.put(_Found(server, _identity(stream, _left_s(deadline_s)), stream, era))
        except Exception as error:  # raised to whoever asks
            if stream is not None:
                stream.close()
            self._found.put(_Found(server, error, None, era))
        if self._is_closed:
            self._discard_found()

    def _discard_found(self) -> None:
        while not self._found.empty():
            try:
                stream = self._found.get_nowait().stream
            except queue.Empty:  # another thread has discarded it
                return
            if stream is not None:
                stream.close()


def _identity(stream: ConnectionExchange, timeout_s: float) -> Identity:
    """Receives what a server says of itself."""
    reply = stream.recv(timeout_s)
    if reply is None:
        raise UnavailableError("it ended the stream")
    return Identity(**json.loads(reply.header))


def _left_s(deadline_s: float) -> float:
    return max(deadline_s - time.monotonic(), _RECEIVE_MIN_S)
