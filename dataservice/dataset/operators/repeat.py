"""The operator that reads its input several times, each time as a new epoch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa

from dataservice.dataset.columns import concat_batches
from dataservice.dataset.node import INFINITE_CARDINALITY, Node, register_node, walk
from dataservice.dataset.sources.base import Source
from dataservice.dataset.stream import CHUNK_ROWS, BatchStream, RunContext, State, SuccessiveStream
from dataservice.runtime.arguments import integer_at_least, is_integer
from dataservice.runtime.number_arrays import from_numbers
from dataservice.sharding import epoch_of

# Most bytes of several passes that are made at once.
_TILE_BYTES: Final = 4 << 20
# Most passes in a row without a row that may be explained by other readers, such as those that
# began long before. If a service yields no rows at all, so many passes take two minutes.
MAX_PASSES_TAKEN: Final = 10_000


@register_node
@dataclasses.dataclass(frozen=True, eq=False)
class Repeat(Node):
    """The input `count` times, or endlessly for None; shuffles below reshuffle each time."""

    kind: ClassVar[str] = "repeat"
    input: Node
    count: int | None = None

    def __post_init__(self) -> None:
        if is_integer(self.count) and self.count == -1:
            object.__setattr__(self, "count", None)
        if self.count is not None:
            object.__setattr__(self, "count", integer_at_least(self.count, 0, "repeat count"))

    def open(self, context: RunContext) -> BatchStream:
        base = dataclasses.replace(context, split_order=None)

        def open_pass(number: int) -> BatchStream:
            epoch = epoch_of(context.epoch, number, self.count)
            return self.input.run(dataclasses.replace(base, epoch=epoch))

        shared = any(node.is_shared for node in walk(self.input))
        most_empty = MAX_PASSES_TAKEN if shared else 0
        return _RepeatStream(open_pass, self.count, self._few_rows(), most_empty, context.check)

    def _few_rows(self) -> int:
        """Returns the rows of a pass if several passes can be made at once, else 0."""
        if not isinstance(self.input, Source) or not self.input.in_memory:
            return 0
        rows = self.input.cardinality()
        return rows if 0 < rows <= CHUNK_ROWS // 2 else 0

    def sample(self, context: RunContext) -> pa.RecordBatch:
        return self.input.sample(context)

    def cardinality(self) -> int:
        elements = self.input.cardinality()
        if self.count == 0 or elements == 0:
            return 0
        if self.count is None:
            return INFINITE_CARDINALITY
        if elements < 0:
            return elements
        # What int64 does not hold is never read to its end.
        total = elements * self.count
        return total if total < 1 << 63 else INFINITE_CARDINALITY


class _RepeatStream(SuccessiveStream):
    """One pass after another; with `few_rows`, as many passes at once as make a chunk.

    An endless repetition ends after more than `most_empty` passes in a row without a row.
    """

    def __init__(
        self,
        open_pass: Callable[[int], BatchStream],
        count: int | None,
        few_rows: int,
        most_empty: int,
        check: Callable[[], None],
    ) -> None:
        super().__init__()
        self._open_pass = open_pass
        self._count = count
        self._few_rows = few_rows
        self._most_empty = most_empty
        self._check = check
        self._tile: pa.RecordBatch | None = None  # as many passes as are made at once
        self._pass = 0
        self._saved: State | None = None  # position to restore when the input is opened
        self._empty_passes = 0
        self._empty = True

    def __next__(self) -> pa.RecordBatch:
        while self._count is None or self._pass < self._count:
            if self._few_rows and self._stream is None and self._saved is None:
                return self._several()
            batch = next(self._opened(), None)
            if batch is not None:
                self._empty = False
                return batch
            self._end_pass()
            self._empty_passes = self._empty_passes + 1 if self._empty else 0
            if self._empty_passes > self._most_empty and self._count is None:
                # Repeating nothing for ever would never return.
                self._count = 0
            self._empty = True
        raise StopIteration

    def _several(self) -> pa.RecordBatch:
        """Returns the next passes, none of which has begun, as one batch."""
        self._check()
        if self._tile is None:
            with self._open_pass(self._pass) as stream:
                self._tile = self._tiled(concat_batches(list(stream)))
        passes = self._tile.num_rows // self._few_rows
        if self._count is not None:
            passes = min(passes, self._count - self._pass)
        self._pass += passes
        return self._tile.slice(0, passes * self._few_rows)

    def _tiled(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the rows of a pass, repeated up to a chunk or `_TILE_BYTES`."""
        times = min(CHUNK_ROWS // rows.num_rows, _TILE_BYTES // max(1, rows.nbytes))
        if self._count is not None:
            times = min(times, self._count)
        if times <= 1:
            return rows
        return rows.take(from_numbers(np.arange(times * rows.num_rows) % rows.num_rows))

    def _opened(self) -> BatchStream:
        if self._stream is None:
            stream = self._open_pass(self._pass)
            if self._saved is not None:
                try:
                    stream.restore(self._saved)
                except BaseException:
                    # Also after an interrupt: the next call then opens the input again.
                    stream.close()
                    raise
                self._saved = None
                self._empty = False
            self._stream = stream
        return self._stream

    def _end_pass(self) -> None:
        self.close()
        self._pass += 1

    def state(self) -> State:
        saved = self._saved if self._stream is None else self._stream.state()
        return {"pass": self._pass, "input": saved}

    def restore(self, state: State) -> None:
        self._pass, self._saved = int(state["pass"]), state["input"]
