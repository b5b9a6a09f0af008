"""Reading through the data service without failures: every policy, every way to share a job."""

from __future__ import annotations

import gc
import os
import pathlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dataservice as ds
from dataservice.client.connection import DispatcherConnection
from dataservice.client.pacing import Pacing
from dataservice.client.read_spec import ReadSpec
from dataservice.client.reader import ServiceReader
from dataservice.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    QuarantinedError,
)
from dataservice.vocabulary import parse_target
from tests.integration.service_cluster import LocalService, local_service, read_ids, write_numbers
from tests.waiting import wait_until

DYNAMIC = ds.ShardingPolicy.DYNAMIC
OFF = ds.ShardingPolicy.OFF


@pytest.fixture(scope="module")
def service() -> Iterator[LocalService]:
    with local_service(workers=2) as running:
        yield running


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("batch", [None, 7, 512])
def test_dynamic_delivers_every_row_once(
    tmp_path: pathlib.Path, workers: int, batch: int | None
) -> None:
    dataset = ds.Dataset.from_parquet(write_numbers(tmp_path, files=4, rows_per_file=5_000))
    dataset = dataset.filter(ds.col("id") % 3 == 0)
    dataset = dataset if batch is None else dataset.batch(batch)
    with local_service(workers=workers) as service:
        ids = read_ids(dataset.distribute(DYNAMIC, service.target))
    assert sorted(ids) == list(range(0, 20_000, 3))


def test_off_delivers_every_row_once_per_worker(service: LocalService) -> None:
    ids = read_ids(ds.Dataset.range(1_000).batch(30).take(10).distribute(OFF, service.target))
    assert sorted(ids) == sorted(list(range(300)) * 2)


def test_single_worker_keeps_the_order() -> None:
    with local_service(workers=1) as service:
        assert service.workers[0].target == f"grpc://{service.workers[0].address}"
        remote = ds.Dataset.range(10_000).batch(64).distribute(DYNAMIC, service.target)
        assert read_ids(remote) == list(range(10_000))


def test_batches_are_full_except_one_remainder_per_worker(service: LocalService) -> None:
    remote = ds.Dataset.range(10_000).batch(64).distribute(DYNAMIC, service.target)
    sizes = [batch.num_rows for batch in remote]
    assert sum(sizes) == 10_000
    assert len([size for size in sizes if size != 64]) <= 2


def test_drop_remainder_gives_full_batches_only_and_ends(service: LocalService) -> None:
    dataset = ds.Dataset.range(10_000).batch(64, drop_remainder=True)
    sizes = [batch.num_rows for batch in dataset.distribute(DYNAMIC, service.target)]
    assert set(sizes) == {64}
    assert 10_000 - 2 * 64 < sum(sizes) <= 10_000


def test_empty_dataset_ends_at_once(service: LocalService) -> None:
    assert read_ids(ds.Dataset.range(0).distribute(DYNAMIC, service.target)) == []
    assert read_ids(ds.Dataset.range(0).distribute(OFF, service.target)) == []
    nothing = ds.Dataset.range(5_000).filter(ds.col("id") < 0).batch(8)
    assert read_ids(nothing.distribute(DYNAMIC, service.target)) == []


def test_each_iteration_is_reshuffled_and_complete(service: LocalService) -> None:
    remote = ds.Dataset.range(2_000).shuffle(200, seed=1).distribute(DYNAMIC, service.target)
    first, second = read_ids(remote), read_ids(remote)
    assert sorted(first) == sorted(second) == list(range(2_000))
    assert first != second


def test_repeat_before_or_after_distribute_gives_every_pass(service: LocalService) -> None:
    before = ds.Dataset.range(700).repeat(3).batch(32).distribute(DYNAMIC, service.target)
    after = ds.Dataset.range(700).batch(32).distribute(DYNAMIC, service.target).repeat(3)
    for remote in (before, after):
        assert sorted(read_ids(remote)) == sorted(list(range(700)) * 3)


def test_repeated_batches_do_not_mix_passes(service: LocalService) -> None:
    dataset = ds.Dataset.range(4).batch(7).repeat(30)
    for ordered in (False, True):
        batches = [
            batch["id"].to_pylist()
            for batch in dataset.distribute(DYNAMIC, service.target, ordered=ordered)
        ]
        assert sorted(i for ids in batches for i in ids) == sorted(list(range(4)) * 30)
        assert all(len(ids) == len(set(ids)) for ids in batches)


