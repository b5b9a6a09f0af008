"""What gradients make of a variable: by the real steps of servers, and by whole numbers.

Gradients are multiples of what any number of trainers divides, so that their means, and all sums of
these, are whole numbers that a float32 holds: what servers hold at the end must be exactly what the
rounds come to. A gradient follows from its closure and server alone, as of data that are read in a
fixed way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from pstrain.paramserver.shard import Shard
from pstrain.paramserver.steps import GradientStep, ShardUpdate
from pstrain.vocabulary import InitializerSpec, OptimizerSpec, ShardSpec, VariableSpec
from tests.simulation.shadow import Violation

ROWS = 3
COUNTER = 8
_DIVISIBLE = 12
_VARIABLE = 7
_DESCENT = OptimizerSpec(name="sgd", learning_rate=1.0)


def make_values(store: Any) -> None:
    """A server's shard, of zeros."""
    spec = VariableSpec(
        id=_VARIABLE,
        name="values",
        shape=(ROWS, 1),
        dtype="float32",
        trainable=True,
        initializer=InitializerSpec(name="zeros"),
        shards=(ShardSpec(ps=0, row_start=0, row_stop=ROWS),),
    )
    store.create(spec, 0, np.zeros((ROWS, 1), np.float32))


def counters(servers: int) -> VariableSpec:
    """A row for each server, which says how many changes were made there."""
    return VariableSpec(
        id=COUNTER,
        name="changes made",
        shape=(servers, 1),
        dtype="int64",
        trainable=False,
        initializer=InitializerSpec(name="zeros"),
        shards=tuple(ShardSpec(ps=ps, row_start=ps, row_stop=ps + 1) for ps in range(servers)),
    )


def make_counter(store: Any, servers: int) -> None:
    """A server's own; ``made`` has what it counts, in order."""
    if not hasattr(store, "made"):
        store.create(counters(servers), store.ps, np.zeros((1, 1), np.int64))
        store.made = []


def count_change(store: Any, tag: tuple[Any, ...]) -> None:
    """A change is made."""
    store.made.append(tag)
    store.shard(COUNTER, store.ps).assign("add", store.ps, np.ones((1, 1), np.int64))


def values_of(store: Any) -> list[float]:
    out = np.empty((ROWS, 1), np.float32)
    store.shard(_VARIABLE, 0).read(0, ROWS, out)
    return [float(value) for value in out[:, 0]]


def put_back(store: Any, values: list[float]) -> None:
    """As a checkpoint's part is read into a server that has just begun a session."""
    column = np.array(values, np.float32)[:, None]
    store.shard(_VARIABLE, 0).restore(0, [column], None)


def step(store: Any, ps: int, closure: int) -> GradientStep:
    """What a closure adds to its round on a server."""
    shard: Shard = store.shard(_VARIABLE, 0)
    gradient = _gradient(ps, closure)
    ids = np.array(sorted(gradient), np.int64)
    rows = np.array([[gradient[row]] for row in sorted(gradient)], np.float32)
    updates = [ShardUpdate(shard, ids, rows)]
    checked: GradientStep = store.checked_update(updates, _DESCENT, None)
    return checked


def check_values(
    stores: Mapping[int, Any],
    made: Mapping[int, Iterable[tuple[int, int]]],
    sizes: Mapping[int, int],
) -> None:
    """``made``: the closures of each round and the servers that they concern."""
    expected: dict[int, list[int]] = {}
    for number, parts in made.items():
        for closure, ps in parts:
            for row, slope in _gradient(ps, closure).items():
                assert _DIVISIBLE % sizes[number] == 0
                expected.setdefault(ps, [0] * ROWS)[row] -= slope // sizes[number]
    for ps, store in stores.items():
        should = expected.get(ps, [0] * ROWS)
        if values_of(store) != should:
            raise Violation(f"C3: server {ps} holds {values_of(store)}, not {should}")


def _gradient(ps: int, closure: int) -> dict[int, int]:
    """By row: of two of the three."""
    rows = {closure % ROWS, (closure + 1) % ROWS}
    return {row: _DIVISIBLE * ((7 * closure + 5 * row + ps) % 17 - 8) for row in rows}
