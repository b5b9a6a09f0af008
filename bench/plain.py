"""The work of the stream benchmark by hand: pyarrow, NumPy and threads in one process.

This is what one writes without a data service. Each thread reads its own files, a chunk of 65,536
rows at a time (form "blocks": the 4,096 of a batch, as is most usual), and computes in place where
NumPy can; one consumer cuts the chunks into batches of 4,096 rows. The path has no code of this
project, except, in form "function", the compiled function that its pipelines use too. Invariant:
every form gives the rows of `bench.transform`.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.columns import CATEGORICAL, DENSE
from bench.data import BLOCK_ROWS, CHUNK_ROWS, HASH_BUCKETS, Columns
from bench.transform import compiled

_GOLDEN, _FIRST, _SECOND = (
    np.uint64(factor) for factor in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
_MASK = np.uint64(HASH_BUCKETS - 1)
# The number of chunks that each thread may be ahead of the consumer.
_AHEAD = 2


def _hash(ids: np.ndarray) -> np.ndarray:
    z = ids.view(np.uint64) + _GOLDEN
    shifted = z >> np.uint64(30)
    z ^= shifted
    z *= _FIRST
    z ^= np.right_shift(z, np.uint64(27), out=shifted)
    z *= _SECOND
    z ^= np.right_shift(z, np.uint64(31), out=shifted)
    z &= _MASK
    return z.view(np.int64)


def by_numpy(columns: Columns) -> Columns:
    """Does the transformation by NumPy alone."""
    out = {"label": columns["label"]}
    for name in DENSE:
        out[name] = np.log1p(columns[name])
    for name in CATEGORICAL:
        out[name] = _hash(columns[name])
    return out


FORMS: dict[str, Callable[[Columns], Columns]] = {
    "numpy": by_numpy,
    "blocks": by_numpy,
    "function": compiled,
}


def _read_parquet(path: str, rows: int) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(path) as parquet:
        yield from parquet.iter_batches(batch_size=rows, use_threads=False)


def _read_ipc(path: str, _rows: int) -> Iterator[pa.RecordBatch]:
    with pa.memory_map(path) as mapped:
        reader = pa.ipc.open_file(mapped)
        for number in range(reader.num_record_batches):
            yield reader.get_batch(number)


_READERS = {"parquet": _read_parquet, "ipc": _read_ipc}


def _chunks(
    paths: Sequence[str], form: str, source: str, epochs: int | None
) -> Iterator[pa.RecordBatch]:
    function, read = FORMS[form], _READERS[source]
    rows = BLOCK_ROWS if form == "blocks" else CHUNK_ROWS
    for _ in itertools.count() if epochs is None else range(epochs):
        for path in paths:
            for chunk in read(path, rows):
                names = chunk.schema.names
                arrays = (column.to_numpy() for column in chunk.columns)
                out = function(dict(zip(names, arrays, strict=True)))
                yield pa.RecordBatch.from_arrays(list(map(pa.array, out.values())), list(out))


def _by_threads(sources: list[Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """Yields the chunks of all sources; each source is read by its own thread."""
    with contextlib.ExitStack() as stack:
        lanes = [(stack.enter_context(ThreadPoolExecutor(1)), source) for source in sources]
        Lane = tuple[ThreadPoolExecutor, Iterator[pa.RecordBatch]]
        under_way: deque[tuple[Lane, Future[pa.RecordBatch | None]]] = deque(
            (lane, lane[0].submit(next, lane[1], None)) for _ in range(_AHEAD) for lane in lanes
        )
        while under_way:
            lane, future = under_way.popleft()
            chunk = future.result()
            if chunk is not None:
                under_way.append((lane, lane[0].submit(next, lane[1], None)))
                yield chunk


def batches(
    paths: Sequence[str], form: str, source: str, threads: int, *, epochs: int | None = None
) -> Iterator[pa.RecordBatch]:
    """Yields batches of 4,096 transformed rows of files, `epochs` times; None: for ever.

    Several threads share the files; a single thread is the caller's.
    """
    parts = [_chunks(paths[k::threads], form, source, epochs) for k in range(threads)]
    for chunk in parts[0] if threads == 1 else _by_threads(parts):
        for first in range(0, chunk.num_rows, BLOCK_ROWS):
            yield chunk.slice(first, BLOCK_ROWS)
