"""Reading Parquet files of extreme shapes: huge row groups, tiny ones, large footers."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataservice import Dataset
from dataservice.dataset.sources import parquet
from dataservice.errors import SchemaError

MIB = 1 << 20


def _write(path: pathlib.Path, rows: int, columns: int = 4, group_rows: int | None = None) -> str:
    values = np.random.default_rng(0).random(rows)
    table = pa.table({f"c{index}": values for index in range(columns)})
    pq.write_table(table, path, row_group_size=group_rows or rows, compression="none")
    return str(path)


def test_first_rows_of_a_huge_row_group_do_not_take_memory_for_all_of_it(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "_WHOLE_BYTES", MIB)
    monkeypatch.setattr(parquet, "_PIECE_BYTES", MIB // 16)
    path = _write(tmp_path / "huge.parquet", 2 * MIB)
    before = pa.total_allocated_bytes()
    with iter(Dataset.from_parquet(path)) as iterator:
        first = next(iterator)
        taken = pa.total_allocated_bytes() - before
    assert taken < first.nbytes + 8 * MIB < 2 * MIB * 4 * 8


def test_rows_of_a_row_group_that_is_read_in_pieces_are_those_of_the_file(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "_WHOLE_BYTES", 1 << 10)
    monkeypatch.setattr(parquet, "_PIECE_BYTES", 1 << 12)
    path = _write(tmp_path / "pieces.parquet", 100_000)
    whole = pq.read_table(path)
    assert Dataset.from_parquet(path).to_table().equals(whole)
    assert (
        Dataset.from_parquet(path)
        .skip(99_000)
        .select(["c2"])
        .to_table()
        .equals(whole.select(["c2"]).slice(99_000))
    )


@pytest.mark.parametrize(("rows", "expected"), [(10, False), (100_000, True)])
def test_only_row_groups_that_are_worth_it_are_decoded_by_several_threads(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, rows: int, expected: bool
) -> None:
    seen = _noted(monkeypatch, "iter_batches")
    Dataset.from_parquet(_write(tmp_path / "a.parquet", rows)).to_table()
    assert {call["use_threads"] for call in seen} == {expected}


def test_a_local_run_parses_each_footer_once(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for index in range(5):
        _write(tmp_path / f"{index}.parquet", 10)
    opened = _noted(monkeypatch, "__init__")
    assert Dataset.from_parquet(str(tmp_path)).to_table().num_rows == 50
    parsed = [call for call in opened if call.get("metadata") is None]
    assert len(parsed) == 5 + 1, "the reference's is read for its schema first"


def test_a_schema_that_fits_is_compared_column_by_column_once(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for index in range(6):
        _write(tmp_path / f"{index}.parquet", 10, columns=2 if index < 3 else 3)
    compared: list[str] = []
    check = parquet.ParquetSource._check_columns

    def noted(self: parquet.ParquetSource, path: str, found: pa.Schema) -> None:
        compared.append(pathlib.Path(path).name)
        check(self, path, found)

    monkeypatch.setattr(parquet.ParquetSource, "_check_columns", noted)
    assert Dataset.from_parquet(str(tmp_path)).to_table().num_rows == 60
    assert compared == ["0.parquet", "3.parquet"]
    _write(tmp_path / "6.parquet", 10, columns=1)
    with pytest.raises(SchemaError, match=r"6\.parquet' has no such column"):
        Dataset.from_parquet(str(tmp_path)).to_table()


def test_large_footers_are_kept_up_to_a_number_of_bytes(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    footer = pq.read_metadata(_write(tmp_path / "a.parquet", 100, columns=50, group_rows=1))
    monkeypatch.setattr(parquet, "_CACHED_FOOTER_BYTES", 3 * footer.serialized_size)
    cache = parquet._FooterCache()
    for number in range(10):
        cache.put((str(number), 0, ""), footer)
        cache.put((str(number), 0, ""), footer)
    assert [number for number in range(10) if cache.get((str(number), 0, ""))] == [7, 8, 9]
    monkeypatch.setattr(parquet, "_CACHED_FOOTER_BYTES", 1)
    cache.put(("newest", 0, ""), footer)
    assert cache.get(("newest", 0, "")) is footer


def _noted(monkeypatch: pytest.MonkeyPatch, method: str) -> list[dict[str, Any]]:
    """Returns a list that gets the arguments of each call of a method of `ParquetFile`."""
    calls: list[dict[str, Any]] = []
    original = getattr(pq.ParquetFile, method)

    def noted(self: pq.ParquetFile, *args: Any, **options: Any) -> Any:
        calls.append(options)
        return original(self, *args, **options)

    monkeypatch.setattr(pq.ParquetFile, method, noted)
    return calls
