"""The base classes of sources, and the stream that reads splits one after the other.

A source defines which splits it has and how a split is read from a given row; positions are handled
here. Knows no file formats. Invariant: reading a split from row r on yields all its rows except the
first r, in the same order, whatever r is.
"""

from __future__ import annotations

import dataclasses
import itertools
from abc import abstractmethod
from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Self

import pyarrow as pa

from dataservice.dataset.columns import concat_batches
from dataservice.dataset.node import UNKNOWN_CARDINALITY, Node
from dataservice.dataset.sources.files import InputFile, find_files, read_unchanged
from dataservice.dataset.sources.paths import check_paths, check_storage_options
from dataservice.dataset.stream import SAMPLE_ROWS, BatchStream, RunContext, State
from dataservice.errors import InvalidArgumentError, SchemaError, SourceError, UserFunctionError
from dataservice.sharding import Split, order_key, total_rows
from dataservice.split_table import SplitTable
from dataservice.windowing import permutation

# Most batches that a sample reads, and so most files that it reads from.
_SAMPLE_BATCHES = 16
# Errors of the data. The function of a generator counts as data here.
_UNREADABLE = (SourceError, SchemaError, UserFunctionError)
_MAX_SPLITS = 65_536


@dataclasses.dataclass(frozen=True, eq=False)
class Source(Node):
    """A node without inputs, whose rows can be cut into splits.

    With `on_error` "skip", the part of a split that cannot be read is left out and counted.
    """

    on_error: str = dataclasses.field(default="raise", kw_only=True)

    # Whether it yields the same rows from memory in each epoch.
    in_memory: ClassVar[bool] = False
    # Whether its splits are files or parts of files, whose order a shuffle above permutes.
    reads_files: ClassVar[bool] = False

    @property
    def counts_rows(self) -> bool:
        """Whether `rows` of a split, if known, is the number of rows that the split yields."""
        return True

    @property
    def has_cuts(self) -> bool:
        """Whether large files of unknown rows are cut into several splits, if they allow it."""
        return False

    @abstractmethod
    def splits(self) -> Iterator[Split]:
        """Yields the splits in order; looks at a file only when the iterator reaches it."""

    @abstractmethod
    def read(
        self, split: Split, first_row: int, context: RunContext
    ) -> Generator[pa.RecordBatch, None, None]:
        """Yields the rows of `split` from `first_row` on in chunks, before `refine`."""

    @abstractmethod
    def empty(self) -> pa.RecordBatch:
        """Returns a batch without rows that has the schema of the source."""

    @abstractmethod
    def describe(self, split: Split, first_row: int, end_row: int) -> str:
        """Names rows [first_row, end_row) of `split`, for messages."""

    def files(self) -> Iterator[InputFile]:
        """Finds the files as they are at this moment, in order; none if it reads no files."""
        return iter(())

    def plan(self) -> list[Split]:
        """Returns all splits, of a size that suits a service."""
        return list(self.splits())

    def plan_table(self) -> SplitTable:
        """Returns the splits of `plan` as a table, which takes less memory for many splits."""
        return SplitTable.of(self.plan())

    def sequence(self) -> Iterator[Split]:
        """Yields the splits that a local run reads if no shuffle above permutes them."""
        return self.splits()

    def refine(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Drops rows and columns that were read but not asked for.

        Positions count the rows before this.
        """
        return batch

    def narrowed(self, **changes: Any) -> Self:
        """Returns the source with other parameters, by which it yields a part of what it yields.

        Keeps the reference if it was found: that of the part may have other columns or types.
        """
        part = dataclasses.replace(self, **changes)
        if "reference" in vars(self):
            vars(part)["reference"] = vars(self)["reference"]
        return part

    def open(self, context: RunContext) -> BatchStream:
        if context.split_order is None or not self.reads_files:
            return SplitStream(self, self.sequence(), context)
        splits = self.plan()
        order = permutation(len(splits), order_key(*context.split_order)).tolist()
        return SplitStream(self, [splits[index] for index in order], context)

    def sample(self, context: RunContext) -> pa.RecordBatch:
        stream = SplitStream(self, self.sequence(), context)
        # Any first rows will do, unless they were not enough and the context asks for more.
        wanted = context.sample_rows if context.sample_rows > SAMPLE_ROWS else 1
        batches: list[pa.RecordBatch] = []
        try:
            for batch in itertools.islice(stream, _SAMPLE_BATCHES):
                batches.append(batch)
                wanted -= batch.num_rows
                if wanted <= 0:
                    break
        finally:
            stream.close()
        found = concat_batches(batches) if batches else self.empty()
        return found.slice(0, max(context.sample_rows, SAMPLE_ROWS))

    def cardinality(self) -> int:
        if not self.counts_rows or self.on_error == "skip":
            return UNKNOWN_CARDINALITY
        rows = total_rows(self.plan())
        return UNKNOWN_CARDINALITY if rows is None else rows


class FileSource(Source):
    """A source of files of one format: a user names them by `paths`."""

    reads_files: ClassVar[bool] = True
    suffixes: ClassVar[tuple[str, ...]]
    paths: tuple[str, ...]
    storage_options: Mapping[str, Any] | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "paths", check_paths(self.paths, f"from_{self.kind}"))
        check_storage_options(self.storage_options)

    def files(self) -> Iterator[InputFile]:
        return find_files(self.paths, self.suffixes, self.storage_options, self.on_error)

    def read(
        self, split: Split, first_row: int, context: RunContext
    ) -> Generator[pa.RecordBatch, None, None]:
        rows = self._rows(split, first_row, context)
        return read_unchanged(split, self.storage_options, rows)

    @abstractmethod
    def _rows(
        self, split: Split, first_row: int, context: RunContext
    ) -> Generator[pa.RecordBatch, None, None]:
        """Yields what `read` yields, without a look at whether the file is as it was planned."""


class SplitStream(BatchStream):
    """The rows of splits, one split after the other; a position is a split and a row in it."""

    def __init__(self, source: Source, splits: Iterable[Split], context: RunContext) -> None:
        self._source = source
        self._splits = iter(splits)
        self._context = context
        self._index = 0  # of the current split, or of the next one
        self._row = 0  # in that split, before `refine`
        self._split: Split | None = None  # that split, once it was taken from the iterator
        self._reader: Generator[pa.RecordBatch, None, None] | None = None
        self._last: tuple[Split, int, int] | None = None

    def __next__(self) -> pa.RecordBatch:
        while True:
            self._context.check()
            batch, split = self._read()
            if batch is None:
                self._go_to_next()
                continue
            first, self._row = self._row, self._row + batch.num_rows
            self._last = (split, first, self._row)
            batch = self._source.refine(batch)
            if batch.num_rows:
                return batch

    def _read(self) -> tuple[pa.RecordBatch | None, Split]:
        """Returns the next batch of the split; None at its end or where it is unreadable."""
        reader, split = self._current()
        try:
            return next(reader, None), split
        except _UNREADABLE as error:
            if self._source.on_error != "skip":
                raise
            # Raises if no file can be read at all: then the machine is at fault, not the data.
            self._source.empty()
            if self._context.omitted is not None:
                left = None if split.rows is None else split.rows - self._row
                self._context.omitted.split(split.path, left, error.message)
            return None, split

    def _current(self) -> tuple[Generator[pa.RecordBatch, None, None], Split]:
        if self._split is None:
            self._split = next(self._splits)
        if self._reader is None:
            self._reader = self._source.read(self._split, self._row, self._context)
        return self._reader, self._split

    def _go_to_next(self) -> None:
        self._close_reader()
        self._split = None
        self._index += 1
        self._row = 0

    def advance(self, rows: int) -> int:
        if not self._source.counts_rows or self._source.on_error == "skip":
            return 0
        passed = 0
        while passed < rows:
            self._context.check()
            if self._split is None:
                self._split = next(self._splits, None)
            if self._split is None or self._split.rows is None:
                break
            left = self._split.rows - self._row
            step = min(left, rows - passed)
            passed += step
            if step == left:
                self._go_to_next()
            else:
                self._row += step
                self._close_reader()
        return passed

    def state(self) -> State:
        state = {"split": self._index, "row": self._row}
        return {**state, "cuts": True} if self._source.has_cuts else state

    def restore(self, state: State) -> None:
        self._index, self._row = int(state["split"]), int(state["row"])
        if self._source.has_cuts and "cuts" not in state and (self._index or self._row):
            self._splits = iter(_whole_files(self._splits))
        for _ in itertools.islice(self._splits, self._index):
            pass

    def close(self) -> None:
        self._close_reader()
        self._splits = iter(())

    def _close_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def location(self) -> str:
        return "" if self._last is None else self._source.describe(*self._last)


def _whole_files(splits: Iterable[Split]) -> list[Split]:
    """Returns the splits; InvalidArgumentError if one is a part of a file.

    A position that counts files would mean other rows then.
    """
    listed = list(splits)
    cut = next((split for split in listed if split.stop), None)
    if cut is not None:
        raise InvalidArgumentError(
            f"the position was saved by an earlier version, which read {cut.path!r} as one piece; "
            "it is read in parts now: load the position with that version, or begin a new pass"
        )
    return listed


def index_splits(rows: int) -> Iterator[Split]:
    """Yields ranges that cover [0, rows): about 64 of them, of at most 65,536 rows each.

    Ranges are larger if there would be more than 65,536 of them, since a dispatcher keeps all.
    """
    step = max(1, min(-(-rows // 64), 65_536), -(-rows // _MAX_SPLITS))
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        yield Split(start=start, stop=stop, rows=stop - start)
