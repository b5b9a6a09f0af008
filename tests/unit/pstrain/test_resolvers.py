"""Clusters from several resolvers, and from the environments of Slurm and Kubernetes."""

from __future__ import annotations

import os
import types
from typing import Any

import pytest

import pstrain as ps
from pstrain.resolvers.slurm import expand_hostlist, expand_tasks_per_node


def simple(cluster: dict[str, Any], **options: Any) -> ps.SimpleClusterResolver:
    return ps.SimpleClusterResolver(ps.ClusterSpec(cluster), **options)


def test_union_resolver_joins_task_lists_and_merges_numbered_tasks() -> None:
    union = ps.UnionResolver(
        simple({"worker": ["a:1"], "ps": ["p:1"]}, task_type="ps", task_id=1, rpc_layer="grpc"),
        simple({"worker": ["b:1", "c:1"]}),
        simple({"ps": {3: "q:1"}}),
    )
    assert union.cluster_spec().as_dict() == {
        "worker": ["a:1", "b:1", "c:1"],
        "ps": {0: "p:1", 3: "q:1"},
    }
    assert (union.task_type, union.task_id, union.rpc_layer) == ("ps", 1, "grpc")
    assert union.master("worker", 2) == "grpc://c:1"


def test_union_resolver_accepts_task_id_zero() -> None:
    union = ps.UnionResolver(simple({"worker": ["a:1"]}, task_type="ps", task_id=5), task_id=0)
    assert (union.task_type, union.task_id) == ("ps", 0)


def test_union_resolver_refuses_invalid_or_clashing_resolvers() -> None:
    with pytest.raises(ValueError, match="at least one"):
        ps.UnionResolver()
    with pytest.raises(TypeError, match="str"):
        ps.UnionResolver("a:1")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="rank"):
        ps.UnionResolver(simple({}), rank=1)
    clash = ps.UnionResolver(simple({"ps": {2: "a:1"}}), simple({"ps": {2: "b:1"}}))
    with pytest.raises(KeyError, match=r"\[2\]"):
        clash.cluster_spec()


def slurm(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"SLURM_{name}", value)


def test_slurm_resolver_assigns_step_tasks_to_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm(
        monkeypatch,
        PROCID="3",
        STEP_NUM_TASKS="5",
        STEP_NODELIST="t02n13,t02n41,t02n43",
        STEP_TASKS_PER_NODE="2(x2),1",
    )
    resolver = ps.SlurmClusterResolver({"worker": 2, "ps": 2, "chief": 1})
    assert resolver.cluster_spec().as_dict() == {
        "chief": ["t02n13:8888"],
        "ps": ["t02n13:8889", "t02n41:8888"],
        "worker": ["t02n41:8889", "t02n43:8888"],
    }
    assert resolver.get_task_info() == ("worker", 0)
    assert resolver.master() == "grpc://t02n41:8889"
    assert ps.SlurmClusterResolver(port_base=9).cluster_spec().num_tasks("worker") == 5


def test_slurm_resolver_keeps_nodes_in_rank_order(monkeypatch: pytest.MonkeyPatch) -> None:
    slurm(monkeypatch, PROCID="1", STEP_NODELIST="n[9-11]")
    resolver = ps.SlurmClusterResolver({"worker": 3}, tasks_per_node=1, port_base=1)
    assert resolver.cluster_spec().job_tasks("worker") == ["n9:1", "n10:1", "n11:1"]
    assert resolver.master() == "grpc://n10:1"


def test_slurm_resolver_assigns_gpus_to_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    slurm(monkeypatch, PROCID="3")
    nodes = {"a": 2, "b": 2}
    slurms = ps.SlurmClusterResolver({"worker": 4}, gpus_per_node=4, tasks_per_node=nodes)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "2,3"
    for resolver in (slurms, ps.UnionResolver(slurms)):
        assert resolver.num_accelerators("worker", 0, config_proto=None) == {"GPU": 2}
    with pytest.raises(RuntimeError, match="do not fit"):
        ps.SlurmClusterResolver(
            {"worker": 4}, gpus_per_node=4, gpus_per_task=3, tasks_per_node={"a": 2, "b": 2}
        )


