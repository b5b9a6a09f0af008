"""The Dataset that users build: a facade whose methods only make nodes of a plan.

Everything that reads, runs or divides is elsewhere. Invariant: a Dataset never changes; what grows
is its count of passes, which keys the reshuffling, and its statistics.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import itertools
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from dataservice.dataset import operators as ops
from dataservice.dataset.columns import from_numpy, to_numpy
from dataservice.dataset.expressions import Expression
from dataservice.dataset.iterator import DatasetIterator, DatasetStats, StatsCounter, generate
from dataservice.dataset.node import INFINITE_CARDINALITY, Node, rewrite, walk
from dataservice.dataset.plan import decode_plan, encode_plan
from dataservice.dataset.sources import CsvSource, ParquetSource, RangeSource, TableSource
from dataservice.dataset.stream import RunContext
from dataservice.errors import InvalidArgumentError, SchemaError

Paths: TypeAlias = "str | Sequence[str]"
ColumnFunction: TypeAlias = "Expression | Callable[..., Any] | str"


class Dataset:
    """A lazy, immutable description of rows of one schema; see the module's operators."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._passes = itertools.count()
        self._stats = StatsCounter()

    @property
    def node(self) -> Node:
        """The plan."""
        return self._node

    @staticmethod
    def range(start: int, stop: int | None = None, step: int = 1) -> Dataset:
        """Integers as Python's range gives them, in one int64 column `id`."""
        if stop is None:
            start, stop = 0, start
        return Dataset(RangeSource(start, stop, step))

    @staticmethod
    def from_table(table: pa.Table) -> Dataset:
        """The rows of a table; a plan that is sent holds a copy of it."""
        if isinstance(table, pa.RecordBatch):
            table = pa.Table.from_batches([table])
        return Dataset(TableSource(table))

    @staticmethod
    def from_numpy(columns: Mapping[str, Any]) -> Dataset:
        """Arrays of equal length, one per column; 2-D arrays become fixed-size lists."""
        if not isinstance(columns, Mapping) or not columns:
            raise InvalidArgumentError(f"from_numpy takes a dict of arrays, got {columns!r:.200}")
        batch = from_numpy(columns, what="the arrays given to from_numpy")
        return Dataset(TableSource(pa.Table.from_batches([batch])))

    @staticmethod
    def from_parquet(
        paths: Paths,
        columns: Sequence[str] | None = None,
        filter: Expression | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> Dataset:
        """Rows of Parquet files: a path, a directory, a glob, an fsspec URL, or a list of them.

        `storage_options` travel with the plan: prefer credentials of the machines that read.
        """
        return Dataset(ParquetSource(paths, columns, filter, storage_options))  # type: ignore

    @staticmethod
    def from_csv(
        paths: Paths,
        schema: pa.Schema | None = None,
        *,
        delimiter: str = ",",
        header: bool = True,
        null_values: Sequence[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> Dataset:
        """Rows of CSV files; types that `schema` does not give come from the first block.

        `header` False takes the column names from `schema`, or f0, f1, ...
        """
        nulls = None if null_values is None else tuple(null_values)
        options = dict(storage_options) if storage_options else None
        source = CsvSource(paths, schema, delimiter, header, nulls, options)  # type: ignore
        return Dataset(source)

    def map(
        self,
        fn: Callable[..., Any] | str,
        format: str = "numpy",
        schema: pa.Schema | None = None,
    ) -> Dataset:
        """What `fn` makes of each record batch, row for row.

        `fn` maps a dict of arrays to one; a RecordBatch with format="arrow"; one row's dict with
        format="rows", which is slow. `schema` is inferred from a few rows unless given.
        """
        return Dataset(ops.Map(self._node, fn, format, schema))  # type: ignore[arg-type]

    def flat_map(
        self,
        fn: Callable[..., Any] | str,
        format: str = "numpy",
        schema: pa.Schema | None = None,
    ) -> Dataset:
        """As `map`, but `fn` may return any number of rows for a record batch."""
        return Dataset(ops.FlatMap(self._node, fn, format, schema))  # type: ignore[arg-type]

    def filter(self, condition: ColumnFunction) -> Dataset:
        """Rows for which an expression, or a function of the columns to a mask, is true."""
        return Dataset(ops.Filter(self._node, condition))  # type: ignore[arg-type]

    def select(self, columns: str | Sequence[str], *more: str) -> Dataset:
        """The named columns in that order."""
        listed = columns if isinstance(columns, list | tuple) else [columns]
        names = (*listed, *more)
        return Dataset(ops.Select(self._node, names))

    def rename(self, names: Mapping[str, str]) -> Dataset:
        """Columns under new names, given as old: new."""
        return Dataset(ops.Rename(self._node, names))

    def with_column(self, name: str, value: ColumnFunction) -> Dataset:
        """Adds or replaces a column by an expression or a function of the columns to an array."""
        return Dataset(ops.WithColumn(self._node, name, value))  # type: ignore[arg-type]

    def shuffle(
        self, buffer_size: int, seed: int | None = None, reshuffle_each_iteration: bool = True
    ) -> Dataset:
        """Permutes the elements within buffers, and the order of files and row groups below.

        The order depends on the seed and the epoch alone. Without a seed one is drawn now.
        """
        drawn = secrets.randbits(63) if seed is None else None
        node = ops.Shuffle(self._node, buffer_size, seed, drawn, reshuffle_each_iteration)
        return Dataset(node)

    def batch(self, batch_size: int, drop_remainder: bool = False) -> Dataset:
        """Makes record batches of `batch_size` rows the elements."""
        return Dataset(ops.Batch(self._node, batch_size, drop_remainder))

    def repeat(self, count: int | None = None) -> Dataset:
        """The elements `count` times over; endlessly for None or -1."""
        return Dataset(ops.Repeat(self._node, count))

    def take(self, count: int) -> Dataset:
        """The first `count` elements."""
        return Dataset(ops.Take(self._node, count))

    def skip(self, count: int) -> Dataset:
        """All elements but the first `count`."""
        return Dataset(ops.Skip(self._node, count))

    def concatenate(self, other: Dataset) -> Dataset:
        """These elements, then those of `other`, whose columns must convert to the same types."""
        if not isinstance(other, Dataset):
            raise InvalidArgumentError(f"concatenate takes a Dataset, got {other!r}")
        return Dataset(ops.Concatenate(self._node, other._node))

    def enumerate(self, name: str = "index") -> Dataset:
        """Adds an int64 column with the number of each element."""
        return Dataset(ops.Enumerate(self._node, name))

    def prefetch(self, buffer_size: int) -> Dataset:
        """Reads up to `buffer_size` record batches ahead on a thread."""
        return Dataset(ops.Prefetch(self._node, buffer_size))

    def apply(self, transformation: Callable[[Dataset], Dataset]) -> Dataset:
        """`transformation(self)`, which must be a Dataset."""
        result = transformation(self)
        if not isinstance(result, Dataset):
            raise InvalidArgumentError(
                f"the function given to apply must return a Dataset, it returned {result!r}"
            )
        return result

    def distribute(self, policy: Any, service: Any, **arguments: Any) -> Dataset:
        """The same rows, read by the data workers of a service; see `dataservice.distribute`."""
        # A dataset is built and run without the service's client.
        from dataservice.client.api import distribute

        return self.apply(distribute(policy, service, **arguments))

    @property
    def is_distributed(self) -> bool:
        """Whether some of it runs on the data service."""
        return any(node.kind == "service" for node in walk(self._node))

    def shared(self, job_name: str) -> Dataset:
        """The same dataset, whose private jobs are jobs of that name, shared by all readers."""

        def name(node: Node) -> Node:
            private = node.kind == "service" and getattr(node, "job_name", None) is None
            return dataclasses.replace(node, job_name=job_name) if private else node  # type: ignore

        return Dataset(rewrite(self._node, name))

    @functools.cached_property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the rows, from footers, first rows, and functions run on these."""
        return self._node.sample(RunContext()).schema

    def cardinality(self) -> int:
        """Number of elements, or INFINITE_CARDINALITY or UNKNOWN_CARDINALITY."""
        return self._node.cardinality()

    def stats(self) -> DatasetStats:
        """Totals over all iterators of this object."""
        return self._stats.total()

    def __iter__(self) -> DatasetIterator:
        return DatasetIterator(self._node, next(self._passes), self._stats)

    def iterator(self, epoch: int) -> DatasetIterator:
        """One pass as number `epoch`, which shuffles reshuffle by and jobs count as repetition.

        `iter` counts the passes of this object; processes that read together say the number.
        """
        return DatasetIterator(self._node, epoch, self._stats)

    def numpy(self) -> Iterator[dict[str, Any]]:
        """One pass as dicts of arrays, without copies where the types allow it."""
        return generate(self.__iter__, to_numpy)  # type: ignore[no-any-return]

    def rows(self) -> Iterator[dict[str, Any]]:
        """One pass as one dict per row: for looking at data, not for training on it."""
        for listed in generate(self.__iter__, lambda batch: batch.to_pylist()):
            yield from listed

    def to_table(self) -> pa.Table:
        """One pass as a table in memory. InvalidArgumentError for an endless dataset."""
        if self._is_endless():
            raise InvalidArgumentError("an endless dataset has no table; put take(n) before it")
        with iter(self) as iterator:
            batches = list(iterator)
        if not batches:
            return pa.Table.from_batches([], schema=self.schema)
        try:
            return pa.Table.from_batches(batches)
        except pa.ArrowException as error:
            raise SchemaError(f"the batches differ in their schema: {error}") from error

    def _is_endless(self) -> bool:
        endless = any(isinstance(n, ops.Repeat) and n.count is None for n in walk(self._node))
        return endless and self._node.cardinality() == INFINITE_CARDINALITY

    def __reduce__(self) -> tuple[Any, ...]:
        homes = {type(node).__module__ for node in walk(self._node)}
        return _from_plan, (encode_plan(self._node), sorted(homes))

    def __repr__(self) -> str:
        return f"Dataset({' > '.join(node.kind for node in walk(self._node))})"


def _from_plan(plan: bytes, homes: Sequence[str]) -> Dataset:
    # Operators are known by name once the module of each has been imported.
    for home in homes:
        importlib.import_module(home)
    return Dataset(decode_plan(plan))
