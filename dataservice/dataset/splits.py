"""Dividing a plan: its splits, its windows, and the stream of one window.

Planning reads file lists and footers, never rows. Invariant: the rows of a window are a fixed
sequence, given the plan, the epoch and the window; so any worker can replay a window from a row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa

from dataservice.dataset.linear import Linear, Segment, UnsplittableError, linearise
from dataservice.dataset.sources.base import SplitStream
from dataservice.dataset.stream import BatchStream, RunContext
from dataservice.errors import InvalidArgumentError
from dataservice.sharding import Split, Window, make_windows, total_rows, window_target_rows

__all__ = [
    "Linear",
    "Segment",
    "Split",
    "UnsplittableError",
    "Window",
    "linearise",
    "make_windows",
    "open_window",
    "plan_splits",
    "plan_windows",
    "target_rows",
    "transform_batch",
]


def plan_splits(linear: Linear) -> list[Split]:
    """All splits of one epoch, in order, without those that take and skip leave out.

    Lists files and reads Parquet footers, several at a time. SourceError and SchemaError for
    files that are missing, damaged or unlike the others.
    """
    splits: list[Split] = []
    for index, segment in enumerate(linear.segments):
        planned = (dataclasses.replace(split, segment=index) for split in segment.source.plan())
        splits.extend(_limited(planned, segment.skip, segment.take))
    return list(_limited(splits, linear.skip, linear.take))


def _limited(splits: Iterable[Split], skip: int, take: int | None) -> Iterator[Split]:
    """The parts of `splits` that lie in rows [skip, skip + take) of them."""
    if not skip and take is None:
        yield from splits
        return
    first = 0
    end = None if take is None else skip + take
    for split in splits:
        if split.rows is None:
            raise UnsplittableError(
                f"take and skip need the number of rows of {split.path!r}, which is not known "
                "without reading it; apply them after distribute()"
            )
        low = max(skip - first, 0)
        high = split.rows if end is None else min(end - first, split.rows)
        if low < high:
            yield dataclasses.replace(
                split, start=split.start + low, stop=split.start + high, rows=high - low
            )
        first += split.rows


def target_rows(linear: Linear, splits: Sequence[Split]) -> int:
    """Rows that a window of this plan should have."""
    return window_target_rows(total_rows(splits), linear.buffer_size)


def plan_windows(linear: Linear, splits: Sequence[Split], epoch: int) -> tuple[Window, ...]:
    """The windows of one epoch."""
    return make_windows(
        splits,
        epoch=linear.shuffle_epoch(epoch),
        shuffle_seed=linear.shuffle_seed,
        target_rows=target_rows(linear, splits),
    )


def open_window(
    linear: Linear,
    splits: Sequence[Split],
    *,
    epoch: int,
    window_index: int,
    context: RunContext,
) -> BatchStream:
    """The rows of one window through the operators of its segment, before the tail.

    A shuffle permutes the whole window. Raises SourceError, on reading, when a file is not the
    one that was planned.
    """
    segments = {split.segment for split in splits}
    if len(segments) != 1 or not segments <= set(range(len(linear.segments))):
        raise InvalidArgumentError(
            f"the splits of a window belong to one segment of the plan, got {sorted(segments)}"
        )
    segment = linear.segments[segments.pop()]
    context = dataclasses.replace(context, epoch=epoch, window=window_index, split_order=None)
    stream: BatchStream = SplitStream(segment.source, splits, context)
    for operator in segment.operators:
        stream = operator.attach(stream, context)
    return stream


def transform_batch(
    linear: Linear, context: RunContext
) -> Callable[[pa.RecordBatch, Callable[[], str]], pa.RecordBatch]:
    """What the operators after `batch` make of one batch; the result may have no rows.

    The second argument tells, for errors, where the rows come from. Not thread safe.
    """
    steps = [operator.transform(context) for operator in linear.batch_operators]

    def apply(batch: pa.RecordBatch, location: Callable[[], str]) -> pa.RecordBatch:
        for step in steps:
            if batch.num_rows:
                batch = step(batch, location)
        return batch

    return apply
