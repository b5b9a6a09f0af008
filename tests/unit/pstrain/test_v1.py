"""The V1 strategy where it needs no cluster: places, arguments, and training without servers."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest

import dataservice as ds
import pstrain as ps
from pstrain.v1.strategy import _worker_index_and_count

CLUSTER: dict[str, Any] = {"worker": ["a:1", "b:1"], "ps": ["c:1"]}


def resolver(cluster: Any, task: str | None, index: int | None) -> ps.SimpleClusterResolver:
    return ps.SimpleClusterResolver(ps.ClusterSpec(cluster), "", task, index)


@pytest.mark.parametrize(
    ("cluster", "task", "expected"),
    [
        (CLUSTER, ("worker", 0), (0, 2)),
        (CLUSTER, ("worker", 1), (1, 2)),
        ({**CLUSTER, "chief": ["d:1"]}, ("worker", 0), (1, 3)),
        ({**CLUSTER, "worker": {2: "a:1", 7: "b:1"}}, ("worker", 7), (1, 2)),
        ({**CLUSTER, "chief": ["d:1"], "evaluator": ["e:1"]}, ("chief", 0), (0, 3)),
        ({}, (None, None), (0, 1)),
    ],
)
def test_worker_index_and_count_follow_cluster(
    cluster: Any, task: Any, expected: tuple[int, int]
) -> None:
    found = resolver(cluster, *task)
    assert _worker_index_and_count(found, found.cluster_spec()) == expected


@pytest.mark.parametrize(
    ("cluster", "task", "message"),
    [
        ({"worker": ["a:1"]}, ("worker", 0), "'ps'"),
        ({**CLUSTER, "boss": ["a:1"]}, ("worker", 0), "unknown jobs"),
        (CLUSTER, (None, None), "which task"),
        (CLUSTER, (None, 0), "which task"),
        (CLUSTER, ("worker", None), "which task"),
        (CLUSTER, ("ps", 0), "does not train"),
        (CLUSTER, ("worker", 2), "not in the cluster"),
        ({**CLUSTER, "chief": ["d:1", "e:1"]}, ("chief", 1), "one chief"),
    ],
)
def test_v1_strategy_refuses_invalid_cluster_or_task(cluster: Any, task: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ps.v1.ParameterServerStrategy(resolver(cluster, *task))


def test_v1_strategy_without_cluster_runs_in_this_process(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_CONFIG", json.dumps({}))
    strategy = ps.v1.ParameterServerStrategy()
    assert strategy.is_chief
    assert strategy.extended.should_checkpoint
    assert strategy.num_replicas_in_sync == 1
    with strategy.scope():
        assert ps.get_strategy() is strategy
        weight = ps.Variable(1.0, name="w")
    manager = ps.CheckpointManager(ps.Checkpoint(w=weight), tmp_path, 2)
    with strategy.session(manager, save_every_s=None, save_every_steps=2) as session:
        for _ in range(5):
            session.run(weight.assign_add, (1.0,))
    assert (float(weight), session.steps, len(manager.checkpoints)) == (6.0, 5, 2)
    with strategy.session(manager) as session:
        assert session.restored_from == str(tmp_path / "ckpt-3")
    assert strategy.run(ps.get_current_worker_index) == 0
    assert strategy.call_for_each_replica(lambda a, b: a + b, (1,), {"b": 2}) == 3
    with pytest.raises(ValueError, match="args"):
        strategy.run(print, 3)  # type: ignore[arg-type]
    seen = strategy.distribute_datasets_from_function(
        lambda context: (context.num_input_pipelines, context.input_pipeline_id)
    )
    assert seen == (1, 0)
    data = strategy.experimental_distribute_dataset(ds.Dataset.range(10).batch(5))
    assert [len(batch) for batch in data] == [5, 5]


def test_session_waits_for_its_last_checkpoint(tmp_path: pathlib.Path) -> None:
    class Manager(ps.CheckpointManager):
        def wait(self, timeout: float | None = None) -> None:
            super().wait(timeout)
            there.append(self.latest_checkpoint)

    there: list[str | None] = []
    manager = Manager(ps.Checkpoint(w=ps.Variable(1.0)), tmp_path, asynchronous=True)
    with ps.v1.ParameterServerStrategy(resolver({}, None, None)).session(manager):
        pass
    assert there == [str(tmp_path / "ckpt-1")]


def test_fit_in_v1_session_runs_in_the_worker() -> None:
    strategy = ps.v1.ParameterServerStrategy(resolver({}, None, None))
    with strategy.scope():
        model = ps.models.LogisticRegression(
            ps.FeatureSchema(categorical={"page": ps.Category(4, hashed=False)})
        )
        model.compile(ps.optimizers.Adagrad(0.5))
    page = np.arange(100) % 4
    best = ps.callbacks.EarlyStopping("loss", restore_best_weights=True)
    with strategy.session() as session:
        history = model.fit(
            {"page": page, "label": page % 2}, 2, batch_size=20, callbacks=[best], verbose=0
        )
        with pytest.raises(RuntimeError, match="another session"), strategy.session():
            pass
    assert session.steps == 10
    assert history.history["loss"][1] < history.history["loss"][0]
    with pytest.raises(ValueError, match="ParameterServerStrategy"):
        ps.ClusterCoordinator(strategy)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"checkpoint_manager": "ckpt/"}, TypeError),
        ({"init_fn": 3}, TypeError),
        ({"save_every_s": 0}, ValueError),
        ({"save_every_s": "often"}, TypeError),
        ({"save_every_steps": 0}, ValueError),
        ({"save_every_steps": 1.5}, TypeError),
        ({"worker_timeout_s": -1}, ValueError),
    ],
)
def test_invalid_session_arguments_are_refused_by_name(
    arguments: Any, error: type[Exception]
) -> None:
    with pytest.raises(error, match=next(iter(arguments))):
        ps.v1.ParameterServerStrategy().session(**arguments)


def test_v1_strategy_refuses_non_resolver_and_non_dataset_values() -> None:
    with pytest.raises(TypeError, match="SimpleClusterResolver"):
        ps.v1.ParameterServerStrategy(CLUSTER)  # type: ignore[arg-type]
    strategy = ps.v1.ParameterServerStrategy()
    with pytest.raises(TypeError, match="must return a Dataset"):
        strategy.experimental_distribute_datasets_from_function(lambda _: 3)
    with pytest.raises(ValueError, match="needs a function"):
        strategy.distribute_datasets_from_function(3)  # type: ignore[arg-type]


def test_coordinator_refuses_v1_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with pytest.raises(ValueError, match=r"got pstrain\.v1\..*strategy\.session\(\)"):
        ps.ClusterCoordinator(ps.v1.ParameterServerStrategy())  # type: ignore[arg-type]


def test_strategy_scope_is_reentrant_and_reusable() -> None:
    strategy, other = ps.v1.ParameterServerStrategy(), ps.v1.ParameterServerStrategy()
    scope = strategy.scope()
    for _ in range(2):
        with scope as outer, scope as inner:
            assert outer is inner is ps.get_strategy() is strategy
            with pytest.raises(RuntimeError, match="another strategy"), other.scope():
                pass
        assert not ps.has_strategy()
    made = scope(lambda: ps.Variable(1.0))()
    assert strategy.extended.variable_created_in_scope(made)


def test_colocated_variables_belong_to_same_strategy() -> None:
    strategy = ps.v1.ParameterServerStrategy()
    with strategy.scope():
        variable = ps.Variable(1.0)
    with strategy.extended.colocate_vars_with(variable):
        beside = ps.Variable(2.0)
    assert strategy.extended.variable_created_in_scope(beside)
    other = ps.Variable(3.0)
    with (
        pytest.raises(ValueError, match="was not made in"),
        strategy.extended.colocate_vars_with(other),
    ):
        pass
