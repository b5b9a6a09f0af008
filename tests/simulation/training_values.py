"""The values of a variable after gradient steps: by the servers' real steps, and by whole numbers.

Gradients are multiples of a number that every possible number of trainers divides. So their means,
and all sums of these, are whole numbers that a float32 holds, and servers must at the end hold
exactly the result of the rounds. The closure and the server alone determine a gradient, as if the
data were read in a fixed order.
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
    """Creates a server's shard of the variable, filled with zeros."""
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
    """Returns the spec of a variable with a row for each server, which counts its changes."""
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
    """Creates a server's own row of the counters; ``store.made`` lists the tags in order."""
    if not hasattr(store, "made"):
        store.create(counters(servers), store.ps, np.zeros((1, 1), np.int64))
        store.made = []


def count_change(store: Any, tag: tuple[Any, ...]) -> None:
    """Counts a change that a server makes."""
    store.made.append(tag)
    store.shard(COUNTER, store.ps).assign("add", store.ps, np.ones((1, 1), np.int64))


def values_of(store: Any) -> list[float]:
    out = np.empty((ROWS, 1), np.float32)
    store.shard(_VARIABLE, 0).read(0, ROWS, out)
    return [float(value) for value in out[:, 0]]


def put_back(store: Any, values: list[float]) -> None:
    """Restores values, as a checkpoint does on a server that has just begun a session."""
    column = np.array(values, np.float32)[:, None]
    store.shard(_VARIABLE, 0).restore(0, [column], None)


def step(store: Any, ps: int, closure: int) -> GradientStep:
    """Returns the gradient step that a closure adds to its round on a server."""
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
    """Checks that the stores hold the result of all rounds.

    ``made`` has, by round, its pairs of closure and server, ``sizes`` how many gradients its mean
    counts.
    """
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
    """Returns a closure's gradient on a server, by row; it concerns two of the three rows."""
    rows = {closure % ROWS, (closure + 1) % ROWS}
    return {row: _DIVISIBLE * ((7 * closure + 5 * row + ps) % 17 - 8) for row in rows}
