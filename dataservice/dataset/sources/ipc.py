"""The source of Arrow IPC files (Feather) and streams.

Local files are mapped into memory, so that the rows of an uncompressed file are read without a
copy. A file has one split per record batch, with small neighbours merged; a stream has one split.
Invariant: every file has the columns and types of the reference, and rows come in file order.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import threading
from collections import deque
from collections.abc import Generator, Iterator, Mapping
from typing import Any, ClassVar, Final, NamedTuple

import pyarrow as pa

from dataservice.dataset.columns import no_rows
from dataservice.dataset.node import register_node
from dataservice.dataset.plain_types import plain_batch, plain_schema
from dataservice.dataset.sources.columnar import (
    ColumnarSource,
    merged_splits,
    named_parts,
)
from dataservice.dataset.sources.files import InputFile
from dataservice.dataset.sources.ipc_metadata import batch_metadata
from dataservice.dataset.sources.opening import opened
from dataservice.dataset.sources.paths import (
    is_local,
    unreadable,
)
from dataservice.dataset.sources.reference import Reference
from dataservice.dataset.stream import RunContext, chunk_rows
from dataservice.errors import DataServiceError, SchemaError, SourceError
from dataservice.runtime.arguments import check_true_or_false
from dataservice.sharding import Split

_FILE_MAGIC: Final = b"ARROW1"
_FEATHER_1_MAGIC: Final = b"FEA1"
# Mapping a file and reading its footer costs about as much as touching this many rows.
_MERGED_ROWS: Final = 65_536
# Each file that is kept open takes a file descriptor.
_MAX_IDLE: Final = 16
_ONE_THREAD: Final = pa.ipc.IpcReadOptions(use_threads=False)


@register_node
@dataclasses.dataclass(frozen=True, eq=False)
class IpcSource(ColumnarSource):
    """The chosen `columns` of Arrow IPC files and streams.

    With `memory_map`, this process is killed (SIGBUS) if another process truncates a local file
    while it is read. Without it, that is an error.
    """

    kind: ClassVar[str] = "ipc"
    suffixes: ClassVar[tuple[str, ...]] = (".arrow", ".feather", ".ipc", ".arrows")
    outside_fingerprint: ClassVar[frozenset[str]] = frozenset({"memory_map"})
    paths: tuple[str, ...]
    columns: tuple[str, ...] | None = None
    memory_map: bool = True
    storage_options: Mapping[str, Any] | None = dataclasses.field(default=None, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_true_or_false(memory_map=self.memory_map)

    def plan_file(self, file: InputFile) -> list[Split]:
        with self._handle(file.path) as (handle, is_file):
            if not is_file:
                return [file.as_split()]
            with _named_errors(file.path):
                self.check_schema(file.path, pa.ipc.open_file(handle).schema)
                sizes = [batch.rows for batch in batch_metadata(handle)]
        return merged_splits(file, enumerate(sizes), _MERGED_ROWS)

    def _rows(
        self, split: Split, first_row: int, context: RunContext
    ) -> Generator[pa.RecordBatch, None, None]:
        assert split.path is not None
        if split.row_groups is None:
            # A stream, or a file that could not be planned; this raises the error again.
            self.plan_file(InputFile(split.path, split.size_bytes, split.version))
        begin = split.start + first_row
        end = None if split.row_groups is None else split.stop
        row, step = 0, chunk_rows(self.read_schema)
        for batch in self._batches(split, context):
            low = max(begin - row, 0)
            high = batch.num_rows if end is None else min(batch.num_rows, end - row)
            for first in range(low, high, step):
                yield batch.slice(first, min(step, high - first))
            row += batch.num_rows
            if end is not None and row >= end:
                return

    def _batches(self, split: Split, context: RunContext) -> Iterator[pa.RecordBatch]:
        """Yields the record batches of the split; for a stream, all of them."""
        path, numbers = split.path, split.row_groups
        assert path is not None
        with self._opened(path, (split.size_bytes, split.version), context) as (reader, is_file):
            if (numbers is not None) != is_file:
                raise SourceError(f"{path!r} has changed since it was planned")
            count = itertools.count() if numbers is None else iter(numbers)
            for number in count:
                with _named_errors(path, number):
                    batch = reader.get_batch(number) if is_file else _next_batch(reader)
                    if batch is None:
                        return
                    # Otherwise offsets in a damaged file could point outside of it.
                    batch.validate(full=True)
                    batch = plain_batch(batch.select(self.read_schema.names), self.read_schema)
                yield batch

    @contextlib.contextmanager
    def _opened(
        self, path: str, version: tuple[int, str], context: RunContext
    ) -> Iterator[tuple[Any, bool]]:
        """Opens a reader for the caller alone; also tells whether it reads a file, not a stream.

        Readers of mapped files are kept open for reuse, unless reading has failed.
        """
        key = (path, *version, context.threads > 1)
        found = self._idle.take(key)
        if found is None:
            with contextlib.ExitStack() as stack:
                handle, is_file = stack.enter_context(self._handle(path))
                with _named_errors(path):
                    reader = self._reader(path, handle, is_file, context)
                if not (is_file and self._maps(path)):
                    yield reader, is_file
                    return
                found = _OpenFile(reader, stack.pop_all())
        try:
            yield found.reader, True
        except GeneratorExit:
            self._idle.put(key, found)
            raise
        except BaseException:
            found.stack.close()
            raise
        self._idle.put(key, found)

    @functools.cached_property
    def _idle(self) -> _IdleFiles:
        return _IdleFiles()

    def _reader(self, path: str, handle: Any, is_file: bool, context: RunContext) -> Any:
        opener = pa.ipc.open_file if is_file else pa.ipc.open_stream
        # Without threads: Arrow would start reading ahead only to look at the schema.
        schema = opener(handle, options=_ONE_THREAD).schema
        self.check_schema(path, schema)
        fields: list[int] = []
        # Arrow copies the columns that it is asked for, unless it is asked for all.
        if len(self.read_schema) < len(schema) and _is_compressed(handle, is_file):
            fields = sorted(schema.get_field_index(name) for name in self.read_schema.names)
        options = pa.ipc.IpcReadOptions(included_fields=fields, use_threads=context.threads > 1)
        handle.seek(0)
        return opener(handle, options=options)

    def empty(self) -> pa.RecordBatch:
        return no_rows(self.read_schema)

    def describe(self, split: Split, first_row: int, end_row: int) -> str:
        first, end = split.start + first_row, split.start + end_row
        if split.row_groups is None:
            return f"{split.path} rows {first}..{end - 1}"
        batches = named_parts("record batch", split.row_groups)
        return f"{split.path} {batches} rows {first}..{end - 1}"

    def read_reference(self, file: InputFile) -> Reference:
        path = file.path
        with self._handle(path) as (handle, is_file), _named_errors(path):
            reader = pa.ipc.open_file(handle) if is_file else pa.ipc.open_stream(handle)
            if not len(reader.schema):
                raise SchemaError(f"{path!r} has no columns, and so no rows to read")
            return Reference(path, plain_schema(reader.schema))

    @contextlib.contextmanager
    def _handle(self, path: str) -> Iterator[tuple[Any, bool]]:
        """Opens a file at its beginning; also tells whether it is a file rather than a stream."""
        with self._mapped(path) as handle:
            magic = bytes(handle.read(len(_FILE_MAGIC)))
            handle.seek(0)
            if magic.startswith(_FEATHER_1_MAGIC):
                raise SourceError(
                    f"{path!r} is a Feather file of version 1, which has no record batches; "
                    "write it again with a current version of Arrow"
                )
            yield handle, magic == _FILE_MAGIC

    def _maps(self, path: str) -> bool:
        return self.memory_map and is_local(path)

    @contextlib.contextmanager
    def _mapped(self, path: str) -> Iterator[Any]:
        if not self._maps(path):
            with opened(path, self.storage_options) as handle:
                yield handle
            return
        try:
            handle = pa.memory_map(path)
        except (OSError, pa.ArrowException) as error:
            raise unreadable(path, error) from error
        # Batches keep the mapping alive after the handle is closed.
        with handle:
            yield handle


class _OpenFile(NamedTuple):
    """A file that was opened and checked; closing `stack` closes it."""

    reader: Any
    stack: contextlib.ExitStack


class _IdleFiles:
    """A cache of the files that were read last and may be read again soon. Thread-safe.

    Opening a file and reading its footer can take as long as reading thousands of its rows. An open
    file belongs either to this cache or to one caller, and is closed once.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: deque[tuple[tuple[Any, ...], _OpenFile]] = deque()

    def take(self, key: tuple[Any, ...]) -> _OpenFile | None:
        """Removes and returns a file with this key, for the caller alone; None if there is none."""
        with self._lock:
            for index, (known, file) in enumerate(self._files):
                if known == key:
                    del self._files[index]
                    return file
        return None

    def put(self, key: tuple[Any, ...], file: _OpenFile) -> None:
        """Stores a file that was taken or opened; closes the oldest file if there are too many."""
        with self._lock:
            self._files.append((key, file))
            dropped = self._files.popleft()[1] if len(self._files) > _MAX_IDLE else None
        if dropped is not None:
            dropped.stack.close()


@contextlib.contextmanager
def _named_errors(path: str, number: int | None = None) -> Iterator[None]:
    try:
        yield
    except DataServiceError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        what = "is not a readable Arrow IPC file or stream"
        if number is not None:
            what = f"record batch {number}, cannot be decoded"
        raise SourceError(
            f"{path!r}{',' if number is not None else ''} {what}: {error}; "
            "it is damaged, cut short or of another format: write or copy it again"
        ) from error


def _is_compressed(handle: Any, is_file: bool) -> bool:
    """True if leaving out columns saves decompression; also for a stream, where it is not known."""
    return not is_file or any(batch.compressed for batch in batch_metadata(handle, 1))


def _next_batch(reader: pa.RecordBatchReader) -> pa.RecordBatch | None:
    try:
        return reader.read_next_batch()
    except StopIteration:
        return None
