"""Streams of record batches that know their position: what a plan is run as.

One thread at a time pulls a stream. Knows nothing of plans. Invariant: if `state()` is taken before
a `next()` and restored into a fresh stream of the same plan, epoch and seeds, that stream yields
the same rows, cut into the same batches, as the first one from that `next()` on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import pyarrow as pa

from dataservice.dataset.omission_log import RunOmissions
from dataservice.dataset.receipts import ReceiptSources
from dataservice.dataset.timing import OperatorTimes
from dataservice.errors import CancelledError, FailedPreconditionError
from dataservice.runtime.process.interrupts import NO_INTERRUPTS, HeldInterrupts

State: TypeAlias = dict[str, Any]
# Maps one record batch to another; the second argument returns where its rows come from.
Transform: TypeAlias = Callable[[pa.RecordBatch, Callable[[], str]], pa.RecordBatch]

# A chunk of 40 columns of 8 bytes takes 5 MB, so chunks stay small for rows of any width.
CHUNK_ROWS: Final = 16_384
# For columns of known width. Fewer chunks cost less Python per row, which only one thread of a
# process can run at a time; a column of this size still fits into the L2 cache between operators.
_MAX_CHUNK_ROWS: Final = 65_536
_MAX_CHUNK_BYTES: Final = 24 << 20
# Enough rows to infer the type of a column, and few enough for a slow function.
SAMPLE_ROWS: Final = 16


def _never() -> bool:
    return False


def chunk_rows(schema: pa.Schema) -> int:
    """Returns how many rows a file source puts into a chunk of these columns; a power of two."""
    try:
        row_bits = sum(field.type.bit_width for field in schema)
    except ValueError:  # raised for a type without a fixed width
        return CHUNK_ROWS
    fitting = _MAX_CHUNK_BYTES * 8 // max(1, row_bits)
    return min(_MAX_CHUNK_ROWS, 1 << max(0, fitting.bit_length() - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """What a run of a plan depends on besides the plan.

    `epoch` and `window` key the shuffles; `split_order` (seed, epoch) permutes the splits of the
    sources below a shuffle. `cancelled` is polled between batches. `threads` above 1 lets Arrow
    decode columns in parallel. `times` gathers the time of each operator, `omitted` the rows that
    are left out. With `restores`, a position is restored before anything is read, so that sources
    need not start reading. With `receipt_sources`, rows of a data service count as consumed when
    their receipt is acknowledged. `interrupts` lets an interrupt through while no stream has rows
    in hand. `sample_rows` is about how many rows of a sample functions are tried on, or 0 if only
    the schema is needed.
    """

    epoch: int = 0
    cancelled: Callable[[], bool] = _never
    allow_functions: bool = True
    threads: int = 1
    window: int | None = None
    split_order: tuple[int, int] | None = None
    times: OperatorTimes | None = None
    omitted: RunOmissions | None = None
    restores: bool = False
    receipt_sources: ReceiptSources | None = None
    interrupts: HeldInterrupts = NO_INTERRUPTS
    sample_rows: int = 0

    @property
    def key(self) -> tuple[int, ...]:
        """The key of random draws that tells this run from other runs of the plan."""
        return (self.epoch,) if self.window is None else (self.epoch, self.window)

    def nested(self) -> RunContext:
        """Returns the context for a dataset nested in an operator: run whole, in its own order."""
        return replace(self, split_order=None, window=None)

    def sampling(self, rows: int = SAMPLE_ROWS) -> RunContext:
        """Returns the context for a sample of about `rows` rows, if there are any."""
        return replace(self, sample_rows=max(rows, self.sample_rows))

    def check(self) -> None:
        """Raises CancelledError once the run was cancelled."""
        if self.cancelled():
            raise CancelledError("the run of the pipeline was cancelled")


class BatchStream(ABC):
    """An iterator of record batches, none of them empty; also a context manager that closes it."""

    @abstractmethod
    def __next__(self) -> pa.RecordBatch:
        """Returns the next batch; raises StopIteration at the end, and at each call after it."""

    @abstractmethod
    def state(self) -> State:
        """Returns the JSON-able position before the next batch."""

    @abstractmethod
    def restore(self, state: State) -> None:
        """Moves a fresh stream to `state`; `next` and `state` must not have been called before."""

    def state_after(self, state: State, rows: int) -> State | None:  # noqa: ARG002
        """Returns the position `rows` rows after `state`, which this stream returned before them.

        None if it can only be found by reading these rows again.
        """
        return None

    def advance(self, rows: int) -> int:  # noqa: ARG002
        """Skips the next rows, at most `rows`, without making them; returns how many it skipped.

        Returns 0 if rows can only be skipped by reading them, and at the end.
        """
        return 0

    @abstractmethod
    def close(self) -> None:
        """Releases files and threads; idempotent. The stream must not be read afterwards."""

    def location(self) -> str:
        """Returns where the last batch comes from, such as a file and rows; "" if not known."""
        return ""

    def stats(self) -> dict[str, Any]:
        """Returns what the stream knows of its work besides the iterator's counts; JSON-able."""
        return {}

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __enter__(self) -> BatchStream:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


class OverStream(BatchStream):
    """A stream over another one: it has that stream's position and is closed with it."""

    def __init__(self, stream: BatchStream) -> None:
        self._stream = stream

    def state(self) -> State:
        return self._stream.state()

    def restore(self, state: State) -> None:
        self._stream.restore(state)

    def close(self) -> None:
        self._stream.close()

    def location(self) -> str:
        return self._stream.location()


