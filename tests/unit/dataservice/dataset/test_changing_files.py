"""Files that are written to, deleted or replaced while an epoch reads them."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from dataservice.dataset.dataset import Dataset
from dataservice.dataset.sources.files import read_unchanged
from dataservice.errors import DataServiceError, SchemaError, SourceError
from dataservice.sharding import Split
from tests.unit.dataservice.dataset.test_tfrecord_source import write as write_records

ROWS = 300_000
CHANGED = "has changed since it was planned"


def write_parquet(path: pathlib.Path) -> Dataset:
    pq.write_table(pa.table({"x": range(ROWS)}), path)
    return Dataset.from_parquet(str(path))


def write_ipc(path: pathlib.Path) -> Dataset:
    feather.write_feather(pa.table({"x": range(ROWS)}), str(path))
    return Dataset.from_ipc(str(path))


def write_csv(path: pathlib.Path) -> Dataset:
    pacsv.write_csv(pa.table({"x": range(ROWS)}), path)
    return Dataset.from_csv(str(path))


def write_json(path: pathlib.Path) -> Dataset:
    path.write_text("".join(f'{{"x": {x}}}\n' for x in range(ROWS)))
    return Dataset.from_json(str(path))


@pytest.mark.parametrize("write", [write_parquet, write_ipc, write_csv, write_json])
def test_file_that_is_written_to_while_it_is_read_is_an_error(
    tmp_path: pathlib.Path, write: Callable[[pathlib.Path], Dataset]
) -> None:
    path = tmp_path / "a"
    with iter(write(path)) as iterator:
        next(iterator)
        os.utime(path, (1, 1))
        with pytest.raises(SourceError, match=CHANGED):
            list(iterator)


def test_records_that_are_appended_while_a_file_is_read_are_an_error(
    tmp_path: pathlib.Path,
) -> None:
    path = tmp_path / "a"
    write_records(path, [b"one"])
    with iter(Dataset.from_tfrecord(str(path))) as iterator:
        next(iterator)
        write_records(path, [b"one", b"two"])
        with pytest.raises(SourceError, match=CHANGED):
            list(iterator)


@pytest.mark.parametrize("end", ["deleted", "replaced"])
def test_open_file_is_read_to_its_end_although_its_name_is_gone(
    tmp_path: pathlib.Path, end: str
) -> None:
    path = tmp_path / "a"
    with iter(write_parquet(path)) as iterator:
        read = next(iterator).num_rows
        if end == "deleted":
            path.unlink()
        else:
            (tmp_path / "b").write_bytes(b"")
            (tmp_path / "b").rename(path)
        assert read + sum(batch.num_rows for batch in iterator) == ROWS


def _split(path: pathlib.Path) -> Split:
    path.write_bytes(b"12345")
    return Split(path=str(path), size_bytes=5, version=str(path.stat().st_mtime_ns))


@pytest.mark.parametrize("error", [SourceError, SchemaError])
def test_error_of_a_file_that_was_cut_off_meanwhile_says_that_it_has_changed(
    tmp_path: pathlib.Path, error: type[DataServiceError]
) -> None:
    path = tmp_path / "a"
    split = _split(path)

    def rows(is_cut: bool) -> Iterator[int]:
        yield 1
        if is_cut:
            path.write_bytes(b"123")
        raise error("it is damaged")

    with pytest.raises(error, match="it is damaged"):
        list(read_unchanged(split, None, rows(is_cut=False)))
    with pytest.raises(SourceError, match=f"{CHANGED}: it had 5 bytes.* and now has 3"):
        list(read_unchanged(split, None, rows(is_cut=True)))


def test_file_that_cannot_be_looked_at_any_more_is_a_source_error(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a"

    def rows() -> Iterator[int]:
        yield 1
        path.unlink()
        path.symlink_to(path)  # an error other than that the file is gone

    with pytest.raises(SourceError, match="cannot read"):
        list(read_unchanged(_split(path), None, rows()))
