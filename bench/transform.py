"""The work of the stream benchmark as pipelines of this project: log1p, hashing, batches.

Knows nothing of where a pipeline runs. Invariant: every form gives the same rows in the same
columns, `label`, `i0..i12` and `c0..c25`, all equal to `expected`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pyarrow as pa
from numba import njit

import dataservice as ds
from bench.columns import CATEGORICAL, DENSE
from bench.data import BLOCK_ROWS, HASH_BUCKETS, Columns, hash_ids

_MASK = np.uint64(HASH_BUCKETS - 1)


@njit(nogil=True, cache=True)
def _hash_into(ids: np.ndarray, out: np.ndarray) -> None:
    """Does `bench.data.hash_ids` into 2^20 buckets in one pass; ids and out int64 (n,)."""
    for i in range(ids.size):
        z = np.uint64(ids[i]) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        out[i] = (z ^ (z >> np.uint64(31))) & _MASK


def compiled(columns: Columns) -> Columns:
    """Transforms like a user's function: NumPy for dense columns, a compiled loop for hashes."""
    out = {"label": columns["label"]}
    for name in DENSE:
        out[name] = np.log1p(columns[name])
    for name in CATEGORICAL:
        hashed = np.empty(len(columns[name]), np.int64)
        _hash_into(columns[name], hashed)
        out[name] = hashed
    return out


def expected(columns: Columns) -> Columns:
    """Returns, by plain NumPy, what every form must give for rows of `bench.data.generate`."""
    dense = {name: np.log1p(columns[name]) for name in DENSE}
    return {"label": columns["label"], **dense} | {c: hash_ids(columns[c]) for c in CATEGORICAL}


@njit(nogil=True, cache=True)
def _mix_into(row_sums: np.ndarray, values: np.ndarray) -> None:
    """Adds a column to each row's checksum; row_sums and values uint64 (n,)."""
    for i in range(values.size):
        z = row_sums[i] * np.uint64(0xBF58476D1CE4E5B9) + values[i]
        row_sums[i] = z ^ (z >> np.uint64(29))


def checksum(batches: Iterable[pa.RecordBatch]) -> tuple[int, int]:
    """Returns the number of rows and a checksum that does not depend on their order."""
    rows, total = 0, 0
    for batch in batches:
        row_sums = np.ones(batch.num_rows, np.uint64)
        for name in ("label", *DENSE, *CATEGORICAL):
            values = batch.column(name).to_numpy()
            _mix_into(row_sums, values.view(f"u{values.itemsize}").astype(np.uint64))
        rows += batch.num_rows
        total += int(row_sums.sum(dtype=np.uint64))
    return rows, total % (1 << 64)


def _as_expressions(rows: ds.Dataset) -> ds.Dataset:
    for name in DENSE:
        rows = rows.with_column(name, ds.col(name).log1p())
    for name in CATEGORICAL:
        rows = rows.with_column(name, ds.col(name).hash(HASH_BUCKETS))
    return rows


def _as_function(rows: ds.Dataset) -> ds.Dataset:
    return rows.map(compiled)


FORMS: dict[str, Callable[[ds.Dataset], ds.Dataset]] = {
    "function": _as_function,
    "expressions": _as_expressions,
}


SOURCES: dict[str, Callable[[list[str]], ds.Dataset]] = {
    "parquet": ds.Dataset.from_parquet,
    "ipc": ds.Dataset.from_ipc,
}


def dataset(
    paths: Sequence[str], form: str, *, epochs: int | None = None, source: str = "parquet"
) -> ds.Dataset:
    """Returns batches of 4,096 transformed rows of files, `epochs` times; None: for ever."""
    rows = FORMS[form](SOURCES[source](list(paths)))
    return rows.repeat(epochs).batch(BLOCK_ROWS)
