"""Static sharding on real servers: worker lists, shares, missing and restarted workers."""

from __future__ import annotations

import json
import logging
import pathlib
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import dataservice as ds
from dataservice.dataset.node import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from dataservice.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
)
from dataservice.runtime.exchanges.severing import sever_connections
from tests.integration.service_cluster import LocalService, local_service, read_ids, write_numbers
from tests.waiting import wait_until

FILE, DATA = ds.ShardingPolicy.FILE, ds.ShardingPolicy.DATA
FILE_OR_DATA, HINT = ds.ShardingPolicy.FILE_OR_DATA, ds.ShardingPolicy.HINT
LIST = ("127.0.0.1:%port%",) * 3


@contextmanager
def service_with_worker_list(
    *, workers: int = 3, addresses: tuple[str, ...] = LIST, **settings: object
) -> Iterator[LocalService]:
    """Runs a dispatcher with a list of workers, and ``workers`` of these."""
    config = ds.DispatcherConfig(worker_addresses=addresses, **settings)
    with local_service(workers=workers, config=config) as service:
        yield service


@pytest.fixture(scope="module")
def service() -> Iterator[LocalService]:
    with service_with_worker_list() as running:
        yield running


def lost_quickly() -> dict[str, object]:
    return {"worker_timeout_ms": 2_000}


@pytest.mark.parametrize("files", [3, 7])
@pytest.mark.parametrize("policy", [FILE, FILE_OR_DATA])
def test_every_row_of_the_files_is_read_once(
    service: LocalService, tmp_path: pathlib.Path, policy: ds.ShardingPolicy, files: int
) -> None:
    paths = write_numbers(tmp_path, files=files, rows_per_file=500)
    dataset = ds.Dataset.from_parquet(paths).shuffle(100, seed=1).batch(64)
    remote = dataset.distribute(policy, service.target)
    for _ in range(2):
        assert sorted(read_ids(remote)) == list(range(files * 500))


def test_files_of_a_concatenation_are_sharded(
    service: LocalService, tmp_path: pathlib.Path
) -> None:
    folders = [tmp_path / name for name in ("a", "b")]
    parts = []
    for folder, files in zip(folders, (3, 4), strict=True):
        folder.mkdir()
        parts.append(ds.Dataset.from_parquet(write_numbers(folder, files=files, rows_per_file=100)))
    remote = parts[0].concatenate(parts[1]).batch(10).distribute(FILE, service.target)
    assert sorted(read_ids(remote)) == sorted([*range(300), *range(400)])


@pytest.mark.parametrize("policy", [DATA, FILE_OR_DATA])
def test_elements_are_sharded_over_workers(
    service: LocalService, policy: ds.ShardingPolicy
) -> None:
    rows = ds.Dataset.range(1_000).distribute(policy, service.target)
    assert sorted(read_ids(rows)) == list(range(1_000))
    batches = ds.Dataset.range(100).batch(7).prefetch(2).distribute(policy, service.target)
    got = sorted(batch.column("id").to_pylist() for batch in batches)
    assert got == [list(range(i, min(i + 7, 100))) for i in range(0, 100, 7)]


def test_shard_hint_is_filled_in_per_worker(service: LocalService) -> None:
    dataset = ds.Dataset.range(100).shard(ds.SHARD_HINT, 0).batch(10)
    assert sorted(read_ids(dataset.distribute(HINT, service.target))) == list(range(100))
    whole = ds.Dataset.range(10).distribute(HINT, service.target)
    assert sorted(read_ids(whole)) == sorted([*range(10)] * 3), "no hint: as written, three times"


