"""The methods of Dataset that extend a plan: one per operator with one input.

Responsible for what users write and its defaults only; the nodes check their arguments.
Invariant: a method returns a new dataset and reads nothing.
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
from dataservice.errors import InvalidTypeError
from dataservice.runtime.arguments import integer_at_least
from dataservice.vocabulary import AUTOTUNE

ColumnFunction: TypeAlias = "Expression | Callable[..., Any] | str"
Method = TypeVar("Method", bound=Callable[..., Any])

# Covers the jitter of one step; more would only cost memory, as rates are not measured here.
_AUTOTUNED_BATCHES = 4
_CYCLE = 4


def _called_n(parameter: str) -> Callable[[Method], Method]:
    """The method's number may also be given by the short keyword `n`."""

    def decorate(method: Method) -> Method:
        @functools.wraps(method)
        def call(self: Any, *arguments: Any, **keywords: Any) -> Any:
            if "n" in keywords and parameter not in keywords:
                keywords[parameter] = keywords.pop("n")
            return method(self, *arguments, **keywords)

        return cast(Method, call)

    return decorate


class OperatorMethods:
    """What can be done with the rows of a dataset."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def _over(self, node: Node) -> Self:
        return type(self)(node)

    def map(
        self,
        fn: Callable[..., Any] | str,
        format: str = "numpy",
        schema: pa.Schema | None = None,
        *,
        on_error: str = "raise",
        deterministic: bool | None = True,
        num_parallel_calls: int | None = None,
    ) -> Self:
        """What `fn` makes of each record batch, row for row.

        `fn` maps a dict of arrays to one; a RecordBatch with format="arrow"; one row's dict with
        format="rows", which is slow. `schema` is inferred from a few rows unless given; where there
        is no row, from what a function of rows makes of a made-up one.

        on_error="skip" leaves out and counts (`iterator.stats()["skipped"]`) the rows that `fn`
        raises on. To find them, it is called again on halves of a record batch, so what it makes
        of a row must not depend on the other rows.

        deterministic=False says that `fn` must not be called again on the same rows, or makes
        something else of them then: the dataset has no positions to save, and the data service
        delivers it at most once.

        `num_parallel_calls`, which tf.data has, changes nothing: see `interleave`.
        """
        _check_parallel_calls(num_parallel_calls)
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
        """As `map`, but `fn` may return any number of rows for a record batch.

        With format="rows" it returns a list of dicts for one row's dict.
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
        condition: ColumnFunction,
        *,
        on_error: str = "raise",
        deterministic: bool | None = True,
    ) -> Self:
        """Rows for which an expression, or a function of the columns to a mask, is true.

        Where the condition is null its row goes, also where a function returns a boolean column
        with nulls as it got it; to compute with such a column, `fill_null` comes first.
        `on_error` and `deterministic` as for `map`.
        """
        node = ops.Filter(
            self._node,
            condition,  # type: ignore[arg-type]
            on_error=on_error,
            deterministic=_true_for_none(deterministic),
        )
        return self._over(node)

    def select(self, columns: str | Sequence[str], *more: str) -> Self:
        """The named columns in that order."""
        listed = columns if isinstance(columns, list | tuple) else [columns]
        names = (*listed, *more)
        return self._over(ops.Select(self._node, names))

    def rename(self, mapping: Mapping[str, str]) -> Self:
        """Columns under new names, given as old: new."""
        return self._over(ops.Rename(self._node, mapping))

    def with_column(
        self,
        name: str,
        value: ColumnFunction,
        *,
        schema: pa.Schema | None = None,
        on_error: str = "raise",
        deterministic: bool | None = True,
    ) -> Self:
        """Adds or replaces a column by an expression or a function of the columns to an array.

        It has the type that `schema` gives it, or that of the first values.
        `on_error` and `deterministic` as for `map`.
        """
        node = ops.WithColumn(
            self._node,
            name,
            value,  # type: ignore[arg-type]
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

        The order depends on the seed and the epoch alone. Without a seed one is drawn now, and the
        passes that workers make under ShardingPolicy.OFF have an order of their own each.
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
        deterministic: bool | None = None,  # noqa: ARG002
    ) -> Self:
        """Makes record batches of `batch_size` rows the elements.

        `drop_remainder` leaves out the last rows where they are fewer; of a distributed dataset
        those of each data worker, with `ordered=True` of the whole. `num_parallel_calls`
        as for `map`. They are always in order, whatever `deterministic` says.
        """
        _check_parallel_calls(num_parallel_calls)
        return self._over(ops.Batch(self._node, batch_size, drop_remainder))

    def repeat(self, count: int | None = None) -> Self:
        """The elements `count` times over; endlessly for None or -1.

        Endless repetition of a shared job goes on after passes that other readers took whole.
        """
        return self._over(ops.Repeat(self._node, count))

    @_called_n("count")
    def take(self, count: int) -> Self:
        """The first `count` elements; all of them for -1."""
        return self if _is_auto(count) else self._over(ops.Take(self._node, count))

    @_called_n("count")
    def skip(self, count: int) -> Self:
        """All elements but the first `count`; none for -1."""
        if _is_auto(count):
            return self._over(ops.Take(self._node, 0))
        return self._over(ops.Skip(self._node, count))

    def concatenate(self, other: OperatorMethods) -> Self:
        """These elements, then those of `other`, whose columns must convert to the same types."""
        if not isinstance(other, OperatorMethods):
            raise InvalidTypeError(f"concatenate takes a Dataset, got {other!r}")
        return self._over(ops.Concatenate.of(self._node, other._node))

    def zip(self: Any, *others: Any) -> Any:
        """Row i with the columns of row i of all; written `a.zip(b)` or `Dataset.zip(a, b)`.

        Ends with the shortest. Columns need different names.
        """
        listed = (*(self if isinstance(self, tuple | list) else (self,)), *others)
        nodes = nodes_of(listed, "zip")
        return listed[0]._over(ops.Zip(nodes))

    def enumerate(self, name: str = "index", start: int = 0) -> Self:
        """Adds an int64 column with the number of each element, from `start` on."""
        return self._over(ops.Enumerate(self._node, name, start))

    @_called_n("buffer_size")
    def prefetch(self, buffer_size: int | None) -> Self:
        """Reads up to `buffer_size` record batches ahead on a thread.

        AUTOTUNE, or None, reads a few, 0 none.
        """
        if buffer_size is None or _is_auto(buffer_size):
            buffer_size = _AUTOTUNED_BATCHES
        return self._over(ops.Prefetch(self._node, buffer_size))

    def shard(self, num_shards: int, index: int) -> Self:
        """Every `num_shards`-th element, from number `index` on.

        With `num_shards` SHARD_HINT a service fills in both; see ShardingPolicy.HINT.
        """
        return self._over(ops.Shard(self._node, num_shards, index))

    def unbatch(self) -> Self:
        """Makes the rows of the batches the elements again."""
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
        """Rows of the datasets `fn(element)`, in blocks, from `cycle_length` of them by turns.

        `fn` gets a row as a dict, a batch as a dict of arrays, and returns a Dataset of rows.
        `deterministic` as for `map`. `num_parallel_calls`, which tf.data has, changes nothing:
        threads work on several windows at a time, or on what a prefetch reads ahead.

        Under ShardingPolicy.DYNAMIC the elements, such as names of files, are divided among the
        workers, and those of one window are read by turns: at least `cycle_length` of them, unless
        fewer than 16 windows came of it. Rows that a lost worker still owed are made anew by
        another, so `fn` must make the same dataset of an element each time.
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
        """Keeps the elements of the first whole pass, in memory or in the local file `path`.

        A shuffle before it keeps its order from then on; put one behind it to reshuffle. Where a
        service divides files or fills hints in, each share has a file of its own, `path.0-of-2`.
        """
        return self._over(ops.Cache(self._node, path))

    def padded_batch(
        self,
        batch_size: int,
        padded_shapes: Mapping[str, int | None] | None = None,
        padding_values: Mapping[str, Any] | None = None,
        drop_remainder: bool = False,
    ) -> Self:
        """As `batch`, with the lists of each batch made equally long; 2-D arrays for `numpy`.

        Arrays of two dimensions and more that functions make of these batches are such lists too.
        To the longest of the batch, or to the length given for a column; a longer list is an error.
        """
        batched = ops.Batch(self._node, batch_size, drop_remainder)
        return self._over(ops.Pad(batched, padded_shapes, padding_values))

    def bucket_by_sequence_length(
        self,
        element_length_func: ColumnFunction,
        bucket_boundaries: Sequence[int],
        bucket_batch_sizes: Sequence[int],
        padded_shapes: Mapping[str, int | None] | None = None,
        padding_values: Mapping[str, Any] | None = None,
        pad_to_bucket_boundary: bool = False,
        no_padding: bool = False,
        drop_remainder: bool = False,
    ) -> Self:
        """Batches of rows of similar length, padded as `padded_batch` does.

        `element_length_func`: a column (of a list, its length), an expression, or a function of
        the columns to integers. Bucket i has the lengths below bucket_boundaries[i].

        Under ShardingPolicy.DYNAMIC each window fills buckets of its own, and what is left in them
        at its end comes as smaller batches, or is left out with `drop_remainder`. Windows have
        rows for 16 batches per bucket, unless fewer than 4 windows came of it.
        """
        return self._over(
            ops.BucketBySequenceLength(
                self._node,
                element_length_func,  # type: ignore[arg-type]
                bucket_boundaries,  # type: ignore[arg-type]
                bucket_batch_sizes,  # type: ignore[arg-type]
                padded_shapes,
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

        `key_func`: a column, an expression, or a function of the columns to integers, one for each
        element. `reduce_func` gets and returns a Dataset, of batches; left out, a window of rows is
        one batch.

        Under ShardingPolicy.DYNAMIC the windows of a key lie within a window of the division, at
        whose end those that are not full are reduced too; it has rows for 16 of each of 16 keys,
        unless fewer than 4 came of it.
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
    """The plans of several datasets; InvalidArgumentError for anything else, or none."""
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
    """tf.data's default for much that is true here unless told."""
    return True if choice is None else choice


def _is_auto(count: Any) -> bool:
    """Whether a number is left to the dataset: AUTOTUNE for a buffer, all elements for a count."""
    return isinstance(count, int | np.integer) and count == AUTOTUNE
