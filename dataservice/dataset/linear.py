"""Plans that a service can divide: concatenated segments, repeated, then batched.

Responsible for recognising such a plan and for refusing any other with the reason. It reads
nothing. Invariant: running the segments' splits in any division and order, then the tail, yields
the rows of the plan, each once per repeat.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NoReturn

import pyarrow as pa

from dataservice.dataset.aligned import AlignedSource, Branch
from dataservice.dataset.node import Node, register_node
from dataservice.dataset.operators import (
    Batch,
    Concatenate,
    Conform,
    Enumerate,
    Prefetch,
    Repeat,
    RowOperator,
    Shuffle,
    Skip,
    Take,
    Unbatch,
    Zip,
)
from dataservice.dataset.operators.base import Operator
from dataservice.dataset.optimise import optimise
from dataservice.dataset.segments import Segment, UnsplittableError
from dataservice.dataset.sources.base import Source
from dataservice.dataset.stream import BatchStream, RunContext
from dataservice.errors import InternalError
from dataservice.sharding import Split


@register_node
@dataclasses.dataclass(frozen=True, eq=False)
class Detached(Node):
    """Stands for the input of an operator that was taken out of its plan."""

    kind = "detached"
    is_batched: bool = False

    @property
    def batched(self) -> bool:
        return self.is_batched

    def open(self, context: RunContext) -> BatchStream:  # noqa: ARG002
        raise InternalError("an operator taken out of its plan has no input to open")

    def sample(self, context: RunContext) -> pa.RecordBatch:  # noqa: ARG002
        raise InternalError("an operator taken out of its plan has no input to sample")


@dataclasses.dataclass(frozen=True)
class Linear:
    """A plan in the form that a service divides.

    `segments` one after the other, of these rows [skip, skip + take), all that `repeat` times
    (None: endlessly), then `tail`: a Batch, if there is one, and operators applied to each batch.
    With `ends_passes` no batch has rows of two passes, as when `repeat` comes after `batch`.
    `buffer_size` is that of the largest shuffle, `shuffle_seed` the seed of the first.
    """

    segments: tuple[Segment, ...]
    tail: tuple[Operator, ...] = ()
    repeat: int | None = 1
    skip: int = 0
    take: int | None = None
    shuffle_seed: int | None = None
    reshuffles: bool = True
    buffer_size: int = 0
    ends_passes: bool = False

    @property
    def shuffles(self) -> bool:
        """Whether the order of the splits is permuted in each epoch."""
        return self.shuffle_seed is not None

    @property
    def is_limited(self) -> bool:
        """Whether rows are left out by their number over all segments."""
        return self.skip > 0 or self.take is not None

    @property
    def batch_size(self) -> int | None:
        """Rows of an element; None when an element is a row."""
        return self.tail[0].rows if self.tail and isinstance(self.tail[0], Batch) else None

    @property
    def drop_remainder(self) -> bool:
        """Whether a last batch that is too small is left out."""
        return bool(self.tail) and isinstance(self.tail[0], Batch) and self.tail[0].drop_remainder

    @property
    def batch_operators(self) -> tuple[RowOperator, ...]:
        """The operators applied to each batch."""
        return tuple(op for op in self.tail if isinstance(op, RowOperator))

    def describe(self, split: Split) -> str:
        """Names what a split holds, for messages."""
        source = self.segments[split.segment].source
        if split.rows is None:
            return f"{split.path or source.kind}"
        return source.describe(split, 0, split.rows)

    def shuffle_epoch(self, epoch: int) -> int:
        """The epoch that keys the order of the splits."""
        return epoch if self.reshuffles else 0


def linearise(root: Node) -> Linear:
    """The divisible form of a plan; UnsplittableError naming the operator that prevents it."""
    return _linear(optimise(root))


def without_tail(root: Node) -> tuple[Node, list[Operator]]:
    """The part of a divisible plan whose elements are rows, and the operators over it, in order."""
    tail: list[Operator] = []
    node = root
    while node.batched and isinstance(node, Operator):
        tail.append(node)
        node = node.input
    return node, tail[::-1]


def with_tail(node: Node, tail: Sequence[Operator]) -> Node:
    """The plan with these operators over it."""
    for operator in tail:
        node = operator.with_inputs(node)
    return node


def _linear(node: Node) -> Linear:
    if isinstance(node, Source):
        if node.batched:
            _refuse(node, "its elements are batches that were saved as they are")
        return Linear(segments=(Segment(node),))
    if isinstance(node, Prefetch):
        return _linear(node.input)
    if isinstance(node, Concatenate):
        return _concatenated(node)
    if isinstance(node, Repeat):
        return _repeated(node)
    if isinstance(node, Batch):
        return _batched(node)
    if isinstance(node, Unbatch):
        return _unbatched(node)
    if isinstance(node, Zip):
        return Linear(segments=(Segment(_aligned(node)),))
    if isinstance(node, Take | Skip):
        return _limited(node)
    if isinstance(node, Shuffle):
        return _shuffled(node)
    if isinstance(node, RowOperator):
        return _mapped(node)
    if isinstance(node, Enumerate):
        _refuse(node, "the number of an element depends on all elements before it")
    _refuse(node, "it reads its input as one sequence")


def _refuse(node: Node, reason: str) -> NoReturn:
    raise UnsplittableError(
        f"a dataset with {node.kind} cannot be divided among data workers, since {reason}; "
        f"apply {node.kind} after distribute(), or distribute with ShardingPolicy.OFF"
    )


def _detached(node: Operator, *, batched: bool) -> Operator:
    detached = node.with_inputs(Detached(batched))
    assert isinstance(detached, Operator)
    return detached


def _append(linear: Linear, node: Operator) -> Linear:
    """The operator over every segment."""
    added = _detached(node, batched=False)
    segments = tuple(
        dataclasses.replace(segment, operators=(*segment.operators, added))
        for segment in linear.segments
    )
    return dataclasses.replace(linear, segments=segments)


def _mapped(node: RowOperator) -> Linear:
    linear = _linear(node.input)
    if linear.tail:
        tail = (*linear.tail, _detached(node, batched=True))
        return dataclasses.replace(linear, tail=tail)
    return _append(linear, node)


def _shuffled(node: Shuffle) -> Linear:
    linear = _linear(node.input)
    if linear.tail:
        _refuse(node, "it is applied to batches, which form only after the division")
    linear = _append(linear, node)
    first = not linear.shuffles
    return dataclasses.replace(
        linear,
        shuffle_seed=node.effective_seed if first else linear.shuffle_seed,
        reshuffles=node.reshuffle_each_iteration if first else linear.reshuffles,
        buffer_size=max(linear.buffer_size, node.buffer_size),
    )


def _batched(node: Batch) -> Linear:
    linear = _linear(node.input)
    if linear.tail:
        _refuse(node, "its input is in batches already")
    return dataclasses.replace(linear, tail=(_detached(node, batched=False),))


def _unbatched(node: Unbatch) -> Linear:
    linear = _linear(node.input)
    if len(linear.tail) != 1 or linear.drop_remainder:
        _refuse(node, "it takes batches apart, which form only after the division")
    return dataclasses.replace(linear, tail=(), ends_passes=False)


def _repeated(node: Repeat) -> Linear:
    linear = _linear(node.input)
    ends_passes = bool(linear.tail)
    if ends_passes and linear.repeat != 1 and not linear.ends_passes:
        _refuse(node, "it repeats batches of rows that are repeated too")
    endless = node.count is None or linear.repeat is None
    if node.count == 0 or linear.repeat == 0:
        repeat: int | None = 0
    else:
        repeat = None if endless else (node.count or 0) * (linear.repeat or 0)
    return dataclasses.replace(linear, repeat=repeat, ends_passes=ends_passes)


def _concatenated(node: Concatenate) -> Linear:
    parts = []
    for child in (node.first, node.second):
        linear = _linear(child)
        if linear.tail:
            _refuse(node, "it joins batches, which form only after the division")
        if linear.repeat != 1:
            _refuse(node, "one of its inputs is repeated apart from the other")
        parts.append(_with_own_limits(node, linear))
    first, second = parts
    if node.schema is not None:
        second = _append(second, Conform(Detached(), node.schema))
    leading = first if first.shuffles else second
    return Linear(
        segments=first.segments + second.segments,
        shuffle_seed=leading.shuffle_seed,
        reshuffles=leading.reshuffles,
        buffer_size=max(first.buffer_size, second.buffer_size),
    )


def _with_own_limits(node: Node, linear: Linear) -> Linear:
    """Moves a limit over all segments into the segment, when it is the only one."""
    if not linear.is_limited:
        return linear
    if len(linear.segments) > 1:
        _refuse(node, "one of its inputs takes or skips rows over several sources")
    skip, take = _narrowed(linear.segments[0].skip, linear.segments[0].take, linear)
    segment = dataclasses.replace(linear.segments[0], skip=skip, take=take)
    return dataclasses.replace(linear, segments=(segment,), skip=0, take=None)


def _narrowed(skip: int, take: int | None, inner: Linear) -> tuple[int, int | None]:
    """The rows `inner` takes and skips of those that (skip, take) leave."""
    if take is not None:
        left = max(0, take - inner.skip)
        return skip + inner.skip, left if inner.take is None else min(left, inner.take)
    return skip + inner.skip, inner.take


def _aligned(node: Zip) -> AlignedSource:
    """The inputs as one source, of which row i has row i of each."""
    branches = []
    for child in node.datasets:
        linear = _linear(child)
        if linear.tail:
            _refuse(node, "it is applied to batches, which form only after the division")
        if linear.repeat != 1:
            _refuse(node, "one of its inputs is repeated; repeat after zip instead")
        if linear.shuffles:
            _refuse(node, "one of its inputs is shuffled; shuffle after zip instead")
        for segment in linear.segments:
            _check_countable(node, segment)
        branches.append(Branch(linear.segments, linear.skip, linear.take))
    return AlignedSource(tuple(branches))


def _limited(node: Take | Skip) -> Linear:
    linear = _linear(node.input)
    if linear.tail:
        _refuse(node, "it counts batches, which form only after the division")
    if linear.repeat != 1:
        _refuse(node, "it counts elements over several passes")
    for segment in linear.segments:
        _check_countable(node, segment)
    wanted = Linear(segments=(), skip=node.count) if isinstance(node, Skip) else None
    wanted = wanted or Linear(segments=(), take=node.count)
    skip, take = _narrowed(linear.skip, linear.take, wanted)
    return dataclasses.replace(linear, skip=skip, take=take)


def _check_countable(node: Node, segment: Segment) -> None:
    if not segment.source.counts_rows:
        _refuse(node, f"the number of rows in {segment.source.kind} is not known in advance")
    for operator in segment.operators:
        if not (isinstance(operator, RowOperator) and operator.keeps_rows):
            skips = getattr(operator, "on_error", "raise") == "skip"
            what = f"{operator.kind} with on_error='skip'" if skips else operator.kind
            _refuse(node, f"it counts the elements that {what} yields")
