"""A parameter server applies a round as one step with the mean of its gradients, once."""

from __future__ import annotations

import numpy as np
import pytest

from pstrain.errors import AbortedError
from pstrain.paramserver.commits import Commits, PartKey
from pstrain.paramserver.shard import Shard
from pstrain.paramserver.steps import GradientStep, ShardUpdate, changes_of_round
from pstrain.vocabulary import OptimizerSpec, ShardSpec, VariableSpec

SGD = OptimizerSpec(name="sgd", learning_rate=1.0, l2=0.0, parameters={}, slots=(), row_slots=())


def new_shard(rows: int, variable: int = 0) -> Shard:
    spec = VariableSpec(
        id=variable,
        name="v",
        shape=(rows, 2),
        dtype="float32",
        trainable=True,
        initializer={"kind": "zeros"},
        shards=(ShardSpec(ps=0, row_start=0, row_stop=rows),),
    )
    return Shard(spec, 0, np.zeros((rows, 2), np.float32))


def step(shard: Shard, ids: list[int] | None, value: float) -> GradientStep:
    rows = 4 if ids is None else len(ids)
    gradient = np.full((rows, 2), value, np.float32)
    found = None if ids is None else np.array(ids, np.int64)
    return GradientStep([ShardUpdate(shard, found, gradient)], SGD, None)


def test_round_is_applied_as_one_step_with_mean_gradient() -> None:
    shard, version = new_shard(4), 0
    done: list[str] = []
    parts = [
        [step(shard, [0, 3], 3.0), lambda: done.append("first")],
        [lambda: done.append("second"), step(shard, [3, 1], 6.0)],
        [step(shard, [2], 9.0)],
    ]
    for change in changes_of_round(parts, 3):
        change()
    assert shard.version == version + 1
    assert shard.slab[:, 0].tolist() == [-1.0, -2.0, -3.0, -3.0]
    assert done == ["first", "second"]


def test_row_and_dense_gradients_are_combined_into_one_step() -> None:
    shard = new_shard(4)
    for change in changes_of_round([[step(shard, None, 2.0)], [step(shard, [1], 4.0)]], 2):
        change()
    assert shard.slab[:, 0].tolist() == [-1.0, -3.0, -1.0, -1.0]


def test_gradients_are_summed_in_order_of_closures() -> None:
    small, large = 1.0, 2.0**25
    for order in ((large, small, small), (small, small, large)):
        shard = new_shard(4)
        for change in changes_of_round([[step(shard, [0], value)] for value in order], 1):
            change()
        expected = np.float32(0)
        for value in order:
            expected += np.float32(value)
        assert shard.slab[0, 0] == -expected


def test_round_is_taken_from_commits_whole_and_once() -> None:
    commits: Commits[str] = Commits()
    parts = [("t", PartKey(4, 0, 0)), ("u", PartKey(5, 1, 0))]
    commits.prepare("t", parts[0][1], "four")
    with pytest.raises(AbortedError, match="closure 5 of u"):
        commits.take_round(parts)
    commits.prepare("u", parts[1][1], "five")
    assert commits.take_round(parts) == ["four", "five"]
    assert commits.take_round(parts) == []
    assert commits.counts()["held"] == 0
