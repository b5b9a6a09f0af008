"""Files in an object store, a real server of S3's protocol, read here and on data workers."""

from __future__ import annotations

import io
import logging
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

import dataservice as ds
from dataservice.dataset.sources.text_parts import PART_BYTES
from dataservice.errors import MissingFileError, SourceError
from dataservice.runtime.process.children import spawn_module
from tests.integration.service_cluster import ProcessCluster, process_cluster, read_ids

s3fs = pytest.importorskip("s3fs", reason="pip install 'pstrain[s3]'")
pytest.importorskip("moto.moto_server", reason="pip install 'pstrain[test]'")

SECRET = "SECRET-that-nobody-may-see"
FILES, ROWS = 4, 3_000
READY_TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def options() -> Iterator[dict[str, Any]]:
    """Yields the `storage_options` of this module's server, which has one bucket."""
    with spawn_module("tests.integration.programs.s3_server") as server:
        url = server.wait_ready(READY_TIMEOUT_S)["address"]
        chosen = {"endpoint_url": url, "key": "somebody", "secret": SECRET}
        s3fs.S3FileSystem(**chosen).mkdir("clicks")
        yield chosen


@pytest.fixture(scope="module")
def files(options: dict[str, Any]) -> dict[str, str]:
    """Writes the same rows in three formats; returns the glob of each."""
    store = s3fs.S3FileSystem(**options)
    for number in range(FILES):
        ids = range(number * ROWS, (number + 1) * ROWS)
        table = pa.table({"id": ids, "x": [float(i) for i in ids], "y": [0] * ROWS})
        for suffix, write in (
            ("parquet", lambda to, t: pq.write_table(t, to, row_group_size=1_000)),
            ("csv", lambda to, t: pacsv.write_csv(t, to)),
            ("arrow", _write_ipc),
        ):
            content = io.BytesIO()
            write(content, table)
            store.pipe_file(f"clicks/day-{number}/rows.{suffix}", content.getvalue())
    return {suffix: f"s3://clicks/day-*/rows.{suffix}" for suffix in ("parquet", "csv", "arrow")}


def _write_ipc(to: io.BytesIO, table: pa.Table) -> None:
    with pa.ipc.new_file(to, table.schema) as writer:
        writer.write_table(table, max_chunksize=1_000)


def datasets(files: dict[str, str], options: dict[str, Any]) -> dict[str, ds.Dataset]:
    return {
        "parquet": ds.Dataset.from_parquet(
            files["parquet"], columns=["id", "x"], storage_options=options
        ),
        "csv": ds.Dataset.from_csv(files["csv"], storage_options=options).select(["id", "x"]),
        "ipc": ds.Dataset.from_ipc(
            files["arrow"], columns=["id", "x"], storage_options=options
        ),
    }  # fmt: skip


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    with process_cluster(tmp_path_factory.mktemp("logs"), workers=1) as running:
        yield running


def test_files_matching_a_glob_are_read_in_this_process(
    files: dict[str, str], options: dict[str, Any]
) -> None:
    for name, data in datasets(files, options).items():
        assert data.schema.names == ["id", "x"], name
        assert read_ids(data) == list(range(FILES * ROWS)), name


def test_directories_and_single_objects_are_read(
    files: dict[str, str], options: dict[str, Any]
) -> None:
    assert files
    folder = ds.Dataset.from_parquet("s3://clicks/day-1", storage_options=options)
    assert read_ids(folder) == list(range(ROWS, 2 * ROWS))
    one = ds.Dataset.from_csv("s3://clicks/day-2/rows.csv", storage_options=options)
    assert read_ids(one) == list(range(2 * ROWS, 3 * ROWS))


def test_parts_of_a_large_object_are_read(options: dict[str, Any], files: dict[str, str]) -> None:
    assert files
    rows = 60_000
    text = b"id,pad\n" + b"".join(b"%d,%s\n" % (i, b"x" * 600) for i in range(rows))
    assert len(text) > PART_BYTES
    s3fs.S3FileSystem(**options).pipe_file("clicks/large/rows.csv", text)
    data = ds.Dataset.from_csv(
        "s3://clicks/large/rows.csv", newlines_in_values=False, storage_options=options
    )
    assert len(list(data.node.splits())) == 2
    assert read_ids(data) == list(range(rows))


@pytest.mark.parametrize("kind", ["parquet", "csv", "ipc"])
def test_data_workers_read_every_row_once_and_only_selected_columns(
    kind: str, files: dict[str, str], options: dict[str, Any], cluster: ProcessCluster
) -> None:
    data = datasets(files, options)[kind]
    remote = data.distribute(ds.ShardingPolicy.DYNAMIC, cluster.target)
    batches = list(remote)
    assert {tuple(batch.schema.names) for batch in batches} == {("id", "x")}
    ids = [i for batch in batches for i in batch.column("id").to_pylist()]
    assert sorted(ids) == list(range(FILES * ROWS))


