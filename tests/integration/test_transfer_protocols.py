"""All transfer protocols deliver the same elements and fail in the same way."""

from __future__ import annotations

import contextlib
import pathlib
import sys
import time
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pytest

import dataservice as ds
from dataservice.client.buffer import ElementBuffer
from dataservice.client.cutting import TakenElement
from dataservice.errors import FailedPreconditionError
from dataservice.runtime.exchanges.shared_memory import is_supported
from tests.integration.service_cluster import (
    LocalService,
    local_service,
    process_cluster,
    read_ids,
    write_numbers,
)
from tests.programs import said_by
from tests.waiting import wait_until

DYNAMIC = ds.ShardingPolicy.DYNAMIC
OFF = ds.ShardingPolicy.OFF

pytestmark = pytest.mark.skipif(not is_supported(), reason="the platform cannot share memory")
# ``local``: with workers in the reader's process.
every_protocol = pytest.mark.parametrize("protocol", ["local", "shared_memory", "flight"])


@pytest.fixture(scope="module")
def service() -> Iterator[LocalService]:
    with local_service(workers=2) as running:
        yield running


@pytest.mark.parametrize("protocol", ["shared_memory", "flight"])
def test_compressed_elements_count_at_their_uncompressed_size(
    service: LocalService, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[tuple[int, int]] = []  # only this test's batches: readers of others may live
    put = ElementBuffer.put

    def noted(
        buffer: ElementBuffer[TakenElement], items: Iterable[tuple[TakenElement, int]]
    ) -> bool:
        found = list(items)
        sizes.extend(
            (item.batch.nbytes, size_bytes)
            for item, size_bytes in found
            if item.batch.schema.names == ["zeros_counted_here"]
        )
        return put(buffer, found)

    monkeypatch.setattr(ElementBuffer, "put", noted)
    zeros = ds.Dataset.from_table(pa.table({"zeros_counted_here": np.zeros(100_000)}))
    zeros = zeros.batch(50_000)
    remote = zeros.distribute(
        DYNAMIC, service.target, compression="LZ4", data_transfer_protocol=protocol
    )
    assert sum(batch.num_rows for batch in remote) == 100_000
    assert sizes
    # Some hundred bytes describe a batch, and how rows are cut into batches depends on the workers.
    assert all(taken <= told < 1.1 * taken + 1_000 for taken, told in sizes), sizes


@every_protocol
@pytest.mark.parametrize("compression", ["LZ4", "SNAPPY", "ZSTD", None])
@pytest.mark.parametrize("rows", [10, 5_000])
def test_columns_of_all_types_arrive_unchanged(
    service: LocalService, protocol: str, compression: str | None, rows: int
) -> None:
    ids = np.arange(20_000)
    table = pa.table(
        {
            "id": ids,
            "text": [None if i % 5 == 0 else f"näme {i}" for i in ids],
            "flag": ids % 3 == 0,
            "list": pa.array([[i] * (i % 4) for i in ids], pa.list_(pa.int32())),
        }
    )
    remote = (
        ds.Dataset.from_table(table)
        .batch(rows)
        .distribute(
            DYNAMIC, service.target, compression=compression, data_transfer_protocol=protocol
        )
    )
    with iter(remote) as iterator:
        got = pa.Table.from_batches(iterator).sort_by("id")
        taken = "in_process" if protocol == "local" else protocol
        assert set(iterator.stats()["protocols"].values()) == {taken}
    assert got.equals(table)


@every_protocol
@pytest.mark.parametrize("policy", [DYNAMIC, OFF])
def test_elements_without_rows_do_not_stall_the_stream(
    service: LocalService, protocol: str, policy: ds.ShardingPolicy
) -> None:
    dataset = ds.Dataset.range(4_000).batch(100).filter(ds.col("id") >= 3_000)
    remote = dataset.distribute(policy, service.target, data_transfer_protocol=protocol)
    times = 1 if policy is DYNAMIC else 2
    assert sorted(read_ids(remote)) == sorted(list(range(3_000, 4_000)) * times)


@every_protocol
def test_consumer_that_keeps_every_batch_gets_all_rows(
    service: LocalService, protocol: str
) -> None:
    """The batches take more than twice the memory of all segments of a stream."""
    rows, per_batch = 100 * 131_072, 131_072
    dataset = ds.Dataset.range(rows).batch(per_batch)
    remote = dataset.distribute(DYNAMIC, service.target, data_transfer_protocol=protocol)
    kept = list(remote)
    total = sum(int(batch.column("id").to_numpy().sum()) for batch in kept)
    assert sum(batch.num_rows for batch in kept) == rows
    assert total == rows * (rows - 1) // 2


@every_protocol
def test_elements_larger_than_a_segment_arrive(service: LocalService, protocol: str) -> None:
    rows = 6 << 20
    remote = ds.Dataset.range(2 * rows).batch(rows)
    remote = remote.distribute(DYNAMIC, service.target, data_transfer_protocol=protocol)
    assert sum(batch.num_rows for batch in remote) == 2 * rows


@every_protocol
def test_consumer_that_pauses_gets_the_rest(service: LocalService, protocol: str) -> None:
    remote = ds.Dataset.range(200 * 65_536).batch(65_536)
    remote = remote.distribute(DYNAMIC, service.target, data_transfer_protocol=protocol)
    with iter(remote) as iterator:
        rows = next(iterator).num_rows
        time.sleep(0.5)
        rows += sum(batch.num_rows for batch in iterator)
    assert rows == 200 * 65_536


def test_killed_worker_read_over_flight_loses_no_row(tmp_path: pathlib.Path) -> None:
    paths = write_numbers(tmp_path, files=40, rows_per_file=1_000, group_rows=250)

    def slow(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        time.sleep(0.005)
        return columns

    arguments = ("--worker-timeout-ms", "1500", "--client-timeout-ms", "1500")
    dataset = ds.Dataset.from_parquet(paths).map(slow).batch(64)
    with process_cluster(tmp_path / "logs", workers=2, dispatcher_args=arguments) as cluster:
        remote = dataset.distribute(DYNAMIC, cluster.target, data_transfer_protocol="flight")
        got: list[int] = []
        with iter(remote) as iterator:
            for _ in range(10):
                got += next(iterator).column("id").to_pylist()
            cluster.workers[0].kill()
            killed_s = time.monotonic()
            for batch in iterator:
                got += batch.column("id").to_pylist()
    assert sorted(got) == list(range(40_000))
    assert time.monotonic() - killed_s < 40


def test_processes_on_one_host_share_memory_by_default(tmp_path: pathlib.Path) -> None:
    with process_cluster(tmp_path / "logs", workers=1) as cluster:
        remote = ds.Dataset.range(1_000).batch(10).distribute(DYNAMIC, cluster.target)
        with iter(remote) as iterator:
            assert sum(batch.num_rows for batch in iterator) == 1_000
            assert set(iterator.stats()["protocols"].values()) == {"shared_memory"}


READER = """
import sys
import dataservice as ds

remote = ds.Dataset.range(100).batch(10).distribute(ds.ShardingPolicy.DYNAMIC, sys.argv[1])
assert sum(batch.num_rows for batch in remote) == 100
print("numba" in sys.modules)
"""


@pytest.mark.parametrize(
    ("protocol", "loaded"), [("shared_memory", False), ("flight", True)], ids=str
)
def test_numba_is_loaded_only_for_checksums(
    tmp_path: pathlib.Path, protocol: str, loaded: bool
) -> None:
    with process_cluster(tmp_path / "logs", workers=0) as cluster:
        cluster.add_worker("--data-transfer-protocol", protocol)
        assert said_by(READER, cluster.target) == f"{loaded}\n"
        rows = ds.Dataset.range(1).batch(1)
        asked = rows.with_column("loaded", lambda _: np.array(["numba" in sys.modules]))
        (batch,) = asked.distribute(DYNAMIC, cluster.target)
        assert batch.column("loaded").to_pylist() == [loaded]


def test_worker_without_shared_memory_is_read_through_flight() -> None:
    with local_service(workers=0) as service:
        worker = service.add_worker(data_transfer_protocol="grpc")
        remote = ds.Dataset.range(1_000).batch(10)
        with iter(remote.distribute(DYNAMIC, service.target)) as iterator:
            assert sum(batch.num_rows for batch in iterator) == 1_000
            assert iterator.stats()["protocols"] == {worker.address: "flight"}
        demanding = remote.distribute(
            DYNAMIC, service.target, data_transfer_protocol="shared_memory"
        )
        with pytest.raises(FailedPreconditionError, match=worker.address):
            read_ids(demanding)


def test_worker_set_to_shared_memory_does_not_start_without_memfd(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dataservice.runtime.exchanges.local_address.is_supported", lambda: False)
    with local_service(workers=1) as service:
        assert read_ids(ds.Dataset.range(10).distribute(DYNAMIC, service.target)) == list(range(10))
        with pytest.raises(FailedPreconditionError, match="memfd"):
            service.add_worker(data_transfer_protocol="shared_memory")


@pytest.mark.parametrize(
    ("protocol", "taken"), [(None, "in_process"), ("shared_memory", "shared_memory")]
)
def test_worker_restarted_at_its_address_is_read_by_the_same_protocol(
    protocol: str | None, taken: str
) -> None:
    with local_service(workers=1) as service:
        port = int(service.workers[0].address.rpartition(":")[2])
        service.workers[0].stop()
        worker = service.add_worker(port=port)
        remote = ds.Dataset.range(1_000).batch(10)
        remote = remote.distribute(DYNAMIC, service.target, data_transfer_protocol=protocol)
        with iter(remote) as iterator:
            assert sum(batch.num_rows for batch in iterator) == 1_000
            stats = iterator.stats()
            assert stats["protocols"][worker.address] == taken


def mapped_segments() -> set[str]:
    lines = pathlib.Path("/proc/self/maps").read_text().splitlines()
    return {line for line in lines if "memfd:dataservice" in line}


def test_stream_closed_while_waiting_unmaps_its_segments(
    service: LocalService, tmp_path: pathlib.Path
) -> None:
    gate = tmp_path / "gate"

    def hold(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if columns["id"][0] > 0:
            wait_until(gate.exists, "the gate")
        return columns

    before = mapped_segments()
    remote = ds.Dataset.range(1 << 21).map(hold).batch(1 << 14)
    remote = remote.distribute(DYNAMIC, service.target, data_transfer_protocol="shared_memory")
    with iter(remote) as iterator:
        batch = next(iterator)
        assert mapped_segments() - before
    del batch
    gate.touch()
    wait_until(lambda: not mapped_segments() - before, "unmapping all segments")


def test_segments_are_unmapped_once_batches_are_freed(service: LocalService) -> None:
    before = mapped_segments()
    remote = ds.Dataset.range(50 * 131_072).batch(131_072)
    kept = list(remote.distribute(DYNAMIC, service.target, data_transfer_protocol="shared_memory"))
    new = mapped_segments() - before
    assert new
    del kept
    wait_until(lambda: not new & mapped_segments(), "unmapping all segments")


@every_protocol
def test_servers_on_an_ipv6_address_are_read(protocol: str) -> None:
    with contextlib.ExitStack() as stack:
        try:
            config = ds.DispatcherConfig(host="::1")
            dispatcher = stack.enter_context(ds.DispatchServer(config))
        except ds.errors.InvalidArgumentError as error:  # the machine has no IPv6
            pytest.skip(str(error))
        worker = ds.WorkerConfig(dispatcher.target, host="::1")
        address = stack.enter_context(ds.WorkerServer(worker)).address
        assert address.startswith("[::1]:")
        rows = ds.Dataset.range(100).batch(10)
        reading = iter(rows.distribute(OFF, dispatcher.target, data_transfer_protocol=protocol))
        assert sum(batch.num_rows for batch in reading) == 100
        assert list(reading.stats()["protocols"]) == [address]
