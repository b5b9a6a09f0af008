"""The source of Parquet files.

Plans from footers: one split per row group, with small neighbours merged, without the row groups
that their statistics exclude from the filter, and without files that the names of their folders
exclude, which are not opened. Reads with `ParquetFile.iter_batches`. Invariant: every file has the
columns and types of the reference, and rows come in file order.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import glob
import threading
from collections import OrderedDict, deque
from collections.abc import Generator, Iterator, Mapping
from typing import Any, ClassVar, Final

import pyarrow as pa
import pyarrow.parquet as pq

from dataservice.dataset.columns import no_rows
from dataservice.dataset.expressions import Expression
from dataservice.dataset.filter_tuples import condition_of
from dataservice.dataset.node import register_node
from dataservice.dataset.plain_types import plain_batch, plain_schema
from dataservice.dataset.pushdown import statistics_conditions
from dataservice.dataset.sources.columnar import (
    ColumnarSource,
    merged_splits,
    named_parts,
)
from dataservice.dataset.sources.files import InputFile, find_in_each
from dataservice.dataset.sources.hive import PARTITIONINGS, FolderColumns, folder_row
from dataservice.dataset.sources.opening import opened
from dataservice.dataset.sources.paths import is_local
from dataservice.dataset.sources.reference import Reference
from dataservice.dataset.stream import RunContext, chunk_rows
from dataservice.errors import InvalidTypeError, SourceError
from dataservice.runtime.arguments import check_choice
from dataservice.sharding import Split

# Opening a row group costs about as much as decoding this many rows.
_MERGED_ROWS: Final = 16_384
_CACHED_FOOTERS: Final = 64
# In a file; parsed, a footer takes eight times as much memory.
_CACHED_FOOTER_BYTES: Final = 16 << 20
# A row group of fewer bytes is decoded before another thread would have woken.
_THREADED_BYTES: Final = 128 << 10
# The columns of a larger row group of a local file are read side by side, in pieces of the second
# size, so that neither memory nor the time to the first rows grows with the row group.
_WHOLE_BYTES: Final = 64 << 20
_PIECE_BYTES: Final = 1 << 20


@register_node
@dataclasses.dataclass(frozen=True, eq=False)
class ParquetSource(ColumnarSource):
    """The chosen `columns` of those rows of Parquet files for which `filter` is true.

    With `partitioning` "hive", the names of the files' folders, such as `day=2024-01-01`, are
    columns too, unless the files have columns of these names.
    """

    kind: ClassVar[str] = "parquet"
    suffixes: ClassVar[tuple[str, ...]] = (".parquet", ".parq", ".pq")
    paths: tuple[str, ...]
    columns: tuple[str, ...] | None = None
    filter: Expression | None = None
    storage_options: Mapping[str, Any] | None = dataclasses.field(default=None, repr=False)
    # None if it is not stated, as in plans of earlier versions, which knew no such columns.
    partitioning: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("partitioning", self.partitioning, PARTITIONINGS)
        if isinstance(self.filter, list | tuple):
            object.__setattr__(self, "filter", condition_of(self.filter))
        if self.filter is not None and not isinstance(self.filter, Expression):
            raise InvalidTypeError(
                'filter must be an expression of dataservice, such as ds.col("id") >= 90, or a '
                f'list such as [("id", ">=", 90)], got {self.filter!r} '
                f"({type(self.filter).__module__}); use .filter(function) for a function"
            )

    @property
    def counts_rows(self) -> bool:
        return self.filter is None

    def plan_file(self, file: InputFile) -> list[Split]:
        if self._is_excluded(file.path):
            return []
        with self._opened(file.path) as parquet:
            self._check(file.path, parquet.schema_arrow)
            metadata = parquet.metadata
            self._footers.put((file.path, file.size_bytes, file.version), metadata)
            groups = [
                (index, metadata.row_group(index).num_rows)
                for index in self._matching_groups(file.path, metadata.num_row_groups)
            ]
        return merged_splits(file, groups, _MERGED_ROWS)

    def _is_excluded(self, path: str) -> bool:
        """True if, by the names of the file's folders, the filter is true for none of its rows."""
        row = folder_row(path, self._from_folders)
        known = set(row.schema.names)
        parts = [] if self.filter is None or not known else self.filter.conjuncts()
        return any(part.columns() <= known and not part.mask(row).true_count for part in parts)

    def _check(self, path: str, found: pa.Schema) -> None:
        """Raises SchemaError unless the file has all columns, apart from those of its folders."""
        folders = self._from_folders
        own = [column for column in found if column.name not in folders.names]
        self.check_schema(path, pa.schema([*own, *folders]))

    @functools.cached_property
    def _from_folders(self) -> pa.Schema:
        """Those of the columns to read that the names of folders hold."""
        names = self.reference.in_folders.names
        return pa.schema([column for column in self.read_schema if column.name in names])

    @functools.cached_property
    def reference(self) -> Reference:
        """The file that all others must match, and its schema with the columns of folders."""
        if self.partitioning is None:
            return self.reference_of(self.files())
        columns = FolderColumns()
        files = columns.noting(self._named_files())
        reference = self.reference_of(files)
        # Of the other files, only the names count.
        deque(files, maxlen=0)
        return reference.with_folders(columns.schema())

    def _named_files(self) -> Iterator[tuple[str, InputFile]]:
        """Yields each file with the path that names it.

        Takes further URLs for files if the first is one, since looking at each is a request.
        """
        is_file = False
        for path in self.paths:
            if is_file and not is_local(path) and not glob.has_magic(path):
                yield path, InputFile(path, 0, "")
                continue
            found = find_in_each((path,), self.suffixes, self.storage_options, self.on_error)
            for given, file in found:
                is_file = file.path.rpartition("/")[2] == given.rpartition("/")[2]
                yield given, file

    def _matching_groups(self, path: str, group_count: int) -> list[int]:
        """Returns the row groups in which, by the footer's statistics, the filter may be true."""
        every = list(range(group_count))
        if self.filter is None:
            return every
        # A file may have a column of that name all the same, and other values in it.
        folders = set(self._from_folders.names)
        parts = [part for part in self.filter.conjuncts() if not part.columns() & folders]
        known = [each for part in parts for each in statistics_conditions(part, self.read_schema)]
        if not known:
            return every
        with opened(path, self.storage_options) as handle:
            # Imported here because it imports pandas if installed, which few servers need.
            from pyarrow.dataset import ParquetFileFormat

            fragment = ParquetFileFormat().make_fragment(handle)
            for condition in known:
                # Arrow supports fewer types here than in comparing rows, for example not decimals.
                with contextlib.suppress(pa.ArrowException):
                    fragment = fragment.subset(filter=condition, schema=self.read_schema)
            return [group.id for group in fragment.row_groups]

    def _rows(
        self, split: Split, first_row: int, context: RunContext
    ) -> Generator[pa.RecordBatch, None, None]:
        assert split.path is not None
        if split.row_groups is None:
            # The file could not be planned. Even if it can be now, what to read would be a guess.
            self.plan_file(InputFile(split.path, split.size_bytes, split.version))
            raise SourceError(f"{split.path!r} could not be read when it was planned")
        left = split.stop - split.start - first_row
        key = (split.path, split.size_bytes, split.version)
        footer = self._footers.get(key)
        with opened(split.path, self.storage_options) as handle:
            parquet = _parquet_file(handle, split.path, footer)
            if footer is None:
                self._check(split.path, parquet.schema_arrow)
                self._footers.put(key, parquet.metadata)
            skip = split.start + first_row
            groups, skip = _skip_groups(parquet.metadata, split.row_groups, skip)
            if left <= 0 or not groups:
                return
            most = max(parquet.metadata.row_group(group).total_byte_size for group in groups)
            if most > _WHOLE_BYTES:
                parquet = _parquet_file(handle, split.path, parquet.metadata, in_pieces=True)
            threaded = context.threads > 1 and most * len(groups) > _THREADED_BYTES
            for batch in self._decode(parquet, split.path, groups, threaded):
                if skip >= batch.num_rows:
                    skip -= batch.num_rows
                    continue
                part = batch.slice(skip, left) if skip or left < batch.num_rows else batch
                skip = 0
                left -= part.num_rows
                yield part
                if left <= 0:
                    return

    def _decode(
        self, parquet: pq.ParquetFile, path: str, groups: list[int], use_threads: bool
    ) -> Iterator[pa.RecordBatch]:
        schema = self.read_schema
        folders = folder_row(path, self._from_folders)
        names = [name for name in schema.names if name not in folders.schema.names]
        try:
            chunks = parquet.iter_batches(
                batch_size=chunk_rows(schema),
                row_groups=groups,
                columns=names,
                use_threads=use_threads,
            )
            for chunk in chunks:
                ordered = chunk if chunk.schema.names == names else chunk.select(names)
                yield plain_batch(_with_folders(ordered, folders, schema.names), schema)
        except (pa.ArrowException, OSError) as error:
            where = f"{path!r}, row group {', '.join(map(str, groups))}"
            if isinstance(error, SourceError):
                raise SourceError(f"{where}: {error}") from error
            raise SourceError(
                f"{where}, cannot be decoded: {error}; "
                "the file is damaged or cut short: write or copy it again"
            ) from error

    def refine(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self.filter is not None:
            mask = self.filter.mask(batch)
            if mask.true_count < batch.num_rows:
                batch = batch.filter(mask)
        wanted = self._wanted_names
        return batch if len(wanted) == batch.num_columns else batch.select(wanted)

    def empty(self) -> pa.RecordBatch:
        empty = no_rows(self.read_schema)
        return self.refine(empty)

    def describe(self, split: Split, first_row: int, end_row: int) -> str:
        groups = named_parts("row group", split.row_groups or ())
        first = split.start + first_row
        return f"{split.path} {groups} rows {first}..{split.start + end_row - 1}"

    @functools.cached_property
    def _footers(self) -> _FooterCache:
        return _FooterCache()

    def read_reference(self, file: InputFile) -> Reference:
        with self._opened(file.path) as parquet:
            return Reference(file.path, plain_schema(parquet.schema_arrow))

    @functools.cached_property
    def _wanted_names(self) -> list[str]:
        return list(self.reference.schema.names if self.columns is None else self.columns)

    @contextlib.contextmanager
    def _opened(self, path: str) -> Iterator[pq.ParquetFile]:
        with opened(path, self.storage_options) as handle:
            yield _parquet_file(handle, path)


def _parquet_file(
    handle: Any, path: str, footer: pq.FileMetaData | None = None, *, in_pieces: bool = False
) -> pq.ParquetFile:
    """Returns an open file; one that is local is read `in_pieces` if asked for."""
    # Otherwise Arrow asks for whole row groups at once: a store takes long to answer each request,
    # and a local file may have many small columns.
    in_pieces = in_pieces and is_local(path)
    piece_bytes = _PIECE_BYTES if in_pieces else 0
    try:
        return pq.ParquetFile(
            handle, metadata=footer, pre_buffer=not in_pieces, buffer_size=piece_bytes
        )
    except SourceError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise SourceError(
            f"{path!r} is not a readable Parquet file: {error}; "
            "it is damaged, cut short or of another format: write or copy it again"
        ) from error


def _with_folders(
    batch: pa.RecordBatch, folders: pa.RecordBatch, names: list[str]
) -> pa.RecordBatch:
    """Returns the columns `names` of a batch and of its only row of `folders`, repeated."""
    if not folders.num_columns:
        return batch
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    for column, values in zip(folders.schema.names, folders.columns, strict=True):
        columns[column] = pa.repeat(values[0], batch.num_rows)
    return pa.RecordBatch.from_arrays([columns[name] for name in names], names)


class _FooterCache:
    """A cache of the footers of files that were opened last, with checked schemas. Thread-safe.

    Parsing a footer takes longer than decoding a small row group. Bounded in number, and in bytes
    apart from the newest: footers of many columns and row groups are large.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._footers: OrderedDict[tuple[str, int, str], pq.FileMetaData] = OrderedDict()
        self._bytes = 0

    def get(self, key: tuple[str, int, str]) -> pq.FileMetaData | None:
        with self._lock:
            return self._footers.get(key)

    def put(self, key: tuple[str, int, str], footer: pq.FileMetaData) -> None:
        with self._lock:
            if key in self._footers:
                return
            self._footers[key] = footer
            self._bytes += footer.serialized_size
            while len(self._footers) > 1 and (
                len(self._footers) > _CACHED_FOOTERS or self._bytes > _CACHED_FOOTER_BYTES
            ):
                _, oldest = self._footers.popitem(last=False)
                self._bytes -= oldest.serialized_size


def _skip_groups(
    metadata: pq.FileMetaData, groups: tuple[int, ...], skip: int
) -> tuple[list[int], int]:
    """Returns the groups from the one that holds row `skip` on, and the rows to skip in it."""
    for position, group in enumerate(groups):
        rows = metadata.row_group(group).num_rows
        if skip < rows:
            return list(groups[position:]), skip
        skip -= rows
    return [], 0