def test_missing_object_or_bucket_is_named(options: dict[str, Any], files: dict[str, str]) -> None:
    assert files
    for path in ("s3://clicks/none.parquet", "s3://no-such-bucket/a.parquet"):
        with pytest.raises(MissingFileError, match=path) as caught:
            read_ids(ds.Dataset.from_parquet(path, storage_options=options))
        assert isinstance(caught.value, FileNotFoundError)
        assert SECRET not in str(caught.value)
    for glob in ("s3://clicks/none-*.parquet", "s3://no-such-bucket/*.parquet"):
        with pytest.raises(MissingFileError, match="no file matches"):
            read_ids(ds.Dataset.from_parquet(glob, storage_options=options))


def test_object_deleted_before_a_worker_reads_it_is_named(
    options: dict[str, Any], cluster: ProcessCluster
) -> None:
    store = s3fs.S3FileSystem(**options)
    store.pipe_file("clicks/going/0.csv", b"id\n7\n")
    schema = pa.schema({"id": pa.int64()})
    path = "s3://clicks/going/0.csv"
    data = ds.Dataset.from_csv(path, schema=schema, storage_options=options)
    dataset_id = ds.register_dataset(cluster.target, data)
    store.rm_file("clicks/going/0.csv")
    remote = ds.from_dataset_id(ds.ShardingPolicy.DYNAMIC, cluster.target, dataset_id)
    with pytest.raises(SourceError, match=path) as caught:
        read_ids(remote)
    assert SECRET not in str(caught.value)


def test_changed_object_is_noticed_although_listings_are_cached(
    options: dict[str, Any],
) -> None:
    # Another instance has caches of its own, as another machine would.
    elsewhere = s3fs.S3FileSystem(skip_instance_cache=True, **options)
    for number in range(2):
        elsewhere.pipe_file(f"clicks/changing/{number}.csv", b"id\n1\n")
    data = ds.Dataset.from_csv("s3://clicks/changing/*.csv", storage_options=options)
    assert read_ids(data) == [1, 1]
    with iter(data) as iterator:
        assert next(iterator).column("id").to_pylist() == [1]
        elsewhere.pipe_file("clicks/changing/1.csv", b"id\n2\n")
        with pytest.raises(SourceError, match="has changed since it was planned"):
            list(iterator)
    elsewhere.pipe_file("clicks/changing/2.csv", b"id\n3\n")
    assert read_ids(data) == [1, 2, 3]


def test_saved_dataset_is_loaded_from_s3(
    files: dict[str, str], options: dict[str, Any], cluster: ProcessCluster
) -> None:
    data = datasets(files, options)["parquet"].filter(ds.col("id") % 2 == 0)
    even = list(range(0, FILES * ROWS, 2))
    path = "s3://clicks/saved/even"
    ds.save(data, path, cluster.target, storage_options=options).wait(timeout_s=60)
    loaded = ds.Dataset.load(path, storage_options=options)
    assert sorted(read_ids(loaded)) == even
    remote = loaded.distribute(ds.ShardingPolicy.DYNAMIC, cluster.target)
    assert sorted(read_ids(remote)) == even


def test_unreachable_store_is_named(options: dict[str, Any]) -> None:
    away = {"endpoint_url": "http://127.0.0.1:9", "config_kwargs": {"retries": {"max_attempts": 0}}}
    with pytest.raises(SourceError, match=r"cannot read 's3://clicks/a\.csv'.*127") as caught:
        read_ids(ds.Dataset.from_csv("s3://clicks/a.csv", storage_options={**options, **away}))
    assert SECRET not in str(caught.value)


def test_credentials_are_neither_listed_nor_logged(
    files: dict[str, str],
    options: dict[str, Any],
    tmp_path: pathlib.Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, logger="dataservice")
    journal = tmp_path / "state"
    with process_cluster(
        tmp_path, workers=1, dispatcher_args=("--work-dir", str(journal), "--fault-tolerant")
    ) as cluster:
        data = datasets(files, options)["csv"]
        assert SECRET not in repr(data) + repr(data._node) + repr(data._node.inputs)
        ds.register_dataset(cluster.target, data, dataset_id="clicks")
        with pytest.raises(ValueError, match="clicks") as caught:
            ds.register_dataset(cluster.target, data.select(["id"]), dataset_id="clicks")
        assert SECRET not in str(caught.value)
        snapshot = ds.save(data, "s3://clicks/listed", cluster.target, storage_options=options)
        snapshot.wait(timeout_s=60)
        read_ids(data.distribute(ds.ShardingPolicy.DYNAMIC, cluster.target))
        for command in ("status", "jobs list", "datasets list", "snapshots list"):
            asked = ["-m", "dataservice", *command.split(), cluster.target, "--json"]
            done = subprocess.run(
                [sys.executable, *asked], capture_output=True, text=True, timeout=60, check=True
            )
            assert SECRET not in done.stdout + done.stderr
        # The journal may hold the secret, which a restarted dispatcher passes on to workers, if
        # only its owner can read it.
        for kept in journal.iterdir():
            assert SECRET.encode() not in kept.read_bytes() or not kept.stat().st_mode & 0o077
    logs = [path.read_text() for path in tmp_path.glob("*.log")]
    assert logs
    assert not [text for text in [caplog.text, *logs] if SECRET in text]
