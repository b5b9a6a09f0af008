"""Cluster specs and resolvers: tasks with gaps, TF_CONFIG, clusters that cannot train."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pstrain.cluster import (
    ClusterSpec,
    SimpleClusterResolver,
    check_training_cluster,
)
from pstrain.resolvers.tf_config import TFConfigClusterResolver

CLUSTER: dict[str, Any] = {"worker": ["a:1", "b:2"], "ps": ["c:3"], "chief": ["d:4"]}


def test_cluster_spec_lists_jobs_tasks_and_addresses() -> None:
    spec = ClusterSpec(CLUSTER)
    assert spec.jobs == ["chief", "ps", "worker"]
    assert spec.num_tasks("worker") == 2
    assert spec.task_address("worker", 1) == "b:2"
    assert spec.as_dict() == CLUSTER
    assert ClusterSpec(spec) == spec


def test_cluster_spec_supports_gaps_in_task_numbers() -> None:
    spec = ClusterSpec({"worker": {0: "a:1", 2: "b:2"}})
    assert spec.task_indices("worker") == [0, 2]
    assert spec.job_tasks("worker") == ["a:1", None, "b:2"]
    assert spec.as_dict() == {"worker": {0: "a:1", 2: "b:2"}}
    assert ClusterSpec(spec.as_cluster_def()) == spec


@pytest.mark.parametrize("bad", [["a:1"], {"worker": "a:1"}, {1: ["a:1"]}, {"worker": [1]}])
def test_cluster_spec_of_wrong_types_raises_type_error(bad: Any) -> None:
    with pytest.raises(TypeError):
        ClusterSpec(bad)


def test_unknown_job_or_task_raises_value_error() -> None:
    spec = ClusterSpec(CLUSTER)
    with pytest.raises(ValueError, match="no job 'evaluator'"):
        spec.num_tasks("evaluator")
    with pytest.raises(ValueError, match="no task 7"):
        spec.task_address("worker", 7)


def test_tf_config_names_cluster_and_task(monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"cluster": CLUSTER, "task": {"type": "worker", "index": "1"}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    resolver = TFConfigClusterResolver()
    assert (resolver.task_type, resolver.task_id) == ("worker", 1)
    assert resolver.master() == "b:2"
    assert TFConfigClusterResolver(task_type="ps", task_id=0).master() == "c:3"


def test_missing_tf_config_gives_empty_cluster() -> None:
    resolver = TFConfigClusterResolver()
    assert not resolver.cluster_spec()
    assert resolver.master() == ""


@pytest.mark.parametrize(
    "text", ["{", "[1]", '{"task": {"index": "x"}}', '{"task": {"type": "ps", "index": -1}}']
)
def test_malformed_tf_config_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(ValueError, match="TF_CONFIG"):
        TFConfigClusterResolver()


def test_simple_resolver_refuses_plain_dict() -> None:
    with pytest.raises(TypeError, match="ClusterSpec"):
        SimpleClusterResolver({"worker": ["a:1"]})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cluster", "task", "message"),
    [
        ({}, (None, None), "empty"),
        ({**CLUSTER, "boss": ["x:1"]}, (None, None), "unknown jobs"),
        ({**CLUSTER, "chief": ["x:1", "y:1"]}, (None, None), "at most one chief"),
        ({**CLUSTER, "evaluator": ["x:1", "y:1"]}, (None, None), "at most one evaluator"),
        ({"worker": ["a:1"]}, (None, None), "at least one 'ps'"),
        ({"worker": ["a:1"], "ps": []}, (None, None), "at least one 'ps'"),
        ({"ps": ["a:1"]}, (None, None), "at least one 'worker'"),
        (CLUSTER, ("boss", 0), "unknown task_type"),
        (
            {"worker": ["a:1"], "ps": ["b:1"]},
            ("chief", 0),
            "task_type .chief. is not in the cluster .*: add the job, or leave out task_type",
        ),
        (CLUSTER, ("worker", 2), r"there is no task_id 2: job 'worker' has tasks \[0, 1\]"),
        ({**CLUSTER, "ps": {0: "c:3", 3: "d:3"}}, ("ps", 1), r"no task_id 1: .* \[0, 3\]"),
        ({**CLUSTER, "ps": ["c"]}, (None, None), "'c' is not of the form HOST:PORT"),
        ({**CLUSTER, "ps": ["c:0"]}, (None, None), "ps:0 has no port"),
        ({**CLUSTER, "worker": ["a:x"]}, (None, None), "'a:x' has port 'x'"),
        ({**CLUSTER, "worker": ["a:1", "a:1"]}, (None, None), "worker:0 and worker:1 .* 'a:1'"),
        ({**CLUSTER, "worker": ["a:1"], "ps": ["a:1"]}, (None, None), "worker:0 and ps:0 are"),
    ],
)
def test_invalid_training_cluster_is_refused(cluster: Any, task: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_training_cluster(ClusterSpec(cluster), *task)


def test_task_of_job_with_gaps_is_checked_by_its_number() -> None:
    check_training_cluster(ClusterSpec({**CLUSTER, "ps": {0: "c:3", 3: "d:3"}}), "ps", 3)


def test_evaluator_is_accepted_beside_training_cluster() -> None:
    check_training_cluster(ClusterSpec({**CLUSTER, "evaluator": ["e:5"]}), "chief", 0)
    check_training_cluster(ClusterSpec(CLUSTER), "evaluator", 0)


def test_master_follows_tensorflow_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    simple = SimpleClusterResolver(ClusterSpec(CLUSTER), "m:1", "worker", 0, rpc_layer="grpc")
    assert simple.master() == "grpc://m:1"
    assert simple.master("ps", 0) == "grpc://c:3"
    assert SimpleClusterResolver(ClusterSpec(CLUSTER), "", "worker", 0).master() == ""
    one = {"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(one))
    assert TFConfigClusterResolver().master() == ""
    monkeypatch.setenv("TF_CONFIG", json.dumps({**one, "session_master": "s:1"}))
    assert TFConfigClusterResolver().master() == "s:1"
    with pytest.raises(TypeError, match="master"):
        SimpleClusterResolver(ClusterSpec(CLUSTER), master=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"task": 3}', TypeError),
        ('{"task": null}', TypeError),
        ('{"task": {"type": "worker", "index": -1}}', ValueError),
    ],
)
def test_invalid_task_in_tf_config_is_refused(
    monkeypatch: pytest.MonkeyPatch, text: str, error: type[Exception]
) -> None:
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(error, match="task"):
        TFConfigClusterResolver()


def test_tf_config_supports_gaps_in_task_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"worker": {"0": "a:1", "3": "b:1"}}}')
    assert TFConfigClusterResolver().cluster_spec().as_dict() == {"worker": {0: "a:1", 3: "b:1"}}


@pytest.mark.parametrize("wrong", [{"environment": 3}, {"rpc_layer": 3}, {"num_accelerators": "G"}])
def test_simple_resolver_refuses_arguments_of_wrong_type(wrong: Any) -> None:
    with pytest.raises(TypeError, match=next(iter(wrong))):
        SimpleClusterResolver(ClusterSpec(CLUSTER), **wrong)
