"""The tasks of a LocalCluster, by role and index."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import pstrain as ps
from pstrain.errors import FailedPreconditionError
from pstrain.launch import local


@pytest.mark.parametrize(
    ("role", "index", "named"),
    [("trainer", 0, "trainer:0"), ("worker", 2, "worker:2"), ("worker", "0", "worker:'0'")],
)
@pytest.mark.parametrize("action", ["kill", "restart", "suspend", "resume"])
def test_unknown_task_is_refused_naming_those_that_there_are(
    action: str, role: str, index: Any, named: str
) -> None:
    cluster: Any = object.__new__(ps.LocalCluster)
    cluster._changing, cluster._closing = threading.Lock(), threading.Event()
    cluster._tasks = {("ps", 0): None, ("worker", 0): None}
    with pytest.raises(KeyError, match=f"no {named} in this cluster; it has ps:0, worker:0"):
        getattr(cluster, action)(role, index)


@pytest.mark.parametrize(
    ("names", "data_workers"),
    [
        (["PSTRAIN_TLS_CA"], 0),
        (["DATASERVICE_TLS_CA"], 1),
        (["PSTRAIN_TLS_CA", "DATASERVICE_TLS_CA"], 1),
    ],
)
def test_cluster_refuses_an_environment_that_asks_for_tls_before_it_starts_anything(
    names: list[str], data_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "spawn_module", lambda *_, **__: pytest.fail("started a process"))
    for name in ("PSTRAIN_TLS_CERT", "PSTRAIN_TLS_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name in names:
        monkeypatch.setenv(name, "ca.pem")
    with pytest.raises(FailedPreconditionError, match=f"env -u {' -u '.join(names)} "):
        ps.LocalCluster(1, 1, data_workers)


@pytest.mark.parametrize(
    ("names", "data_workers"),
    [
        (["DATASERVICE_TLS_CA"], 0),  # of a data service that is not the cluster's
        (["PSTRAIN_TLS_CA", "PSTRAIN_TLS_CERT", "PSTRAIN_TLS_KEY"], 1),
    ],
)
def test_cluster_may_be_in_an_environment_where_clients_and_their_servers_use_tls(
    names: list[str], data_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PSTRAIN_TLS_CA", "DATASERVICE_TLS_CA"):
        monkeypatch.delenv(name, raising=False)
    for name in names:
        monkeypatch.setenv(name, "some.pem")
    begun = []
    monkeypatch.setattr(ps.LocalCluster, "_start", lambda _, *counts: begun.append(counts))
    ps.LocalCluster(2, 1, data_workers).close()
    assert begun == [(2, 1, data_workers)]
