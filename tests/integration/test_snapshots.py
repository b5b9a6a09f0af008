"""Datasets are saved by data workers, while these and the dispatcher die, and loaded again."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

import dataservice as ds
from dataservice.dataset.snapshots.folder import SnapshotFolder
from dataservice.dataset.snapshots.format import Metadata
from dataservice.errors import (
    AlreadyExistsError,
    CancelledError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    UnsplittableError,
    UserFunctionError,
)
from dataservice.vocabulary import parse_target
from tests.integration.service_cluster import (
    LocalService,
    local_service,
    printed,
    process_cluster,
    read_ids,
    write_numbers,
)
from tests.waiting import wait_until

DYNAMIC, FILE = ds.ShardingPolicy.DYNAMIC, ds.ShardingPolicy.FILE
ROWS = 20_000
DEADLINE_S = 60.0
SCHEMA = pa.schema({"id": pa.int64(), "x": pa.float32()})


@pytest.fixture
def service() -> Iterator[LocalService]:
    with local_service(workers=2) as running:
        yield running


class Gates:
    """Rows of which each of the last three quarters waits for a gate, a file of its own.

    A failure thus meets work in flight, however fast the machine.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self._paths = write_numbers(folder, files=40, rows_per_file=ROWS // 40, group_rows=250)

    def open(self, *quarters: int) -> None:
        """Opens the gates of these quarters."""
        for quarter in quarters:
            (self.folder / f"gate-{quarter}").touch()

    def dataset(self) -> ds.Dataset:
        """Returns all rows in their order, as 40 windows."""
        folder = str(self.folder)

        def wait(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            quarter = int(columns["id"][0]) * 4 // ROWS
            deadline_s = time.monotonic() + 200
            while quarter and not os.path.exists(f"{folder}/gate-{quarter}"):
                if time.monotonic() > deadline_s:
                    raise TimeoutError(f"nobody opened gate {quarter}")
                time.sleep(0.01)
            return columns

        return ds.Dataset.from_parquet(self._paths).map(wait, schema=SCHEMA)


@pytest.fixture
def gates(tmp_path: pathlib.Path) -> Iterator[Gates]:
    made = Gates(tmp_path)
    yield made
    made.open(1, 2, 3)


def assert_every_row_once(dataset: ds.Dataset, rows: int = ROWS) -> None:
    got = read_ids(dataset)
    assert len(got) == rows, f"{len(got)} rows instead of {rows}, {len(set(got))} different"
    assert sorted(got) == list(range(rows))


def test_saved_dataset_loads_with_the_same_batches(
    service: LocalService, tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "s"
    dataset = ds.Dataset.range(10_000).shuffle(1_000, seed=3).batch(64)
    snapshot = ds.save(dataset, str(path), service.target, compression="LZ4")
    end = snapshot.wait(DEADLINE_S)
    assert (end.state, end.rows, end.windows_done) == ("done", 10_000, end.windows)
    assert end.size_bytes == sum(file.stat().st_size for file in (path / "chunks").iterdir())
    assert snapshot.progress() == end
    names = [f"DONE_{snapshot.snapshot_id}", "chunks", "snapshot.json"]
    assert sorted(os.listdir(path)) == names
    loaded = ds.Dataset.load(str(path))
    assert [batch.num_rows for batch in loaded] == [64] * 156 + [16]
    assert_every_row_once(loaded, 10_000)
    assert read_ids(loaded) == read_ids(ds.Dataset.load(str(path))), "always in the same order"
    assert loaded.cardinality() == 157
    assert_every_row_once(loaded.distribute(DYNAMIC, service.target), 10_000)
    with pytest.raises(AlreadyExistsError, match="which is finished; choose another path"):
        ds.save(dataset, str(path), service.target)


def test_saved_repeats_are_reshuffled_and_keep_remainders(
    service: LocalService, tmp_path: pathlib.Path
) -> None:
    dataset = ds.Dataset.range(100).shuffle(100).repeat(3).batch(8, drop_remainder=True)
    end = ds.save(dataset, f"file://{tmp_path}/s", service.target, "ZSTD").wait(DEADLINE_S)
    assert (end.rows, end.more_rounds) == (300, False)
    loaded = ds.Dataset.load(str(tmp_path / "s"))
    assert [batch.num_rows for batch in loaded] == [8] * 37
    rows = read_ids(ds.Dataset.load(f"file://{tmp_path}/s").unbatch())
    assert len(rows) == 296
    assert len(set(rows)) == 100
    assert rows[:100] != rows[100:200], "every pass is shuffled anew"


def test_plan_that_cannot_be_split_is_saved_as_a_whole(
    service: LocalService, tmp_path: pathlib.Path
) -> None:
    dataset = ds.Dataset.range(1_000).enumerate("n").batch(7).filter(ds.col("id") % 10 != 3)
    ds.save(dataset, str(tmp_path / "s"), service.target).wait(DEADLINE_S)
    loaded = ds.Dataset.load(str(tmp_path / "s"))
    assert [batch.to_pydict() for batch in loaded] == [batch.to_pydict() for batch in dataset]
    assert loaded.cardinality() == 143
    distributed = list(loaded.distribute(DYNAMIC, service.target))
    assert sorted(map(str, distributed)) == sorted(map(str, dataset)), "the same batches"
    with pytest.raises(UnsplittableError, match=r"load\(path\)\.unbatch\(\)\.batch\(n\)"):
        loaded.distribute(DYNAMIC, service.target, ordered=True)
    in_order = loaded.unbatch().batch(10).distribute(DYNAMIC, service.target, ordered=True)
    assert read_ids(in_order) == read_ids(loaded)


def test_columns_of_expressions_behind_batch_are_written_in_windows(
    service: LocalService, tmp_path: pathlib.Path
) -> None:
    dataset = ds.Dataset.range(1_000_000).batch(8_192).with_column("y", ds.col("id") * 2)
    end = ds.save(dataset.select(["y"]), str(tmp_path / "s"), service.target).wait(DEADLINE_S)
    assert end.windows > 1
    loaded = ds.Dataset.load(str(tmp_path / "s"))
    assert [batch.num_rows for batch in loaded][:-1] == [8_192] * 122
    assert loaded.to_table()["y"].to_pylist() == list(range(0, 2_000_000, 2))


def test_empty_dataset_is_saved_and_loaded(service: LocalService, tmp_path: pathlib.Path) -> None:
    empty = ds.Dataset.range(10).filter(ds.col("id") > 99)
    for number, dataset in enumerate((empty, ds.Dataset.range(0), ds.Dataset.range(5).repeat(0))):
        path = str(tmp_path / f"{number}")
        assert ds.save(dataset, path, service.target).wait(DEADLINE_S).rows == 0
        assert ds.Dataset.load(path).to_table().num_rows == 0


def test_killed_workers_and_dispatcher_lose_no_row(tmp_path: pathlib.Path, gates: Gates) -> None:
    arguments = (
        *("--worker-timeout-ms", "1500", "--fault-tolerant"),
        *("--work-dir", str(tmp_path / "journal")),
    )
    path = str(tmp_path / "s")
    with process_cluster(tmp_path / "logs", workers=2, dispatcher_args=arguments) as cluster:
        port = parse_target(cluster.target).rpartition(":")[2]
        snapshot = ds.save(gates.dataset().batch(64), path, cluster.target)
        wait_until(lambda: snapshot.progress().windows_done >= 4, "some windows")
        cluster.workers[0].kill()
        gates.open(1)
        wait_until(lambda: snapshot.progress().windows_done >= 12, "more windows")
        cluster.dispatcher.kill()
        cluster.start_dispatcher("--port", port, *arguments)
        cluster.add_worker()
        again = ds.save(gates.dataset().batch(64), path, cluster.target)
        assert again.snapshot_id == snapshot.snapshot_id, "the same call attaches"
        assert 12 <= again.progress().windows_done <= 20
        cluster.workers[1].kill()
        gates.open(2, 3)
        end = snapshot.wait(DEADLINE_S)
        assert (end.state, end.rows, end.windows_done) == ("done", ROWS, 40)
        loaded = ds.Dataset.load(path)
        assert read_ids(loaded) == list(range(ROWS))
        assert_every_row_once(loaded.distribute(DYNAMIC, cluster.target))
    assert [batch.num_rows for batch in loaded] == [64] * 312 + [32]
    assert not any(name.startswith("uncommitted") for name in os.listdir(path))


def test_resumed_worker_does_not_damage_the_snapshot(tmp_path: pathlib.Path, gates: Gates) -> None:
    path = str(tmp_path / "s")
    arguments = ("--worker-timeout-ms", "1500")
    with process_cluster(tmp_path / "logs", workers=2, dispatcher_args=arguments) as cluster:
        snapshot = ds.save(gates.dataset(), path, cluster.target)
        wait_until(lambda: snapshot.progress().windows_done == 10, "the first quarter")
        cluster.workers[0].suspend()
        wait_until(lambda: len(cluster.status()["workers"]) == 1, "the loss of the worker")
        gates.open(1)
        wait_until(lambda: snapshot.progress().windows_done == 20, "the work of the other")
        cluster.workers[0].resume()
        gates.open(2, 3)
        assert snapshot.wait(DEADLINE_S).rows == ROWS
        assert read_ids(ds.Dataset.load(path)) == list(range(ROWS))


def test_unsplittable_plan_of_killed_worker_is_saved_by_another(
    tmp_path: pathlib.Path, gates: Gates
) -> None:
    path = str(tmp_path / "s")
    arguments = ("--worker-timeout-ms", "1500")
    with process_cluster(tmp_path / "logs", workers=1, dispatcher_args=arguments) as cluster:
        snapshot = ds.save(gates.dataset().enumerate("n").batch(10), path, cluster.target)
        wait_until(lambda: snapshot.progress().rows > 0, "some rows")
        assert snapshot.progress().state == "writing"
        cluster.workers[0].kill()
        gates.open(1, 2, 3)
        cluster.add_worker()
        assert snapshot.wait(DEADLINE_S).rows == ROWS
    loaded = ds.Dataset.load(path).to_table()
    assert loaded["n"].to_pylist() == list(range(ROWS))
    assert loaded["id"].to_pylist() == list(range(ROWS))


def test_function_error_fails_the_snapshot_for_writers_and_readers(
    service: LocalService, tmp_path: pathlib.Path
) -> None:
    def fail(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if (columns["id"] == 777).any():
            raise RuntimeError("row 777 is bad")
        return columns

    path = str(tmp_path / "s")
    schema = pa.schema({"id": pa.int64()})
    dataset = ds.Dataset.range(5_000).map(fail, schema=schema)
    snapshot = ds.save(dataset, path, service.target)
    with pytest.raises(UserFunctionError, match=r"the snapshot .*/s failed.*row 777 is bad") as one:
        snapshot.wait(DEADLINE_S)
    assert "in fail" in one.value.user_traceback
    assert one.value.worker in {worker.address for worker in service.workers}
    assert snapshot.progress().state == "failed"
    with pytest.raises(UserFunctionError, match="row 777 is bad") as two:
        ds.Dataset.load(path, wait=True, timeout_s=DEADLINE_S)
    assert two.value.user_traceback == one.value.user_traceback
    with pytest.raises(AlreadyExistsError, match="which failed"):
        ds.save(dataset, path, service.target)


def test_unwritable_folder_fails_the_snapshot(
    service: LocalService, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "chunks").write_text("in the way")
    snapshot = ds.save(ds.Dataset.range(100), str(tmp_path / "s"), service.target)
    with pytest.raises(FailedPreconditionError, match=r"cannot write .*/s/chunks/chunk_0000"):
        snapshot.wait(DEADLINE_S)
    assert "/s failed: cannot write" in caplog.text
    with pytest.raises(FailedPreconditionError, match="failed: cannot write"):
        ds.Dataset.load(str(tmp_path / "s"), wait=True, timeout_s=DEADLINE_S)


def test_load_with_wait_in_another_process_gets_all_rows(
    tmp_path: pathlib.Path, gates: Gates
) -> None:
    path = str(tmp_path / "s")
    program = (
        "import sys, dataservice as ds\n"
        "print(ds.Dataset.load(sys.argv[1], wait=True, timeout_s=60).to_table().num_rows)"
    )
    with (
        subprocess.Popen([sys.executable, "-c", program, path], stdout=subprocess.PIPE) as reader,
        local_service(workers=1) as service,
    ):
        snapshot = ds.save(gates.dataset(), path, service.target)
        wait_until(lambda: snapshot.progress().windows_done == 10, "the first quarter")
        with pytest.raises(FailedPreconditionError, match="not finished: 10 of at most 40 chunks"):
            ds.Dataset.load(path)
        gates.open(1, 2, 3)
        output, _ = reader.communicate(timeout=DEADLINE_S)
    assert int(output) == ROWS


def test_cancelled_snapshot_is_an_error_for_writers_and_readers(
    service: LocalService, tmp_path: pathlib.Path, gates: Gates
) -> None:
    snapshot = ds.save(gates.dataset(), str(tmp_path / "s"), service.target)
    with pytest.raises(DeadlineExceededError, match=r"not finished after 0\.1 s: \d+ of 40"):
        snapshot.wait(0.1)
    snapshot.cancel()
    with pytest.raises(CancelledError, match="was cancelled"):
        snapshot.wait(DEADLINE_S)
    gates.open(1, 2, 3)
    with pytest.raises(CancelledError, match="was cancelled"):
        ds.Dataset.load(str(tmp_path / "s"), wait=True, timeout_s=DEADLINE_S)
    snapshot.cancel()


def test_worker_writes_at_most_its_limit_of_snapshots_at_once(
    tmp_path: pathlib.Path, gates: Gates
) -> None:
    config = ds.DispatcherConfig(worker_max_concurrent_snapshots=1)
    with local_service(workers=1, config=config) as service:
        first, second = (
            ds.save(gates.dataset(), str(tmp_path / name), service.target) for name in ("a", "b")
        )
        wait_until(lambda: first.progress().windows_done == 10, "the first quarter")
        wait_until(lambda: first.progress().workers == 1, "a heartbeat")
        assert second.progress().windows_done == second.progress().workers == 0, "it has to wait"
        gates.open(1, 2, 3)
        assert first.wait(DEADLINE_S).rows == second.wait(DEADLINE_S).rows == ROWS


def test_infinite_dataset_bad_path_or_foreign_folder_is_refused(
    service: LocalService, tmp_path: pathlib.Path
) -> None:
    path = str(tmp_path / "s")
    numbers = ds.Dataset.range(5)
    with pytest.raises(InvalidArgumentError, match="infinite dataset is not allowed"):
        ds.save(numbers.repeat(), path, service.target)
    with pytest.raises(InvalidArgumentError, match="infinite dataset is not allowed"):
        ds.save(numbers.filter(ds.col("id") > 1).repeat(), path, service.target)
    with pytest.raises(InvalidArgumentError, match="path must be a folder or a URL, got ''"):
        ds.save(numbers, "", service.target)
    with pytest.raises(InvalidArgumentError, match="'BROTLI'"):
        ds.save(numbers, path, service.target, compression="BROTLI")
    with pytest.raises(InvalidArgumentError, match="service must not be empty"):
        ds.save(numbers, path, "")
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "letters.txt").write_text("dear")
    with pytest.raises(AlreadyExistsError, match=r"holds other files \(letters\.txt\)"):
        ds.save(numbers, path, service.target)
    foreign = Metadata(snapshot_id="x", schema=SCHEMA, fingerprint="", cardinality=-2)
    SnapshotFolder(str(tmp_path / "t")).write_metadata(foreign)
    with pytest.raises(AlreadyExistsError, match="already holds snapshot x, of another service"):
        ds.save(numbers, str(tmp_path / "t"), service.target)


def test_waiting_for_a_snapshot_without_progress_times_out(tmp_path: pathlib.Path) -> None:
    with pytest.raises(DeadlineExceededError, match="nothing has been written yet"):
        ds.Dataset.load(str(tmp_path / "t"), wait=True, timeout_s=0.1)
    with local_service(workers=0) as service:
        snapshot = ds.save(ds.Dataset.range(5), str(tmp_path / "s"), service.target)
        with pytest.raises(DeadlineExceededError, match=r"0 of 5 windows, 0 rows.*0 workers"):
            snapshot.wait(0.1)
    meta = Metadata(snapshot_id="x", schema=SCHEMA, fingerprint="", cardinality=-2, windows=4)
    SnapshotFolder(str(tmp_path / "u")).write_metadata(meta)
    with pytest.raises(DeadlineExceededError, match=r"/u made no progress for 0\.1 s: 0 of at"):
        ds.Dataset.load(str(tmp_path / "u"), wait=True, timeout_s=0.1)


def test_snapshot_files_are_sharded_over_static_workers(tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "s")
    config = ds.DispatcherConfig(worker_addresses=["127.0.0.1:%port%", "127.0.0.1:%port%"])
    with local_service(workers=2, config=config) as service:
        ds.save(ds.Dataset.range(3_000), path, service.target).wait(DEADLINE_S)
        assert_every_row_once(ds.Dataset.load(path).distribute(FILE, service.target), 3_000)


def test_command_line_lists_and_cancels_snapshots(tmp_path: pathlib.Path, gates: Gates) -> None:
    with local_service(workers=1) as service:
        address = parse_target(service.target)
        assert printed("snapshots", "list", address) == "no snapshots\n"
        done = ds.save(ds.Dataset.range(50), str(tmp_path / "s"), service.target)
        done.wait(DEADLINE_S)
        under_way = ds.save(gates.dataset(), str(tmp_path / "t"), service.target)
        wait_until(lambda: under_way.progress().windows_done == 10, "the first quarter")
        lines = printed("snapshots", address, "list").splitlines()
        assert lines[0].split() == [
            "snapshot",
            "state",
            "windows",
            "rows",
            "MiB",
            "workers",
            "path",
        ]
        assert lines[1].split()[:4] == [done.snapshot_id, "done", "50/50", "50"]
        assert lines[2].split()[1:3] == ["writing", "10/40"]
        assert lines[2].endswith(str(tmp_path / "t"))
        assert f"{done.snapshot_id}  done" in printed("status", address)
        listed = json.loads(printed("snapshots", "list", address, "--json"))
        assert [snapshot["state"] for snapshot in listed] == ["done", "writing"]
        ended = printed("snapshots", "cancel", address, under_way.snapshot_id)
        assert ended == f"cancelled snapshot {under_way.snapshot_id}\n"
        with pytest.raises(CancelledError, match="/t was cancelled"):
            under_way.wait(DEADLINE_S)
        gates.open(1, 2, 3)


_FREEZE_BEFORE_METADATA_COMMIT = """
import os, signal, sys
from dataservice.dataset.snapshots.atomic_folder import AtomicFolder
from dataservice.dataset.snapshots.folder import SnapshotFolder
from tests.integration.test_snapshots import metadata_of

commit = AtomicFolder.commit

def freeze_and_commit(self, draft, name, **more):
    os.kill(os.getpid(), signal.SIGSTOP)
    commit(self, draft, name, **more)

AtomicFolder.commit = freeze_and_commit
try:
    SnapshotFolder(sys.argv[1], writes="old").write_metadata(metadata_of("old"))
except Exception as error:
    print(type(error).__name__)
"""


def metadata_of(snapshot_id: str) -> Metadata:
    return Metadata(snapshot_id=snapshot_id, schema=SCHEMA, fingerprint="f", cardinality=-2)


def test_writer_frozen_before_its_metadata_does_not_take_anothers_folder(
    tmp_path: pathlib.Path,
) -> None:
    """Meanwhile its snapshot was cancelled, its folder deleted, and another saved in its place."""
    path = str(tmp_path / "s")
    program = (sys.executable, "-c", _FREEZE_BEFORE_METADATA_COMMIT, path)
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as zombie:
        try:
            assert os.WIFSTOPPED(os.waitpid(zombie.pid, os.WUNTRACED)[1])
            folder = SnapshotFolder(path, writes="new")
            folder.write_metadata(metadata_of("new"))
            os.kill(zombie.pid, signal.SIGCONT)
            output, _ = zombie.communicate(timeout=DEADLINE_S)
        finally:
            zombie.kill()
    assert output.strip() == "ExistingFileError"
    found = folder.metadata()
    assert found is not None
    assert found.snapshot_id == "new"
