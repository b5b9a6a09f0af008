"""Rows that are skipped at the start of a source with known rows are neither made nor read."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dataservice as ds
from dataservice.dataset.dataset import Dataset
from dataservice.dataset.sources.base import SplitStream
from dataservice.dataset.sources.parquet import ParquetSource
from dataservice.dataset.sources.range import RangeSource
from dataservice.dataset.tolerance import tolerant
from tests.unit.dataservice.dataset.checkpoint_checker import check_positions, numbers, run, values

HUGE = 10**15


def ids(dataset: Dataset) -> list[int]:
    return [value for batch in dataset for value in batch["id"].to_pylist()]


def double(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"id": columns["id"] * 2}


def test_skipped_start_of_range_is_not_made() -> None:
    skipping = Dataset.range(HUGE).skip(HUGE - 3)
    assert values(run(skipping), "id") == list(range(HUGE - 3, HUGE))
    mapped = Dataset.range(HUGE).map(double).rename({"id": "x"}).skip(HUGE - 3).take(2)
    assert values(run(mapped)) == [2 * (HUGE - 3), 2 * (HUGE - 2)]
    assert values(run(Dataset.range(HUGE).skip(2 * HUGE)), "id") == []


def test_skip_after_filter_counts_filtered_rows() -> None:
    kept = Dataset.range(100).filter(ds.col("id") % 10 == 0).skip(4)
    assert values(run(kept), "id") == [40, 50, 60, 70, 80, 90]


@pytest.mark.parametrize(
    "pipeline",
    [
        lambda d: d.skip(7),
        lambda d: d.skip(0),
        lambda d: d.skip(20),
        lambda d: d.skip(50),
        lambda d: d.batch(4).skip(2),
        lambda d: d.take(15).skip(6),
        lambda d: d.skip(3).skip(4).batch(5),
        lambda d: d.map(lambda c: {"x": c["x"] + 1}).skip(5).batch(3),
        lambda d: d.shuffle(6, seed=2).skip(5),
        lambda d: d.concatenate(d).skip(23),
        lambda d: d.skip(3).repeat(2).skip(20),
    ],
)
def test_skip_gives_same_rows_and_positions_as_reading_all(
    pipeline: Callable[[Dataset], Dataset],
) -> None:
    dataset = pipeline(numbers(20))
    with mock.patch.object(SplitStream, "advance", return_value=0):
        expected = values(run(dataset))
    assert values(run(dataset)) == expected
    check_positions(dataset)


def test_skipped_row_groups_are_not_read(tmp_path: pathlib.Path) -> None:
    for file in range(3):
        table = pa.table({"x": range(file * 60, (file + 1) * 60)})
        pq.write_table(table, tmp_path / f"{file}.parquet", row_group_size=20)
    read: list[tuple[str | None, list[int]]] = []
    decode = ParquetSource._decode

    def noting(
        self: ParquetSource, parquet: pq.ParquetFile, path: str, groups: list[int], context: object
    ) -> object:
        read.append((pathlib.Path(path).name, list(groups)))
        return decode(self, parquet, path, groups, context)  # type: ignore[arg-type]

    dataset = Dataset.from_parquet(str(tmp_path / "*.parquet"))
    with mock.patch.object(ParquetSource, "_decode", noting):
        assert values(run(dataset.skip(90))) == list(range(90, 180))
    assert read == [("1.parquet", [1, 2]), ("2.parquet", [0, 1, 2])]
    check_positions(dataset.skip(90))
    filtered = Dataset.from_parquet(str(tmp_path / "*.parquet"), filter=ds.col("x") % 2 == 0)
    assert values(run(filtered.skip(45))) == list(range(90, 180, 2))


def test_skip_over_tolerant_source_reads_files(tmp_path: pathlib.Path) -> None:
    pq.write_table(pa.table({"x": range(10)}), tmp_path / "0.parquet")
    (tmp_path / "1.parquet").write_bytes(b"no parquet")
    dataset = Dataset.from_parquet(str(tmp_path / "*.parquet")).skip(8)
    assert values(run(tolerant(dataset.node))) == [8, 9]


@pytest.mark.parametrize("whole", [range(20), range(5, 20, 3), range(20, -7, -2), range(3, 3)])
@pytest.mark.parametrize(("shards", "index"), [(1, 0), (4, 1), (30, 29)])
def test_shard_of_range_yields_every_nth_value(whole: range, shards: int, index: int) -> None:
    dataset = Dataset.range(whole.start, whole.stop, whole.step).shard(shards, index)
    assert ids(dataset) == list(whole)[index::shards]


def test_shard_of_huge_range_makes_only_its_rows() -> None:
    made: list[int] = []
    read = RangeSource.read

    def noting(self: RangeSource, *args: object) -> object:
        made.append(self.rows)
        return read(self, *args)  # type: ignore[arg-type]

    with mock.patch.object(RangeSource, "read", noting):
        few = Dataset.range(HUGE).shard(HUGE // 4, 1)
        assert ids(few) == [1 + k * (HUGE // 4) for k in range(4)]
    assert made == [4]
    last = Dataset.range(2**62, 2**63 - 1, 2**61).shard(2**10, 1)
    assert ids(last) == [2**62 + 2**61]
