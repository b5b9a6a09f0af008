"""Seeded click-log rows in Criteo's shape, and the files that the benchmarks read.

A row is `label`, 13 float32 counts `i0..i12` and 26 int64 raw ids `c0..c25`. Clicks are drawn from
a planted logistic model of the row itself (`planted_logit`), so the best reachable AUC is known.
Knows nothing of the systems that read the files. Invariant: rows are a pure function of (seed, row
number): any range that is asked for has the same rows, and every file format of one seed holds the
same rows in the same order.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.columns import CARDINALITIES, CATEGORICAL, DENSE
from bench.options import new_parser

CHUNK_ROWS = 65_536
BLOCK_ROWS = 4_096
HASH_BUCKETS = 1 << 20

# Leaves about 22 % of the ids in a batch of 4,096 rows distinct.
_ZIPF_EXPONENT = 1.1
_LOG_MEAN = np.linspace(0.3, 4.5, len(DENSE), dtype=np.float32)
_LOG_SIGMA = np.linspace(0.8, 1.6, len(DENSE), dtype=np.float32)
_DENSE_WEIGHT = np.where(np.arange(len(DENSE)) % 2 == 0, 0.25, -0.2).astype(np.float32)
_FIELD_WEIGHT = np.linspace(0.1, 0.5, len(CATEGORICAL), dtype=np.float32)
_BIAS = np.float32(-1.0)

Columns = dict[str, np.ndarray]


def splitmix64(values: np.ndarray) -> np.ndarray:
    """Applies splitmix64 (Steele, Lea and Flood 2014) to each value; uint64 of equal shape."""
    z = values.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def hash_ids(ids: np.ndarray, buckets: int = HASH_BUCKETS) -> np.ndarray:
    """Returns the bucket numbers of raw ids: int64 in [0, buckets), equal shape."""
    return (splitmix64(ids) % np.uint64(buckets)).astype(np.int64)


def raw_matrices(
    start: int, stop: int, seed: int = 0
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yields rows [start, stop) in pieces: label (n,), dense float32 (n, 13), ids int64 (n, 26)."""
    if not 0 <= start <= stop:
        raise ValueError(f"rows {start}..{stop} are not a range; give 0 <= start <= stop")
    for chunk in range(start // CHUNK_ROWS, -(-stop // CHUNK_ROWS)):
        base = chunk * CHUNK_ROWS
        part = slice(max(start - base, 0), min(stop - base, CHUNK_ROWS))
        labels, dense, ids = _chunk(seed, chunk)
        yield labels[part], dense[part], ids[part]


def _chunk(seed: int, chunk: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draws one whole chunk; callers cut it, so that rows do not depend on the range asked for."""
    random = np.random.Generator(np.random.SFC64([seed, chunk]))
    logs = random.standard_normal((CHUNK_ROWS, len(DENSE)), dtype=np.float32)
    dense = np.floor(np.exp(logs * _LOG_SIGMA + _LOG_MEAN))
    ids = np.empty((CHUNK_ROWS, len(CATEGORICAL)), np.int64)
    for field, cardinality in enumerate(CARDINALITIES):
        ranks = _zipf_ranks(random.random(CHUNK_ROWS), cardinality)
        ids[:, field] = _raw_ids(field, ranks)
    click = random.random(CHUNK_ROWS, dtype=np.float32) < _sigmoid(planted_logit(dense, ids))
    return click.astype(np.int64), dense, ids


def _zipf_ranks(uniform: np.ndarray, cardinality: int) -> np.ndarray:
    """Returns ranks in [0, cardinality) by the inverse distribution of a bounded power law."""
    power = 1.0 - _ZIPF_EXPONENT
    top = float(cardinality + 1) ** power
    ranks = (1.0 - uniform * (1.0 - top)) ** (1.0 / power)
    return np.minimum(ranks.astype(np.int64) - 1, cardinality - 1)


def _raw_ids(field: int, ranks: np.ndarray) -> np.ndarray:
    """Returns ids in [2^62, 2^63): non-negative, and nine bytes long as protobuf varints."""
    mixed = splitmix64(ranks + (field << 40))
    return ((mixed >> np.uint64(2)) | np.uint64(1 << 62)).astype(np.int64)


def planted_logit(dense: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """Returns the true log-odds of a click for dense (n, 13) and raw ids (n, 26): float32 (n,)."""
    scaled = (np.log1p(dense) - _LOG_MEAN) / _LOG_SIGMA
    # The low 24 bits of an id are as good as random, so they serve as the id's own weight.
    weights = (ids & 0xFFFFFF).astype(np.float32) * np.float32(2.0**-23) - np.float32(1.0)
    return _BIAS + scaled @ _DENSE_WEIGHT + weights @ _FIELD_WEIGHT


def _sigmoid(logit: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-logit))


def generate(rows: int, *, seed: int = 0, start: int = 0, label_dtype: str = "float32") -> Columns:
    """Returns rows [start, start + rows) as columns: `label`, `i*` float32, `c*` int64.

    `label_dtype` is any NumPy type name; labels are 0 or 1.
    """
    parts = list(raw_matrices(start, start + rows, seed)) or list(_no_rows())
    labels, dense, ids = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return _columns(labels, dense, ids, label_dtype)


def training_arrays(
    rows: int, *, seed: int = 0, start: int = 0, buckets: int = HASH_BUCKETS
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns a trainer's input: float32 label (n,) and log1p dense (n, 13), hashed ids (n, 26)."""
    parts = list(raw_matrices(start, start + rows, seed)) or list(_no_rows())
    labels, dense, ids = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return labels.astype(np.float32), np.log1p(dense), hash_ids(ids, buckets)


def _no_rows() -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    yield (
        np.empty(0, np.int64),
        np.empty((0, len(DENSE)), np.float32),
        np.empty((0, len(CATEGORICAL)), np.int64),
    )


def _columns(labels: np.ndarray, dense: np.ndarray, ids: np.ndarray, label_dtype: str) -> Columns:
    columns = {"label": labels.astype(label_dtype)}
    columns.update(zip(DENSE, np.ascontiguousarray(dense.T), strict=True))
    columns.update(zip(CATEGORICAL, np.ascontiguousarray(ids.T), strict=True))
    return columns


def file_ranges(rows: int, files: int) -> list[tuple[int, int]]:
    """Returns row ranges of `files` files: whole row groups if there are enough, else blocks."""
    unit = CHUNK_ROWS if rows >= files * CHUNK_ROWS else BLOCK_ROWS
    units = -(-rows // unit)
    bounds = [min(units * k // files * unit, rows) for k in range(files + 1)]
    return [(a, b) for a, b in itertools.pairwise(bounds) if b > a]


def _batches(start: int, stop: int, seed: int, label_dtype: str) -> Iterator[Any]:
    import pyarrow as pa

    for labels, dense, ids in raw_matrices(start, stop, seed):
        yield pa.RecordBatch.from_pydict(_columns(labels, dense, ids, label_dtype))


def write_parquet(path: Path, start: int, stop: int, seed: int, label_dtype: str) -> None:
    """Writes one Parquet file in pyarrow's default encoding, a row group per 65,536 rows."""
    import pyarrow.parquet as pq

    batches = _batches(start, stop, seed, label_dtype)
    first = next(batches)
    with pq.ParquetWriter(path, first.schema) as writer:
        for batch in (first, *batches):
            writer.write_batch(batch, row_group_size=CHUNK_ROWS)


def write_arrow(path: Path, start: int, stop: int, seed: int, label_dtype: str) -> None:
    """Writes one Arrow IPC file, uncompressed for memory mapping, a batch per 65,536 rows."""
    import pyarrow as pa

    batches = _batches(start, stop, seed, label_dtype)
    first = next(batches)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, first.schema) as writer:
        for batch in (first, *batches):
            writer.write_batch(batch)


def write_tfrecord(path: Path, start: int, stop: int, seed: int, label_dtype: str) -> None:
    """Writes one TFRecord file with a tf.train.Example of 40 features per row."""
    from bench.peers import tfrecord

    with path.open("wb") as sink:
        for labels, dense, ids in raw_matrices(start, stop, seed):
            examples = tfrecord.encode_examples(labels.astype(label_dtype), dense, ids)
            sink.write(tfrecord.frame(examples))


def write_packed(path: Path, start: int, stop: int, seed: int, label_dtype: str) -> None:
    """Writes one TFRecord file of 4,096 rows per record, as raw bytes; labels are float32.

    A short block at the end of the rows is left out, so that every record has the same size.
    """
    del label_dtype
    from bench.peers import tfrecord

    with path.open("wb") as sink:
        for labels, dense, ids in raw_matrices(start, stop, seed):
            sink.write(tfrecord.frame(tfrecord.pack_blocks(labels, dense, ids, BLOCK_ROWS)))


WRITERS: dict[str, tuple[str, Callable[[Path, int, int, int, str], None]]] = {
    "parquet": (".parquet", write_parquet),
    "arrow": (".arrow", write_arrow),
    "tfrecord": (".tfrecord", write_tfrecord),
    "packed": (".packed.tfrecord", write_packed),
}


def write_files(
    out: Path,
    rows: int,
    format: str,
    *,
    files: int = 8,
    seed: int = 0,
    label_dtype: str = "float32",
) -> list[Path]:
    """Writes rows [0, rows) as `files` files, or fewer if blocks are fewer; returns their paths.

    Formats: parquet, arrow, tfrecord (an Example per row), packed (a record per 4,096 rows).
    """
    if rows <= 0 or files <= 0:
        raise ValueError(f"rows and files must be positive, got {rows} and {files}")
    if format not in WRITERS:
        raise ValueError(f"no format {format!r}; choose one of {sorted(WRITERS)}")
    suffix, write = WRITERS[format]
    out.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, (start, stop) in enumerate(file_ranges(rows, files)):
        path = out / f"rows-{number:03d}{suffix}"
        write(path, start, stop, seed, label_dtype)
        paths.append(path)
    return paths


def main(argv: list[str] | None = None) -> None:
    """Runs the command line: writes one data set and prints a JSON line about it."""
    parser = new_parser("bench.data", __doc__, has_smoke=False)
    parser.add_argument("--rows", type=int, required=True, help="number of rows to write")
    parser.add_argument(
        "--out", type=Path, required=True, help="folder to write to, created if it is missing"
    )
    parser.add_argument(
        "--format",
        choices=sorted(WRITERS),
        default="parquet",
        help="format of the files (default: %(default)s)",
    )
    parser.add_argument(
        "--files", type=int, default=8, help="number of files (default: %(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the rows (default: %(default)s)"
    )
    parser.add_argument(
        "--label-dtype",
        choices=("float32", "int64"),
        default="float32",
        help="type of the label column (default: %(default)s)",
    )
    options = parser.parse_args(argv)
    began = time.perf_counter()
    paths = write_files(
        options.out,
        options.rows,
        options.format,
        files=options.files,
        seed=options.seed,
        label_dtype=options.label_dtype,
    )
    report = {
        "format": options.format,
        "rows": options.rows,
        "files": [str(path) for path in paths],
        "size_bytes": sum(path.stat().st_size for path in paths),
        "seconds": round(time.perf_counter() - began, 3),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
