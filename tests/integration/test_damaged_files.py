"""Files in every format that are damaged, gone or replaced, read through a real service.

The error names the file, and the row group if there is one; the worker survives and serves the
next job.
"""

from __future__ import annotations

import pathlib
import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

import dataservice as ds
from dataservice.errors import SchemaError, SourceError, UserFunctionError
from tests.integration.service_cluster import ProcessCluster, process_cluster, read_ids
from tests.unit.dataservice.dataset.test_tfrecord_source import write as write_records

ROWS = 2_000
FILES = 4
DAMAGED = 2
SCHEMA = pa.schema([("id", pa.int64())])


def write_parquet(path: pathlib.Path, name: str, ids: Any) -> None:
    pq.write_table(pa.table({name: ids}), path, row_group_size=1_000, use_dictionary=False)


def write_csv(path: pathlib.Path, name: str, ids: Any) -> None:
    pacsv.write_csv(pa.table({name: ids}), path)


def write_json(path: pathlib.Path, name: str, ids: Any) -> None:
    path.write_text("".join(f'{{"{name}": {value}}}\n' for value in ids))


def write_ipc(path: pathlib.Path, name: str, ids: Any) -> None:
    table = pa.table({name: ids})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=1_000)


def write_tfrecord(path: pathlib.Path, name: str, ids: Any) -> None:
    records = [struct.pack("<q", value) for value in ids]
    write_records(path, records)
    if name != "id":
        path.write_bytes(b"no records at all" * 100)


class Format(NamedTuple):
    write: Callable[[pathlib.Path, str, Any], None]
    source: Callable[[str], ds.Dataset]
    suffix: str


FORMATS = {
    "parquet": Format(write_parquet, ds.Dataset.from_parquet, ".parquet"),
    "csv": Format(write_csv, ds.Dataset.from_csv, ".csv"),
    "json": Format(write_json, ds.Dataset.from_json, ".jsonl"),
    "ipc": Format(write_ipc, ds.Dataset.from_ipc, ".arrow"),
    "tfrecord": Format(write_tfrecord, ds.Dataset.from_tfrecord, ".tfrecord"),
}


def other_schema(format: Format, path: pathlib.Path) -> None:
    format.write(path, "other", np.arange(ROWS))


