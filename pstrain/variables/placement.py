"""On which parameter server each shard goes.

Pure counting: knows no server and no value. Invariant: where shards go depends on the order and
the sizes of those placed before alone, so the same program places its variables alike on each run.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

from dataservice.runtime.arguments import check_choice


class ShardPlacer(Protocol):
    """Chooses servers. Thread-safe."""

    def place(self, sizes_bytes: Sequence[int]) -> list[int]:
        """The server of each shard of one variable, given the shards' sizes."""


class RoundRobin:
    """Shard n of all shards ever placed goes to server n mod ``servers``, whatever its size."""

    def __init__(self, servers: int) -> None:
        self._servers = servers
        self._placed = 0
        self._lock = threading.Lock()

    def place(self, sizes_bytes: Sequence[int]) -> list[int]:
        with self._lock:
            first, self._placed = self._placed, self._placed + len(sizes_bytes)
        return [n % self._servers for n in range(first, first + len(sizes_bytes))]


class ByteBalanced:
    """Each shard goes to the server that holds the fewest bytes so far, the first among equals.

    Large variables before small ones balance best: the last one placed is the imbalance that is
    left, at most.
    """

    def __init__(self, servers: int) -> None:
        self._held_bytes = [0] * servers
        self._lock = threading.Lock()

    def place(self, sizes_bytes: Sequence[int]) -> list[int]:
        with self._lock:
            return [self._lightest(size) for size in sizes_bytes]

    def _lightest(self, size_bytes: int) -> int:
        server = min(range(len(self._held_bytes)), key=self._held_bytes.__getitem__)
        self._held_bytes[server] += size_bytes
        return server


class Colocated:
    """Everything on one server."""

    def __init__(self, server: int) -> None:
        self._server = server

    def place(self, sizes_bytes: Sequence[int]) -> list[int]:
        return [self._server] * len(sizes_bytes)


_PLACERS: dict[str, type[RoundRobin | ByteBalanced]] = {
    "round_robin": RoundRobin,
    "bytes": ByteBalanced,
}


def placer(name: str, servers: int) -> ShardPlacer:
    """By name; InvalidArgumentError for another."""
    check_choice("placement", name, list(_PLACERS))
    return _PLACERS[name](servers)
