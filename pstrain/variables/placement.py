"""Cuts new variables into shards, and chooses the parameter server of each shard.

Knows servers by number, and no value. Invariant: the choice depends only on the order and the sizes
of the shards placed before, so a program places its variables the same way on each run.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

import numpy as np

from dataservice.runtime.arguments import check_choice
from pstrain.partition import PartitionFunction, shard_count, split_rows
from pstrain.variables.base import BaseVariable, handle_of
from pstrain.variables.parameters import Parameters

Held = TypeVar("Held", bound=Parameters)


class ShardPlacer(Protocol):
    """A rule that chooses servers for shards. Thread-safe."""

    def place(self, sizes_bytes: Sequence[int]) -> list[int]:
        """Returns the server of each shard of one variable, given the sizes of the shards."""


class RoundRobin:
    """Places shard n of all shards ever placed on server n mod ``servers``, whatever its size."""

    def __init__(self, servers: int) -> None:
        self._servers = servers
        self._placed = 0
        self._lock = threading.Lock()

    def place(self, sizes_bytes: Sequence[int]) -> list[int]:
        with self._lock:
            first, self._placed = self._placed, self._placed + len(sizes_bytes)
        return [n % self._servers for n in range(first, first + len(sizes_bytes))]


class ByteBalanced:
    """Places each shard on the server with the fewest bytes so far, the first of equal servers.

    Creating large variables before small ones balances best, because the remaining imbalance is at
    most the size of the last shard placed.
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


_PLACERS: dict[str, type[RoundRobin | ByteBalanced]] = {
    "round_robin": RoundRobin,
    "bytes": ByteBalanced,
}


def placer(name: str, servers: int) -> ShardPlacer:
    """Returns the placer called ``name``; raises InvalidArgumentError for an unknown name."""
    check_choice("placement", name, list(_PLACERS))
    return _PLACERS[name](servers)


class ServerPlacement(Generic[Held]):
    """The placement of variables on parameter servers, cut by ``partitioner``."""

    def __init__(
        self,
        parameters: Held,
        num_workers: int,
        shard_placer: ShardPlacer,
        partitioner: PartitionFunction | None = None,
    ) -> None:
        self.parameters = parameters
        self.num_workers = num_workers
        self._placer = shard_placer
        self._partitioner = partitioner
        self._ids = itertools.count()

    @property
    def variables(self) -> list[BaseVariable]:
        """The variables to which the program still refers, in order of creation."""
        return [handle_of(each, self.parameters) for each in self.parameters.lifetimes.living()]

    def next_id(self) -> int:
        return next(self._ids)

    def place(self, shape: tuple[int, ...], dtype: str) -> list[int]:
        shards = shard_count(self._partitioner, shape, dtype)
        row_bytes = math.prod(shape[1:]) * np.dtype(dtype).itemsize
        rows = split_rows(shape[0] if shape else 1, shards)
        return self._placer.place([(stop - start) * row_bytes for start, stop in rows])

    def created(self, variable: BaseVariable) -> None:
        """Does nothing: the lifetimes have a list of all variables."""