def cut(format: Format, path: pathlib.Path) -> None:
    data = path.read_bytes()
    # A text file that ends with a whole line is not damaged: this adds a torn line.
    torn = {".csv": b"\n1,2,3\n", ".jsonl": b'\n{"id": \n'}.get(format.suffix, b"")
    path.write_bytes(data[: len(data) * 2 // 3 - 1] + torn)


def vanish(_format: Format, path: pathlib.Path) -> None:
    path.unlink()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    with process_cluster(tmp_path_factory.mktemp("logs"), workers=1) as started:
        yield started


def check_worker_serves(cluster: ProcessCluster) -> None:
    assert cluster.workers[0].returncode is None
    good = ds.Dataset.range(1_000).distribute(ds.ShardingPolicy.DYNAMIC, cluster.target)
    assert sorted(read_ids(good)) == list(range(1_000))


@pytest.mark.parametrize("policy", [ds.ShardingPolicy.DYNAMIC, ds.ShardingPolicy.OFF])
@pytest.mark.parametrize("name", FORMATS)
def test_damaged_file_is_named_and_the_worker_lives(
    cluster: ProcessCluster, tmp_path: pathlib.Path, name: str, policy: ds.ShardingPolicy
) -> None:
    format = FORMATS[name]
    paths = [tmp_path / f"part-{index}{format.suffix}" for index in range(FILES)]
    for damage in (vanish, cut, other_schema):
        for index, path in enumerate(paths):
            format.write(path, "id", np.arange(index * ROWS, (index + 1) * ROWS))
        dataset = format.source([str(path) for path in paths])  # type: ignore[arg-type]
        remote = dataset.distribute(policy, cluster.target)
        damage(format, paths[DAMAGED])
        with pytest.raises((SourceError, SchemaError)) as caught:
            sum(batch.num_rows for batch in remote)
        assert str(paths[DAMAGED]) in str(caught.value), (damage.__name__, caught.value)
    check_worker_serves(cluster)


@pytest.mark.parametrize("header", [True, False])
def test_csv_file_with_extra_column_is_the_same_error_locally_and_remotely(
    cluster: ProcessCluster, tmp_path: pathlib.Path, header: bool
) -> None:
    for name, text in (("a.csv", "id,x\n1,2\n"), ("b.csv", "id,x,extra\n3,4,5\n")):
        (tmp_path / name).write_text(text if header else text.partition("\n")[2])
    dataset = ds.Dataset.from_csv(str(tmp_path / "*.csv"), header=header)
    more = "extra" if header else "f2"
    for read in (dataset, dataset.distribute(ds.ShardingPolicy.DYNAMIC, cluster.target)):
        with pytest.raises(SchemaError, match=rf"b.csv' has \[.*more: \['{more}'\]"):
            sum(batch.num_rows for batch in read)
    stated = pa.schema([("id", pa.int64()), ("x", pa.int64())])
    if header:
        chosen = ds.Dataset.from_csv(str(tmp_path / "*.csv"), schema=stated)
        remote = chosen.distribute(ds.ShardingPolicy.DYNAMIC, cluster.target)
        assert sorted(read_ids(remote)) == [1, 3]
    check_worker_serves(cluster)


def test_damaged_row_group_is_named(cluster: ProcessCluster, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "wide.parquet"
    ids = np.random.default_rng(0).integers(0, 1 << 60, 60_000)
    pq.write_table(pa.table({"id": ids}), path, row_group_size=20_000, use_dictionary=False)
    at = pq.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    data = bytearray(path.read_bytes())
    data[at : at + 64] = bytes(64)
    path.write_bytes(data)
    remote = ds.Dataset.from_parquet(str(path)).distribute(
        ds.ShardingPolicy.DYNAMIC, cluster.target
    )
    with pytest.raises(SourceError, match="row group 1"):
        read_ids(remote)
    check_worker_serves(cluster)


def test_file_replaced_after_planning_is_an_error(
    cluster: ProcessCluster, tmp_path: pathlib.Path
) -> None:
    for index in range(40):
        write_parquet(
            tmp_path / f"part-{index:02}.parquet", "id", np.arange(index * ROWS, (index + 1) * ROWS)
        )
    dataset = ds.Dataset.from_parquet(str(tmp_path / "*.parquet")).batch(100)
    remote = dataset.distribute(
        ds.ShardingPolicy.DYNAMIC, cluster.target, max_outstanding_requests=1
    )
    with iter(remote) as iterator:
        next(iterator)
        for path in sorted(tmp_path.iterdir())[20:]:
            write_parquet(path, "id", np.zeros(ROWS, np.int64))
        with pytest.raises(SourceError, match=r"part-\d\d.parquet.*changed since it was planned"):
            sum(batch.num_rows for batch in iterator)
    check_worker_serves(cluster)


def divide(columns: dict[str, Any]) -> dict[str, Any]:
    ids = columns["id"]
    return {"id": np.array([1 // (value - 1_234) for value in ids.tolist()])}


@pytest.mark.parametrize("policy", [ds.ShardingPolicy.DYNAMIC, ds.ShardingPolicy.OFF])
def test_user_function_error_names_file_rows_and_worker(
    cluster: ProcessCluster, tmp_path: pathlib.Path, policy: ds.ShardingPolicy
) -> None:
    path = tmp_path / "rows.parquet"
    write_parquet(path, "id", np.arange(ROWS))
    mapped = ds.Dataset.from_parquet(str(path)).map(divide, schema=SCHEMA)
    with pytest.raises(UserFunctionError) as caught:
        read_ids(mapped.distribute(policy, cluster.target))
    error = caught.value
    assert "ZeroDivisionError" in error.user_traceback
    assert "in divide" in error.user_traceback
    assert str(path) in error.source
    assert "rows 0..1999" in error.source
    assert error.worker == cluster.status()["workers"][0]["address"]
    check_worker_serves(cluster)
