"""Impossible sizes, counts and rates raise an error that names the argument and its value."""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dataservice as ds
import pstrain as ps
from dataservice.client.arguments import checked_timeout_s
from dataservice.runtime.arguments import limit_s
from pstrain.checkpoints.checkpoint import Checkpoint
from pstrain.config import ParameterConfig
from pstrain.errors import InvalidArgumentError, InvalidTypeError
from pstrain.optimizers import schedules

SCHEMA = ps.FeatureSchema(dense=("d",), categorical={"c": ps.Category(8), "e": ps.Category(8)})
TABLE = {"c": np.zeros(4, np.int64), "e": np.zeros(4, np.int64), "d": np.zeros(4, np.float32)}
OFF = ds.ShardingPolicy.OFF

SIZES: dict[str, Callable[[Any], Any]] = {
    "WideDeep: dim": lambda n: ps.models.WideDeep(SCHEMA, dim=n),
    "each of WideDeep: hidden": lambda n: ps.models.WideDeep(SCHEMA, hidden=(8, n)),
    "DeepFM: dim": lambda n: ps.models.DeepFM(SCHEMA, dim=n),
    "each of DeepFM: hidden": lambda n: ps.models.DeepFM(SCHEMA, hidden=(n,)),
    "FactorizationMachine: dim": lambda n: ps.models.FactorizationMachine(SCHEMA, dim=n),
    "DLRM: dim": lambda n: ps.models.DLRM(SCHEMA, dim=n),
    "each of DLRM: bottom": lambda n: ps.models.DLRM(SCHEMA, bottom=(n,)),
    "each of DLRM: top": lambda n: ps.models.DLRM(SCHEMA, top=(n, 8)),
    "DCNv2: dim": lambda n: ps.models.DCNv2(SCHEMA, dim=n),
    "each of DCNv2: hidden": lambda n: ps.models.DCNv2(SCHEMA, hidden=(n,)),
    "DCNv2: crosses": lambda n: ps.models.DCNv2(SCHEMA, crosses=n),
    "rank": lambda n: ps.models.DCNv2(SCHEMA, rank=n),
    "'dense': units": lambda n: ps.layers.Dense(n),
    "'dense': input_size": lambda n: ps.layers.Dense(1, input_size=n),
    "'embedding': dim": lambda n: ps.layers.Embedding(8, n),
    "'embedding': vocabulary_sizes": lambda n: ps.layers.Embedding((8, n), 2),
    "vocabulary_sizes": lambda n: ps.layers.Embedding(n, 2),
    "count": lambda n: ps.layers.Interaction(n, 2),
    "'interaction': dim": lambda n: ps.layers.Interaction(2, n),
    "size": lambda n: ps.layers.Cross(n),
    "'cross': rank": lambda n: ps.layers.Cross(3, n),
    "max_tokens": lambda n: ps.layers.StringLookup(max_tokens=n),
    "bins": lambda n: ps.metrics.AUC(bins=n),
    "k": lambda n: ps.metrics.NDCG(n, group="user"),
    "num_shards": lambda n: ps.partitioners.FixedShardsPartitioner(n),
    "min_shard_bytes": lambda n: ps.partitioners.MinSizePartitioner(n),
    "max_shards": lambda n: ps.partitioners.MinSizePartitioner(max_shards=n),
    "bytes_per_string": lambda n: ps.partitioners.MaxSizePartitioner(9, bytes_per_string=n),
    "bytes_per_string of MinSizePartitioner": lambda n: ps.partitioners.MinSizePartitioner(
        bytes_per_string=n
    ),
    "max_shards of MaxSizePartitioner": lambda n: ps.partitioners.MaxSizePartitioner(9, n),
    "max_shard_bytes": lambda n: ps.partitioners.MaxSizePartitioner(n),
    "every": lambda n: ps.callbacks.Checkpoint("c", every=n),
    "every_steps": lambda n: ps.callbacks.Checkpoint("c", every_steps=n),
    "max_to_keep": lambda n: ps.callbacks.Checkpoint("c", max_to_keep=n),
    "update_freq": lambda n: ps.callbacks.TensorBoard(update_freq=n),
    "max_evaluations": lambda n: ps.SidecarEvaluator(None, None, "c", max_evaluations=n),
    "steps": lambda n: ps.SidecarEvaluator(None, None, "c", steps=n),
    "batch_size": lambda n: ps.SidecarEvaluator(None, None, "c", batch_size=n),
    "chunk_bytes": lambda n: ParameterConfig(chunk_bytes=n),
    "workers": lambda n: ps.LocalCluster(workers=n),
    "ps": lambda n: ps.LocalCluster(ps=n),
    "epochs": lambda n: _model().fit(TABLE, epochs=n, verbose=0),
    "steps_per_epoch": lambda n: _model().fit(TABLE, steps_per_epoch=n, verbose=0),
    "steps_per_execution": lambda n: _model().fit(TABLE, steps_per_execution=n, verbose=0),
    "batch_size of predict": lambda n: _model().predict(TABLE, batch_size=n),
    "max_outstanding_requests": lambda n: ds.distribute(OFF, "a:1", max_outstanding_requests=n),
    "buffer_bytes": lambda n: ds.WorkerConfig("a:1", buffer_bytes=n),
    "heartbeat_interval_ms": lambda n: ds.WorkerConfig("a:1", heartbeat_interval_ms=n),
    "worker_timeout_ms": lambda n: ds.DispatcherConfig(worker_timeout_ms=n),
}
COUNTS: dict[str, Callable[[Any], Any]] = {
    "num_oov_indices": lambda n: ps.layers.IntegerLookup(num_oov_indices=n),
    "num_oov_indices ": lambda n: ps.Vocabulary(["a"], num_oov_indices=n),
    "patience": lambda n: ps.callbacks.EarlyStopping(patience=n),
    "start_from_epoch": lambda n: ps.callbacks.EarlyStopping(start_from_epoch=n),
    "last_step": lambda n: ps.SidecarEvaluator(None, None, "c", last_step=n),
    "staleness": lambda n: ps.consistency.ssp(n),
    "backup_workers": lambda n: ps.consistency.sync(n),
    "data_workers": lambda n: ps.LocalCluster(data_workers=n),
    "prefetch buffer_size": lambda n: ds.Dataset.range(3).prefetch(n),
    "port": lambda n: ds.DispatcherConfig(port=n),
    "task_id": lambda n: ps.SimpleClusterResolver(ps.ClusterSpec({}), task_id=n),
    "buckets": lambda n: ps.Category(n),
    "initial_epoch": lambda n: _model().fit(TABLE, initial_epoch=n, verbose=0),
}
RATES: dict[str, Callable[[Any], Any]] = {
    **{
        f"learning_rate of {name}": lambda x, name=name: getattr(ps.optimizers, name)(x)
        for name in ("SGD", "Momentum", "Adagrad", "RowWiseAdagrad", "RMSprop", "Adam", "Ftrl")
    },
    "l2": lambda x: ps.optimizers.SGD(l2=x),
    "clipvalue": lambda x: ps.optimizers.SGD(clipvalue=x),
    "clipnorm": lambda x: ps.optimizers.SGD(clipnorm=x),
    "global_clipnorm": lambda x: ps.optimizers.SGD(global_clipnorm=x),
    "momentum": lambda x: ps.optimizers.Momentum(momentum=x),
    "rho": lambda x: ps.optimizers.RMSprop(rho=x),
    "epsilon": lambda x: ps.optimizers.Adam(epsilon=x),
    "beta_1": lambda x: ps.optimizers.Adam(beta_1=x),
    "beta_2": lambda x: ps.optimizers.Adam(beta_2=x),
    "initial_accumulator_value": lambda x: ps.optimizers.Adagrad(initial_accumulator_value=x),
    "l1_regularization_strength": lambda x: ps.optimizers.Ftrl(l1_regularization_strength=x),
    "each of values": lambda x: schedules.PiecewiseConstantDecay([1], [0.1, x]),
    "decay_steps": lambda x: schedules.CosineDecay(0.1, x),
    "threshold": lambda x: ps.metrics.Accuracy(threshold=x),
    "min_interval_secs": lambda x: ps.SidecarEvaluator(None, None, "c", min_interval_secs=x),
    "request_timeout_s": lambda x: ParameterConfig(request_timeout_s=x),
    "keep_checkpoint_every_n_hours": lambda x: ps.callbacks.Checkpoint(
        "c", keep_checkpoint_every_n_hours=x
    ),
    "timeout_s": lambda x: ds.distribute(OFF, "a:1", timeout_s=x),
}
ANY_NUMBERS: dict[str, Callable[[Any], Any]] = {
    "learning_rate": lambda x: ps.optimizers.SGD(x),
    "epsilon": lambda x: ps.optimizers.Adagrad(epsilon=x),
    "initial_learning_rate": lambda x: schedules.ExponentialDecay(x, 10, 0.5),
    "decay_rate": lambda x: schedules.InverseTimeDecay(0.1, 10, x),
    "power": lambda x: schedules.PolynomialDecay(0.1, 10, power=x),
    "alpha": lambda x: schedules.CosineDecay(0.1, 10, alpha=x),
    "learning_rate_power": lambda x: ps.optimizers.Ftrl(learning_rate_power=x),
    "min_delta": lambda x: ps.callbacks.EarlyStopping(min_delta=x),
}


