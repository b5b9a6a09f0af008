"""Brings a plan into the form that a service divides, or refuses it with the reason.

Knows what each operator means for the division; reads nothing. Invariant: if the splits of the
segments run in any division and order, and their rows are then batched, they yield the rows of the
plan, each once per repeat. Operators that only order or group rows (shuffle, interleave, grouping)
are applied to each window by itself.
"""

from __future__ import annotations

import dataclasses
from typing import TypeVar, cast

import pyarrow as pa

from dataservice.dataset.division.aligned import AlignedSource, Branch
from dataservice.dataset.division.indivisible import refuse, refuse_operator
from dataservice.dataset.division.linear import Detached, Linear
from dataservice.dataset.division.segments import Segment
from dataservice.dataset.node import Node
from dataservice.dataset.operators import (
    Batch,
    BucketBySequenceLength,
    Concatenate,
    Conform,
    GroupByWindow,
    Interleave,
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
from dataservice.dataset.sources.base import Source
from dataservice.sharding import WINDOW_ROWS

# A group that is not full when its window ends is delivered short. If a window has rows for 16
# groups of each key, about one group in 17 is short, by half on average.
_GROUPS_PER_KEY = 16
# For operators that do not say how many keys there are.
_ASSUMED_KEYS = 16

Detachable = TypeVar("Detachable", bound=Operator)


def linearise(root: Node) -> Linear:
    """Returns the divisible form of a plan.

    Raises UnsplittableError, naming the operator that prevents it, if there is none.
    """
    return _linear(optimise(root))


def _linear(node: Node) -> Linear:
    if isinstance(node, Source):
        # Files are never cut, so elements of a file stay whole.
        return Linear(segments=(Segment(node),), forms_elements=node.batched)
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
    if isinstance(node, Interleave):
        return _interleaved(node)
    if isinstance(node, BucketBySequenceLength | GroupByWindow):
        return _grouped(node)
    if isinstance(node, RowOperator):
        return _mapped(node)
    refuse_operator(node)


def _detached(node: Detachable, *, batched: bool) -> Detachable:
    return cast(Detachable, node.with_inputs(Detached(batched)))


def _append(linear: Linear, node: Operator) -> Linear:
    """Adds the operator to every segment."""
    added = _detached(node, batched=linear.forms_elements)
    segments = tuple(
        dataclasses.replace(segment, operators=(*segment.operators, added))
        for segment in linear.segments
    )
    return dataclasses.replace(linear, segments=segments)


def _mapped(node: RowOperator) -> Linear:
    linear = _linear(node.input)
    # What ignores batches does the same before they form, unless something between them does not.
    comes_first = node.ignores_batches and not linear.batch_operators
    if linear.batch is not None and not comes_first:
        operators = (*linear.batch_operators, _detached(node, batched=True))
        return dataclasses.replace(linear, batch_operators=operators)
    return _append(linear, node)


def _interleaved(node: Interleave) -> Linear:
    linear = _linear(node.input)
    if linear.is_batched:
        refuse(node, "its elements are batches", "give interleave rows: leave batch out before it")
    if linear.cycle:
        refuse(
            node,
            "its elements are interleaved already",
            "interleave once, with a function that returns all rows of an element of the source",
        )
    return dataclasses.replace(_append(linear, node), cycle=node.cycle_length)


def _grouped(node: BucketBySequenceLength | GroupByWindow) -> Linear:
    linear = _within_windows(_linear(node.input))
    if isinstance(node, BucketBySequenceLength):
        rows = _GROUPS_PER_KEY * sum(node.batch_sizes)
    elif node.window_size is None:
        rows = WINDOW_ROWS
    elif linear.forms_elements:
        rows = linear.group_rows * node.window_size
    else:
        rows = _GROUPS_PER_KEY * _ASSUMED_KEYS * node.window_size
    return dataclasses.replace(
        _append(linear, node), forms_elements=True, group_rows=max(rows, linear.group_rows)
    )


def _within_windows(linear: Linear) -> Linear:
    """Moves the batching into the segments, so that each batch has rows of one window only."""
    batch, operators = linear.batch, linear.batch_operators
    if batch is None:
        return linear
    linear = _append(_unbatched_rows(linear), batch)
    linear = dataclasses.replace(
        linear, forms_elements=True, group_rows=_GROUPS_PER_KEY * batch.rows
    )
    for operator in operators:
        linear = _append(linear, operator)
    return linear


def _shuffled(node: Shuffle) -> Linear:
    linear = _within_windows(_linear(node.input))
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
    if linear.is_batched:
        refuse(node, "its input is in batches already")
    return dataclasses.replace(linear, batch=_detached(node, batched=False))


def _unbatched(node: Unbatch) -> Linear:
    linear = _linear(node.input)
    if linear.forms_elements:
        return dataclasses.replace(_append(linear, node), forms_elements=False)
    if linear.batch is None or linear.batch_operators or linear.drop_remainder:
        refuse(node, "it takes batches apart, which form only after the division")
    return _unbatched_rows(linear)


def _unbatched_rows(linear: Linear) -> Linear:
    return dataclasses.replace(linear, batch=None, batch_operators=(), ends_passes=False)


def _repeated(node: Repeat) -> Linear:
    linear = _linear(node.input)
    ends_passes = linear.batch is not None
    if ends_passes and linear.repeat != 1 and not linear.ends_passes:
        refuse(node, "it repeats batches of rows that are repeated too")
    endless = node.count is None or linear.repeat is None
    if node.count == 0 or linear.repeat == 0:
        repeat: int | None = 0
    else:
        repeat = None if endless else (node.count or 0) * (linear.repeat or 0)
    return dataclasses.replace(linear, repeat=repeat, ends_passes=ends_passes)


def _concatenated(chained: Concatenate) -> Linear:
    chain = chained.chain
    schema = chained.schema
    linear = _part(chain[0], chain[0].first, schema)
    for node in chain:
        linear = _joined(node, _with_own_limits(node, linear), _part(node, node.second, schema))
    return linear


def _part(node: Concatenate, child: Node, schema: pa.Schema | None) -> Linear:
    linear = _linear(child)
    if linear.batch is not None:
        refuse(node, "it joins batches, which form only after the division")
    if linear.repeat != 1:
        refuse(node, "one of its inputs is repeated apart from the other")
    linear = _with_own_limits(node, linear)
    # Conforms the first part too: in its files a column may have the type null.
    return linear if schema is None else _append(linear, Conform(Detached(), schema))


def _joined(node: Concatenate, first: Linear, second: Linear) -> Linear:
    if bool(first.cycle) != bool(second.cycle):
        refuse(
            node,
            "only one of its inputs is interleaved",
            "interleave the elements of both, or distribute each and join them afterwards",
        )
    leading = first if first.shuffles else second
    return Linear(
        segments=first.segments + second.segments,
        shuffle_seed=leading.shuffle_seed,
        reshuffles=leading.reshuffles,
        buffer_size=max(first.buffer_size, second.buffer_size),
        forms_elements=first.forms_elements,
        group_rows=max(first.group_rows, second.group_rows),
        cycle=max(first.cycle, second.cycle),
    )


def _with_own_limits(node: Node, linear: Linear) -> Linear:
    """Moves a limit over all segments into the segment if there is only one; else refuses."""
    if not linear.is_limited:
        return linear
    if len(linear.segments) > 1:
        refuse(node, "one of its inputs takes or skips rows over several sources")
    skip, take = _narrowed(linear.segments[0].skip, linear.segments[0].take, linear)
    segment = dataclasses.replace(linear.segments[0], skip=skip, take=take)
    return dataclasses.replace(linear, segments=(segment,), skip=0, take=None)


def _narrowed(skip: int, take: int | None, inner: Linear) -> tuple[int, int | None]:
    """Combines two limits: those of `inner`, applied to the rows that (skip, take) leave."""
    if take is not None:
        left = max(0, take - inner.skip)
        return skip + inner.skip, left if inner.take is None else min(left, inner.take)
    return skip + inner.skip, inner.take


def _aligned(node: Zip) -> AlignedSource:
    """Returns the inputs as one source, whose row i has row i of each input."""
    branches = []
    for child in node.datasets:
        linear = _linear(child)
        if linear.is_batched:
            refuse(node, "it is applied to batches, which form only after the division")
        if linear.repeat != 1:
            refuse(node, "one of its inputs is repeated; repeat after zip instead")
        if linear.shuffles:
            refuse(node, "one of its inputs is shuffled; shuffle after zip instead")
        for segment in linear.segments:
            _check_countable(node, segment)
        branches.append(Branch(linear.segments, linear.skip, linear.take))
    return AlignedSource(tuple(branches))


def _limited(node: Take | Skip) -> Linear:
    linear = _linear(node.input)
    if linear.is_batched:
        refuse(node, "it counts batches, which form only after the division")
    if linear.repeat != 1:
        refuse(node, "it counts elements over several passes")
    for segment in linear.segments:
        _check_countable(node, segment)
    wanted = Linear(segments=(), skip=node.count) if isinstance(node, Skip) else None
    wanted = wanted or Linear(segments=(), take=node.count)
    skip, take = _narrowed(linear.skip, linear.take, wanted)
    return dataclasses.replace(linear, skip=skip, take=take)


def _check_countable(node: Node, segment: Segment) -> None:
    if not segment.source.counts_rows:
        refuse(node, f"the number of rows in {segment.source.kind} is not known in advance")
    for operator in segment.operators:
        if not (isinstance(operator, RowOperator) and operator.keeps_rows):
            skips = getattr(operator, "on_error", "raise") == "skip"
            what = f"{operator.kind} with on_error='skip'" if skips else operator.kind
            refuse(node, f"it counts the elements that {what} yields")
