"""The source of a saved dataset: the chunks that the file DONE lists, in order.

A split is a chunk, so that a loaded snapshot can be divided again. Knows nothing of how snapshots
are written. Invariant: the rows are exactly those of the listed chunks; a chunk that is missing,
cut short or of another snapshot is an error that names it. Chunks have no checksum: storage that
changes a value goes unnoticed.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Generator, Iterator, Mapping
from typing import Any, ClassVar

import pyarrow as pa

from dataservice.dataset.columns import no_rows
from dataservice.dataset.node import register_node
from dataservice.dataset.snapshots.folder import SnapshotFolder
from dataservice.dataset.snapshots.format import Chunk
from dataservice.dataset.sources.base import Source
from dataservice.dataset.sources.files import InputFile
from dataservice.dataset.sources.opening import opened
from dataservice.dataset.sources.paths import check_storage_options, is_local, unreadable
from dataservice.dataset.stream import CHUNK_ROWS, RunContext
from dataservice.errors import DataServiceError, InvalidArgumentError, SourceError
from dataservice.sharding import Split


@register_node
@dataclasses.dataclass(frozen=True, eq=False)
class SnapshotSource(Source):
    """The rows of the finished snapshot `snapshot_id` at `path`; its elements with `is_batched`.

    `paths` are the chunks to read, None for all.
    """

    kind: ClassVar[str] = "snapshot"
    reads_files: ClassVar[bool] = True
    outside_fingerprint: ClassVar[frozenset[str]] = frozenset({"path", "storage_options"})
    path: str
    snapshot_id: str
    schema: pa.Schema
    is_batched: bool = False
    storage_options: Mapping[str, Any] | None = dataclasses.field(default=None, repr=False)
    paths: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("path", "snapshot_id"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise InvalidArgumentError(f"{name} of a snapshot must be text, got {value!r}")
        if not isinstance(self.schema, pa.Schema):
            raise InvalidArgumentError(f"the schema must be a pyarrow.Schema, got {self.schema!r}")
        check_storage_options(self.storage_options)

    @property
    def batched(self) -> bool:
        return self.is_batched

    def files(self) -> Iterator[InputFile]:
        for path, chunk in self._chunks.items():
            yield InputFile(path, chunk.size_bytes, self.snapshot_id)

    def splits(self) -> Iterator[Split]:
        for path, chunk in self._chunks.items():
            yield Split(
                path=path,
                stop=chunk.rows,
                rows=chunk.rows,
                size_bytes=chunk.size_bytes,
                version=self.snapshot_id,
            )

    @functools.cached_property
    def _chunks(self) -> dict[str, Chunk]:
        """The chunks to read, by path. SourceError if the folder holds another snapshot."""
        folder = SnapshotFolder(self.path, self.storage_options)
        done = folder.done()
        if done is None or done.snapshot_id != self.snapshot_id:
            found = "nothing that is finished" if done is None else f"snapshot {done.snapshot_id}"
            raise SourceError(
                f"{self.path} held snapshot {self.snapshot_id} when it was loaded, and holds "
                f"{found} now; load it again"
            )
        listed = {folder.chunk_path(chunk): chunk for chunk in done.chunks}
        if self.paths is None:
            return listed
        return {path: listed[path] for path in self.paths}

    def read(
        self, split: Split, first_row: int, context: RunContext
    ) -> Generator[pa.RecordBatch, None, None]:
        assert split.path is not None
        # A limit on the rows may cut off both ends of a split.
        begin, end = split.start + first_row, split.stop
        row = 0
        for batch in self._batches(split.path, context):
            low, high = max(begin - row, 0), min(batch.num_rows, end - row)
            step = max(1, batch.num_rows) if self.is_batched else CHUNK_ROWS
            for first in range(low, high, step):
                yield batch.slice(first, min(step, high - first))
            row += batch.num_rows
            if row >= end:
                return
        raise SourceError(
            f"{split.path!r} has {row} rows, and the snapshot lists it with more: it was cut short "
            "or replaced; save the dataset again"
        )

    def _batches(self, path: str, context: RunContext) -> Iterator[pa.RecordBatch]:
        try:
            with _mapped(path, self.storage_options) as handle:
                options = pa.ipc.IpcReadOptions(use_threads=context.threads > 1)
                reader = pa.ipc.open_file(handle, options=options)
                if not reader.schema.equals(self.schema):
                    raise SourceError(
                        f"{path!r} has other columns than the metadata of the snapshot"
                    )
                for number in range(reader.num_record_batches):
                    batch = reader.get_batch(number)
                    # Otherwise offsets in a damaged file could point outside of it.
                    batch.validate(full=True)
                    yield batch
        except DataServiceError:
            raise
        except FileNotFoundError as error:
            raise unreadable(path, error) from error
        except (pa.ArrowException, OSError, ValueError) as error:
            raise SourceError(
                f"chunk {path!r} of snapshot {self.path} cannot be read: {error}; it is damaged or "
                "cut short: save the dataset again"
            ) from error

    def empty(self) -> pa.RecordBatch:
        return no_rows(self.schema)

    def describe(self, split: Split, first_row: int, end_row: int) -> str:
        return f"{split.path} rows {split.start + first_row}..{split.start + end_row - 1}"

    def cardinality(self) -> int:
        if not self.is_batched or self.on_error == "skip":
            return super().cardinality()
        return sum(chunk.batches for chunk in self._chunks.values())


def _mapped(path: str, options: Mapping[str, Any] | None) -> Any:
    """Opens a file; a local one is mapped into memory, which is safe as chunks never change."""
    return pa.memory_map(path) if is_local(path) else opened(path, options)