def test_iterator_of_endless_dataset_can_be_closed(service: LocalService) -> None:
    remote = ds.Dataset.range(100).repeat().batch(10).distribute(DYNAMIC, service.target)
    with iter(remote) as iterator:
        rows = [next(iterator).num_rows for _ in range(100)]
    assert rows == [10] * 100


def test_operators_after_distribute_run_in_the_reader(service: LocalService) -> None:
    remote = ds.Dataset.range(1_000).distribute(DYNAMIC, service.target)
    local = remote.map(lambda batch: {"id": -batch["id"]}).batch(100).prefetch(2)
    assert sorted(read_ids(local)) == list(range(-999, 1))


@pytest.mark.parametrize(("policy", "copies"), [(DYNAMIC, 1), (ds.ShardingPolicy.OFF, 2)])
def test_iterator_stats_hold_operator_times_of_workers(
    service: LocalService, policy: ds.ShardingPolicy, copies: int
) -> None:
    def slow(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        time.sleep(0.05)
        return columns

    data = ds.Dataset.range(10_000).filter(ds.col("id") >= 10).batch(1_000).map(slow)
    remote = data.distribute(policy, service.target).map(lambda columns: columns)
    with iter(remote) as iterator:
        assert sum(batch.num_rows for batch in iterator) == 9_990 * copies
        found = iterator.stats()
    assert found["verdict"] == "input-bound"
    assert [one["name"] for one in found["operators"]] == ["service", "map"]
    by_name = {one["name"]: one for one in found["worker_operators"]}
    assert list(by_name)[:2] == ["range", "filter"]
    assert by_name["range"]["rows"] == 10_000 * copies
    assert by_name["map"]["rows"] == by_name["filter"]["rows"] == 9_990 * copies
    assert by_name["map"]["time_s"] >= 0.45 * copies
    assert [one.name for one in remote.stats().worker_operators] == list(by_name)


def test_compression_of_from_dataset_id_must_be_that_of_the_registration(
    service: LocalService,
) -> None:
    dataset_id = ds.register_dataset(service.target, ds.Dataset.range(9), compression="SNAPPY")
    for compression in ("AUTO", "SNAPPY", "lz4"):
        remote = ds.from_dataset_id(DYNAMIC, service.target, dataset_id, compression=compression)
        assert sorted(read_ids(remote)) == list(range(9))
    for other in ("ZSTD", None):
        with pytest.raises(InvalidArgumentError, match=r"registered with compression LZ4, got"):
            ds.from_dataset_id(DYNAMIC, service.target, dataset_id, compression=other)
    plain = ds.register_dataset(service.target, ds.Dataset.range(9))
    ds.from_dataset_id(DYNAMIC, service.target, plain, compression=None)


def test_readers_of_one_job_share_its_rows(service: LocalService) -> None:
    dataset = ds.Dataset.range(50_000).batch(100)
    dataset_id = ds.register_dataset(service.target, dataset)
    got: dict[int, list[int]] = {}

    def read(index: int) -> None:
        remote = ds.from_dataset_id(DYNAMIC, service.target, dataset_id, job_name="shared")
        got[index] = read_ids(remote)

    threads = [threading.Thread(target=read, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(i for ids in got.values() for i in ids) == list(range(50_000))


def test_readers_of_one_off_job_share_the_pass_of_each_worker(service: LocalService) -> None:
    dataset_id = ds.register_dataset(service.target, ds.Dataset.range(5_000).batch(10))
    remotes = [
        ds.from_dataset_id(OFF, service.target, dataset_id, job_name="shared-off") for _ in range(2)
    ]
    got: list[list[int]] = [[], []]

    def read(index: int) -> None:
        got[index] = read_ids(remotes[index])

    threads = [threading.Thread(target=read, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(got[0] + got[1]) == sorted(list(range(5_000)) * 2)


def test_threads_sharing_an_iterator_get_every_row_once(service: LocalService) -> None:
    remote = ds.Dataset.range(20_000).batch(50).distribute(DYNAMIC, service.target)
    got: list[int] = []
    with iter(remote) as iterator:

        def read() -> None:
            for batch in iterator:
                got.extend(batch.column("id").to_pylist())

        threads = [threading.Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
    assert sorted(got) == list(range(20_000))


def test_closed_reader_leaves_the_rest_to_the_others(service: LocalService) -> None:
    dataset_id = ds.register_dataset(service.target, ds.Dataset.range(30_000).batch(100))
    first, second = (
        ds.from_dataset_id(DYNAMIC, service.target, dataset_id, job_name="left") for _ in range(2)
    )
    got: list[int] = []
    with iter(first) as leaving:
        other = iter(second)
        for _ in range(20):
            got += next(leaving).column("id").to_pylist()
    for batch in other:
        got += batch.column("id").to_pylist()
    assert sorted(got) == list(range(30_000))


def test_garbage_collected_iterator_leaves_the_rest_to_the_others(service: LocalService) -> None:
    dataset_id = ds.register_dataset(service.target, ds.Dataset.range(30_000).batch(100))
    remote = ds.from_dataset_id(DYNAMIC, service.target, dataset_id, job_name="forgotten")
    iterator = iter(remote)
    got = next(iterator).column("id").to_pylist()
    del iterator
    gc.collect()
    again = ds.from_dataset_id(DYNAMIC, service.target, dataset_id, job_name="forgotten")
    got += read_ids(again)
    assert sorted(got) == list(range(30_000))


def test_worker_that_joins_midway_delivers_rows(tmp_path: pathlib.Path) -> None:
    gate = str(tmp_path / "gate")

    def slow(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        deadline_s = time.monotonic() + 60
        while columns["id"][0] and not os.path.exists(gate):
            if time.monotonic() > deadline_s:
                raise TimeoutError("nobody opened the gate")
            time.sleep(0.01)
        time.sleep(0.02)
        return columns

    schema = pa.schema({"id": pa.int64()})
    dataset = ds.Dataset.range(2_000).map(slow, schema=schema).batch(10)
    with local_service(workers=1) as service:
        iterator = iter(dataset.distribute(DYNAMIC, service.target))
        got = next(iterator).column("id").to_pylist()
        joined = service.add_worker(threads=1)
        assert joined._service is not None
        wait_until(lambda: joined.address in iterator.stats()["protocols"], "the new stream")
        pathlib.Path(gate).touch()
        got += [i for batch in iterator for i in batch.column("id").to_pylist()]
        rows, _ = joined._service.load()
    assert sorted(got) == list(range(2_000))
    assert rows > 0


def test_readers_wait_for_the_first_worker() -> None:
    with local_service(workers=0) as service:
        remote = ds.Dataset.range(100).distribute(DYNAMIC, service.target)
        got: list[int] = []
        reading = threading.Thread(target=lambda: got.extend(read_ids(remote)))
        reading.start()
        service.add_worker()
        reading.join(60)
        assert sorted(got) == list(range(100))


def test_end_of_data_does_not_wait_for_a_heartbeat(
    service: LocalService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "dataservice.client.reader.Pacing", lambda _heartbeat_s, now_s: Pacing(600.0, now_s)
    )
    remote = ds.Dataset.range(1_000).batch(100).distribute(DYNAMIC, service.target)
    for _ in range(5):
        rows = 0
        with iter(remote) as iterator:
            while rows < 1_000:
                rows += next(iterator).num_rows
            last_s = time.monotonic()
            with pytest.raises(StopIteration):
                next(iterator)
            assert time.monotonic() - last_s < 30


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has readers call the dispatcher, and look for news, only when woken."""
    monkeypatch.setattr(
        "dataservice.client.reader.Pacing", lambda _heartbeat_s, now_s: Pacing(60.0, now_s)
    )
    monkeypatch.setattr("dataservice.client.reader._TAKE_POLL_S", 60.0)


@contextmanager
def reader_of(service: LocalService, dataset: ds.Dataset) -> Iterator[ServiceReader]:
    dataset_id = ds.register_dataset(service.target, dataset)
    target = parse_target(service.target)
    reader = ServiceReader(ReadSpec(target=target, dataset_id=dataset_id, policy=DYNAMIC))
    try:
        yield reader
    finally:
        reader.close()


@pytest.fixture
def patient_reader(service: LocalService, patient: None) -> Iterator[ServiceReader]:  # noqa: ARG001
    """A reader of six elements."""
    with reader_of(service, ds.Dataset.range(6).batch(1)) as reader:
        yield reader


def nothing_after(gate: pathlib.Path) -> ds.Dataset:
    """Returns a dataset of six rows that are all filtered out, once there is a file ``gate``."""

    def wait_for_gate(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        wait_until(gate.exists, "the gate", 60.0)
        return columns

    rows = ds.Dataset.range(6).map(wait_for_gate, schema=pa.schema({"id": pa.int64()}))
    return rows.filter(ds.col("id") < 0).batch(1)


@pytest.mark.usefixtures("patient")
def test_windows_without_rows_are_reported_without_a_heartbeat(
    service: LocalService, tmp_path: pathlib.Path
) -> None:
    gate = tmp_path / "gate"
    with reader_of(service, nothing_after(gate)) as reader:
        asleep_s = time.monotonic() + 30
        wait_until(lambda: reader._sleeps_until_s > asleep_s, "the reader to sleep")
        gate.touch()
        wait_until(lambda: bool(reader._session._tracker._finished), "the report", 30.0)


@pytest.mark.usefixtures("patient")
def test_failure_between_the_look_for_it_and_the_wait_is_not_missed(
    service: LocalService, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reply may bring one before the end, as that a window of an ordered job is missing."""
    monkeypatch.setattr(
        "dataservice.client.quarantine.check_quarantined",
        lambda *_, has_ended: QuarantinedError(f"missing, {has_ended=}"),
    )
    gate = tmp_path / "gate"
    with reader_of(service, nothing_after(gate)) as reader:
        get = reader._buffer.get

        def get_after_failure(timeout_s: float, *more: int) -> object:
            if timeout_s:
                wait_until(lambda: reader._failure is not None, "the failure")
            return get(timeout_s, *more)

        monkeypatch.setattr(reader._buffer, "get", get_after_failure)
        began_s = time.monotonic()
        with pytest.raises(QuarantinedError, match="has_ended=False"):
            reader.take()
        assert time.monotonic() - began_s < 30
        gate.touch()


def test_consumed_rows_are_reported_without_a_heartbeat(
    service: LocalService, patient_reader: ServiceReader
) -> None:
    taken = patient_reader.take()
    assert taken is not None
    asleep_s = time.monotonic() + 30
    wait_until(lambda: patient_reader._sleeps_until_s > asleep_s, "the reader to sleep")
    patient_reader.acknowledge(taken.spans)
    reading = patient_reader.iteration.id
    wait_until(lambda: rows_consumed(service, reading) == 1, "the report", 30.0)


def rows_consumed(service: LocalService, iteration_id: str) -> int:
    with DispatcherConnection(parse_target(service.target)) as connection:
        jobs = connection.status()["jobs"]
    iterations = [reading for job in jobs for reading in job["iterations"]]
    (found,) = [reading for reading in iterations if reading["iteration_id"] == iteration_id]
    return int(found["rows_consumed"])


def test_end_between_the_look_for_it_and_the_wait_is_not_missed(
    patient_reader: ServiceReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(6):
        taken = patient_reader.take()
        assert taken is not None
        patient_reader.acknowledge(taken.spans)
    buffer = patient_reader._buffer
    get = buffer.get

    def get_after_end(timeout_s: float, *more: int) -> object:
        if timeout_s:
            wait_until(lambda: buffer.wakes > 0, "the end")
        return get(timeout_s, *more)

    monkeypatch.setattr(buffer, "get", get_after_end)
    began_s = time.monotonic()
    assert patient_reader.take() is None
    assert time.monotonic() - began_s < 30


def test_thread_that_takes_the_last_element_lets_the_others_know_of_the_end(
    patient_reader: ServiceReader,
) -> None:
    tracker = patient_reader._session._tracker
    wait_until(lambda: len(patient_reader._buffer) == 6 and tracker.is_quiet(), "all elements")
    with patient_reader._lock:
        patient_reader._session.begin_wait()  # another thread's
    for _ in range(6):
        assert patient_reader.take() is not None
    wait_until(lambda: patient_reader._buffer.wakes > 0, "the end", 30.0)


def test_exhausted_iterator_stays_exhausted(service: LocalService) -> None:
    with iter(ds.Dataset.range(10).distribute(DYNAMIC, service.target)) as iterator:
        assert sum(batch.num_rows for batch in iterator) == 10
        for _ in range(3):
            with pytest.raises(StopIteration):
                next(iterator)


@pytest.mark.parametrize(
    ("policy", "job_name"),
    [(DYNAMIC, None), (DYNAMIC, "let go"), (OFF, None), (DYNAMIC, "numbered")],
)
def test_exhausted_iterator_releases_its_reader_and_keeps_its_position(
    policy: ds.ShardingPolicy, job_name: str | None
) -> None:
    with local_service(workers=2) as service:
        # The shuffle draws its seed; a second program asks the dispatcher for the registered one.
        data = ds.Dataset.range(100).shuffle(10).batch(10)
        if job_name == "numbered":
            began = iter(data.distribute(policy, service.target, job_name=job_name))
            data = ds.Dataset.range(100).shuffle(10).batch(10)
            iterator = iter(data.distribute(policy, service.target, job_name=job_name))
            began.close()
        else:
            iterator = iter(data.distribute(policy, service.target, job_name=job_name))
        rows = sum(batch.num_rows for batch in iterator)
        assert rows == (100 if policy is DYNAMIC else 200)
        left = [t.name for t in threading.enumerate() if t.name.startswith("reader ")]
        assert left == []
        assert not readers_of(service)
        at_end = iterator.state_dict()
    # These calls ask no server: all have gone.
    assert iterator.state_dict() == at_end
    assert iterator.stats()["rows"] == rows
    with pytest.raises(StopIteration):
        next(iterator)
    with pytest.raises(
        FailedPreconditionError, match="elements were already taken from this iterator"
    ):
        iterator.load_state_dict(at_end)
    iterator.close()


def readers_of(service: LocalService) -> list[object]:
    with DispatcherConnection(parse_target(service.target)) as connection:
        jobs = connection.status()["jobs"]
    return [reader for job in jobs for i in job["iterations"] for reader in i["readers"]]


def test_iterator_stats_count_rows_bytes_and_waits(service: LocalService) -> None:
    remote = ds.Dataset.range(1_000).batch(10).distribute(DYNAMIC, service.target)
    with iter(remote) as iterator:
        assert sum(batch.num_rows for batch in iterator) == 1_000
        stats = iterator.stats()
    assert stats["rows"] == 1_000
    assert stats["bytes"] > 8_000
    assert 0 < stats["wait_seconds"] <= stats["seconds"]
    assert 0 < stats["wait_share"] <= 1


def test_one_outstanding_request_still_gives_every_row(service: LocalService) -> None:
    remote = (
        ds.Dataset.range(1_000)
        .batch(10)
        .distribute(DYNAMIC, service.target, max_outstanding_requests=1)
    )
    assert sorted(read_ids(remote)) == list(range(1_000))


def test_stopped_service_leaves_no_thread_and_no_port() -> None:
    before = {thread.name for thread in threading.enumerate()}
    with local_service(workers=1) as service:
        iterator = iter(ds.Dataset.range(10**7).batch(10).distribute(DYNAMIC, service.target))
        next(iterator)
        iterator.close()
        port = int(service.workers[0].address.rpartition(":")[2])
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", port))

    def ours() -> set[str]:
        names = {thread.name for thread in threading.enumerate()} - before
        return {n for n in names if n.startswith(("reader", "producer", "worker", "dispatcher"))}

    wait_until(lambda: not ours(), "the end of all threads")


def test_function_is_tried_once_per_registration(service: LocalService) -> None:
    calls: list[int] = []

    def noted(c: dict[str, Any]) -> Any:
        calls.append(len(c["id"]))
        return c["id"] * 2

    data = ds.Dataset.range(100).with_column("twice", noted)
    ds.register_dataset(service.target, data)
    assert len(calls) == 1
    data.distribute(ds.ShardingPolicy.DYNAMIC, service.target)
    assert len(calls) == 2


@pytest.mark.parametrize(
    "follow",
    [
        lambda data: data,
        lambda data: data.map(lambda columns: columns).prefetch(2),
        lambda data: data.unbatch().batch(3),
    ],
    ids=["nothing", "map-prefetch", "unbatch-batch"],
)
def test_rows_that_a_lost_owner_had_go_to_a_reader_at_its_end(
    service: LocalService, follow: Any, request: pytest.FixtureRequest
) -> None:
    job = request.node.name
    remote = ds.Dataset.range(40).batch(1).distribute(DYNAMIC, service.target, job_name=job)
    owners = [f"{job} {name}" for name in ("lost", "left")]
    lost, left = (follow(remote).iterator(epoch=0, owner=owner) for owner in owners)
    ids: list[int] = []
    with lost, left:
        next(lost)
        for after_the_loss in (False, True):
            if after_the_loss:
                assert ds.release_readers(service.target, owners[0], {}, timeout_s=10) == 1
            for batch in left:
                ids += batch.column("id").to_pylist()
                left.receipt().acknowledge()
            assert (len(ids) == 40) == after_the_loss
    assert sorted(ids) == list(range(40))
