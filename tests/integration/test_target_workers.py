"""Readers that read from workers on their own host only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import dataservice as ds
from dataservice.errors import FailedPreconditionError, UnavailableError
from tests.integration.service_cluster import LocalService, local_service, read_ids

OFF, DYNAMIC, DATA = ds.ShardingPolicy.OFF, ds.ShardingPolicy.DYNAMIC, ds.ShardingPolicy.DATA


@contextmanager
def two_hosts(
    monkeypatch: pytest.MonkeyPatch, *, local: int, elsewhere: int, **settings: object
) -> Iterator[LocalService]:
    """Runs a service with workers on this host, and others that claim to be on another host."""
    config = ds.DispatcherConfig(**settings)
    with local_service(workers=local, config=config) as service:
        with monkeypatch.context() as patched:
            patched.setattr(
                "dataservice.worker.dispatcher_link.host_identity", lambda: "boot:another"
            )
            for _ in range(elsewhere):
                service.add_worker()
        yield service


def rows_of(worker: ds.WorkerServer) -> int:
    assert worker._service is not None
    return worker._service.load()[0]


def test_dynamic_windows_come_from_local_workers_only(monkeypatch: pytest.MonkeyPatch) -> None:
    with two_hosts(monkeypatch, local=1, elsewhere=1) as service:
        dataset = ds.Dataset.range(5_000).batch(10)
        remote = dataset.distribute(DYNAMIC, service.target, target_workers="local")
        assert sorted(read_ids(remote)) == list(range(5_000))
        assert [rows_of(worker) for worker in service.workers] == [5_000, 0]
        assert sorted(read_ids(dataset.distribute(DYNAMIC, service.target))) == list(range(5_000))


def test_off_policy_reads_a_copy_from_each_targeted_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    with two_hosts(monkeypatch, local=2, elsewhere=1) as service:
        for target, copies in (("LOCAL", 2), ("ANY", 3), ("AUTO", 3)):
            remote = ds.Dataset.range(100).distribute(OFF, service.target, target_workers=target)
            assert Counter(read_ids(remote)) == dict.fromkeys(range(100), copies)


@pytest.mark.parametrize("policy", [OFF, DYNAMIC])
def test_local_read_without_local_worker_is_an_error(
    monkeypatch: pytest.MonkeyPatch, policy: ds.ShardingPolicy
) -> None:
    with two_hosts(monkeypatch, local=0, elsewhere=1) as service:
        remote = ds.Dataset.range(100).distribute(
            policy, service.target, target_workers="LOCAL", timeout_s=2.0
        )
        with pytest.raises(UnavailableError, match=r"Local reads require local.*none on host \S+"):
            read_ids(remote)


def test_local_read_of_static_shard_on_another_host_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    places = ("127.0.0.1:%port%",) * 2
    with two_hosts(monkeypatch, local=1, elsewhere=1, worker_addresses=places) as service:
        remote = ds.Dataset.range(100).distribute(DATA, service.target, target_workers="LOCAL")
        with pytest.raises(FailedPreconditionError, match="on another host"):
            read_ids(remote)
    with two_hosts(monkeypatch, local=2, elsewhere=0, worker_addresses=places) as service:
        remote = ds.Dataset.range(100).distribute(DATA, service.target, target_workers="LOCAL")
        assert sorted(read_ids(remote)) == list(range(100))