def _model() -> Any:
    model = ps.models.LogisticRegression(SCHEMA)
    model.compile("sgd")
    return model


def _assert_refused(make: Callable[[Any], Any], name: str, value: Any) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        make(value)
    assert name.split(" of ")[0].strip() in str(caught.value)
    assert str(value) in str(caught.value)


@pytest.mark.parametrize("name", SIZES)
def test_size_other_than_positive_integer_is_refused(name: str) -> None:
    for value in (0, -3, True, 1.5):
        _assert_refused(SIZES[name], name.removeprefix("each of "), value)


@pytest.mark.parametrize("name", COUNTS)
def test_count_other_than_non_negative_integer_is_refused(name: str) -> None:
    for value in (-3, True, 1.5):
        _assert_refused(COUNTS[name], name, value)


@pytest.mark.parametrize("name", RATES)
def test_rate_other_than_finite_non_negative_number_is_refused(name: str) -> None:
    for value in (-0.5, float("nan"), True, "fast"):
        _assert_refused(RATES[name], name, value)


@pytest.mark.parametrize("name", ANY_NUMBERS)
def test_number_that_is_not_finite_is_refused(name: str) -> None:
    for value in (float("nan"), float("inf"), "fast"):
        _assert_refused(ANY_NUMBERS[name], name, value)


