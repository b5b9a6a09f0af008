"""Checks the delivery of rows after every step, whatever fails.

A shadow state, built from durable frames alone, is what counts as recorded. The invariants:
I1: every row is delivered once per epoch to readers that live; rows that a dead reader got but that
were not recorded as consumed belong to others. I4: rows are accepted only under a recorded lease,
never under an older generation than one accepted before; the leases of a window have growing
generations. I5: the state equals the replayed journal, at any time, after restarts and after
compaction. I6: a program that resumes from a saved position gets every row once, and none that the
position counts; what operators after the reader hold is beyond this protocol and tested with the
datasets. I7: in ordered reads the next row is the first that nobody has. I8: in ordered reads
leases do not run too far ahead of it. I10: after the last fault the epoch ends. I11: a window that
kills its workers is given up, and no other window because of it. I12: without faults no worker or
reader is given up.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dataservice.client.positions import ReaderPosition
from dataservice.dispatcher import events as ev
from dataservice.dispatcher import ordering
from dataservice.dispatcher.plans import WindowPlan
from dataservice.dispatcher.suspicion import MAX_DEATHS
from dataservice.errors import DataServiceError, FailedPreconditionError, QuarantinedError
from dataservice.ranges import Consumed
from dataservice.wire.elements import RowSpan
from tests.simulation.shadow import Shadow, Violation
from tests.simulation.worker_node import rows_of

Row = tuple[int, int]
# A worker may count twice: a lost registration counts until its lease has expired.
MAX_WORKERS = 6


# If several streams share workers, the window is seldom alone, and an acquittal may be in flight.
MOST_POISON_DEATHS = 3 * MAX_DEATHS


class Checker(Shadow):
    """Watches durable frames and what readers accept, deliver and acknowledge."""

    def __init__(self, plan: WindowPlan, *, thorough: bool) -> None:
        super().__init__(thorough=thorough)
        self.is_ordered = self.is_troubled = False
        self.content: list[list[int]] = []
        for number in range(plan.rounds or 1):
            for window in plan.windows_of(number):
                self.content.append(rows_of(plan.epoch_of(number), window.splits))
        self.poison: int | None = None
        self.poison_deaths = self._forgotten_deaths = 0
        self.losses = 0
        self.claims: dict[Row, str] = {}
        self.expelled: set[str] = set()
        self.joined: set[str] = set()
        self._granted: dict[int, int] = {}
        self._leased: set[tuple[int, int, str]] = set()
        self._accepted: dict[int, int] = {}
        self._released: dict[int, int] = {}
        self._used: dict[str, dict[int, int]] = {}

    # The dispatcher

    def _before(self, event: ev.Event) -> None:
        if isinstance(event, ev.WindowsLeased):
            self._grant(event)
        elif isinstance(event, ev.ReaderLost) and not self.is_troubled:
            raise Violation(f"I12: {event.reader_id} is given up: {event.reason}")
        elif isinstance(event, ev.WorkerLost):
            if not self.is_troubled:
                raise Violation(f"I12: {event.worker_id} is given up")
            self.losses += not event.left
        elif isinstance(event, ev.ReaderJoined):
            self.joined.add(event.reader_id)
        elif isinstance(event, ev.IterationResumed):
            self._reset_to(event.consumed)
        elif isinstance(event, ev.RowsConsumed):
            self._check_consumed(event)
        elif isinstance(event, ev.WindowsReleased):
            for mark in event.marks:
                self._released[mark.window] = mark.generation
        elif isinstance(event, ev.ReaderLost | ev.ReaderReleased):
            self._expel(event.reader_id)

    def _table(self) -> Any:
        iterations = list(self.shadow.iterations.values())
        return iterations[0].windows if iterations else None

    def _grant(self, event: ev.WindowsLeased) -> None:
        table = self._table()
        for window in event.windows:
            record = table.records.get(window)
            generation = 0 if record is None else record.generation
            if generation <= self._granted.get(window, -1):
                raise Violation(f"I4: window {window} is leased again as generation {generation}")
            self._granted[window] = generation
            open_ones = min(table.records, default=table.cursor)
            if self.is_ordered and window - open_ones > ordering.LOOKAHEAD * MAX_WORKERS + 1:
                raise Violation(f"I8: window {window} is leased while {open_ones} is not done")
            self._leased.add((window, generation, event.reader_id))

    def _check_consumed(self, event: ev.RowsConsumed) -> None:
        used = self._used.get(event.reader_id, {})
        for mark in event.marks:
            record = self._table().records.get(mark.window)
            start_row = 0 if record is None else record.consumed_row
            if mark.row > max(used.get(mark.window, 0), start_row) and any(
                self.claims.get((mark.window, row)) is None for row in range(start_row, mark.row)
            ):
                raise Violation(f"I1: {tuple(mark)} is recorded, but its rows were not used")

    def _expel(self, reader: str) -> None:
        """Removes a reader's claims, except to rows that are recorded as consumed."""
        self.expelled.add(reader)
        table = self._table()
        # A reader that joined after the end owns nothing.
        mine = None if table is None else table.readers.get(reader)
        for window in mine.owned if mine else ():
            consumed = table.records[window].consumed_row
            for row in range(consumed, len(self.content[window])):
                if self.claims.get((window, row)) == reader:
                    del self.claims[(window, row)]

    # Readers

    def watch(self, node: Any) -> None:
        """Wraps the node's tracker to observe which spans it accepts."""
        receive = node.reader._session._tracker.receive

        def watched(source: str, spans: Any, *, divisible: bool = True) -> Any:
            accepted = receive(source, spans, divisible=divisible)
            if node.name not in self.expelled:
                for span in accepted.spans:
                    self._accept(node.name, span)
            return accepted

        node.reader._session._tracker.receive = watched

    def _accept(self, reader: str, span: RowSpan) -> None:
        if (span.window, span.generation, reader) not in self._leased:
            raise Violation(f"I4: {reader} accepts {tuple(span)} of a lease that is not on record")
        if span.generation < self._accepted.get(span.window, 0):
            raise Violation(f"I4: {reader} accepts {tuple(span)} of an old generation")
        if span.generation <= self._released.get(span.window, -1):
            raise Violation(f"I4: {reader} accepts {tuple(span)} of a lease that it released")
        self._accepted[span.window] = span.generation

    def delivered(self, node: Any, taken: Any) -> None:
        """Called when an element reaches the user."""
        if node.name in self.expelled:
            return
        if self.is_ordered:
            self._check_order(taken.spans)
        ids = iter(taken.batch.ids)
        for span in taken.spans:
            for row in range(span.first_row, span.end_row):
                if next(ids, None) != self.content[span.window][row]:
                    raise Violation(f"I1: row {row} of window {span.window} has wrong contents")
                taken = self.claims.setdefault((span.window, row), node.name + "!")
                if not taken.endswith("!"):
                    raise Violation(f"I1: {node.name} gets a row again that {taken} got: {span}")
                self.claims[(span.window, row)] = node.name
        if next(ids, None) is not None:
            raise Violation("I1: more rows than spans")

    def saved(self, position: ReaderPosition) -> None:
        """Called when a reader saves; the rows that its position counts must be claimed."""
        for row in self._rows_of(position.consumed):
            if row not in self.claims:
                raise Violation(f"I6: the position counts {row}, which nobody got")

    def _reset_to(self, consumed: Consumed) -> None:
        """Resets the claims to those of the position, as the program is back where it saved it."""
        self.claims = dict.fromkeys(self._rows_of(consumed), "saved")
        for memory in (self._granted, self._accepted, self._released, self._used):
            memory.clear()
        self._leased.clear()
        # Suspicions start over when windows are read again.
        self._forgotten_deaths = self.poison_deaths

    def _rows_of(self, consumed: Consumed) -> list[Row]:
        ends = {window: len(self.content[window]) for window in consumed.done} | consumed.rows
        return [(window, row) for window, end in ends.items() for row in range(end)]

    def _check_order(self, spans: Iterable[RowSpan]) -> None:
        first = next((span.window, span.first_row) for span in spans if span.rows)
        due = self.missing()[:1]
        if due != [first]:
            raise Violation(f"I7: row {first[1]} of window {first[0]} comes, but {due} is due")

    def acknowledged(self, node: Any, taken: Any) -> None:
        """Called when the user has acknowledged an element."""
        used = self._used.setdefault(node.name, {})
        for span in taken.spans:
            used[span.window] = max(used.get(span.window, 0), span.end_row)

    def missing(self) -> list[Row]:
        """Returns the rows that no reader has claimed, except in windows that were given up."""
        given_up = self.given_up()
        return [
            (window, row)
            for window, content in enumerate(self.content)
            for row in range(len(content))
            if (window, row) not in self.claims and window not in given_up
        ]

    def given_up(self) -> set[int]:
        """Returns the windows in quarantine."""
        table = self._table()
        return {entry.window for entry in table.quarantined} if table else set()

    def _check_quarantine(self) -> None:
        innocent = self.given_up() - {self.poison}
        if innocent and self.losses <= self.poison_deaths:
            raise Violation(f"I11: windows {innocent} are given up for what {self.poison} did")
        if self.poison is None and self.losses < MAX_DEATHS and innocent:
            raise Violation(f"I11: windows {innocent} are given up after {self.losses} deaths")
        if self.poison_deaths - self._forgotten_deaths > MOST_POISON_DEATHS:
            raise Violation(f"I11: window {self.poison} killed {self.poison_deaths} workers")

    def ended(self, node: Any) -> None:
        """Called when a reader is told that nothing is left for it."""
        if self.expelled or node.name not in self.joined:
            return
        table = self._table()
        for window, row in self.missing():
            record = table.records.get(window)
            if record is None or record.owner in (None, node.name):
                raise Violation(f"I1: {node.name} sees the end, but row {row} of {window} is due")

    def failed(self, node: Any, error: DataServiceError) -> None:
        """Called when a reader raises an error to its user."""
        if node.name in self.expelled and isinstance(error, FailedPreconditionError):
            return
        if isinstance(error, QuarantinedError) and self.given_up():
            self.ended(node)
            return
        raise Violation(f"{node.name} fails: {error!r}") from error

    def finished(self) -> None:
        """Checks the final state, after the end of the run."""
        self._check_quarantine()
        missing = self.missing()
        if missing:
            raise Violation(f"I1: rows were lost: {missing[:10]}")
        if not all(iteration.finished for iteration in self.shadow.iterations.values()):
            raise Violation("I10: all rows were used, but the iteration is not finished")
