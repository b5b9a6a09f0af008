"""Parameters in this process: the values of variables made outside of any strategy's scope.

Must not know of servers, closures or models. Invariant: a variable behaves here as it does on
parameter servers, because both use the same store.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dataservice.runtime.identity import new_id
from pstrain import buffers
from pstrain.features.eviction import Eviction, IdleCounts, IdleKeys, Part, Share, evict
from pstrain.features.key_map import KeyMaps, KeyQuery
from pstrain.paramserver.checkpoint import write
from pstrain.paramserver.increments import Base
from pstrain.paramserver.loading import NOTHING, can_read_ahead, read_ahead, read_into, verify
from pstrain.paramserver.saved import Saved, Tracking
from pstrain.paramserver.shard import Shard
from pstrain.paramserver.steps import ShardUpdate
from pstrain.paramserver.store import Store
from pstrain.variables.closure_gate import CLOSURES
from pstrain.variables.lifetimes import Lifetimes
from pstrain.variables.parameters import agreed
from pstrain.variables.rows import (
    as_rows,
    look_up,
    overlaps,
    row_bounds,
    rows_of_value,
    scatter_parts,
    shape_of_rows,
    update_parts,
)
from pstrain.vocabulary import Fetch, Lookup, OptimizerSpec, Update, VariableSpec

Array = NDArray[Any]

LOCAL_DEVICE: Final = "/job:localhost"
"""The ``device`` of variables in this process."""


class LocalParameters:
    """Parameters in this process, each variable one shard, for work without a cluster."""

    def __init__(self) -> None:
        self._store = Store()
        self._ids = itertools.count()
        self.key_maps = KeyMaps()
        self.lifetimes = Lifetimes()

    def next_id(self) -> int:
        """Returns an id that no variable of these parameters has."""
        return next(self._ids)

    def create(self, spec: VariableSpec, value: Array | None = None) -> None:
        ended = [spec.id for spec in self.lifetimes.take_ended()]
        self._store.delete(ended)
        self.key_maps.drop(ended)
        rows = None if value is None else as_rows(spec, value, spec.rows)
        for index, shard in enumerate(spec.shards):
            part = None if rows is None else rows[shard.row_start : shard.row_stop]
            self._store.create(spec, index, part)

    def set_initial_values(self, spec: VariableSpec, value: Array, start: int = 0) -> None:
        self.assign(spec, "set", value, start)

    def fetch(self, requests: Sequence[Fetch]) -> list[Array | Lookup]:
        return [
            self.read(variable) if ids is None else self._rows(variable, ids)
            for variable, ids in requests
        ]

    def apply(
        self,
        updates: Sequence[Update],
        optimizer: OptimizerSpec,
        *,
        iterations: VariableSpec | None = None,
    ) -> None:
        changes = [change for update in updates for change in self._changes(update)]
        counter = None if iterations is None else self._store.shard(iterations.id, 0)
        self._store.apply([self._store.checked_update(changes, optimizer, counter)])

    def read(self, spec: VariableSpec, start: int = 0, stop: int | None = None) -> Array:
        stop = spec.rows if stop is None else stop
        shape = (stop - start, spec.width)
        out = buffers.empty(shape) if spec.dtype == "float32" else np.empty(shape, spec.dtype)
        for index, a, b in overlaps(spec, start, stop):
            self._store.shard(spec.id, index).read(a, b, out[a - start : b - start])
        return out.reshape(shape_of_rows(spec, stop - start))

    def read_all(self, specs: Sequence[VariableSpec]) -> list[Array]:
        return [self.read(spec) for spec in specs]

    def read_rows(self, spec: VariableSpec, ids: Array) -> Array:
        lookup = look_up(spec, ids)
        rows = np.empty((len(lookup.unique), spec.width), spec.dtype)
        self._gather(spec, lookup, rows)
        return rows[lookup.inverse].reshape(shape_of_rows(spec, lookup.inverse.size))

    def assign(self, spec: VariableSpec, op: str, value: Any, start: int = 0) -> None:
        count = rows_of_value(spec, value, start)
        rows = as_rows(spec, value, count)
        self._store.apply(
            partial(self._store.shard(spec.id, index).assign, op, a, rows[a - start : b - start])
            for index, a, b in overlaps(spec, start, start + count)
        )
        self.key_maps.forget([spec.id])

    def assign_all(self, values: Sequence[tuple[VariableSpec, Any]]) -> None:
        for spec, rows in [(spec, as_rows(spec, value, spec.rows)) for spec, value in values]:
            self.assign(spec, "set", rows.reshape(spec.shape))

    def scatter(self, spec: VariableSpec, op: str, ids: Array, rows: Any) -> None:
        self._store.apply(
            partial(self._store.shard(spec.id, index).scatter, op, part_ids, part)
            for index, _, part_ids, part in scatter_parts(spec, ids, rows)
        )
        self.key_maps.forget([spec.id])

    def claim(self, spec: VariableSpec, asked: KeyQuery, *, is_training: bool) -> NDArray[np.int64]:
        rows = np.empty(len(asked.keys), np.int64)
        for index, part, (keys, _, starts, stops, may_claim) in asked.by_shard(spec):
            shard = self._store.shard(spec.id, index)
            rows[part] = self._store.claim(
                shard, keys, starts, stops, may_claim, is_training=is_training
            )
        return rows

    def evict(self, eviction: Eviction) -> int:
        try:
            with self._store.quiet():
                return evict(eviction, _LocalSteps(self._store))
        finally:
            self.key_maps.forget([eviction.mapping.id])

    def count_keys(self, spec: VariableSpec) -> dict[str, int]:
        shards = [self._store.shard(spec.id, index) for index in range(len(spec.shards))]
        used = sum(shard.count_keys() for shard in shards)
        return {"used": used, "refused": sum(shard.refused for shard in shards)}

    def barrier(self) -> AbstractContextManager[None]:
        return CLOSURES.quiet()

    def check_current(self) -> None:
        """Does nothing: no other session can take over values of this process."""

    def snapshot(
        self, specs: Mapping[str, VariableSpec], tracking: Tracking | None = None
    ) -> _LocalSnapshot:
        return _LocalSnapshot(self._store, specs, tracking)

    def load(
        self,
        directory: str,
        specs: Mapping[str, VariableSpec],
        saved: Saved,
        agree: Callable[[], None] = agreed,
    ) -> None:
        try:
            self._load(directory, self._named(specs), saved, agree)
        finally:
            self.key_maps.forget(spec.id for spec in specs.values())

    def _load(
        self,
        directory: str,
        targets: list[tuple[str, Shard]],
        saved: Saved,
        agree: Callable[[], None],
    ) -> None:
        ahead = NOTHING
        with self._store.quiet():
            if can_read_ahead(targets, saved.shards):
                ahead = read_ahead(directory, targets, saved.shards)
        if ahead is NOTHING:
            verify(directory, targets, saved.shards)
        try:
            agree()
        except BaseException:
            with self._store.quiet():
                ahead.undo()
            raise
        with self._store.quiet():
            read_into(directory, targets, saved.shards, ahead)

    def device(self, ps: int) -> str:  # noqa: ARG002
        return LOCAL_DEVICE

    def close(self) -> None:
        """Does nothing: there are no connections to close."""

    def __reduce__(self) -> Any:
        raise TypeError(
            "a variable made outside strategy.scope() lives in one process and cannot be sent to "
            "trainers; create it (or its model, optimizer or metric) inside strategy.scope()"
        )

    def _named(self, specs: Mapping[str, VariableSpec]) -> list[tuple[str, Shard]]:
        return [
            (name, self._store.shard(spec.id, index))
            for name, spec in specs.items()
            for index in range(len(spec.shards))
        ]

    def _rows(self, spec: VariableSpec, ids: Array) -> Lookup:
        lookup = look_up(spec, ids)
        self._gather(spec, lookup, lookup.rows)
        return lookup

    def _gather(self, spec: VariableSpec, lookup: Lookup, out: Array) -> None:
        for index in range(len(spec.shards)):
            part = slice(lookup.offsets[index], lookup.offsets[index + 1])
            self._store.shard(spec.id, index).gather(lookup.unique[part], out[part])

    def _changes(self, update: Update) -> Iterator[ShardUpdate]:
        for index, ids, gradient in update_parts(update):
            yield ShardUpdate(self._store.shard(update.variable.id, index), ids, gradient)


class _LocalSteps:
    """The steps of an eviction, while no other change is made."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def count_idle(self, mapping: VariableSpec, parts: Sequence[Part]) -> IdleCounts:
        shards = [(self._store.shard(mapping.id, part.shard), part) for part in parts]
        counts = [shard.count_idle(part.start, part.stop) for shard, part in shards]
        return IdleCounts([shard.uses.period for shard, _ in shards], counts)

    def idle_keys(
        self, mapping: VariableSpec, parts: Sequence[Part], shares: Sequence[Share]
    ) -> list[IdleKeys]:
        found = []
        for part, share in zip(parts, shares, strict=True):
            shard = self._store.shard(mapping.id, part.shard)
            rows = shard.idle_rows(part.start, part.stop, *share)
            found.append(IdleKeys(rows, shard.keys_of(rows)))
        return found

    def reset_rows(self, table: VariableSpec, rows: NDArray[np.int64]) -> None:
        ends = np.searchsorted(rows, row_bounds(table)).tolist()
        for index, (start, stop) in enumerate(itertools.pairwise(ends)):
            shard = self._store.shard(table.id, index)
            shard.check_reset(rows[start:stop])
            shard.reset_rows(rows[start:stop])

    def remove_keys(
        self,
        mapping: VariableSpec,
        parts: Sequence[Part],
        found: Sequence[IdleKeys],
        buckets: Sequence[NDArray[np.int64]],
        periods: Sequence[int],
    ) -> None:
        for part, idle, bounds, period in zip(parts, found, buckets, periods, strict=True):
            self._store.shard(mapping.id, part.shard).remove_keys(*idle, bounds, period + 1)


class _LocalSnapshot:
    def __init__(
        self, store: Store, specs: Mapping[str, VariableSpec], tracking: Tracking | None
    ) -> None:
        self._store = store
        self.moment = new_id("snapshot")
        names = {spec.id: name for name, spec in specs.items()}
        self._snapshots, _ = store.take_snapshot(self.moment, names, tracking)

    @property
    def size_bytes(self) -> int:
        return sum(snapshot.size_bytes for _, snapshot in self._snapshots)

    def write(self, directory: str, base: Base | None = None) -> Saved:
        return write(directory, self._snapshots, "local", base)

    def close(self) -> None:
        self._store.drop_snapshot(self.moment)
