"""A store that fails in the middle of a file: sources name the file, Parquet the row group."""

from __future__ import annotations

import pathlib
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.local import LocalFileSystem

import dataservice as ds
from dataservice.errors import SourceError

ROWS = 400_000


class StoreError(Exception):
    """An error as a store's package raises it: no OSError."""


class FailingStore(LocalFileSystem):
    """A store of local files, whose bytes in the middle of a file cannot be read."""

    protocol = "failing"
    cachable = False

    def open(self, path: str, *_mode: Any, **_options: Any) -> Any:
        return _FailingFile(path.removeprefix("failing://"))

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return path.removeprefix("failing://")

    def unstrip_protocol(self, name: str) -> str:
        return f"failing://{name}"


class _FailingFile:
    def __init__(self, path: str) -> None:
        self._file = open(path, "rb")  # noqa: SIM115
        self._size = pathlib.Path(path).stat().st_size

    def read(self, size: int = -1) -> bytes:
        at = self._file.tell()
        if self._size // 4 < at < self._size * 3 // 4:
            raise StoreError("the connection was reset")
        return self._file.read(size if size >= 0 else -1)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@pytest.fixture(scope="module", autouse=True)
def store() -> None:
    fsspec.register_implementation("failing", FailingStore, clobber=True)


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return pa.table({"id": np.random.default_rng(1).integers(0, 1 << 60, ROWS)})


def test_store_error_in_parquet_names_file_and_row_group(
    tmp_path: pathlib.Path, table: pa.Table
) -> None:
    path = str(tmp_path / "rows.parquet")
    pq.write_table(table, path, row_group_size=ROWS // 10)
    with pytest.raises(SourceError, match=r"rows.parquet', row group \d+:.*StoreError: the conn"):
        ds.Dataset.from_parquet(f"failing://{path}").to_table()


@pytest.mark.parametrize("kind", ["ipc", "csv"])
def test_store_error_in_csv_or_ipc_names_file(
    tmp_path: pathlib.Path, table: pa.Table, kind: str
) -> None:
    path = str(tmp_path / "rows")
    if kind == "csv":
        pacsv.write_csv(table, path)
        data = ds.Dataset.from_csv(f"failing://{path}")
    else:
        with pa.OSFile(path, "wb") as to, pa.ipc.new_file(to, table.schema) as writer:
            writer.write_table(table, max_chunksize=ROWS // 10)
        data = ds.Dataset.from_ipc(f"failing://{path}")
    with pytest.raises(SourceError, match=r"rows' cannot be read any further.*StoreError"):
        data.to_table()