def test_slurm_resolver_error_names_missing_variable_or_tasks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SLURM_PROCID", raising=False)
    with pytest.raises(RuntimeError, match="SLURM_PROCID"):
        ps.SlurmClusterResolver()
    slurm(monkeypatch, PROCID="0", STEP_NODELIST="a,b", STEP_TASKS_PER_NODE="1(x2)")
    with pytest.raises(RuntimeError, match="3 tasks"):
        ps.SlurmClusterResolver({"worker": 3})


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n1", ["n1"]),
        ("n[1-3,07],m2", ["n1", "n2", "n3", "n07", "m2"]),
        ("r[08-10]x", ["r08x", "r09x", "r10x"]),
        ("r[1-2]n[3-4]", ["r1n3", "r1n4", "r2n3", "r2n4"]),
    ],
)
def test_slurm_host_lists_are_expanded(text: str, hosts: list[str]) -> None:
    assert expand_hostlist(text) == hosts


@pytest.mark.parametrize("text", ["n[1-", "n[a-b]", "n]1[", ""])
def test_malformed_slurm_host_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="host list"):
        expand_hostlist(text)


def test_slurm_tasks_per_node_are_expanded() -> None:
    assert expand_tasks_per_node("3(x2),2,1") == [3, 3, 2, 1]
    with pytest.raises(ValueError, match="tasks per node"):
        expand_tasks_per_node("3x2")


def test_kubernetes_resolver_names_pods_of_stateful_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POD_NAMESPACE", "ml")
    monkeypatch.setenv("POD_NAME", "train-ps-1")
    resolver = ps.KubernetesClusterResolver.from_stateful_sets(
        {"chief": 1, "worker": 2, "ps": ("train-ps", 2)}, service="train", port=9000
    )
    assert resolver.cluster_spec().as_dict() == {
        "chief": ["chief-0.train.ml.svc.cluster.local:9000"],
        "worker": [f"worker-{i}.train.ml.svc.cluster.local:9000" for i in range(2)],
        "ps": [f"train-ps-{i}.train.ml.svc.cluster.local:9000" for i in range(2)],
    }
    assert (resolver.task_type, resolver.task_id) == ("ps", 1)


def test_kubernetes_resolver_accepts_override_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POD_NAME", raising=False)
    monkeypatch.delenv("HOSTNAME", raising=False)
    pod = types.SimpleNamespace(
        metadata=types.SimpleNamespace(name="a"),
        status=types.SimpleNamespace(phase="Running", host_ip="10.1.2.3"),
    )
    client = types.SimpleNamespace(
        list_pod_for_all_namespaces=lambda label_selector: types.SimpleNamespace(
            items=[pod] if label_selector == "job-name=tensorflow" else []
        )
    )
    resolver = ps.KubernetesClusterResolver(override_client=client)
    assert resolver.cluster_spec().as_dict() == {"worker": ["10.1.2.3:8470"]}
    assert resolver.master("worker", 0) == "grpc://10.1.2.3:8470"
    assert resolver.master() == ""


@pytest.mark.parametrize(
    ("variables", "arguments", "message"),
    [
        ({"PROCID": "x"}, {}, "SLURM_PROCID"),
        ({"PROCID": "3"}, {}, "SLURM_PROCID is 3"),
        ({}, {"jobs": {"worker": 4, "ps": -1}}, "0 or more"),
        ({}, {"jobs": {"worker": "3"}}, "integers"),
        ({}, {"jobs": ["worker"]}, "jobs is a dict"),
        ({}, {"tasks_per_node": "1"}, "integers"),
        ({}, {"port_base": 65535}, "port_base"),
        ({}, {"gpus_per_node": -1}, "negative"),
    ],
)
def test_slurm_resolver_refuses_invalid_variables_and_arguments(
    monkeypatch: pytest.MonkeyPatch, variables: Any, arguments: Any, message: str
) -> None:
    step = {"STEP_NUM_TASKS": "3", "STEP_NODELIST": "n[1-3]", "STEP_TASKS_PER_NODE": "1(x3)"}
    slurm(monkeypatch, **{"PROCID": "0", **step, **variables})
    with pytest.raises((ValueError, TypeError, RuntimeError), match=message) as caught:
        ps.SlurmClusterResolver(**arguments)
    assert isinstance(caught.value, ps.errors.DataServiceError)


@pytest.mark.parametrize("replicas", [-1, "2", ("name", None)])
def test_invalid_stateful_set_replicas_are_refused(replicas: Any) -> None:
    with pytest.raises(ValueError, match="replicas"):
        ps.KubernetesClusterResolver.from_stateful_sets(
            {"worker": replicas}, service="s", namespace="n"
        )


@pytest.mark.parametrize("labels", [["role=worker"], {"worker": "role=worker"}])
def test_invalid_job_to_label_mapping_is_refused(labels: Any) -> None:
    with pytest.raises(TypeError, match="job_to_label_mapping"):
        ps.KubernetesClusterResolver(labels)