@pytest.mark.parametrize("name", sorted({*RATES, *ANY_NUMBERS} - {"timeout_s"}))
def test_number_beyond_those_of_floats_is_refused(name: str) -> None:
    for value in (10**400, -(10**5000)):
        with pytest.raises(InvalidArgumentError, match=r"at most 1\.8e") as caught:
            (RATES | ANY_NUMBERS)[name](value)
        assert name.split(" of ")[0] in str(caught.value)


def test_huge_limit_of_a_wait_is_the_longest_there_is() -> None:
    assert limit_s(1e300) == threading.TIMEOUT_MAX
    assert limit_s(10**400) is None
    assert checked_timeout_s(10**400) == math.inf
    with pytest.raises(InvalidArgumentError, match="timeout must be seconds from 0 on"):
        limit_s(-(10**400))
    with pytest.raises(InvalidArgumentError, match="timeout_s must be positive"):
        checked_timeout_s(-(10**400))


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_limit_may_be_of_a_narrow_type(dtype: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert limit_s(dtype(5)) == checked_timeout_s(dtype(5)) == 5.0


def test_numpy_numbers_are_accepted() -> None:
    assert ps.models.WideDeep(SCHEMA, dim=np.int64(4), hidden=np.array([8, 4])).dim == 4
    assert ps.layers.Embedding(np.array([3, 4]), np.int32(2)).vocabulary_sizes == (3, 4)
    assert ps.layers.Embedding(np.int64(3), 2).vocabulary_sizes == (3,)
    assert ps.optimizers.SGD(np.float32(0.5)).learning_rate == 0.5


@pytest.mark.parametrize("hidden", [8, "64"])
def test_sizes_other_than_sequence_are_refused(hidden: Any) -> None:
    with pytest.raises(InvalidTypeError, match=f"WideDeep: hidden must be a seq.*got {hidden!r}"):
        ps.models.WideDeep(SCHEMA, hidden=hidden)


def test_negative_counts_of_checkpoint_manager_are_refused(tmp_path: Path) -> None:
    for name in ("max_to_keep", "checkpoint_interval", "keep_checkpoint_every_n_hours"):
        _assert_refused(lambda n, name=name: _manager(tmp_path, **{name: n}), name, -3)


def _manager(directory: Path, **options: Any) -> Any:
    return ps.CheckpointManager(Checkpoint(model=_model()), directory, **options)
