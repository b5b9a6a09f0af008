"""Segments of a divisible plan: a source with the operators over it, and its splits.

Knows how a segment is planned and opened, not how a plan is turned into segments. Invariant: the
splits of a segment, read in order, yield its rows in order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from dataservice.dataset.node import Node
from dataservice.dataset.operators.base import Operator
from dataservice.dataset.sources.base import Source, SplitStream
from dataservice.dataset.stream import BatchStream, RunContext
from dataservice.dataset.timed_stream import timed
from dataservice.dataset.timing import OperatorTimes
from dataservice.errors import UnsplittableError
from dataservice.sharding import Split
from dataservice.split_table import SplitTable


@dataclasses.dataclass(frozen=True)
class Segment:
    """One source, the rows [skip, skip + take) of it, and the operators over them, in order."""

    source: Source
    operators: tuple[Operator, ...] = ()
    skip: int = 0
    take: int | None = None

    @property
    def is_limited(self) -> bool:
        """True if the segment leaves out rows of its source by their number."""
        return self.skip > 0 or self.take is not None


def plan_segments(segments: Sequence[Segment], skip: int, take: int | None) -> SplitTable:
    """Returns the splits of rows [skip, skip + take) of the segments, in order."""
    tables = []
    for index, segment in enumerate(segments):
        planned = segment.source.plan_table()
        if segment.is_limited:
            planned = SplitTable.of(limited(planned, segment.skip, segment.take))
        tables.append(planned.in_segment(index))
    splits = SplitTable.joined(tables)
    if not skip and take is None:
        return splits
    return SplitTable.of(limited(splits, skip, take))


def open_segment(segment: Segment, splits: Iterable[Split], context: RunContext) -> BatchStream:
    """Opens a stream of the rows of `splits` of the segment, with its operators applied."""
    times = context.times
    stream = timed(SplitStream(segment.source, splits, context), times, id(segment.source))
    for operator in segment.operators:
        stream = timed(operator.attach(stream, context), times, id(operator))
    return stream


def times_of(nodes: Sequence[Node]) -> OperatorTimes:
    """Returns empty times for a run of these nodes, such as a segment's source and operators."""
    return OperatorTimes([node.kind for node in nodes], [id(node) for node in nodes])


def limited(splits: Iterable[Split], skip: int, take: int | None) -> Iterator[Split]:
    """Yields the parts of `splits` that lie in rows [skip, skip + take) of all their rows.

    Raises UnsplittableError if the rows of a split are not known without reading.
    """
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
            yield split._replace(start=split.start + low, stop=split.start + high, rows=high - low)
        first += split.rows
