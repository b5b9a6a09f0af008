"""High-water marks of a reader by window: received, consumed, and reported to the dispatcher.

Responsible for deciding which rows of an arriving frame are new and which marks to report to the
dispatcher. Pure: knows no clock, threads or network; the reader's lock guards it. Invariants, for
every window: reported <= consumed <= received; rows [0, received) were accepted exactly once, in
order; a frame whose generation is fenced, or older than the newest one seen, changes nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from dataservice.errors import DataLossError
from dataservice.ranges import Consumed, Ranges, RowMark
from dataservice.wire.elements import NO_WINDOW, RowSpan

# Remembered frames per worker: more than can be in flight at once, and only frames in flight may
# come twice.
_RECENT_FRAMES: Final = 64


class Accepted(NamedTuple):
    """What is new in a frame: slices (offset, length) of its rows, and the spans they come from."""

    slices: tuple[tuple[int, int], ...]
    spans: tuple[RowSpan, ...]

    @property
    def rows(self) -> int:
        """Number of new rows."""
        return sum(length for _, length in self.slices)


@dataclass(slots=True)
class _Window:
    received: int = 0
    consumed: int = 0
    generation: int = -1  # of the rows received; -1 before any were
    source: str = ""
    fenced: int = -1
    last_row: int | None = None
    reported: int = 0
    early: dict[int, int] = field(default_factory=dict)  # consumed out of order: first -> end

    def is_received(self) -> bool:
        return self.last_row is not None

    def is_consumed(self) -> bool:
        return self.consumed == self.last_row

    def is_live(self) -> bool:
        return self.generation > self.fenced


class Tracker:
    """High-water marks of one reader over one iteration."""

    def __init__(self) -> None:
        self._windows: dict[int, _Window] = {}
        self._finished = Ranges()
        self._releases: dict[tuple[int, int], RowMark] = {}
        self._recent: dict[str, deque[int]] = {}

    def receive(self, source: str, spans: Sequence[RowSpan], *, divisible: bool = True) -> Accepted:
        """Accepts the new rows of a frame from worker `source`.

        A frame that is not divisible is accepted whole or not at all. Raises DataLossError, and
        changes nothing, if rows before the frame are missing, or if only a part of an indivisible
        frame is new.
        """
        if spans and spans[0].window == NO_WINDOW and self._is_repeated(source, spans[0]):
            return Accepted((), ())
        plan: list[tuple[RowSpan, int, RowSpan | None]] = []
        offset = 0
        for span in spans:
            plan.append((span, offset, self._new_part(span)))
            offset += span.rows
        new_rows = sum(part.rows for _, _, part in plan if part is not None)
        if new_rows not in (0, offset) and not divisible:
            raise DataLossError(f"{new_rows} of {offset} rows are new in a batch that is a unit")
        for _, _, part in plan:
            if part is not None and part.window != NO_WINDOW:
                self._admit(source, part)
        return Accepted(
            tuple(
                (at + part.first_row - span.first_row, part.rows)
                for span, at, part in plan
                if part is not None and part.rows
            ),
            tuple(part for _, _, part in plan if part is not None),
        )

    def _is_repeated(self, source: str, span: RowSpan) -> bool:
        """True if a frame of a task came before.

        A worker sends a frame again if it could not know that the frame had arrived.
        """
        recent = self._recent.setdefault(source, deque(maxlen=_RECENT_FRAMES))
        if span.first_row in recent:
            return True
        recent.append(span.first_row)
        return False

    def _new_part(self, span: RowSpan) -> RowSpan | None:
        if span.window in self._finished:
            return None
        known = self._windows.get(span.window)
        if known is None:
            return span
        if known.generation < 0 and span.generation > known.fenced:
            return span
        if span.generation <= known.fenced or span.generation < known.generation:
            return None
        if span.first_row > known.received:
            raise DataLossError(
                f"window {span.window} generation {span.generation} continues at row "
                f"{span.first_row}, but rows from {known.received} on have not arrived"
            )
        if span.end_row < known.received or (span.end_row == known.received and not span.final):
            return None
        return span._replace(first_row=known.received)

    def _admit(self, source: str, span: RowSpan) -> None:
        window = self._windows.get(span.window)
        if window is None:
            window = self._windows[span.window] = _Window()
        if window.generation < 0:
            window.received = window.consumed = span.first_row
        window.source = source
        window.generation = span.generation
        window.received = span.end_row
        if span.final:
            window.last_row = span.end_row

    def consume(self, spans: Iterable[RowSpan]) -> None:
        """Marks accepted rows as consumed; in any order, each row once."""
        for span in spans:
            window = self._windows.get(span.window)
            if window is None:
                continue
            if span.first_row > window.consumed:
                window.early[span.first_row] = span.end_row
                continue
            window.consumed = max(window.consumed, span.end_row)
            while window.consumed in window.early:
                window.consumed = window.early.pop(window.consumed)

    def fence(self, window: int, generation: int, start_row: int = 0) -> None:
        """Refuses further rows of this generation and queues a release for the dispatcher.

        `start_row` is the row at which the lease began; the release reports it if no row of the
        window was received.
        """
        known = self._windows.get(window)
        if known is None:
            row, final = start_row, window in self._finished
            if not final:
                self._windows[window] = _Window(fenced=generation)
        else:
            row = known.received if known.generation >= 0 else start_row
            final = known.is_received()
            known.fenced = max(known.fenced, generation)
        self._releases[(window, generation)] = RowMark(window, generation, row, final)

    def fence_source(self, source: str) -> None:
        """Fences every incomplete window whose latest rows came from worker `source`."""
        for index, window in self._windows.items():
            if window.source == source and window.is_live() and not window.is_received():
                self.fence(index, window.generation)

    def marks(self) -> tuple[RowMark, ...]:
        """Returns the marks of consumed rows that were not reported to the dispatcher yet."""
        return tuple(
            RowMark(index, window.generation, window.consumed, window.is_consumed())
            for index, window in self._windows.items()
            if window.consumed > window.reported or window.is_consumed()
        )

    def marks_if_consumed(self, spans: Iterable[RowSpan]) -> tuple[RowMark, ...]:
        """Returns what :meth:`marks` would return if the rows of `spans` were consumed too.

        They must be the next rows of their windows.
        """
        rows = {mark.window: mark.row for mark in self.marks()}
        for span in spans:
            if span.window in self._windows:
                rows[span.window] = max(span.end_row, rows.get(span.window, 0))
        return tuple(
            RowMark(index, (window := self._windows[index]).generation, row, row == window.last_row)
            for index, row in rows.items()
        )

    def releases(self) -> tuple[RowMark, ...]:
        """Returns the answers to fences that were not reported to the dispatcher yet."""
        return tuple(self._releases.values())

    def confirm(self, marks: Iterable[RowMark], releases: Iterable[RowMark]) -> None:
        """Notes that the dispatcher has received these marks and releases."""
        for mark in releases:
            self._releases.pop((mark.window, mark.generation), None)
        for mark in marks:
            if mark.final:
                del self._windows[mark.window]
                self._finished.add(mark.window, mark.window + 1)
            else:
                self._windows[mark.window].reported = mark.row

    def release_received(self) -> None:
        """Releases the windows that were received whole but are not consumed yet.

        The dispatcher then knows that none of their rows is outstanding, however long it takes to
        consume them.
        """
        for index, window in self._windows.items():
            if window.is_live() and window.is_received() and not window.is_consumed():
                self.fence(index, window.generation)

    def is_quiet(self) -> bool:
        """True if no row is outstanding from a live lease that this reader knows of."""
        return all(
            window.is_received() or not window.is_live() for window in self._windows.values()
        )

    def has_unreported(self) -> bool:
        """True if there is a mark or a release to report to the dispatcher."""
        return bool(self._releases) or bool(self.marks())

    def consumed(self) -> Consumed:
        """Returns all that this reader consumed."""
        consumed = Consumed(self._finished.copy())
        for index, window in self._windows.items():
            if window.is_consumed():
                consumed.finish(index, index + 1)
            else:
                consumed.record(index, window.consumed)
        return consumed

    def all_marks(self) -> tuple[RowMark, ...]:
        """Returns the marks of consumed rows of all unfinished windows, reported or not."""
        return tuple(
            RowMark(index, window.generation, window.consumed, window.is_consumed())
            for index, window in self._windows.items()
            if window.generation >= 0
        )
