"""Shards, specs and optimizer rules that several tests use."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from pstrain import initializers
from pstrain.paramserver.shard import Shard
from pstrain.vocabulary import InitializerSpec, OptimizerSpec, ShardSpec, VariableSpec

SGD = OptimizerSpec(name="sgd", learning_rate=0.5)
ADAGRAD = OptimizerSpec(
    name="adagrad", learning_rate=0.1, parameters={"epsilon": 1e-7}, slots=(0.1,)
)


ADAM = OptimizerSpec(
    name="adam",
    learning_rate=0.1,
    parameters={"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7},
    slots=(0.0, 0.0),
    row_slots=(0.0,),
)


def make_spec(
    rows: int = 10,
    width: int = 3,
    *,
    cuts: tuple[int, ...] = (),
    dtype: str = "float32",
    initializer: InitializerSpec | None = None,
    **changed: Any,
) -> VariableSpec:
    bounds = [0, *cuts, rows]
    fields: dict[str, Any] = {
        "id": 1,
        "name": "table",
        "shape": (rows, width),
        "dtype": dtype,
        "trainable": True,
        "initializer": initializer or initializers.uniform(seed=3),
        "shards": tuple(
            ShardSpec(ps=0, row_start=a, row_stop=b) for a, b in itertools.pairwise(bounds)
        ),
    }
    return VariableSpec(**{**fields, **changed})


def values_of(shard: Shard) -> np.ndarray:
    out = np.empty((shard.row_stop - shard.row_start, shard.width), shard.spec.dtype)
    shard.read(shard.row_start, shard.row_stop, out)
    return out


def ones(rows: int, width: int = 3) -> np.ndarray:
    return np.ones((rows, width), np.float32)


def ids(*values: int) -> np.ndarray:
    return np.array(values, np.int64)
