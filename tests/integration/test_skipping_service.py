"""on_error="skip" through a real service: exactly the bad parts are skipped, counted, reported."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dataservice as ds
from dataservice.errors import SourceError
from dataservice.vocabulary import parse_target
from tests.integration.service_cluster import (
    ProcessCluster,
    printed,
    process_cluster,
    write_numbers,
)

SCHEMA = pa.schema([("id", pa.int64())])


def fail_on_sevens(columns: dict[str, Any]) -> dict[str, Any]:
    ids = columns["id"]
    bad = ids[ids % 1_000 == 7]
    if len(bad):
        raise ValueError(f"unlucky {bad[0]}")
    return {"id": ids}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    with process_cluster(tmp_path_factory.mktemp("logs"), workers=2) as started:
        yield started


def read(dataset: ds.Dataset) -> tuple[list[int], dict[str, Any]]:
    with iter(dataset) as iterator:
        ids = [value for batch in iterator for value in batch["id"].to_pylist()]
        return ids, iterator.stats()["skipped"]


@pytest.mark.parametrize("policy", [ds.ShardingPolicy.DYNAMIC, ds.ShardingPolicy.OFF])
@pytest.mark.parametrize("batch", [None, 64])
def test_rows_that_a_function_fails_on_are_skipped_and_counted(
    cluster: ProcessCluster,
    policy: ds.ShardingPolicy,
    batch: int | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    dataset = ds.Dataset.range(20_000)
    dataset = dataset if batch is None else dataset.batch(batch)
    mapped = dataset.map(fail_on_sevens, schema=SCHEMA)
    name = f"functions-{policy.name}-{batch}"
    ids, skipped = read(mapped.distribute(policy, cluster.target, on_error="skip", job_name=name))
    times = 1 if policy is ds.ShardingPolicy.DYNAMIC else 2
    assert sorted(ids) == sorted([i for i in range(20_000) if i % 1_000 != 7] * times)
    assert skipped["function_rows"] == 20 * times
    assert "unlucky" in skipped["messages"][0]
    assert f"complete but for {20 * times} rows that a function failed on" in caplog.text
    assert f"job {name}, epoch 0 leaves out {20 * times} rows" in printed(
        "status", parse_target(cluster.target)
    )


def damage(folder: pathlib.Path) -> None:
    (folder / "part-001.parquet").unlink()
    whole = (folder / "part-002.parquet").read_bytes()
    (folder / "part-002.parquet").write_bytes(whole[: len(whole) // 2])
    pq.write_table(pa.table({"other": [1, 2]}), folder / "part-003.parquet")


@pytest.mark.parametrize("policy", [ds.ShardingPolicy.DYNAMIC, ds.ShardingPolicy.OFF])
@pytest.mark.parametrize("planned_before", [False, True])
def test_unreadable_files_are_skipped_and_counted(
    cluster: ProcessCluster,
    tmp_path: pathlib.Path,
    policy: ds.ShardingPolicy,
    planned_before: bool,
) -> None:
    """Files are damaged before they are planned, or after."""
    write_numbers(tmp_path, files=6, rows_per_file=4_000)
    paths = [str(tmp_path / f"part-{index:03}.parquet") for index in range(6)]
    dataset = ds.Dataset.from_parquet(paths).select("id")
    if planned_before:
        dataset_id = ds.register_dataset(cluster.target, dataset)
        damage(tmp_path)
        remote = ds.from_dataset_id(policy, cluster.target, dataset_id, on_error="skip")
    else:
        damage(tmp_path)
        remote = dataset.distribute(policy, cluster.target, on_error="skip")
        with pytest.raises(SourceError):
            dataset.distribute(policy, cluster.target)
    ids, skipped = read(remote)
    times = 1 if policy is ds.ShardingPolicy.DYNAMIC else 2
    expected = [i for i in range(24_000) if i // 4_000 not in (1, 2, 3)]
    assert sorted(ids) == sorted(expected * times)
    assert sorted(skipped["files"]) == paths[1:4]
    assert skipped["splits"] == 3 * times


def test_files_deleted_after_planning_are_skipped_and_counted(
    cluster: ProcessCluster, tmp_path: pathlib.Path
) -> None:
    write_numbers(tmp_path, files=40, rows_per_file=4_000)
    remote = ds.Dataset.from_parquet(str(tmp_path / "*.parquet")).select("id").batch(500)
    remote = remote.distribute(
        ds.ShardingPolicy.DYNAMIC, cluster.target, on_error="skip", max_outstanding_requests=2
    )
    with iter(remote) as iterator:
        first = next(iterator)
        for path in sorted(tmp_path.iterdir())[20:]:
            path.unlink()
        ids = [*first["id"].to_pylist(), *(i for b in iterator for i in b["id"].to_pylist())]
        skipped = iterator.stats()["skipped"]
    assert len(ids) == len(set(ids))
    assert len(ids) + skipped["source_rows"] == 160_000
    assert skipped["source_rows"] > 0


@pytest.mark.parametrize("format", ["csv", "jsonl"])
def test_malformed_rows_are_left_out_by_themselves(
    cluster: ProcessCluster, tmp_path: pathlib.Path, format: str
) -> None:
    source, header, row = {
        "csv": (ds.Dataset.from_csv, ["id,y"], "{},x"),
        "jsonl": (ds.Dataset.from_json, [], '{{"id": {}, "y": "x"}}'),
    }[format]
    for file in range(4):
        rows = [row.format(file * 1000 + number) for number in range(1000)]
        rows[500] = "garbage"
        (tmp_path / f"{file}.{format}").write_text("\n".join([*header, *rows]) + "\n")
    dataset = source(str(tmp_path))  # type: ignore[operator]
    ids, skipped = read(
        dataset.distribute(ds.ShardingPolicy.DYNAMIC, cluster.target, on_error="skip")
    )
    assert sorted(ids) == [number for number in range(4000) if number % 1000 != 500]
    assert (skipped["source_rows"], skipped["splits"], len(skipped["files"])) == (4, 0, 4)
