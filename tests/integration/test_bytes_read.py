"""What is not read in any process: unselected columns, row groups that a filter rules out.

And, where a job is only described, files.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem

import dataservice as ds
from dataservice.dataset.sources.files import InputFile
from dataservice.dataset.sources.parquet import ParquetSource
from dataservice.sharding import Split
from tests.integration.service_cluster import LocalService, local_service, write_numbers

ROWS = 100_000
GROUPS = 10
COLUMN_BYTES = 8 * ROWS
PATH = "memory://bytes-read/table.parquet"
# Reading a footer takes 64 KiB; planning and reading do so a few times, on a busy machine once
# more.
OVERHEAD = 8 << 16


class Counter:
    def __init__(self) -> None:
        self.bytes = 0


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter]:
    """Counts the bytes that are read of a file in memory, whose columns cannot be compressed."""
    random = np.random.default_rng(0)
    columns = {f"x{i}": random.integers(0, 1 << 62, ROWS) for i in range(4)}
    table = pa.table({"id": np.arange(ROWS), **columns})
    with fsspec.open(PATH, "wb") as file:
        pq.write_table(
            table,
            file,
            row_group_size=ROWS // GROUPS,
            compression="none",
            use_dictionary=False,
        )
    counted = Counter()
    original = MemoryFile.read

    def read(self: Any, *args: Any) -> bytes:
        data: bytes = original(self, *args)
        counted.bytes += len(data)
        return data

    monkeypatch.setattr(MemoryFile, "read", read, raising=False)
    yield counted
    MemoryFileSystem.store.clear()


@pytest.fixture(scope="module")
def service() -> Iterator[LocalService]:
    with local_service() as started:
        yield started


LATE = ds.col("id") >= ROWS - ROWS // GROUPS
CHOICES: dict[str, tuple[Callable[[], ds.Dataset], int, float]] = {
    "all": (lambda: ds.Dataset.from_parquet(PATH), ROWS, 5.0),
    "columns=": (lambda: ds.Dataset.from_parquet(PATH, columns=["x1"]), ROWS, 1.0),
    "select": (lambda: ds.Dataset.from_parquet(PATH).select("x1"), ROWS, 1.0),
    "filter=": (lambda: ds.Dataset.from_parquet(PATH, filter=LATE), ROWS // GROUPS, 0.5),
    "filter": (lambda: ds.Dataset.from_parquet(PATH).filter(LATE), ROWS // GROUPS, 0.5),
    "both": (
        lambda: ds.Dataset.from_parquet(PATH, columns=["x1"], filter=LATE),
        ROWS // GROUPS,
        0.2,
    ),
}


@pytest.mark.parametrize("policy", [None, ds.ShardingPolicy.DYNAMIC, ds.ShardingPolicy.OFF])
@pytest.mark.parametrize("choice", CHOICES)
def test_bytes_read_are_those_of_selected_columns_and_row_groups(
    counter: Counter, service: LocalService, choice: str, policy: ds.ShardingPolicy | None
) -> None:
    make, rows, columns = CHOICES[choice]
    dataset = make()
    if policy is not None:
        dataset = dataset.distribute(policy, service.target)
    counter.bytes = 0
    assert sum(batch.num_rows for batch in dataset) == rows
    wanted = columns * COLUMN_BYTES
    assert wanted <= counter.bytes <= wanted + OVERHEAD


def test_a_process_that_reads_a_job_opens_one_file_however_many_there_are(
    service: LocalService, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of trainers would each open a hundred thousand files to count their rows."""
    numbers = ds.Dataset.from_parquet(write_numbers(tmp_path, files=5, rows_per_file=10))
    planned: set[str] = set()
    plan_file = ParquetSource.plan_file

    def noted(self: ParquetSource, file: InputFile) -> list[Split]:
        planned.add(pathlib.Path(file.path).name)
        return plan_file(self, file)

    monkeypatch.setattr(ParquetSource, "plan_file", noted)
    dynamic = ds.ShardingPolicy.DYNAMIC
    for data in (numbers, numbers.batch(4).unbatch(), numbers.repeat()):
        data.distribute(dynamic, service.target)
        dataset_id = ds.register_dataset(service.target, data)
        remote = ds.from_dataset_id(dynamic, service.target, dataset_id)
        assert remote.is_endless == data.is_endless
    assert planned == {"part-000.parquet"}