def test_readers_of_a_job_divide_its_elements(service: LocalService) -> None:
    dataset_id = ds.register_dataset(service.target, ds.Dataset.range(3_000).batch(10))
    got: list[list[int]] = [[], []]

    def read(number: int) -> None:
        remote = ds.from_dataset_id(DATA, service.target, dataset_id, job_name="shared")
        got[number] += read_ids(remote)

    threads = [threading.Thread(target=read, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert sorted(got[0] + got[1]) == list(range(3_000))


def test_stalled_reader_does_not_keep_another_from_the_end(service: LocalService) -> None:
    dataset_id = ds.register_dataset(service.target, ds.Dataset.range(6_000).batch(10))
    remote = ds.from_dataset_id(
        DATA, service.target, dataset_id, job_name="still", max_outstanding_requests=2
    )
    with iter(remote) as still:
        first = next(still).column("id").to_pylist()
        other = read_ids(ds.from_dataset_id(DATA, service.target, dataset_id, job_name="still"))
        rest = [value for batch in still for value in batch.column("id").to_pylist()]
    assert sorted(first + other + rest) == list(range(6_000))


def test_severed_connections_lose_and_repeat_no_row(service: LocalService) -> None:
    remote = ds.Dataset.range(9_000).batch(10).distribute(DATA, service.target)
    got: list[int] = []
    with iter(remote) as iterator:
        for number, batch in enumerate(iterator):
            got += batch.column("id").to_pylist()
            if number in (50, 300, 600):
                for worker in service.workers:
                    sever_connections(int(worker.address.rpartition(":")[2]))
    assert len(got) == 9_000
    assert sorted(got) == list(range(9_000))


def test_unshardable_source_or_misplaced_hint_is_refused_before_reading(
    service: LocalService,
) -> None:
    with pytest.raises(NotFoundError, match="Found an unshardable source dataset: range"):
        ds.Dataset.range(5).distribute(FILE, service.target)
    hinted = ds.Dataset.range(5).shard(ds.SHARD_HINT, 0)
    for policy in (DATA, FILE_OR_DATA, ds.ShardingPolicy.OFF, ds.ShardingPolicy.DYNAMIC):
        with pytest.raises(FailedPreconditionError, match=r"ShardingPolicy\.HINT"):
            hinted.distribute(policy, service.target)
    dataset_id = ds.register_dataset(service.target, hinted)
    with pytest.raises(FailedPreconditionError, match=r"ShardingPolicy\.HINT"):
        ds.from_dataset_id(DATA, service.target, dataset_id)


@pytest.mark.parametrize("policy", [FILE, FILE_OR_DATA])
def test_fewer_files_than_workers_are_refused(
    service: LocalService, tmp_path: pathlib.Path, policy: ds.ShardingPolicy
) -> None:
    paths = write_numbers(tmp_path, files=2, rows_per_file=10)
    remote = ds.Dataset.from_parquet(paths).distribute(policy, service.target)
    with pytest.raises(InvalidArgumentError, match="not enough for the required 3 shards/workers"):
        iter(remote)


def test_cardinality_is_unknown_infinite_or_zero(service: LocalService) -> None:
    finite, endless = ds.Dataset.range(10), ds.Dataset.range(10).repeat()
    empty = ds.Dataset.range(0)
    for policy in (DATA, FILE_OR_DATA, HINT):
        assert finite.distribute(policy, service.target).cardinality() == UNKNOWN_CARDINALITY
        expected = INFINITE_CARDINALITY if policy is DATA else UNKNOWN_CARDINALITY
        assert endless.distribute(policy, service.target).cardinality() == expected
        expected = UNKNOWN_CARDINALITY if policy is HINT else 0
        assert empty.distribute(policy, service.target).cardinality() == expected


# Lists of workers


def test_static_policy_without_worker_list_is_refused() -> None:
    with local_service(workers=1) as unlisted:
        remote = ds.Dataset.range(5).distribute(DATA, unlisted.target)
        with pytest.raises(NotFoundError, match=r"in the workers list.*worker_addresses"):
            iter(remote)


def test_worker_missing_from_the_list_does_not_start() -> None:
    with service_with_worker_list(
        workers=1, addresses=("127.0.0.1:%port%", "elsewhere")
    ) as service:
        with pytest.raises(FailedPreconditionError, match=r"is not configured.*elsewhere"):
            service.add_worker()
        with pytest.raises(FailedPreconditionError, match="is not configured"):
            service.add_worker(worker_address="127.0.0.1:worker")


def test_placeholders_of_the_list_are_bound_to_workers() -> None:
    places = ("localhost:%port_data%", "127.0.0.1")
    with service_with_worker_list(workers=0, addresses=places) as service:
        first = service.add_worker()
        second = service.add_worker(worker_address="localhost:%port%")
        assert second.address.startswith("localhost:")
        assert not second.address.endswith("%")
        assert read_ids(ds.Dataset.range(4).batch(2).distribute(DATA, service.target))
        names = [worker["address"] for worker in status_of(service)["worker_list"]]
        assert names == [second.address, first.address]


@pytest.mark.parametrize("place", ["localhost:%port%", "localhost"])
def test_localhost_in_the_list_matches_workers_with_default_address(place: str) -> None:
    with service_with_worker_list(workers=2, addresses=(place, place)) as service:
        assert sorted(read_ids(ds.Dataset.range(9).distribute(DATA, service.target))) == [*range(9)]


def status_of(service: LocalService) -> dict[str, object]:
    from dataservice.client.connection import DispatcherConnection
    from dataservice.vocabulary import parse_target

    with DispatcherConnection(parse_target(service.target)) as connection:
        return connection.status()


def test_late_worker_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    with service_with_worker_list(workers=2) as service:
        remote = ds.Dataset.range(90).distribute(DATA, service.target)
        with caplog.at_level(logging.WARNING), iter(remote) as iterator:
            got: list[int] = []
            reading = threading.Thread(
                target=lambda: got.extend(
                    value for batch in iterator for value in batch.column("id").to_pylist()
                )
            )
            reading.start()
            wait_until(lambda: "waiting for worker 2 of 3" in caplog.text, "the message")
            assert reading.is_alive()
            service.add_worker()
            reading.join(60.0)
        assert sorted(got) == list(range(90))


@pytest.mark.parametrize("passes", [1, None], ids=["finite", "endless"])
def test_absent_worker_is_an_error_at_the_deadline(passes: int | None) -> None:
    with service_with_worker_list(workers=2) as service:
        dataset = ds.Dataset.range(90).repeat(passes).batch(10)
        remote = dataset.distribute(DATA, service.target, timeout_s=2.0)
        with pytest.raises(DeadlineExceededError, match=r"worker 2 of 3 at 127\.0\.0\.1:%port%"):
            read_ids(remote)


def test_lost_worker_is_an_error_at_the_deadline() -> None:
    with service_with_worker_list(**lost_quickly()) as service:
        endless = ds.Dataset.range(90).repeat().batch(10)
        with iter(endless.distribute(DATA, service.target, timeout_s=2.0)) as iterator:
            next(iterator)
            address = service.workers[1].address
            service.workers[1].stop()
            with pytest.raises(DeadlineExceededError, match=f"bound to {address}"):
                for _ in iterator:
                    pass


def test_restarted_worker_begins_its_shard_of_a_shared_job_again() -> None:
    """Every row comes; rows of the restarted worker's share may come twice."""
    dataset = ds.Dataset.range(3_000).batch(10)
    with service_with_worker_list(**lost_quickly()) as service:
        remote = dataset.distribute(
            DATA, service.target, job_name="shared", max_outstanding_requests=2
        )
        with iter(remote) as iterator:
            got = next(iterator).column("id").to_pylist()
            stopped = service.workers[0]
            stopped.stop()
            with pytest.raises(FailedPreconditionError, match="bound to"):
                service.add_worker()
            service.add_worker(port=int(stopped.address.rpartition(":")[2]))
            got += [value for batch in iterator for value in batch.column("id").to_pylist()]
    assert sorted(set(got)) == list(range(3_000))
    again = {value for value, count in Counter(got).items() if count > 1}
    assert {value // 10 % 3 for value in again} <= {0}, "other shares are not touched"


def test_worker_list_and_shards_survive_dispatcher_restart(tmp_path: pathlib.Path) -> None:
    def config(port: int) -> ds.DispatcherConfig:
        return ds.DispatcherConfig(
            port=port, worker_addresses=LIST, work_dir=tmp_path, fault_tolerant_mode=True
        )

    with local_service(workers=3, config=config(0)) as service:
        before = status_of(service)["worker_list"]
        remote = ds.Dataset.range(3_000).batch(10).distribute(DATA, service.target)
        with iter(remote) as iterator:
            got = next(iterator).column("id").to_pylist()
            service.dispatcher.stop()
            port = int(service.target.rpartition(":")[2])
            with ds.DispatchServer(config(port)):
                got += [value for batch in iterator for value in batch.column("id").to_pylist()]
                assert status_of(service)["worker_list"] == before
        assert sorted(got) == list(range(3_000))


def test_changed_worker_list_is_refused_while_a_job_is_open(tmp_path: pathlib.Path) -> None:
    settings = {"work_dir": tmp_path, "fault_tolerant_mode": True}
    with service_with_worker_list(workers=2, **settings) as service:
        dataset = ds.Dataset.range(9).distribute(DATA, service.target, job_name="open")
        iterator = iter(dataset)
        service.dispatcher.stop()
        with pytest.raises(FailedPreconditionError, match="worker_addresses changed"):
            ds.DispatchServer(ds.DispatcherConfig(worker_addresses=LIST[:2], **settings))
        iterator.close()


def rest_of(iterator: ds.DatasetIterator, batches: int = 1 << 30) -> list[int]:
    taken = (batch for _, batch in zip(range(batches), iterator, strict=False))
    return [value for batch in taken for value in batch.column("id").to_pylist()]


@pytest.mark.parametrize("policy", [FILE, DATA, FILE_OR_DATA, HINT])
def test_shards_resume_from_saved_states(
    service: LocalService, tmp_path: pathlib.Path, policy: ds.ShardingPolicy
) -> None:
    paths = write_numbers(tmp_path, files=4, rows_per_file=300)
    dataset = ds.Dataset.from_parquet(paths).shuffle(100)
    dataset = dataset.shard(ds.SHARD_HINT, 0) if policy is HINT else dataset
    ids: list[int] = []
    state = None
    for batches in (2, 0, 7, 1, 30, 3, 1 << 30, 1):
        remote = dataset.batch(16).distribute(policy, service.target, max_outstanding_requests=4)
        with iter(remote) as iterator:
            if state is not None:
                iterator.load_state_dict(state)
            ids += rest_of(iterator, batches)
            state = json.loads(json.dumps(iterator.state_dict()))
    assert sorted(ids) == list(range(1_200))


def test_state_of_another_worker_list_or_other_files_is_refused(
    service: LocalService, tmp_path: pathlib.Path
) -> None:
    paths = write_numbers(tmp_path, files=4, rows_per_file=100)
    dataset = ds.Dataset.from_parquet(paths).batch(10)
    with iter(dataset.distribute(FILE, service.target)) as iterator:
        rest_of(iterator, 2)
        state = iterator.state_dict()
    with service_with_worker_list(workers=2, addresses=LIST[:2]) as other:
        again = iter(dataset.distribute(FILE, other.target))
        with again, pytest.raises(InvalidArgumentError, match=r"list of 3 workers.*list of 2"):
            again.load_state_dict(state)
    write_numbers(tmp_path, files=5, rows_per_file=100)
    again = iter(dataset.distribute(FILE, service.target))
    with again, pytest.raises(InvalidArgumentError, match="other files"):
        again.load_state_dict(state)


def test_single_reader_gets_each_element_once_although_a_worker_restarts() -> None:
    dataset = ds.Dataset.range(9_000).batch(10)
    with service_with_worker_list(**lost_quickly()) as service:
        remote = dataset.distribute(DATA, service.target, max_outstanding_requests=4)
        with iter(remote) as iterator:
            ids = rest_of(iterator, 60)
            worker = service.workers[1]
            port = int(worker.address.rpartition(":")[2])
            worker.stop()
            service.add_worker(port=port)
            ids += rest_of(iterator)
    assert sorted(ids) == list(range(9_000))
