"""Implements on_error="skip": plans that skip errors, and the search for the rows that fail.

A vectorised function is assumed to be row-wise: its result for a row must not depend on the other
rows. Invariant: which rows are left out depends on the rows and the functions alone, so a replay
leaves out the same rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from dataservice.dataset.columns import concat_batches
from dataservice.dataset.function import call_user
from dataservice.dataset.node import Node, rewrite, walk
from dataservice.dataset.stream import RunContext, Transform
from dataservice.errors import UserFunctionError

LEFT_OUT: Final = object()


def tolerant(root: Node) -> Node:
    """Returns the plan with on_error="skip" in every node that has the parameter.

    Inputs of zip stay as they are: if rows of one input were left out, it would shift against the
    others.
    """
    zips = [node for node in walk(root) if node.kind == "zip"]
    zipped = {id(node) for zip_ in zips for child in zip_.inputs for node in walk(child)}

    def tolerate(node: Node) -> Node:
        if id(node) in zipped or getattr(node, "on_error", "skip") == "skip":
            return node
        return dataclasses.replace(node, on_error="skip")  # type: ignore[call-arg]

    return rewrite(root, tolerate)


def as_run(root: Node, on_error: str) -> Node:
    """Returns the plan as a job with this `on_error` runs it."""
    return tolerant(root) if on_error == "skip" else root


def narrowed(transform: Transform, kind: str, context: RunContext) -> Transform:
    """Returns `transform` without the rows that its function fails on, found by halving batches.

    One failing row among n costs about 2 log2(n) more calls.
    """

    def apply(batch: pa.RecordBatch, location: Callable[[], str]) -> pa.RecordBatch:
        try:
            return transform(batch, location)
        except UserFunctionError:
            if not batch.num_rows:
                raise
        failures: list[tuple[int, UserFunctionError]] = []
        parts = list(_survivors(transform, batch, 0, location, context, failures))
        record_failures(context, kind, failures, location)
        return concat_batches(parts) if parts else batch.slice(0, 0)

    return apply


def _survivors(
    transform: Transform,
    batch: pa.RecordBatch,
    first_row: int,
    location: Callable[[], str],
    context: RunContext,
    failures: list[tuple[int, UserFunctionError]],
) -> Any:
    """Yields the transform's results for a batch that is known to hold a row that it fails on."""
    context.check()
    half = batch.num_rows // 2
    for begin, end in ((0, half), (half, batch.num_rows)):
        part = batch.slice(begin, end - begin)
        if not part.num_rows:
            continue
        result = _result_or_error(transform, part, location)
        if isinstance(result, pa.RecordBatch):
            if result.num_rows:
                yield result
        elif part.num_rows == 1:
            # Only the first error is reported; keeping thousands would take much memory.
            failures.append((first_row + begin, failures[0][1] if failures else result))
        else:
            del result
            yield from _survivors(transform, part, first_row + begin, location, context, failures)


def _result_or_error(
    transform: Transform, part: pa.RecordBatch, location: Callable[[], str]
) -> pa.RecordBatch | UserFunctionError:
    """Returns an error instead of raising it, to leave the handler before further calls.

    An error raised inside the handler would keep this one as its context, and show its text too.
    """
    try:
        return transform(part, location)
    except UserFunctionError as error:
        return error


class RowGuard:
    """A function of one row that returns LEFT_OUT if the user's function raises."""

    def __init__(self, function: Callable[..., Any], kind: str) -> None:
        self._function = function
        self._kind = kind
        self._row = 0
        self.failures: list[tuple[int, UserFunctionError]] = []

    def begin(self) -> None:
        """Begins a new batch: row numbers start at 0 and failures are forgotten."""
        self._row = 0
        self.failures = []

    def __call__(self, row: Any) -> Any:
        number, self._row = self._row, self._row + 1
        try:
            return call_user(self._function, row, self._kind, lambda: "")
        except UserFunctionError as error:
            self.failures.append((number, error))
            return LEFT_OUT


def record_failures(
    context: RunContext,
    kind: str,
    failures: list[tuple[int, UserFunctionError]],
    location: Callable[[], str],
) -> None:
    """Counts the rows (by their number in a batch) that a function failed on, in the context."""
    if not failures or context.omitted is None:
        return
    row, error = failures[0]
    cause = error.__cause__
    what = f"{type(cause).__name__}: {cause}" if cause is not None else error.message
    where = location()
    message = f"the function given to {kind} raised {what}, at row {row} of" + (
        f" {where}" if where else " a batch"
    )
    context.omitted.function_rows(len(failures), f"{kind} {type(cause).__name__}", message)
