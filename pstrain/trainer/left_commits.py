"""The parts of closures that are decided, and that some of their servers have yet to be told of.

A commit needs no message of its own: it travels with the next message to its server. Knows no
network, and not when that message goes. Invariant: a part has ended once all of its servers have
confirmed it, and its results are given out once; a commit that was not confirmed is left, to be
sent again.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from pstrain.wire import trainer_pb2 as pb

Keys = list[list[int]]
"""The keys of parts, as messages have them: [closure, attempt, part]."""
Taken = Mapping[int, Keys]
"""The commits that go along with a message, by server."""

NOTHING: Final[Taken] = {}


@dataclass(slots=True, eq=False)
class _Part:
    results: list[pb.ClosureResult]
    unconfirmed: set[int]
    since_s: float


class LeftCommits:
    """The commits that a trainer has left for later messages. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._parts: dict[tuple[int, ...], _Part] = {}
        self._by_server: dict[int, Keys] = {}
        self._under_way: set[int] = set()  # by identity of what was taken

    def __bool__(self) -> bool:
        return bool(self._by_server)

    @property
    def are_under_way(self) -> bool:
        """True while the message of any that were taken has not come to its :meth:`end`."""
        return bool(self._under_way)

    def add(
        self, key: list[int], servers: Iterable[int], results: list[pb.ClosureResult], now_s: float
    ) -> None:
        """Leaves the commit of a decided part to the next messages to ``servers``."""
        with self._lock:
            self._parts[tuple(key)] = _Part(results, set(servers), now_s)
            for server in self._parts[tuple(key)].unconfirmed:
                self._by_server.setdefault(server, []).append(key)

    def servers(self, until_s: float = math.inf) -> list[int]:
        """Returns the servers for which a commit of a part decided by ``until_s`` is left."""
        with self._lock:
            return [
                server
                for server, keys in self._by_server.items()
                if any(self._parts[tuple(key)].since_s <= until_s for key in keys)
            ]

    def take(self, servers: Iterable[int]) -> Taken:
        """Takes what is left for these servers, to be confirmed or put back."""
        # Without the lock: what is added meanwhile goes with a later message.
        if not self._by_server:
            return NOTHING
        with self._lock:
            found = self._by_server
            taken = {server: found.pop(server) for server in servers if server in found}
            if taken:
                self._under_way.add(id(taken))
            return taken

    def put_back(self, taken: Taken) -> None:
        """Leaves commits again whose message may not have arrived."""
        with self._lock:
            for server, keys in taken.items():
                self._by_server[server] = keys + self._by_server.get(server, [])

    def end(self, taken: Taken) -> None:
        """Notes that all that follows from a message with these commits is done."""
        # Without the lock: it is one step.
        self._under_way.discard(id(taken))

    def confirm(self, taken: Taken) -> list[pb.ClosureResult]:
        """Notes that the servers have these commits; returns the results of parts that ended."""
        ended: list[pb.ClosureResult] = []
        if not taken:
            return ended
        with self._lock:
            for server, keys in taken.items():
                for key in map(tuple, keys):
                    part = self._parts[key]
                    part.unconfirmed.discard(server)
                    if not part.unconfirmed:
                        ended += self._parts.pop(key).results
        return ended
