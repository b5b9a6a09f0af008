"""The operator that keeps every n-th element. An element is a row, or a batch after `batch`."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np
import pyarrow as pa

from dataservice.dataset.node import UNKNOWN_CARDINALITY, register_node
from dataservice.dataset.operators.base import Operator
from dataservice.dataset.sources.range import RangeSource
from dataservice.dataset.stream import BatchStream, OverStream, RunContext, State
from dataservice.errors import FailedPreconditionError, InvalidArgumentError
from dataservice.runtime.arguments import integer_at_least, is_integer
from dataservice.runtime.number_arrays import from_numbers
from dataservice.vocabulary import SHARD_HINT


@register_node
@dataclasses.dataclass(frozen=True, eq=False)
class Shard(Operator):
    """The elements whose number leaves the remainder `index` when divided by `num_shards`.

    With `num_shards` SHARD_HINT a service fills in both, whatever `index` is.
    """

    kind: ClassVar[str] = "shard"
    num_shards: int
    index: int

    def __post_init__(self) -> None:
        if self.is_hint:
            object.__setattr__(self, "index", SHARD_HINT)
            return
        shards = integer_at_least(self.num_shards, 1, "shard num_shards")
        index = integer_at_least(self.index, 0, "shard index")
        if index >= shards:
            raise InvalidArgumentError(
                f"shard index must be below num_shards, got index={index} of {shards}"
            )
        object.__setattr__(self, "num_shards", shards)
        object.__setattr__(self, "index", index)

    @property
    def is_hint(self) -> bool:
        """Whether a service has to fill in `num_shards` and `index`."""
        return is_integer(self.num_shards) and self.num_shards == SHARD_HINT

    def open(self, context: RunContext) -> BatchStream:
        own = None if self.is_hint else self._range()
        return super().open(context) if own is None else own.open(context)

    def _range(self) -> RangeSource | None:
        """Returns the kept elements of a range as a range of their own; None for other inputs."""
        source = self.input
        if not isinstance(source, RangeSource):
            return None
        kept = range(source.start, source.stop, source.step)[self.index :: self.num_shards]
        try:
            return RangeSource(kept.start, kept.stop, kept.step)
        except InvalidArgumentError:  # the step does not fit into 64 bits
            return None

    def attach(self, stream: BatchStream, context: RunContext) -> BatchStream:  # noqa: ARG002
        if self.is_hint:
            raise FailedPreconditionError(
                "shard with num_shards=SHARD_HINT has no meaning outside of a service; distribute "
                "the dataset with ShardingPolicy.HINT, or give numbers"
            )
        return _ShardStream(stream, self.num_shards, self.index, whole_batches=self.batched)

    def cardinality(self) -> int:
        elements = self.input.cardinality()
        if self.is_hint:
            return 0 if elements == 0 else UNKNOWN_CARDINALITY
        if elements < 0:
            return elements
        return max(0, -(-(elements - self.index) // self.num_shards))


class _ShardStream(OverStream):
    def __init__(
        self, stream: BatchStream, shards: int, index: int, *, whole_batches: bool
    ) -> None:
        super().__init__(stream)
        self._shards = shards
        self._skip = index  # elements to leave out before the next that is kept
        self._whole_batches = whole_batches

    def __next__(self) -> pa.RecordBatch:
        while True:
            batch = next(self._stream)
            elements = 1 if self._whole_batches else batch.num_rows
            first = self._skip
            if first >= elements:
                self._skip -= elements
                continue
            kept = range(first, elements, self._shards)
            self._skip = kept[-1] + self._shards - elements
            if self._whole_batches or self._shards == 1:
                return batch
            return batch.take(from_numbers(np.arange(first, elements, self._shards)))

    def state(self) -> State:
        return {"input": self._stream.state(), "skip": self._skip}

    def restore(self, state: State) -> None:
        self._stream.restore(state["input"])
        self._skip = int(state["skip"])
