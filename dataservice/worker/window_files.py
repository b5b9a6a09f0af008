"""Writes the files that hold the rows of a snapshot's window.

Responsible for running the pipeline over the window and storing its rows in the folder. Knows no
threads, requests or retries: these belong to the writer. Invariant: the same window has the same
rows in the same files, however often they are written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import pyarrow as pa

from dataservice.dataset.omission_log import OmissionLog
from dataservice.dataset.snapshots.folder import SnapshotFolder
from dataservice.dataset.snapshots.format import Chunk
from dataservice.wire import dispatcher_pb2 as pb
from dataservice.worker.leases import Lease
from dataservice.worker.rebatch import Rebatcher
from dataservice.worker.task import Pipeline

# A plan that is written as a whole is cut into files of about this size, always at the same rows.
_WHOLE_CHUNK_BYTES: Final = 64 << 20


class WindowFiles:
    """The files of the windows of one snapshot. Thread-safe: each thread writes another window.

    `record_rows` is called with a window and how many of its rows were made so far.
    """

    def __init__(
        self,
        folder: SnapshotFolder,
        task: pb.GetSnapshotReply,
        pipeline: Pipeline,
        schema: pa.Schema,
        *,
        is_stopping: Callable[[], bool],
        record_rows: Callable[[int, int], None],
    ) -> None:
        self._folder = folder
        self._task = task
        self._pipeline = pipeline
        self._schema = schema
        self._is_stopping = is_stopping
        self._record_rows = record_rows
        # Logs what on_error="skip" leaves out.
        self._omissions = OmissionLog()

    def write(self, lease: Lease) -> tuple[Chunk, ...]:
        """Writes the files of a window and puts them under their final names; none without rows."""
        if self._task.whole:
            return self._write_whole()
        chunk = self._write(lease.window, self._rows_of(lease))
        return () if chunk is None else (chunk,)

    def _write(self, number: int, batches: Iterable[pa.RecordBatch]) -> Chunk | None:
        return self._folder.write_chunk(number, self._schema, batches, self._task.compression)

    def _rows_of(self, lease: Lease) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a window in batches of about 1 MiB."""
        rebatcher = Rebatcher(None)
        for batch, first_row in self._pipeline.run_window(
            lease, self._is_stopping, self._omissions
        ):
            self._record_rows(lease.window, first_row + batch.num_rows)
            for element in rebatcher.add(batch, lease.window, lease.generation, first_row):
                yield element.batch
        for element in rebatcher.flush():
            yield element.batch

    def _write_whole(self) -> tuple[Chunk, ...]:
        """Writes the elements of the whole plan into files; no element is split between files."""
        chunks: list[Chunk] = []
        for batches in _in_parts(self._elements(), _WHOLE_CHUNK_BYTES):
            chunk = self._write(len(chunks), batches)
            if chunk is not None:
                chunks.append(chunk)
        return tuple(chunks)

    def _elements(self) -> Iterator[pa.RecordBatch]:
        rows = 0
        for batch in self._pipeline.run_whole(
            0, self._is_stopping, omitted=self._omissions.open_run()
        ):
            yield batch
            rows += batch.num_rows
            self._record_rows(0, rows)


def _in_parts(
    batches: Iterator[pa.RecordBatch], part_bytes: int
) -> Iterator[Iterator[pa.RecordBatch]]:
    """Yields consecutive parts of a stream, each of about `part_bytes` and none of them empty."""
    first = next(batches, None)

    def part() -> Iterator[pa.RecordBatch]:
        nonlocal first
        size_bytes = 0
        while first is not None and size_bytes < part_bytes:
            size_bytes += first.nbytes
            yield first
            first = next(batches, None)

    while first is not None:
        yield part()
