"""Divides a plan: its splits, its windows, and the stream of one window.

Planning reads file lists and footers, never rows. Invariant: the plan, the epoch and the window
determine the sequence of rows of the window, so any worker can replay a window from any row.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pyarrow as pa

from dataservice.dataset.division.linear import Linear
from dataservice.dataset.division.segments import open_segment, plan_segments
from dataservice.dataset.stream import BatchStream, RunContext, Transform
from dataservice.errors import InvalidArgumentError
from dataservice.sharding import (
    GROUPING_WINDOWS_PER_EPOCH,
    WINDOWS_PER_EPOCH,
    Split,
    divided,
    tail_target_rows,
    window_target_bytes,
    window_target_elements,
    window_target_rows,
)
from dataservice.split_table import SplitTable


def plan_splits(linear: Linear) -> SplitTable:
    """Returns all splits of one epoch, in order, without those that take and skip leave out.

    Lists files and reads Parquet footers, several at a time. Raises SourceError or SchemaError for
    files that are missing, damaged or unlike the others.
    """
    splits = plan_segments(linear.segments, linear.skip, linear.take)
    elements = _target_elements(linear, splits)
    return splits if elements is None else SplitTable.of(divided(splits, elements))


class WindowSizes(NamedTuple):
    """The sizes that windows should have, as arguments of `make_windows`."""

    target_rows: int
    tail_rows: int
    target_bytes: int


def window_sizes(linear: Linear, splits: SplitTable) -> WindowSizes:
    """Returns the sizes that the windows of this plan should have."""
    target_bytes = window_target_bytes(splits.total_unknown_bytes(), _least_windows(linear))
    elements = _target_elements(linear, splits)
    if elements is not None:
        return WindowSizes(elements, 0, target_bytes)
    buffer_size, group_rows = (0, 0) if linear.cycle else (linear.buffer_size, linear.group_rows)
    target_rows = window_target_rows(splits.total_rows(), buffer_size, group_rows)
    tail_rows = tail_target_rows(target_rows, max(buffer_size, group_rows))
    return WindowSizes(target_rows, tail_rows, target_bytes)


def _target_elements(linear: Linear, splits: SplitTable) -> int | None:
    """Returns how many elements a window should have; None if the plan does not interleave."""
    if not linear.cycle:
        return None
    size_bytes = splits.total_bytes() if splits.has_sizes() else None
    return window_target_elements(
        splits.total_rows(), size_bytes, linear.cycle, _least_windows(linear)
    )


def _least_windows(linear: Linear) -> int:
    """Returns how many windows an epoch should have at least, if the data suffice for them."""
    return GROUPING_WINDOWS_PER_EPOCH if linear.group_rows else WINDOWS_PER_EPOCH


def open_window(
    linear: Linear,
    splits: Sequence[Split],
    *,
    epoch: int,
    window_index: int,
    context: RunContext,
) -> BatchStream:
    """Opens a stream of the rows of one window, with its segment's operators, not batched.

    A shuffle permutes the rows of the window. Reading raises SourceError if a file is not the one
    that was planned.
    """
    segments = {split.segment for split in splits}
    if len(segments) != 1 or not segments <= set(range(len(linear.segments))):
        raise InvalidArgumentError(
            f"the splits of a window belong to one segment of the plan, got {sorted(segments)}"
        )
    segment = linear.segments[segments.pop()]
    context = dataclasses.replace(context, epoch=epoch, window=window_index, split_order=None)
    return open_segment(segment, splits, context)


def transform_batch(linear: Linear, context: RunContext) -> Transform:
    """Returns a function that applies the operators after `batch` to one batch.

    Its result may have no rows. Not thread-safe.
    """
    steps = [(id(operator), operator.guarded(context)) for operator in linear.batch_operators]
    times = context.times

    def apply(batch: pa.RecordBatch, location: Callable[[], str]) -> pa.RecordBatch:
        for key, step in steps:
            if batch.num_rows:
                began_s = time.perf_counter()
                batch = step(batch, location)
                if times is not None:
                    times.add_batch(key, batch.num_rows, time.perf_counter() - began_s)
        return batch

    return apply
