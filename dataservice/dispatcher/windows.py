"""The window table of one iteration: leases, and how far each window has been read.

Pure. Methods that change the table are total: a change that does not apply is ignored, so that a
replayed journal always gives the same table. Invariants (`invariants.check_windows`): windows are
first leased in the order of their index; a window below the cursor without a record is done; every
index (owned, pending, fencing, received, by worker) agrees with the records; a window has at most
one owner, and its generation grows each time its lease ends. The base is what is done or consumed
but belongs to no live reader: the rows of departed readers, and those consumed before a resume.
Which windows may have killed workers is kept in `suspicion`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, filterfalse, islice

from dataservice.dispatcher.grants import Grant, Grants
from dataservice.dispatcher.plans import WindowPlan
from dataservice.dispatcher.suspicion import Quarantined, Suspicions, describe_window
from dataservice.dispatcher.window_records import Phase, ReaderWindows, Round, WindowRecord
from dataservice.ranges import Consumed, Ranges, RowMark
from dataservice.sharding import Window
from dataservice.vocabulary import ReaderId, WorkerId


@dataclass(slots=True)
class WindowTable:
    """All windows of an iteration. Not thread-safe.

    `replays` False gives at-most-once delivery: a window whose lease ends early is done, and counts
    as lost. `lost_rows` then grows by the rows of its splits that nobody is known to have consumed;
    a window with splits of unknown size counts as one of `lost_uncounted` instead.
    Memory is proportional to the windows in flight, not to the windows of the iteration.
    """

    plan: WindowPlan
    replays: bool = True
    cursor: int = 0
    planned: int = 0
    rounds_opened: int = 0
    done: int = 0
    rows_consumed: int = 0
    lost_windows: int = 0
    lost_rows: int = 0
    lost_uncounted: int = 0
    records: dict[int, WindowRecord] = field(default_factory=dict)
    readers: dict[ReaderId, ReaderWindows] = field(default_factory=dict)
    leases: dict[WorkerId, set[int]] = field(default_factory=dict)
    grants: Grants = field(default_factory=Grants)
    orphans: OrderedDict[int, None] = field(default_factory=OrderedDict)
    is_exhausted: bool = False
    rounds: list[Round] = field(default_factory=list)
    suspicions: Suspicions = field(default_factory=Suspicions)
    quarantined: list[Quarantined] = field(default_factory=list)

    # What is left

    def needs_round(self) -> bool:
        """True if all windows so far have been leased and the plan has more."""
        return self.cursor == self.planned and not self.is_exhausted

    def is_finished(self) -> bool:
        return self.is_exhausted and self.cursor == self.planned and not self.records

    def is_over_for(self, reader: ReaderId) -> bool:
        """True if this reader receives nothing more unless another reader gives windows back."""
        mine = self.readers.get(reader)
        claimable = not self.is_exhausted or self.cursor < self.planned or bool(self.orphans)
        return not claimable and (mine is None or len(mine.owned) == len(mine.received))

    def is_leased_for(self, reader: ReaderId) -> bool:
        """True if a window is leased for this reader, whose stream tells it what comes next."""
        mine = self.readers.get(reader)
        if mine is None:
            return False
        return len(mine.owned) > len(mine.pending) + len(mine.fencing) + len(mine.received)

    def claimable(self, reader: ReaderId) -> int:
        """Returns how many planned windows the reader could be given at present."""
        mine = self.readers.get(reader)
        own = 0 if mine is None else len(mine.pending)
        return own + len(self.orphans) + self.planned - self.cursor

    def candidates(self, reader: ReaderId, count: int) -> tuple[int, ...]:
        """Returns the next windows for a reader: its own, then orphans, then fresh ones.

        Leaves out suspects.
        """
        chosen = list(islice(filterfalse(self.suspicions.is_suspect, self._begun(reader)), count))
        fresh = min(count - len(chosen), self.planned - self.cursor)
        chosen.extend(range(self.cursor, self.cursor + fresh))
        return tuple(chosen)

    def suspects_for(self, reader: ReaderId) -> tuple[int, ...]:
        """Returns the suspect windows that the reader could be given, each to run alone."""
        begun = filter(self.suspicions.is_suspect, self._begun(reader))
        return tuple(filterfalse(self.suspicions.must_wait, begun))

    def _begun(self, reader: ReaderId) -> Iterator[int]:
        mine = self.readers.get(reader)
        return chain(mine.pending if mine else (), self.orphans)

    def leased_to(self, worker: WorkerId, reader: ReaderId) -> Iterator[int]:
        """Yields the windows that are leased to the worker for the reader, in ascending order."""
        for index in sorted(self.leases.get(worker, ())):
            if self.records[index].owner == reader:
                yield index

    def locate(self, index: int) -> tuple[int, Window]:
        """Returns the round number and the window of an index that is not done."""
        held = self._round_of(index)
        return held.number, held.windows[index - held.first]

    def base(self) -> Consumed:
        """Returns what was consumed, except by readers that are still there."""
        done = Ranges([(0, self.cursor)])
        for index in self.records:
            done.discard(index, index + 1)
        for mine in self.readers.values():
            for first, end in mine.finished.pairs():
                done.discard(first, end)
        rows = {i: r.base_row for i, r in sorted(self.records.items()) if r.base_row}
        return Consumed(done, rows)

    def is_in_use(self) -> bool:
        """True if a reader that is still there has consumed rows."""
        return any(mine.finished for mine in self.readers.values()) or any(
            record.consumed_row > record.base_row for record in self.records.values()
        )

    def has_progressed(self) -> bool:
        """True if rows were consumed or lost since the iteration began or was resumed."""
        return self.rows_consumed > 0 or self.lost_windows > 0

    # Changes

    def resume(self, consumed: Consumed) -> None:
        """Begins after what saved positions say was consumed; the table must have no windows yet.

        Consumed windows that the plan does not have are ignored.
        """
        wanted = consumed.end()
        self._pass_rounds(consumed)
        while self.planned < wanted and not self.is_exhausted:
            self.open_round()
        self.cursor = min(wanted, self.planned)
        for index in consumed.done.gaps(self.cursor):
            row = consumed.rows.get(index, 0)
            self.records[index] = WindowRecord(start_row=row, consumed_row=row, base_row=row)
            self.orphans[index] = None
        self.done = self.cursor - len(self.records)
        for held in list(self.rounds):
            end = min(held.first + len(held.windows), self.cursor)
            held.unfinished -= sum(index not in self.records for index in range(held.first, end))
            if not held.unfinished:
                self.rounds.remove(held)

    def _pass_rounds(self, consumed: Consumed) -> None:
        """Skips the leading rounds that are entirely done, without making their windows."""
        done = next((end for first, end in consumed.done.pairs() if not first), 0)
        while self.rounds_opened != self.plan.rounds:
            count = self.plan.count_of(self.rounds_opened)
            if not count or self.planned + count > done:
                return
            self.planned += count
            self.rounds_opened += 1
            self.is_exhausted = self.rounds_opened == self.plan.rounds

    def open_round(self) -> None:
        """Plans the windows of the next reading of the splits."""
        rounds = self.plan.rounds
        count = 0
        if rounds != 0:
            windows = self.plan.windows_of(self.rounds_opened)
            count = len(windows)
        if count:
            self.rounds.append(Round(self.rounds_opened, self.planned, windows, count))
        self.planned += count
        self.rounds_opened += 1
        # Otherwise an empty source that is repeated endlessly would never end.
        self.is_exhausted = self.rounds_opened == rounds or not count

    def add_reader(self, reader: ReaderId) -> None:
        self.readers.setdefault(reader, ReaderWindows())

    def lease(
        self, worker: WorkerId, reader: ReaderId, sequence: int, indices: tuple[int, ...]
    ) -> None:
        """Leases windows to a worker on behalf of a reader."""
        mine = self.readers[reader]
        for index in indices:
            if index >= self.cursor:
                self.cursor = index + 1
                self.records[index] = WindowRecord()
            record = self.records[index]
            self.orphans.pop(index, None)
            mine.pending.pop(index, None)
            mine.owned.add(index)
            record.phase, record.owner, record.worker = Phase.LEASED, reader, worker
            self.leases.setdefault(worker, set()).add(index)
        self.grants[worker, reader] = Grant(sequence, indices)

    def consume(self, reader: ReaderId, marks: Iterable[RowMark]) -> None:
        """Records rows that the window's owner has consumed; a final mark finishes the window."""
        for mark in marks:
            record = self.records.get(mark.window)
            if record is None or record.owner != reader:
                continue
            self.rows_consumed += max(0, mark.row - record.consumed_row)
            record.consumed_row = max(record.consumed_row, mark.row)
            if mark.final and record.phase is not Phase.PENDING:
                self._finish(mark.window, record)

    def fence(self, indices: Iterable[int]) -> None:
        """Ends leases early; the owner's release decides where to go on (without replay: lost)."""
        for index in indices:
            record = self.records.get(index)
            if record is None or record.phase is not Phase.LEASED:
                continue
            if not self.replays:
                self._lose(index, record)
                continue
            self._drop_lease(index, record)
            record.phase = Phase.FENCING
            self.readers[self._owner(record)].fencing.add(index)

    def accuse(self, worker: WorkerId, indices: Iterable[int]) -> None:
        """Accuses windows of the death of a worker that may be gone and ran them."""
        self.suspicions.accuse(worker, [index for index in indices if index in self.records])

    def charge(self, worker: WorkerId, *, alone: bool) -> None:
        """Charges the accused windows with the loss of the worker; gives up guilty pending ones."""
        for index in self.suspicions.charge(worker, alone=alone):
            if self.records[index].phase is Phase.PENDING:
                self._give_up_if_guilty(index)

    def fence_worker(self, worker: WorkerId) -> None:
        """Ends all leases of a worker."""
        self.fence(sorted(self.leases.get(worker, ())))
        self.grants.drop_worker(worker)

    def release(self, reader: ReaderId, marks: Iterable[RowMark]) -> None:
        """Records what a reader received under leases from which it accepts no further rows."""
        for mark in marks:
            if not self.is_releasable(reader, mark):
                continue
            record = self.records[mark.window]
            mine = self.readers[reader]
            if not self.replays and not mark.final:
                self._lose(mark.window, record)
                continue
            self._drop_lease(mark.window, record)
            mine.fencing.discard(mark.window)
            if mark.final:
                record.phase = Phase.RECEIVED
                mine.received.add(mark.window)
            else:
                start_row = max(record.start_row, record.consumed_row, mark.row)
                self._set_pending(record, start_row)
                mine.pending[mark.window] = None
                self._give_up_if_guilty(mark.window)

    def is_releasable(self, reader: ReaderId, mark: RowMark) -> bool:
        """True if the mark is about a lease that the reader still owns."""
        record = self.records.get(mark.window)
        return (
            record is not None
            and record.owner == reader
            and record.generation == mark.generation
            and record.phase in (Phase.LEASED, Phase.FENCING)
        )

    def forget_reader(self, reader: ReaderId) -> None:
        """Orphans the windows of a departed reader; others go on after the rows it consumed."""
        mine = self.readers.pop(reader, None)
        for index in sorted(mine.owned if mine else ()):
            record = self.records[index]
            self._drop_lease(index, record)
            record.owner = None
            record.base_row = record.consumed_row
            if self.replays:
                self._set_pending(record, record.consumed_row)
                self.orphans[index] = None
                self._give_up_if_guilty(index)
            else:
                self._lose(index, record)
        self.grants.drop_reader(reader)

    def forget_plan(self) -> None:
        """Frees the splits and grants, which a finished iteration does not need."""
        self.plan = replace(self.plan, splits=())
        self.grants.clear()

    def _set_pending(self, record: WindowRecord, start_row: int) -> None:
        record.phase = Phase.PENDING
        record.start_row = start_row
        record.generation += 1

    def _give_up_if_guilty(self, index: int) -> None:
        """Quarantines a pending window if it is guilty; rows delivered so far stay delivered."""
        if self.suspicions.is_guilty(index):
            record = self.records[index]
            window = self.locate(index)[1]
            self.quarantined.append(describe_window(index, window, record.start_row))
            self.orphans.pop(index, None)
            self._finish(index, record)

    def _lose(self, index: int, record: WindowRecord) -> None:
        """Counts a window as lost and finishes it, since at-most-once delivery allows no replay."""
        rows = self.locate(index)[1].rows
        self.lost_windows += 1
        self.lost_uncounted += rows is None
        self.lost_rows += 0 if rows is None else max(0, rows - record.consumed_row)
        self._finish(index, record)

    def _drop_lease(self, index: int, record: WindowRecord) -> None:
        if record.worker is not None:
            self.leases[record.worker].discard(index)
            if not self.leases[record.worker]:
                del self.leases[record.worker]
            record.worker = None

    def _finish(self, index: int, record: WindowRecord) -> None:
        self._drop_lease(index, record)
        mine = self.readers.get(record.owner) if record.owner else None
        if mine is not None:
            mine.owned.discard(index)
            mine.finished.add(index, index + 1)
            # Nearly all windows finish while leased; leased ones are in none of these sets.
            if record.phase is not Phase.LEASED:
                mine.fencing.discard(index)
                mine.received.discard(index)
                mine.pending.pop(index, None)
        del self.records[index]
        self.suspicions.drop(index)
        self.done += 1
        held = self._round_of(index)
        held.unfinished -= 1
        if not held.unfinished:
            self._close_round(held)

    def _close_round(self, held: Round) -> None:
        """Moves a finished round to the base, which bounds the size of each reader's `finished`."""
        self.rounds.remove(held)
        for mine in self.readers.values():
            mine.finished.discard(held.first, held.first + len(held.windows))

    def _round_of(self, index: int) -> Round:
        # Nearly always it is the first of one or two rounds.
        for held in self.rounds:
            if held.first <= index < held.first + len(held.windows):
                return held
        raise AssertionError(f"window {index} is of no open round")

    @staticmethod
    def _owner(record: WindowRecord) -> ReaderId:
        assert record.owner is not None, "a leased window has an owner"
        return record.owner


def settle_accusations(tables: Sequence[WindowTable], worker: WorkerId, *, is_lost: bool) -> None:
    """Charges the windows that a lost worker ran, over all iterations, or acquits them."""
    if not is_lost:
        for table in tables:
            table.suspicions.acquit(worker)
        return
    for table in tables:
        table.accuse(worker, sorted(table.leases.get(worker, ())))
    together = sum(len(table.suspicions.accused_of(worker)) for table in tables)
    for table in tables:
        table.charge(worker, alone=together == 1)
