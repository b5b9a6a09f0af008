"""The operator that batches rows of similar length together: bucket_by_sequence_length."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from dataservice.dataset.function import Function
from dataservice.dataset.node import none_or_endless, register_node
from dataservice.dataset.operators.base import Operator
from dataservice.dataset.operators.element_key import key_function, keys_of
from dataservice.dataset.operators.pad import (
    Padding,
    Shapes,
    checked_shapes,
    checked_values,
    padded,
)
from dataservice.dataset.operators.windows import WindowGatherer
from dataservice.dataset.stream import BatchStream, RunContext, State
from dataservice.errors import InvalidArgumentError, InvalidTypeError
from dataservice.runtime.arguments import check_true_or_false, integer_at_least

_OPERATOR = "bucket_by_sequence_length"


@register_node
@dataclasses.dataclass(frozen=True, eq=False)
class BucketBySequenceLength(Operator):
    """Bucket i holds the rows with boundaries[i - 1] <= length < boundaries[i].

    A batch comes from one bucket; its lists are padded as padded_batch does.
    """

    kind: ClassVar[str] = _OPERATOR
    length: Function
    boundaries: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    shapes: Shapes | None = None
    values: Padding | None = None
    pad_to_boundary: bool = False
    no_padding: bool = False
    drop_remainder: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", key_function(self.length, _OPERATOR))
        if self.input.batched:
            raise InvalidArgumentError(f"{_OPERATOR} takes rows; apply unbatch before it")
        bounds = _integers(self.boundaries, "bucket_boundaries")
        if not bounds or any(a >= b for a, b in itertools.pairwise(bounds)):
            raise InvalidArgumentError(
                f"bucket_boundaries must be increasing, and at least one, got {list(bounds)}"
            )
        sizes = _integers(self.batch_sizes, "bucket_batch_sizes")
        if len(sizes) != len(bounds) + 1:
            raise InvalidArgumentError(
                f"bucket_batch_sizes must have one entry more than bucket_boundaries, "
                f"{len(bounds) + 1}, got {list(sizes)}"
            )
        object.__setattr__(self, "boundaries", bounds)
        object.__setattr__(self, "batch_sizes", sizes)
        if self.shapes is not None:
            object.__setattr__(self, "shapes", checked_shapes(self.shapes))
        if self.values is not None:
            object.__setattr__(self, "values", checked_values(self.values))
        check_true_or_false(
            pad_to_bucket_boundary=self.pad_to_boundary,
            no_padding=self.no_padding,
            drop_remainder=self.drop_remainder,
        )

    @property
    def batched(self) -> bool:
        return True

    def finish(self, batch: pa.RecordBatch, bucket: int) -> pa.RecordBatch:
        """Returns the batch of a bucket, padded as the operator's parameters say."""
        if self.no_padding:
            return batch
        shapes = dict(self.shapes or {})
        if self.pad_to_boundary:
            if bucket == len(self.boundaries):
                raise InvalidArgumentError(
                    f"{_OPERATOR}: a row has a length of at least {self.boundaries[-1]}; with "
                    "pad_to_bucket_boundary all must be below the last boundary"
                )
            width = self.boundaries[bucket] - 1
            for field in batch.schema:
                if pa.types.is_list(field.type) and shapes.get(field.name) is None:
                    shapes[field.name] = width
        return padded(batch, shapes, self.values)

    def attach(self, stream: BatchStream, context: RunContext) -> BatchStream:
        lengths = keys_of(self.length, _OPERATOR, context, whole_batches=False, lengths=True)
        bounds = np.array(self.boundaries)
        gatherer = WindowGatherer(
            stream,
            lambda batch, location: np.searchsorted(bounds, lengths(batch, location), side="right"),
            lambda bucket: self.batch_sizes[bucket],
            whole_batches=False,
            drop_remainder=self.drop_remainder,
        )
        return _BucketStream(self, gatherer)

    def sample(self, context: RunContext) -> pa.RecordBatch:
        sample = self.input.sample(context)
        return sample if self.no_padding else padded(sample, {}, self.values)

    def cardinality(self) -> int:
        return none_or_endless(self.input.cardinality())


def _integers(values: Any, what: str) -> tuple[int, ...]:
    if isinstance(values, str) or not isinstance(values, list | tuple | np.ndarray):
        raise InvalidTypeError(f"{what} must be a list of integers, got {values!r}")
    return tuple(integer_at_least(value, 1, f"each of {what}") for value in values)


class _BucketStream(BatchStream):
    def __init__(self, node: BucketBySequenceLength, gatherer: WindowGatherer) -> None:
        self._node = node
        self._gatherer = gatherer

    def __next__(self) -> pa.RecordBatch:
        window = next(self._gatherer)
        return self._node.finish(window.batches[0], window.key)

    def state(self) -> State:
        return self._gatherer.state()

    def restore(self, state: State) -> None:
        self._gatherer.restore(state)

    def close(self) -> None:
        self._gatherer.close()

    def location(self) -> str:
        return self._gatherer.location()
