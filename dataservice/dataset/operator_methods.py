"""The methods of Dataset that extend a plan: one per operator.

Responsible for the signatures that users see and their defaults only; the nodes check their
arguments. Invariant: a method returns a new dataset and reads nothing.
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, TypeAlias, TypeVar, cast

import numpy as np
import pyarrow as pa

from dataservice.dataset import operators as ops
from dataservice.dataset.expressions import Expression
from dataservice.dataset.node import Node
from dataservice.errors import InvalidArgumentError, InvalidTypeError
from dataservice.runtime.arguments import check_true_or_false, integer_at_least
from dataservice.vocabulary import AUTOTUNE

ColumnFunction: TypeAlias = "Expression | Callable[..., Any] | str"
Method = TypeVar("Method", bound=Callable[..., Any])

# Enough to cover the jitter of one step; more would only cost memory. No rates are measured.
_AUTOTUNED_BATCHES = 4
_CYCLE = 4


def _called_n(parameter: str) -> Callable[[Method], Method]:
    """Decorates a method so that its `parameter` may also be given as the short keyword `n`."""

    def decorate(method: Method) -> Method:
        @functools.wraps(method)
        def call(self: Any, *arguments: Any, **keywords: Any) -> Any:
            if "n" in keywords and parameter not in keywords:
                keywords[parameter] = keywords.pop("n")
            return method(self, *arguments, **keywords)

        return cast(Method, call)

    return decorate


class OperatorMethods:
    """The methods of a dataset that apply operators to its rows or batches."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def _over(self, node: Node) -> Self:
        return type(self)(node)

    def map(
        self,
        fn: Callable[..., Any] | str | Mapping[str, Expression],
        format: str = "numpy",
        schema: pa.Schema | None = None,
        *,
        on_error: str = "raise",
        deterministic: bool | None = True,
        num_parallel_calls: int | None = None,
    ) -> Self:
        """Replaces the columns of each record batch by those that `fn` returns, row for row.

        `fn` takes and returns a dict of arrays; with format="arrow" a RecordBatch; with
        format="rows" the dict of one row, which is slow. Unless `schema` is given, it is inferred
        by running `fn` on a few rows; if there are none, a function of rows is run on a made-up
        row. In place of a function, a dict gives an expression for each column of the result:
        {"x": col("a") + 1}.

        on_error="skip" leaves out the rows that `fn` raises on and counts them in
        `iterator.stats()["skipped"]`. To find these rows, `fn` is called again on halves of the
        record batch, so its result for a row must not depend on the other rows.

        deterministic=False declares that `fn` must not be called again on the same rows, or returns
        something else then. Such a dataset has no positions to save, and the data service delivers
        it at most once.

        `num_parallel_calls` exists for tf.data programs and changes nothing: see `interleave`.
        """
        _check_parallel_calls(num_parallel_calls)
        if isinstance(fn, Mapping):
            stated = format, on_error, _true_for_none(deterministic)
            if stated != ("numpy", "raise", True):
                raise InvalidArgumentError(
                    "map with a dict of expressions calls no function: leave out format=, "
                    f"on_error= and deterministic=, got {stated}"
                )
            return self._over(ops.Project(self._node, fn, schema))
        node = ops.Map(
            self._node,
            fn,  # type: ignore[arg-type]
            format,
            schema,
            on_error=on_error,
            deterministic=_true_for_none(deterministic),
        )
        return self._over(node)

    def flat_map(
        self,
        fn: Callable[..., Any] | str,
        format: str = "numpy",
        schema: pa.Schema | None = None,
        *,
        on_error: str = "raise",
        deterministic: bool | None = True,
    ) -> Self:
        """Applies `fn` as `map` does, but `fn` may return any number of rows for a record batch.

        With format="rows", `fn` returns a list of dicts for the dict of one row.
        """
        node = ops.FlatMap(
            self._node,
            fn,  # type: ignore[arg-type]
            format,
            schema,
            on_error=on_error,
            deterministic=_true_for_none(deterministic),
        )
        return self._over(node)

    def filter(
        self,
        expression_or_fn: ColumnFunction,
        *,
        on_error: str = "raise",
        deterministic: bool | None = True,
    ) -> Self:
        """Keeps the rows for which an expression, or a function that returns a mask, is true.

        Rows for which the condition is null are dropped, also if a function returns a boolean
        column with nulls unchanged; to compute with such a column, apply `fill_null` to it before.
        An expression over Parquet files, behind `select` and `rename` too, skips row groups.
        `on_error` and `deterministic` are as for `map`.
        """
        node = ops.Filter(
            self._node,
            expression_or_fn,  # type: ignore[arg-type]
            on_error=on_error,
            deterministic=_true_for_none(deterministic),
        )
        return self._over(node)

    def select(self, columns: str | Sequence[str], *more: str) -> Self:
        """Keeps the named columns, in the given order."""
        listed = columns if isinstance(columns, list | tuple) else [columns]
        names = (*listed, *more)
        return self._over(ops.Select(self._node, names))

    def rename(self, mapping: Mapping[str, str]) -> Self:
        """Renames columns, given as {old: new}."""
        return self._over(ops.Rename(self._node, mapping))

    def with_column(
        self,
        name: str,
        expression_or_fn: ColumnFunction,
        *,
        schema: pa.Schema | None = None,
        on_error: str = "raise",
        deterministic: bool | None = True,
    ) -> Self:
        """Adds or replaces a column, by an expression or a function that returns an array.

        The column has the type that `schema` gives it, or else that of the first values.
        `on_error` and `deterministic` are as for `map`.
        """
        node = ops.WithColumn(
            self._node,
            name,
            expression_or_fn,  # type: ignore[arg-type]
            schema=schema,
            on_error=on_error,
            deterministic=_true_for_none(deterministic),
        )
        return self._over(node)

    def shuffle(
        self,
        buffer_size: int,
        seed: int | None = None,
        reshuffle_each_iteration: bool | None = True,
    ) -> Self:
        """Permutes the elements within buffers, and the order of files and row groups below.

        The order depends on the seed and the epoch alone. Without a seed, one is drawn when this
        method is called, and under ShardingPolicy.OFF each worker's pass has an order of its own.
        While a buffer is filled, its rows are in memory once, one of their columns twice, and up to
        16 bytes a row are taken for their order.
        """
        drawn = secrets.randbits(63) if seed is None else None
        reshuffles = _true_for_none(reshuffle_each_iteration)
        node = ops.Shuffle(self._node, buffer_size, seed, drawn, reshuffles)
        return self._over(node)

    @_called_n("batch_size")
    def batch(
        self,
        batch_size: int,
        drop_remainder: bool = False,
        *,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
    ) -> Self:
        """Groups rows into record batches of `batch_size` rows, which become the elements.

        `drop_remainder` leaves out the last batch if it is smaller; in a distributed dataset, the
        last batch of each data worker, or with `ordered=True` of the whole. `num_parallel_calls` is
        as for `map`. Batches are always in order, whatever `deterministic` says.
        """
        _check_parallel_calls(num_parallel_calls)
        check_true_or_false(deterministic=_true_for_none(deterministic))
        return self._over(ops.Batch(self._node, batch_size, drop_remainder))

    def repeat(self, count: int | None = None) -> Self:
        """Repeats the elements `count` times; endlessly for None or -1.

        An endless repetition of a shared job goes on if other readers took all rows of a pass.
        """
        return self._over(ops.Repeat(self._node, count))

    @_called_n("count")
    def take(self, count: int) -> Self:
        """Keeps the first `count` elements; all elements for -1."""
        return self if _is_auto(count) else self._over(ops.Take(self._node, count))

    @_called_n("count")
    def skip(self, count: int) -> Self:
        """Leaves out the first `count` elements; all elements for -1."""
        if _is_auto(count):
            return self._over(ops.Take(self._node, 0))
        return self._over(ops.Skip(self._node, count))

    def concatenate(self, other: OperatorMethods) -> Self:
        """Appends the elements of `other`, whose columns must convert to the types of this one."""
        if not isinstance(other, OperatorMethods):
            raise InvalidTypeError(f"concatenate takes a Dataset, got {other!r}")
        return self._over(ops.Concatenate.of(self._node, other._node))

    def zip(self: Any, *others: Any) -> Any:
        """Puts row i of all datasets side by side; written `a.zip(b)` or `Dataset.zip(a, b)`.

        Ends with the shortest dataset. The columns need different names.
        """
        listed = (*(self if isinstance(self, tuple | list) else (self,)), *others)
        nodes = nodes_of(listed, "zip")
        return listed[0]._over(ops.Zip(nodes))

    def enumerate(self, name: str = "index", start: int = 0) -> Self:
        """Adds an int64 column with the number of each element, counted from `start`."""
        return self._over(ops.Enumerate(self._node, name, start))

    @_called_n("buffer_size")
    def prefetch(self, buffer_size: int | None) -> Self:
        """Reads up to `buffer_size` record batches ahead, on a thread of its own.

        AUTOTUNE or None reads a few batches ahead, 0 none.
        """
        if buffer_size is None or _is_auto(buffer_size):
            buffer_size = _AUTOTUNED_BATCHES
        return self._over(ops.Prefetch(self._node, buffer_size))

    def shard(self, num_shards: int, index: int) -> Self:
        """Keeps every `num_shards`-th element, beginning with number `index`.

        If `num_shards` is SHARD_HINT, a service fills in both numbers; see ShardingPolicy.HINT.
        """
        return self._over(ops.Shard(self._node, num_shards, index))

    def unbatch(self) -> Self:
        """Takes batches apart, so that their rows become the elements again."""
        return self._over(ops.Unbatch(self._node))

    def interleave(
        self,
        fn: Callable[..., Any] | str,
        cycle_length: int | None = _CYCLE,
        block_length: int | None = 1,
        schema: pa.Schema | None = None,
        *,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = True,
    ) -> Self:
        """Takes blocks of rows from the datasets `fn(element)`, `cycle_length` of them by turns.

        `fn` gets a row as a dict or a batch as a dict of arrays, and returns a Dataset of rows.
        `deterministic` is as for `map`. `num_parallel_calls` exists for tf.data programs and
        changes nothing: threads work on several windows at once, or read ahead for a prefetch.

        Under ShardingPolicy.DYNAMIC the elements, such as file names, are divided among the
        workers, and the elements of one window are interleaved. A window has at least
        `cycle_length` elements, unless the epoch then had fewer than 16 windows. Another worker
        makes the rows anew that a lost worker had not delivered, so `fn` must return the same
        dataset for an element each time.
        """
        _check_parallel_calls(num_parallel_calls)
        node = ops.Interleave(
            self._node,
            fn,  # type: ignore[arg-type]
            _CYCLE if cycle_length is None or _is_auto(cycle_length) else cycle_length,
            1 if block_length is None else block_length,
            schema,
            _true_for_none(deterministic),
        )
        return self._over(node)

    def cache(self, path: str | None = None) -> Self:
        """Keeps the elements of the first complete pass, in memory or in the local file `path`.

        Later passes have the order of that pass; put a shuffle after the cache to reshuffle. If a
        service divides files or fills in hints, each share has its own file, as `path.0-of-2`.
        """
        return self._over(ops.Cache(self._node, path))

    def padded_batch(
        self,
        batch_size: int,
        padded_shapes: Mapping[str, int | Sequence[int | None] | None] | None = None,
        padding_values: Mapping[str, Any] | float | str | None = None,
        drop_remainder: bool = False,
    ) -> Self:
        """Batches rows and pads the lists of a batch to one length, as 2-D arrays for NumPy.

        Lists are padded to the longest of the batch, or to the length that `padded_shapes` gives
        for the column; a longer list is an error. `padding_values` are by column, or one for all;
        0 or "" for the others. If functions return arrays of two or more dimensions for these
        batches, those become padded lists too.
        """
        batched = ops.Batch(self._node, batch_size, drop_remainder)
        return self._over(ops.Pad(batched, padded_shapes, padding_values))  # type: ignore[arg-type]

    def bucket_by_sequence_length(
        self,
        element_length_func: ColumnFunction,
        bucket_boundaries: Sequence[int],
        bucket_batch_sizes: Sequence[int],
        padded_shapes: Mapping[str, int | Sequence[int | None] | None] | None = None,
        padding_values: Mapping[str, Any] | float | str | None = None,
        pad_to_bucket_boundary: bool = False,
        no_padding: bool = False,
        drop_remainder: bool = False,
    ) -> Self:
        """Batches rows of similar length, padded as `padded_batch` does.

        `element_length_func` is a column (for a list, its length), an expression, or a function of
        the columns that returns integers. Bucket i holds lengths below bucket_boundaries[i].

        Under ShardingPolicy.DYNAMIC each window fills buckets of its own. The rows left in them at
        the window's end are delivered as smaller batches, or left out with `drop_remainder`. A
        window has rows for 16 batches per bucket, unless the epoch then had fewer than 4 windows.
        """
        return self._over(
            ops.BucketBySequenceLength(
                self._node,
                element_length_func,  # type: ignore[arg-type]
                bucket_boundaries,  # type: ignore[arg-type]
                bucket_batch_sizes,  # type: ignore[arg-type]
                padded_shapes,  # type: ignore[arg-type]
                padding_values,
                pad_to_bucket_boundary,
                no_padding,
                drop_remainder,
            )
        )

    def group_by_window(
        self,
        key_func: ColumnFunction,
        reduce_func: Callable[[int, Any], Any] | str | None = None,
        window_size: int | None = None,
        window_size_func: Callable[[int], int] | str | None = None,
        schema: pa.Schema | None = None,
    ) -> Self:
        """Gathers elements of one key into windows; a full one becomes `reduce_func(key, window)`.

        `key_func` is a column, an expression, or a function of the columns that returns one integer
        for each element. `reduce_func` gets the window as a Dataset and returns a Dataset of
        batches; without it, a window of rows becomes one batch.

        Under ShardingPolicy.DYNAMIC the windows of a key lie within one leased window of splits; at
        its end the windows that are not full are reduced too. A leased window has rows for 16
        windows of each of 16 keys, unless the epoch then had fewer than 4 leased windows.
        """
        node = ops.GroupByWindow(
            self._node,
            key_func,  # type: ignore[arg-type]
            reduce_func,  # type: ignore[arg-type]
            window_size,
            window_size_func,  # type: ignore[arg-type]
            schema,
        )
        return self._over(node)


def nodes_of(datasets: Any, operator: str) -> tuple[Node, ...]:
    """Returns the plans of the datasets; raises InvalidTypeError for other values, or for none."""
    if not isinstance(datasets, list | tuple) or not datasets:
        raise InvalidTypeError(f"{operator} takes several datasets, got {datasets!r}")
    for dataset in datasets:
        if not isinstance(dataset, OperatorMethods):
            raise InvalidTypeError(f"{operator} takes Datasets, got {dataset!r}")
    return tuple(dataset._node for dataset in datasets)


def _check_parallel_calls(count: Any) -> None:
    if count is not None and not _is_auto(count):
        integer_at_least(count, 1, "num_parallel_calls")


def _true_for_none(choice: bool | None) -> bool:
    """Returns True for None, which is tf.data's default for options that are True here."""
    return True if choice is None else choice


def _is_auto(count: Any) -> bool:
    """True for -1, which means AUTOTUNE for a buffer size and all elements for a count."""
    return isinstance(count, int | np.integer) and count == AUTOTUNE
