"""Zipped datasets as one source that can be divided: splits are ranges of the common row numbers.

Each machine that reads a split plans every branch as a whole, and cuts the range from the branch's
own splits. Invariant: a split carries a digest of the plan that it is a range of, so that row i is
put beside row i although the planning and the reading machine list the files separately.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
import operator
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from typing import Any, ClassVar

import pyarrow as pa

from dataservice.dataset.division.segments import (
    Segment,
    limited,
    open_segment,
    plan_segments,
)
from dataservice.dataset.operators.zip import ZipStream, side_by_side
from dataservice.dataset.sources.base import Source, index_splits
from dataservice.dataset.stream import BatchStream, RunContext, State, SuccessiveStream
from dataservice.errors import SourceError, UnsplittableError
from dataservice.sharding import Split
from dataservice.split_table import SplitTable


@dataclasses.dataclass(frozen=True)
class Branch:
    """One of the zipped datasets: rows [skip, skip + take) of its segments."""

    segments: tuple[Segment, ...]
    skip: int = 0
    take: int | None = None

    @functools.cached_property
    def splits(self) -> SplitTable:
        """All splits of the branch, planned once."""
        return plan_segments(self.segments, self.skip, self.take)

    def open(self, first_row: int, end_row: int, context: RunContext) -> BatchStream:
        """Opens a stream of rows [first_row, end_row) of the branch."""
        parts = limited(self.splits, first_row, end_row - first_row)
        grouped = itertools.groupby(parts, key=operator.attrgetter("segment"))
        return _Chain(
            open_segment(self.segments[index], list(splits), context) for index, splits in grouped
        )


@dataclasses.dataclass(frozen=True, eq=False)
class AlignedSource(Source):
    """A source with the rows of several branches side by side; exists only in a divided plan."""

    kind: ClassVar[str] = "zip"
    reads_files: ClassVar[bool] = True
    branches: tuple[Branch, ...]

    @functools.cached_property
    def _digest(self) -> str:
        listed = [[split._asdict() for split in branch.splits] for branch in self.branches]
        return hashlib.sha256(json.dumps(listed).encode()).hexdigest()[:16]

    def splits(self) -> Iterator[Split]:
        rows = min(self._rows(branch) for branch in self.branches)
        for split in index_splits(rows):
            yield split._replace(version=self._digest)

    def _rows(self, branch: Branch) -> int:
        rows = branch.splits.total_rows()
        if rows is None:
            paths = [split.path for split in branch.splits if split.rows is None]
            raise UnsplittableError(
                f"zip needs the number of rows of {paths[0]!r}, which is not known without reading "
                "it; apply zip after distribute()"
            )
        return rows

    def read(
        self, split: Split, first_row: int, context: RunContext
    ) -> Generator[pa.RecordBatch, None, None]:
        if split.version != self._digest:
            raise SourceError(
                "a zipped dataset has changed since it was planned: its files are not the same "
                "here as on the planning machine; start a new iteration, and do not write to files "
                "that are being read"
            )
        context = dataclasses.replace(context, split_order=None)
        first = split.start + first_row
        with ExitStack() as stack:
            streams = [branch.open(first, split.stop, context) for branch in self.branches]
            yield from stack.enter_context(ZipStream(streams, whole_batches=False))

    def empty(self) -> pa.RecordBatch:
        context = RunContext()
        empties = []
        for branch in self.branches:
            batch = branch.segments[0].source.empty()
            for step in branch.segments[0].operators:
                batch = step.transform(context)(batch, lambda: "")  # type: ignore[attr-defined]
            empties.append(batch)
        return side_by_side(empties)

    def describe(self, split: Split, first_row: int, end_row: int) -> str:
        return f"zipped rows {split.start + first_row}..{split.start + end_row - 1}"


class _Chain(SuccessiveStream):
    """Streams one after the other. The chain is read once, from its beginning; has no position."""

    def __init__(self, streams: Iterator[BatchStream]) -> None:
        super().__init__()
        self._streams = streams

    def __next__(self) -> pa.RecordBatch:
        while True:
            if self._stream is None:
                self._stream = next(self._streams)
            batch = next(self._stream, None)
            if batch is not None:
                return batch
            self.close()

    def state(self) -> State:
        return {}

    def restore(self, state: Any) -> None:
        raise NotImplementedError(f"a chain of splits has no position {state!r}")
