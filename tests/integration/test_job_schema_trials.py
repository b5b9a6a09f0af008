"""The schema of a function over a job's rows, found by a trial on rows that are read here."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dataservice as ds
from dataservice.errors import UserFunctionError
from tests.integration.service_cluster import local_service


@pytest.fixture(scope="module")
def target() -> Iterator[str]:
    with local_service(workers=1) as service:
        yield service.target


@pytest.fixture
def files(tmp_path: pathlib.Path) -> str:
    pq.write_table(pa.table({"x": [4, 5, 6], "s": ["a", "b", "c"]}), tmp_path / "a.parquet")
    return str(tmp_path / "*.parquet")


def divide_by_first_row(columns: dict[str, Any]) -> dict[str, Any]:
    """Divides by the first row, and so fails if it is tried on no rows."""
    return {"part": columns["y"] / columns["y"][0], "s": [str(s) for s in columns["s"]]}


def registered(data: ds.Dataset, target: str, **options: Any) -> ds.Dataset:
    dataset_id = ds.register_dataset(target, data)
    return ds.from_dataset_id(ds.ShardingPolicy.DYNAMIC, target, dataset_id, **options)


def distributed(data: ds.Dataset, target: str, **options: Any) -> ds.Dataset:
    return data.distribute(ds.ShardingPolicy.DYNAMIC, target, **options)


SCHEMA = pa.schema([("part", pa.float64()), ("s", pa.string())])


@pytest.mark.parametrize("read", [registered, distributed])
@pytest.mark.parametrize("options", [{}, {"ordered": True}, {"on_error": "skip"}])
def test_schema_of_mapped_job_is_found_on_rows_of_the_dataset(
    read: Callable[..., ds.Dataset], options: dict[str, Any], target: str, files: str
) -> None:
    data = ds.Dataset.from_parquet(files).map(lambda c: {"y": c["x"] * 2, "s": c["s"]})
    jobs = read(data, target, **options).map(divide_by_first_row)
    assert jobs.schema == jobs.filter(lambda c: c["part"] > 0).schema == SCHEMA
    assert jobs.to_table().sort_by("part")["part"].to_pylist() == [1.0, 1.25, 1.5]


@pytest.mark.parametrize("read", [registered, distributed])
def test_without_local_files_trial_has_no_rows_and_error_asks_for_schema(
    read: Callable[..., ds.Dataset], target: str, files: str
) -> None:
    remote = read(ds.Dataset.from_parquet(files), target)
    pathlib.Path(files).with_name("a.parquet").unlink()
    jobs = remote.map(lambda c: {"part": c["x"] / c["x"][0], "s": c["s"]})
    with pytest.raises(UserFunctionError, match="no rows, to find the schema; state it with sch"):
        _ = jobs.schema
    assert remote.map(divide_by_first_row, schema=SCHEMA).schema == SCHEMA
    assert remote.map(lambda c: {"z": c["x"] + 1}).schema == pa.schema([("z", pa.int64())])


def test_schema_trial_takes_no_rows_from_the_job(target: str, files: str) -> None:
    remote = distributed(ds.Dataset.from_parquet(files), target, job_name="looked at")
    assert remote.map(lambda c: {"x": c["x"] / c["x"][0]}).schema.names == ["x"]
    assert sorted(remote.to_table()["x"].to_pylist()) == [4, 5, 6]