class SuccessiveStream(BatchStream):
    """Streams that are opened and read one after the other; `_stream` is the open one, if any."""

    def __init__(self) -> None:
        self._stream: BatchStream | None = None

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def location(self) -> str:
        return "" if self._stream is None else self._stream.location()


class TransformStream(OverStream):
    """A stream that applies a transform to each batch of another and leaves out empty results.

    `one_to_one` says that row i of the output is made from row i of the input.
    """

    def __init__(
        self, stream: BatchStream, transform: Transform, *, one_to_one: bool = False
    ) -> None:
        super().__init__(stream)
        self._transform = transform
        self._one_to_one = one_to_one

    def __next__(self) -> pa.RecordBatch:
        while True:
            batch = self._transform(next(self._stream), self._stream.location)
            if batch.num_rows:
                return batch

    def state_after(self, state: State, rows: int) -> State | None:
        return self._stream.state_after(state, rows) if self._one_to_one else None

    def advance(self, rows: int) -> int:
        return self._stream.advance(rows) if self._one_to_one else 0


class RowCutter(OverStream):
    """Cuts a stream into pieces of wanted sizes without copying. Its position is exact to a row.

    A piece keeps the whole chunk alive that it was cut from. After the stream let an interrupt
    through, the interrupted call can be repeated as if no interrupt had come.
    """

    def __init__(self, stream: BatchStream) -> None:
        super().__init__(stream)
        self._held: list[pa.RecordBatch] = []  # pieces of a cut that an interrupt broke off
        self._held_from: tuple[State, int] = ({}, 0)
        self._chunk: pa.RecordBatch | None = None
        self._chunk_state: State | None = None
        self._row = 0
        # The position between two chunks, once it was asked for: in a chain of cutters each level
        # would ask all those below.
        self._between: State | None = None
        self._began = ""  # where the first of several chunks of a cut comes from
        # The last cut met the end. It is not asked for again: in a chain of cutters the calls
        # would multiply.
        self._ends_next = False

    def __next__(self) -> pa.RecordBatch:
        piece = self.piece()
        if piece is None:
            raise StopIteration
        return piece

    def available(self) -> int:
        """Returns the most rows that the next piece can have; 0 at the end of the stream."""
        chunk = self._chunk
        if chunk is None or self._row >= chunk.num_rows:
            chunk = self._pull()
        return 0 if chunk is None else chunk.num_rows - self._row

    def cut(self, rows: int) -> list[pa.RecordBatch]:
        """Returns the next `rows` rows as pieces; fewer rows only at the end of the stream."""
        pieces, self._held = self._held, []
        missing = rows - sum(piece.num_rows for piece in pieces)
        self._began = ""
        while missing > 0:
            if pieces and not self._began:
                self._began = self._stream.location()
            try:
                piece = self.piece(missing)
            except KeyboardInterrupt:
                self._held = pieces
                raise
            if piece is None:
                self._ends_next = bool(pieces)
                break
            if not pieces:
                assert self._chunk_state is not None
                self._held_from = self._chunk_state, self._row - piece.num_rows
            pieces.append(piece)
            missing -= piece.num_rows
        return pieces

    def piece(self, rows: int | None = None) -> pa.RecordBatch | None:
        """Returns the next rows of one chunk, at most `rows` if given; None at the end."""
        chunk = self._chunk
        if chunk is None or self._row >= chunk.num_rows:
            chunk = self._pull()
            if chunk is None:
                return None
        first = self._row
        count = chunk.num_rows - first
        if rows is not None and rows < count:
            count = rows
        self._row = first + count
        return chunk if count == chunk.num_rows else chunk.slice(first, count)

    def advance(self, rows: int) -> int:
        # Rows of a held chunk come first.
        inside = self._row > 0 if self._chunk is None else self._row < self._chunk.num_rows
        if inside:
            return 0
        self._between = None
        return self._stream.advance(rows)

    def _pull(self) -> pa.RecordBatch | None:
        if self._chunk is not None:
            self._chunk, self._chunk_state, self._row = None, None, 0
        if self._ends_next:
            self._ends_next = False
            return None
        state = self._stream.state() if self._between is None else self._between["input"]
        self._between = None
        chunk = next(self._stream, None)
        rows = 0 if chunk is None else chunk.num_rows
        if self._row and self._row >= rows:
            raise FailedPreconditionError(
                f"the saved position is row {self._row} of a chunk that now has "
                f"{rows} rows; the input or a function has changed since it was saved"
            )
        if chunk is None:
            return None
        self._chunk, self._chunk_state = chunk, state
        return chunk

    def state(self) -> State:
        """Returns the position of the next row: that of its chunk, and its row in the chunk."""
        if self._held:
            return self._row_of(*self._held_from)
        if self._chunk is None or self._row >= self._chunk.num_rows:
            if self._between is None:
                row = self._row if self._chunk is None else 0
                self._between = {"input": self._stream.state(), "row": row}
            return self._between
        assert self._chunk_state is not None
        return self._row_of(self._chunk_state, self._row)

    def _row_of(self, chunk_state: State, row: int) -> State:
        exact = self.state_after({"input": chunk_state, "row": 0}, row)
        return exact or {"input": chunk_state, "row": row}

    def state_after(self, state: State, rows: int) -> State | None:
        inner = self._stream.state_after(state["input"], state["row"] + rows) if rows else None
        return None if inner is None else {"input": inner, "row": 0}

    def restore(self, state: State) -> None:
        self._stream.restore(state["input"])
        self._chunk, self._chunk_state, self._between = None, None, None
        self._row = int(state["row"])

    def location(self) -> str:
        last = self._stream.location()
        return f"{self._began} to {last}" if self._began not in ("", last) else last
