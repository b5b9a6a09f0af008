"""Row marks of a reader by task, in an iteration without windows: received and consumed.

A task is what a worker produces in one run: a pass over the whole dataset under OFF, or the share
of its place under a static policy. The rows of a task are numbered and are the same each time, so
any worker can produce the rest of a pass, and the worker of a place the rest of its share.
Responsible for these marks in a job with a single reader. Pure: knows no threads, network or clock.
Invariants: a row is accepted once, even if a worker produces its share again; only accepted rows
are consumed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from dataservice.client.tracker import Accepted
from dataservice.errors import DataLossError
from dataservice.ranges import Pairs, Ranges
from dataservice.vocabulary import ShardingPolicy
from dataservice.wire.bookmarks import Bookmark
from dataservice.wire.elements import RowSpan

# Bookmarks kept per task: those of half a minute of a worker's time, or of as many elements if one
# element takes longer than a worker waits between bookmarks.
_MAX_BOOKMARKS: Final = 32


class TaskMark(NamedTuple):
    """The consumed rows of a task; `total` is the number of its rows, None while it is unknown.

    All rows before `bookmark` were consumed; a worker can go on from there without producing them
    again.
    """

    number: int
    rows: Pairs
    total: int | None
    bookmark: Bookmark | None = None

    @property
    def is_over(self) -> bool:
        """True if all rows of the task were consumed."""
        return len(Ranges(self.rows)) == self.total

    @classmethod
    def from_json(cls, encoded: Sequence[Any]) -> TaskMark:
        """Decodes what `to_json` returned; raises ValueError or TypeError for anything else."""
        # States saved by older versions have no bookmark.
        number, rows, total, bookmark = (*encoded, None) if len(encoded) == 3 else encoded
        pairs = tuple((int(first), int(end)) for first, end in rows)
        if number < 0 or Ranges(pairs).pairs() != pairs or (pairs and pairs[0][0] < 0):
            raise ValueError(f"task {number} with rows {pairs}")
        return cls(
            int(number),
            pairs,
            None if total is None else int(total),
            None if bookmark is None else Bookmark.from_json(bookmark),
        )

    def to_json(self) -> list[Any]:
        """Returns the form that `from_json` accepts."""
        bookmark = None if self.bookmark is None else list(self.bookmark)
        return [self.number, [list(pair) for pair in self.rows], self.total, bookmark]


def _rows_at_once(rows: Ranges) -> int:
    """Returns the length of the gapless run of rows at the beginning of a task."""
    return next(rows.missing(0, rows.end() + 1))[0]


class TaskTracker:
    """The row marks of all tasks of one reader. Not thread safe."""

    def __init__(
        self, policy: ShardingPolicy, saved: Sequence[TaskMark] = (), *, varied: bool = True
    ) -> None:
        """Goes on after `saved`, or begins all tasks without it. `varied`: see `ReaderPosition`."""
        self._varied = varied
        self._is_static = policy.is_static
        self._received = {mark.number: Ranges(mark.rows) for mark in saved}
        self._consumed = {mark.number: Ranges(mark.rows) for mark in saved}
        self._totals = {mark.number: mark.total for mark in saved}
        self._resumes = bool(saved)
        self._unassigned = [mark.number for mark in saved if not mark.is_over]
        self._numbers: dict[str, list[int]] = {}
        # In ascending order. Bookmarks that were passed serve positions which leave out elements
        # taken since.
        self._bookmarks = {mark.number: [mark.bookmark] for mark in saved if mark.bookmark}

    def assign_passes(self, workers: Iterable[str]) -> None:
        """Assigns the passes of OFF: each new worker produces one pass.

        After `saved` marks, the first workers to be met produce the rest of all saved passes, and
        later workers produce nothing.
        """
        new = [worker for worker in workers if worker not in self._numbers]
        for worker in new:
            self._numbers[worker] = []
        if self._is_static or not new:
            return
        if not self._resumes:
            self._unassigned = [len(self._received) + index for index in range(len(new))]
        for index, number in enumerate(self._unassigned):
            self._numbers[new[index % len(new)]].append(number)
            self._received.setdefault(number, Ranges())
            self._consumed.setdefault(number, Ranges())
        self._unassigned = []

    def stream_command(self, worker: str) -> dict[str, Any]:
        """Returns what a stream is opened with: the rows received by task, and where to go on."""
        received = self.received_for(worker)
        bookmarks = {
            task: self._bookmark_of(int(task), self._received[int(task)]) for task in received
        }
        usable = {task: at for task, at in bookmarks.items() if at}
        return {"tasks": received, "bookmarks": usable, "varied": self._varied}

    def received_for(self, worker: str) -> dict[str, Pairs]:
        """Returns the rows received by task: of the worker's passes, or of all static shares."""
        numbers = self._received if self._is_static else self._numbers[worker]
        return {str(number): self._received[number].pairs() for number in numbers}

    def record_bookmark(self, number: int, bookmark: Bookmark) -> None:
        """Records a point from which a task can go on once all rows before it were consumed."""
        known = self._bookmarks.setdefault(number, [])
        if known and bookmark.row <= known[-1].row:
            return
        if len(known) == _MAX_BOOKMARKS:
            if known[1].row > _rows_at_once(self._consumed.get(number, Ranges())):
                return
            del known[0]
        known.append(bookmark)

    def _bookmark_of(self, number: int, rows: Ranges) -> Bookmark | None:
        """Returns the newest bookmark of a task before which every row is among `rows`."""
        end = _rows_at_once(rows)
        usable = [at for at in self._bookmarks.get(number, ()) if at.row <= end]
        return usable[-1] if usable else None

    def receive(self, worker: str, spans: Sequence[RowSpan]) -> Accepted:
        """Accepts the new rows of a frame; raises DataLossError for rows that belong to no task."""
        slices: list[tuple[int, int]] = []
        accepted: list[RowSpan] = []
        offset = 0
        for span in spans:
            if span.window < 0:
                raise DataLossError(
                    f"worker {worker} does not number its tasks; run the same version everywhere"
                )
            received = self._received.setdefault(span.window, Ranges())
            for first, end in received.missing(span.first_row, span.end_row):
                slices.append((offset + first - span.first_row, end - first))
                accepted.append(span._replace(first_row=first, end_row=end))
            received.add(span.first_row, span.end_row)
            if span.window not in self._numbers[worker]:
                self._numbers[worker].append(span.window)
            offset += span.rows
        return Accepted(tuple(slices), tuple(accepted))

    def consume(self, spans: Iterable[RowSpan]) -> None:
        """Marks accepted rows as consumed."""
        for span in spans:
            self._consumed.setdefault(span.window, Ranges()).add(span.first_row, span.end_row)

    def record_end(self, worker: str) -> None:
        """Records that a worker has produced its tasks; sets the totals of tasks without a gap."""
        for number in self._numbers.get(worker, ()):
            received = self._received[number]
            if len(received) == received.end():
                self._totals[number] = received.end()

    def marks(self, later: Iterable[Sequence[RowSpan]] = ()) -> tuple[TaskMark, ...]:
        """Returns the consumed rows of each task, without the rows in `later`."""
        consumed = {number: rows.copy() for number, rows in self._consumed.items()}
        for spans in later:
            for span in spans:
                if span.window in consumed:
                    consumed[span.window].discard(span.first_row, span.end_row)
        return tuple(
            TaskMark(
                number,
                rows.pairs(),
                self._totals.get(number),
                None if len(rows) == self._totals.get(number) else self._bookmark_of(number, rows),
            )
            for number, rows in sorted(consumed.items())
        )
