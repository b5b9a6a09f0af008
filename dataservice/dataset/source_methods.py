"""The methods of Dataset that begin a plan: one per source.

Responsible for the signatures that users see and their defaults only; the nodes check their
arguments and read. Invariant: no method touches a file, except `load`, which must know what was
saved.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self, TypeAlias

import pyarrow as pa

from dataservice.dataset.arrow_arrays import from_numpy
from dataservice.dataset.columns import require_distinct
from dataservice.dataset.expressions import Expression
from dataservice.dataset.node import Node
from dataservice.dataset.operators import Batch, Shuffle
from dataservice.dataset.plain_types import plain_schema
from dataservice.dataset.snapshots.waiting import DEFAULT_LOAD_TIMEOUT_S, find_snapshot
from dataservice.dataset.sources import (
    CsvSource,
    FileListSource,
    GeneratorSource,
    IpcSource,
    JsonSource,
    ParquetSource,
    RangeSource,
    SnapshotSource,
    TableSource,
    TFRecordSource,
)
from dataservice.dataset.sources.paths import check_storage_options
from dataservice.errors import InvalidTypeError, SchemaError
from dataservice.runtime.arguments import check_true_or_false

Paths: TypeAlias = "str | Sequence[str]"
_ALL_FILES = 1 << 40


class SourceMethods:
    """The class methods of a dataset that create one from a source."""

    def __init__(self, node: Node) -> None:
        self._node = node

    @classmethod
    def range(cls, start: int | None = None, stop: int | None = None, step: int = 1) -> Self:
        """Creates a dataset of the integers of Python's range, in one int64 column `id`.

        A single number is the `stop`.
        """
        if stop is None:
            start, stop = None, start
        return cls(RangeSource(0 if start is None else start, stop, step))  # type: ignore[arg-type]

    @classmethod
    def from_table(cls, table: pa.Table) -> Self:
        """Creates a dataset of a table's rows; a plan that is sent holds a copy of the table."""
        if isinstance(table, pa.RecordBatch):
            table = pa.Table.from_batches([table])
        if isinstance(table, pa.Table):
            require_distinct(table.column_names, what="the table given to from_table")
        return cls(TableSource(table))

    @classmethod
    def from_numpy(cls, columns: Mapping[str, Any]) -> Self:
        """Creates a dataset of arrays of equal length, one per column.

        2-D arrays become fixed-size lists. The dataset may share their memory: do not change
        them later.
        """
        if not isinstance(columns, Mapping) or not columns:
            raise InvalidTypeError(f"from_numpy takes a dict of arrays, got {columns!r:.200}")
        batch = from_numpy(columns, what="the arrays given to from_numpy")
        return cls(TableSource(pa.Table.from_batches([batch])))

    @classmethod
    def from_tensor_slices(cls, tensors: Mapping[str, Any]) -> Self:
        """Creates a dataset as `from_numpy` does; the name is the one that tf.data uses."""
        if not isinstance(tensors, Mapping):
            raise InvalidTypeError(
                "from_tensor_slices takes a dict of arrays, since columns have names here, got "
                f"{type(tensors).__name__}: write from_numpy({{'x': array, 'label': labels}})"
            )
        return cls.from_numpy(tensors)

    @classmethod
    def from_parquet(
        cls,
        paths: Paths,
        columns: Sequence[str] | None = None,
        filter: Expression | Sequence[Any] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        *,
        partitioning: str | None = "hive",
    ) -> Self:
        """Reads Parquet files: a path, a directory, a glob, an fsspec URL, or a list of them.

        `filter` is an expression, or a list as pyarrow and pandas take: [("x", ">", 0), ...].
        `storage_options` travel with the plan; prefer credentials on the machines that read.
        Folders such as `day=2024-01-01` below a directory, or in the path of a file, are a last
        column `day`, unless the files have one; of int64 if all its values are integers, else of
        strings. Files in folders that `filter` excludes are not opened. None ignores such names.
        """
        return cls(
            ParquetSource(paths, columns, filter, storage_options, partitioning)  # type: ignore
        )

    @classmethod
    def from_csv(
        cls,
        paths: Paths,
        schema: pa.Schema | None = None,
        *,
        delimiter: str = ",",
        header: bool = True,
        null_values: Sequence[str] | None = None,
        encoding: str = "utf-8",
        newlines_in_values: bool = True,
        on_error: str = "raise",
        storage_options: Mapping[str, Any] | None = None,
    ) -> Self:
        """Reads CSV files: the columns of `schema`, or all, with the types of the first block.

        With header=False the column names are those of `schema`, or f0, f1, ... With `null_values`,
        these texts are null, in columns of text too; without it, an empty value, "NA", "nan" and
        the like are null, but in columns of text they are the texts that they are.
        newlines_in_values=False says that no value has the end of a line inside of quotes: files of
        more than 32 MiB, in UTF-8 and not compressed, are then read in parts, by several workers
        at once. on_error="skip" leaves out rows with too few or too many values, or with a value of
        another type, and counts them in `iterator.stats()["skipped"]`; a file that cannot be read,
        or with more than 1,000 values of other types in a block, is left out from there on.
        """
        options = _copied(storage_options)
        source = CsvSource(
            paths,  # type: ignore[arg-type]
            schema,
            delimiter,
            header,
            null_values,  # type: ignore[arg-type]
            options,
            encoding=encoding,
            newlines_in_values=newlines_in_values,
            on_error=on_error,
        )
        return cls(source)

    @classmethod
    def from_json(
        cls,
        paths: Paths,
        schema: pa.Schema | None = None,
        *,
        block_size_bytes: int = 4 << 20,
        on_error: str = "raise",
        storage_options: Mapping[str, Any] | None = None,
    ) -> Self:
        """Reads JSON lines: the columns of `schema`, or all, with types of the first block.

        Files of more than 32 MiB that are not compressed are read in parts, by several workers at
        once. on_error="skip" leaves out lines that are no JSON objects of that schema, and counts
        them in `iterator.stats()["skipped"]`; a file with more than 1,000 of them in a block is
        left out from there on.
        """
        options = _copied(storage_options)
        source = JsonSource(
            paths,  # type: ignore[arg-type]
            schema,
            block_size_bytes,
            options,
            on_error=on_error,
        )
        return cls(source)

    @classmethod
    def from_ipc(
        cls,
        paths: Paths,
        columns: Sequence[str] | None = None,
        *,
        memory_map: bool = True,
        storage_options: Mapping[str, Any] | None = None,
    ) -> Self:
        """Reads Arrow IPC files (Feather) and streams; local files are read without a copy.

        If a memory-mapped file is truncated while it is read, the process dies: do not write to
        files in use, or pass `memory_map=False`.
        """
        return cls(IpcSource(paths, columns, memory_map, storage_options))  # type: ignore[arg-type]

    @classmethod
    def from_tfrecord(
        cls,
        paths: Paths,
        features: Mapping[str, pa.DataType] | pa.Schema | None = None,
        *,
        compression: str | None = "AUTO",
        storage_options: Mapping[str, Any] | None = None,
    ) -> Self:
        """Reads the features of tf.train.Example records in TFRecord files, as columns.

        `features` gives the Arrow type of each feature: a number or string for one value, a
        fixed-size list for n values, a list for any number; a missing feature is null. Without
        `features`, the records come unparsed in a binary column `record`. `compression` is "GZIP",
        "ZLIB", None, or "AUTO", which goes by the suffix of the file name.
        """
        options = _copied(storage_options)
        return cls(TFRecordSource(paths, features, compression, options))  # type: ignore[arg-type]

    @classmethod
    def from_generator(
        cls,
        fn: Callable[[], Iterable[Any]] | str,
        schema: pa.Schema,
        *,
        format: str | None = None,
        deterministic: bool = True,
    ) -> Self:
        """Creates a dataset of the rows that the iterable `fn()` yields.

        It yields dicts of one row, which is slow, dicts of arrays (format="numpy"), or record
        batches and tables (format="arrow"). A saved position is reached by calling `fn` again, and
        functions after it without `schema=` are tried on its first rows, so it must yield the same
        rows each time. Declare deterministic=False if it does not: then it has no positions to
        save, and the data service delivers it at most once.
        """
        return cls(GeneratorSource(fn, schema, format, deterministic))  # type: ignore[arg-type]

    @classmethod
    def list_files(
        cls,
        pattern: Paths,
        shuffle: bool = False,
        seed: int | None = None,
        *,
        storage_options: Mapping[str, Any] | None = None,
    ) -> Self:
        """Lists the files that one or several patterns match, in a string column `path`.

        The paths are sorted, or with `shuffle` in an order that depends on the seed and the epoch.
        A function given to `interleave` can pass the path of its row to `from_csv` and the like.
        """
        check_true_or_false(shuffle=shuffle)
        source = FileListSource(pattern, storage_options)  # type: ignore[arg-type]
        if not shuffle:
            return cls(source)
        drawn = secrets.randbits(63) if seed is None else None
        return cls(Shuffle(source, _ALL_FILES, seed, drawn))

    @classmethod
    def load(
        cls,
        path: str,
        wait: bool = False,
        *,
        element_spec: pa.Schema | None = None,
        storage_options: Mapping[str, Any] | None = None,
        timeout_s: float = DEFAULT_LOAD_TIMEOUT_S,
    ) -> Self:
        """Reads the elements that `dataservice.save` wrote to `path`, batched as they were saved.

        Their order is the same in each pass. Raises NotFoundError if nothing was saved there, and
        FailedPreconditionError while the snapshot is being written. With `wait` it waits for the
        end instead, and raises DeadlineExceededError if the snapshot makes no progress for
        `timeout_s`. Raises the error of a snapshot that failed, and SchemaError if the schema is
        not `element_spec`.
        """
        check_true_or_false(wait=wait)
        if not isinstance(element_spec, pa.Schema | None):
            raise InvalidTypeError(f"element_spec must be a pyarrow.Schema, got {element_spec!r}")
        options = _copied(storage_options)
        saved = find_snapshot(path, options, wait=wait, timeout_s=timeout_s)
        if element_spec is not None and not saved.schema.equals(plain_schema(element_spec)):
            raise SchemaError(
                f"{path}: element_spec is\n{element_spec}\nbut what was saved there has\n"
                f"{saved.schema}\nleave it out, or put map or select behind load"
            )
        source: Node = SnapshotSource(
            path=os.fspath(path),
            snapshot_id=saved.snapshot_id,
            schema=saved.schema,
            is_batched=saved.is_batched,
            storage_options=options,
        )
        if saved.batch_size is not None:
            source = Batch(source, saved.batch_size, saved.drop_remainder)
        return cls(source)


def _copied(storage_options: Any) -> dict[str, Any] | None:
    check_storage_options(storage_options)
    return dict(storage_options) if storage_options else None
