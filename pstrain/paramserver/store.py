"""The shards of one parameter server, and the rule that a closure's change applies once.

No network: the server and ``LocalParameters`` both stand on it. Thread-safe. Invariant: a change
is applied to all of its shards or to none, because everything is checked before the ledger
records it; a checkpoint sees whole changes only.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pstrain.errors import AlreadyExistsError, DeadlineExceededError, NotFoundError
from pstrain.paramserver.ledger import Ledger
from pstrain.paramserver.shard import Shard
from pstrain.vocabulary import OptimizerSpec, VariableSpec

ShardKey = tuple[int, int]

_GATE_TIMEOUT_S = 600.0


class ShardUpdate(NamedTuple):
    """Gradient of a shard: of all its rows, or (``ids``, int64, distinct) of some of them."""

    shard: Shard
    ids: NDArray[np.int64] | None
    gradient: NDArray[np.float32]


class ChangeKey(NamedTuple):
    """Names one change of one closure; the same key is applied once."""

    closure: int
    sequence: int


class Store:
    """Shards by (variable id, shard index), and the ledger of applied changes.

    ``first_version`` starts every shard's version; servers draw it at random so that a version
    a client remembers from before a restart never matches.
    """

    def __init__(self, *, first_version: int = 0) -> None:
        self._first_version = first_version
        self._shards: dict[ShardKey, Shard] = {}
        self._ledger = Ledger()
        self._lock = threading.Lock()
        self._changes = _Gate()

    def create(self, spec: VariableSpec, index: int, value: NDArray[Any] | None = None) -> Shard:
        """Adds shard ``index`` of ``spec``, filled with ``value`` or by its initializer.

        Raises AlreadyExistsError if the id is taken by a variable of another name or shape; the
        same variable again is left as it is, so that a repeated request is harmless.
        """
        key = (spec.id, index)
        existing = self._shards.get(key)
        if existing is None:
            shard = Shard(spec, index, value, version=self._first_version)
            with self._lock:
                existing = self._shards.setdefault(key, shard)
        if existing.spec != spec:
            raise AlreadyExistsError(
                f"variable id {spec.id} belongs to {existing.spec.name!r} {existing.spec.shape}; "
                f"it cannot also be {spec.name!r} {spec.shape}"
            )
        return existing

    def shard(self, variable: int, index: int) -> Shard:
        """The shard, or NotFoundError saying what usually explains its absence."""
        try:
            return self._shards[variable, index]
        except KeyError:
            raise NotFoundError(
                f"no shard {index} of variable {variable} here; the variables of a restarted "
                f"parameter server must be created or restored first"
            ) from None

    def shards(self) -> list[Shard]:
        """All shards, in order of (variable id, shard index)."""
        with self._lock:
            return [self._shards[key] for key in sorted(self._shards)]

    def update(
        self,
        changes: Sequence[ShardUpdate],
        optimizer: OptimizerSpec,
        *,
        iterations: Shard | None = None,
        key: ChangeKey | None = None,
    ) -> bool:
        """One optimizer step; False if ``key`` was applied before (nothing changes then)."""
        for change in changes:
            change.shard.check_rule(optimizer)
            change.shard.check_gradient(change.ids, change.gradient)
        with self.change(key) as new:
            if new:
                for change in changes:
                    change.shard.update(optimizer, change.ids, change.gradient)
                if iterations is not None:
                    iterations.assign("add", iterations.row_start, np.ones((1, 1), np.int64))
        return new

    @contextmanager
    def change(self, key: ChangeKey | None) -> Iterator[bool]:
        """Scope of one change; yields False if ``key`` was applied before.

        Checkpoints wait for it to end. What it does must have been checked already.
        """
        with self._changes.shared():
            if key is None:
                yield True
                return
            with self._lock:
                new = self._ledger.claim(key.closure, key.sequence)
            yield new

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Scope in which no change is half done and none begins; reads go on."""
        with self._changes.exclusive():
            yield

    def advance(self, low_water: int) -> None:
        """All closures below ``low_water`` are finished: their changes need no memory."""
        with self._lock:
            self._ledger.advance(low_water)

    def ledger_state(self) -> dict[str, Any]:
        """JSON form of the ledger, for checkpoints."""
        with self._lock:
            return self._ledger.state()

    def restore_ledger(self, state: dict[str, Any]) -> None:
        """Takes over the applied changes of a checkpoint."""
        with self._lock:
            self._ledger.restore(state)

    def size_bytes(self) -> int:
        """Memory of all slabs."""
        return sum(shard.slab.nbytes for shard in self.shards())


class _Gate:
    """Many changes at a time, or one checkpoint; a waiting checkpoint goes before new changes."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._inside = 0
        self._closed = False

    @contextmanager
    def shared(self) -> Iterator[None]:
        with self._condition:
            self._wait(lambda: not self._closed)
            self._inside += 1
        try:
            yield
        finally:
            with self._condition:
                self._inside -= 1
                if not self._inside:
                    self._condition.notify_all()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        with self._condition:
            self._wait(lambda: not self._closed)
            self._closed = True
        try:
            with self._condition:
                self._wait(lambda: not self._inside)
            yield
        finally:
            with self._condition:
                self._closed = False
                self._condition.notify_all()

    def _wait(self, condition: Callable[[], bool]) -> None:
        if not self._condition.wait_for(condition, _GATE_TIMEOUT_S):
            raise DeadlineExceededError(
                f"a change or a checkpoint on this parameter server has not ended within "
                f"{_GATE_TIMEOUT_S:.0f} s; is its disk stuck?"
            )
