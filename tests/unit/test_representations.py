"""Representations of public objects, made without a request to any server."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dataservice as ds
import pstrain as ps


def _model() -> Any:
    schema = ps.FeatureSchema(dense=["x"], categorical={"c": ps.Category(16)}, label="y")
    return ps.models.LogisticRegression(schema)


NO_CLUSTER = ps.SimpleClusterResolver(ps.ClusterSpec({}))
SPEC = {"worker": ["h:1", "h:2"], "ps": ["h:3"]}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (ps.SimpleClusterResolver(ps.ClusterSpec({"ps": ["h:3"]})), "Resolver ClusterSpec({'ps':"),
        (ps.SimpleClusterResolver(ps.ClusterSpec(SPEC), "", "worker", 1), "worker:1 of ClusterSp"),
        (ps.partitioners.FixedShardsPartitioner(2), "FixedShardsPartitioner(num_shards=2)"),
        (ps.partitioners.MaxSizePartitioner(8), "max_shard_bytes=8, max_shards=None"),
        (ps.optimizers.Adagrad(0.02), "<Adagrad learning_rate=0.02>"),
        (
            ps.optimizers.SGD(ps.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)),
            "learning_rate=ExponentialDecay(",
        ),
        (ps.metrics.AUC(), "<AUC 'auc'>"),
        (
            ps.losses.BinaryCrossentropy(),
            "BinaryCrossentropy(from_logits=False, reduction='mean')",
        ),
        (ps.layers.Dense(3), "<Dense 'dense' not built>"),
        (ps.layers.Dense(3, input_size=2), "<Dense 'dense' (2, 3), (3,)>"),
        (ps.layers.StringLookup(), "<StringLookup no vocabulary>"),
        (ps.layers.StringLookup(vocabulary=["a", "b"]), "<StringLookup 2 tokens>"),
        (ps.Checkpoint(v=ps.Variable(1.0), w=ps.Variable(2)), "<Checkpoint of v, w>"),
        (
            ps.CheckpointManager(ps.Checkpoint(v=ps.Variable(1.0)), "dir"),
            "<CheckpointManager 'dir' of <Checkpoint of v>>",
        ),
        (ps.callbacks.EarlyStopping(), "<EarlyStopping>"),
        (
            ps.SidecarEvaluator(_model(), {"page": [0]}, "dir"),
            "<SidecarEvaluator of 'dir', 0 evaluations of <LogisticRegression",
        ),
        (iter(ds.Dataset.range(3).batch(2)), "<DatasetIterator of range > batch, epoch 0>"),
        (ds.Dataset.range(3).numpy(), "<elements of <DatasetIterator of range, epoch 0>>"),
        (ps.GradientTape(), "<GradientTape of 0 operations, 0 reads>"),
        (ps.v1.ParameterServerStrategy(NO_CLUSTER), "<v1.ParameterServerStrategy by <SimpleCl"),
        (
            ps.v1.ParameterServerStrategy(NO_CLUSTER).session(),
            "<TrainingSession of 0 steps on <v1.ParameterServerStrategy",
        ),
    ],
)
def test_public_object_has_expected_repr(value: Any, text: str) -> None:
    assert text in repr(value)


def test_model_repr_names_columns_and_size() -> None:
    assert repr(_model()) == "<LogisticRegression 1 dense, 1 categorical columns, 19 values>"


def test_repr_of_closed_iterator_says_closed() -> None:
    with iter(ds.Dataset.from_numpy({"a": np.arange(3)})) as iterator:
        assert "closed" not in repr(iterator)
    assert repr(iterator).endswith(", closed>")


def test_monitor_repr_tells_its_state() -> None:
    monitor = ds.MonitorServer("h:1", start=False)
    assert repr(monitor) == "<MonitorServer not started>"
    monitor.stop()
    assert repr(monitor) == "<MonitorServer, stopped>"


def test_torch_dataset_repr_shows_the_dataset() -> None:
    pytest.importorskip("torch")
    assert repr(ds.Dataset.range(3).torch()) == "<TorchDataset of Dataset(range)>"


def test_gradients_repr_names_variables() -> None:
    model = _model()
    batch = {"x": np.ones(4), "c": np.arange(4), "y": np.ones(4)}
    with ps.GradientTape() as tape:
        loss = model.loss(batch)
    assert repr(tape) != "<GradientTape of 0 operations, 0 reads>"
    names = repr(tape.gradients(loss))
    assert names.startswith("<Gradients of '")
    assert len(names) < 200
