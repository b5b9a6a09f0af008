"""Deliberate mistakes in the protocol, each of which the simulation must notice.

A mutant changes one decision of the real code. If a second defence hides the mistake, the
mutant removes that defence as well and names it: a defence counts only if its absence is noticed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from dataservice.client import worker_stream
from dataservice.client.sequence import Chunk, Sequencer
from dataservice.client.streams import StreamTable
from dataservice.client.tracker import Tracker
from dataservice.dispatcher import decide, leasing, ordering
from dataservice.dispatcher import events as ev
from dataservice.dispatcher.jobs import Iteration
from dataservice.dispatcher.journal_frames import decode_frame
from dataservice.dispatcher.liveness import Deadlines
from dataservice.dispatcher.long_polls import LongPolls
from dataservice.dispatcher.window_records import Phase
from dataservice.dispatcher.windows import WindowTable
from dataservice.ranges import Consumed, Ranges, RowMark
from dataservice.wire.elements import RowSpan
from dataservice.worker.dispatcher_link import DispatcherLink, StreamLeases
from dataservice.worker.rebatch import Rebatcher
from dataservice.worker.service import WorkerService
from tests.simulation.dispatcher_node import Commits, DispatcherNode
from tests.simulation.reader_node import ReaderNode

Patch = pytest.MonkeyPatch


class Mutant(NamedTuple):
    """A deliberate mistake, which `apply` patches into the real code.

    The text of the first failure must contain one of `signs`. `defences_off` names the defences
    that are removed as well. `poisoned` is the share of seeds in which a window kills its workers.
    """

    name: str
    apply: Callable[[Patch], None]
    signs: tuple[str, ...]
    defences_off: str = ""
    poisoned: float = 0.0


MUTANTS: list[Mutant] = []


def mutant(
    *signs: str, defences_off: str = "", poisoned: float = 0.0
) -> Callable[[Callable[[Patch], None]], None]:
    def note(apply: Callable[[Patch], None]) -> None:
        MUTANTS.append(Mutant(apply.__name__, apply, signs, defences_off, poisoned))

    return note


# The reader's tracker


def _trust(patch: Patch, *, checks_age: bool, drops_known: bool, refuses_gaps: bool) -> None:
    original = Tracker._new_part

    def new_part(self: Tracker, span: RowSpan) -> RowSpan | None:
        known = self._windows.get(span.window)
        if known is None or span.window in self._finished or known.generation < 0:
            return original(self, span)
        if checks_age and (span.generation <= known.fenced or span.generation < known.generation):
            return None
        if span.first_row > known.received:
            return original(self, span) if refuses_gaps else span
        if not drops_known:
            return span
        if span.end_row < known.received or (span.end_row == known.received and not span.final):
            return None
        return span._replace(first_row=known.received)

    patch.setattr(Tracker, "_new_part", new_part)


@mutant("I1")
def reader_accepts_duplicate_rows(patch: Patch) -> None:
    _trust(patch, checks_age=True, drops_known=False, refuses_gaps=True)


@mutant("I1", defences_off="streams that lose nothing: a frame gets lost")
def reader_accepts_gaps(patch: Patch) -> None:
    lose_frames(patch)
    _trust(patch, checks_age=True, drops_known=True, refuses_gaps=False)


@mutant("I4", defences_off="readers drop streams of lost workers, who give up what they had")
def reader_accepts_old_generations(patch: Patch) -> None:
    keep_zombies(patch)
    _trust(patch, checks_age=False, drops_known=True, refuses_gaps=True)


@mutant("I4", defences_off="readers drop streams of lost workers, who give up what they had")
def reader_answers_fences_without_obeying_them(patch: Patch) -> None:
    keep_zombies(patch)
    original = Tracker.fence

    def fence(self: Tracker, window: int, generation: int, start_row: int = 0) -> None:
        known = self._windows.get(window)
        fenced = -1 if known is None else known.fenced
        original(self, window, generation, start_row)
        if window in self._windows:
            self._windows[window].fenced = fenced

    patch.setattr(Tracker, "fence", fence)


@mutant("I1", "I6")
def reader_acknowledges_rows_that_it_only_received(patch: Patch) -> None:
    original = Tracker.receive

    def receive(self: Tracker, source: str, spans: Any, *, divisible: bool = True) -> Any:
        accepted = original(self, source, spans, divisible=divisible)
        self.consume(accepted.spans)
        return accepted

    patch.setattr(Tracker, "receive", receive)


@mutant("I1")
def reader_ignores_checksums(patch: Patch) -> None:
    class Anything(int):
        def __ne__(self, _other: object) -> bool:
            return False

        __hash__ = int.__hash__

    patch.setattr(worker_stream, "checksum", lambda _body: Anything())


# The journal


@mutant("I4", "I5")
def dispatcher_answers_before_facts_are_durable(patch: Patch) -> None:
    def reply(self: DispatcherNode, call: Any, number: int, value: Any) -> None:
        self._send(call, number, value)

    patch.setattr(DispatcherNode, "reply", reply)


@mutant("I4", "I5")
def dispatcher_does_not_journal_leases(patch: Patch) -> None:
    original = Commits.enqueue

    def enqueue(self: Commits, frame: bytes) -> None:
        if not all(isinstance(event, ev.WindowsLeased) for event in decode_frame(frame)):
            original(self, frame)

    patch.setattr(Commits, "enqueue", enqueue)


@mutant("I5")
def replay_forgets_releases(patch: Patch) -> None:
    original = decode_frame

    def decode(frame: bytes) -> tuple[ev.Event, ...]:
        return tuple(e for e in original(frame) if not isinstance(e, ev.WindowsReleased))

    from dataservice.dispatcher import state_store

    def apply_all(self: Any, journal: Any) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(state_store, "decode_frame", decode)
            recover(self, journal)

    recover = state_store.StateStore._recover
    patch.setattr(state_store.StateStore, "_recover", apply_all)


# Leases


@mutant("I10", "contradict")
def lost_workers_are_not_fenced(patch: Patch) -> None:
    patch.setattr(WindowTable, "fence_worker", lambda _self, _worker: None)


@mutant("I10", "is still read by")
def silent_clients_never_time_out(patch: Patch) -> None:
    patch.setattr(Deadlines, "expired", lambda _self, _now_s: [])


@mutant("I4", "I1")
def generations_do_not_grow(patch: Patch) -> None:
    def set_pending(_self: WindowTable, record: Any, start_row: int) -> None:
        record.phase, record.start_row = Phase.PENDING, start_row

    patch.setattr(WindowTable, "_set_pending", set_pending)


@mutant("I4")
def windows_are_leased_twice(patch: Patch) -> None:
    original = WindowTable.candidates

    def candidates(self: WindowTable, reader: Any, count: int) -> tuple[int, ...]:
        chosen = original(self, reader, count)
        taken = [w for w, r in self.records.items() if r.phase is Phase.LEASED]
        return chosen or tuple(taken[:1])

    patch.setattr(WindowTable, "candidates", candidates)


@mutant("I1", "DataLossError", defences_off="dedup of rows; no frame comes twice")
def released_windows_restart_at_row_zero(patch: Patch) -> None:
    trust_rows(patch)
    original = WindowTable.release

    def release(self: WindowTable, reader: Any, marks: Any) -> None:
        original(
            self,
            reader,
            [
                mark._replace(row=0) if not mark.final and mark.window in self.records else mark
                for mark in marks
            ],
        )

    patch.setattr(WindowTable, "release", release)


@mutant("I1", "I10", "I4", "DataLossError")
def fences_do_not_wait_for_the_owner(patch: Patch) -> None:
    original = WindowTable.fence

    def fence(self: WindowTable, indices: Any) -> None:
        chosen = list(indices)
        original(self, chosen)
        for index in chosen:
            record = self.records.get(index)
            if record is not None and record.phase is Phase.FENCING and record.owner is not None:
                mark = RowMark(index, record.generation, record.consumed_row, False)
                self.release(record.owner, [mark])

    patch.setattr(WindowTable, "fence", fence)


@mutant("I1", "I10", "I4", "DataLossError")
def release_forgets_the_owner_of_a_window(patch: Patch) -> None:
    original = WindowTable.release

    def release(self: WindowTable, reader: Any, marks: Any) -> None:
        original(self, reader, marks)
        mine = self.readers[reader]
        for index in list(mine.pending):
            del mine.pending[index]
            mine.owned.discard(index)
            self.records[index].owner = None
            self.orphans[index] = None

    patch.setattr(WindowTable, "release", release)


@mutant("I1", "I7")
def rows_received_by_lost_readers_count_as_consumed(patch: Patch) -> None:
    original = WindowTable.forget_reader

    def forget_reader(self: WindowTable, reader: Any) -> None:
        mine = self.readers.get(reader)
        for index in sorted(mine.received) if mine else ():
            self._finish(index, self.records[index])
        original(self, reader)

    patch.setattr(WindowTable, "forget_reader", forget_reader)


@mutant("I10", defences_off="leases that are given back")
def new_stream_does_not_fence_old_leases(patch: Patch) -> None:
    patch.setattr(StreamLeases, "give_back", lambda _self, _leases: None)
    original = DispatcherLink.lease

    def lease(self: DispatcherLink, *args: Any, **_begins: object) -> Any:
        return original(self, *args)

    patch.setattr(DispatcherLink, "lease", lease)


@mutant("I10", defences_off="leases that are given back; a network that is in good order")
def late_lease_requests_of_old_streams_are_served(patch: Patch) -> None:
    _with_world(patch, "doubling", 0.3)
    _with_world(patch, "delay_s", 0.3)
    original = leasing.lease_windows

    def lease_windows(state: Any, request: Any) -> Any:
        iteration = state.iterations.get(request.iteration_id)
        table = None if iteration is None else iteration.windows
        key = (request.worker_id, request.reader_id)
        again = None if table is None else table.grants.get(key)
        if again is not None and again[0] > request.sequence:
            request = replace(request, sequence=again[0] + 1)
        return original(state, request)

    patch.setattr(leasing, "lease_windows", lease_windows)
    patch.setattr(StreamLeases, "give_back", lambda _self, _leases: None)


@mutant("I10")
def refused_long_polls_never_ask_again(patch: Patch) -> None:
    patch.setattr(LongPolls, "pause_s", lambda _self, _now_s: 1e6)


@mutant("I10", defences_off="the fence that a new stream puts up")
def repeated_lease_requests_get_new_windows(patch: Patch) -> None:
    original = DispatcherLink.lease

    class Unnumbered:
        def __next__(self) -> int:
            return 0

    def lease(self: Any, *args: Any, **_begins: object) -> Any:
        self._sequence = Unnumbered()
        return original(self, *args)

    patch.setattr(DispatcherLink, "lease", lease)


@mutant("fails")
def worker_with_expired_lease_fails_its_readers(patch: Patch) -> None:
    def ask(self: Any, count: int, wait_s: float, should_stop: Any) -> Any:
        grant = self._link.lease(*self._stream, count, wait_s, should_stop, begins=self._begins)
        self._begins = False
        return grant

    patch.setattr(StreamLeases, "ask", ask)


@mutant("I10", "contradict")
def worker_is_not_lost_when_another_registers_its_address(patch: Patch) -> None:
    original = decide.register_worker

    def register_worker(state: Any, request: Any) -> Any:
        decision = original(state, request)
        return decision._replace(events=decision.events[:1])

    patch.setattr(decide, "register_worker", register_worker)
    patch.setattr(decide, "lose_worker", lambda _state, _worker: leasing.Decision(()))


# Positions


@mutant("I6")
def positions_count_rows_that_were_only_received(patch: Patch) -> None:
    def consumed(self: Tracker) -> Consumed:
        counted = Consumed(self._finished.copy())
        for index, window in self._windows.items():
            if window.is_received():
                counted.finish(index, index + 1)
            elif window.generation >= 0:
                counted.record(index, window.received)
        return counted

    patch.setattr(Tracker, "consumed", consumed)


@mutant("I1", "DataLossError")
def resume_restarts_partly_consumed_windows(patch: Patch) -> None:
    original = WindowTable.resume

    def resume(self: WindowTable, consumed: Consumed) -> None:
        original(self, Consumed(consumed.done.copy(), dict.fromkeys(consumed.rows, 0)))

    patch.setattr(WindowTable, "resume", resume)


@mutant("I1", "I10")
def resume_counts_windows_before_the_last_as_done(patch: Patch) -> None:
    original = WindowTable.resume

    def resume(self: WindowTable, consumed: Consumed) -> None:
        original(self, Consumed(Ranges([(0, consumed.end())])))

    patch.setattr(WindowTable, "resume", resume)


# Order


@mutant("I7")
def ordered_rows_leave_in_arrival_order(patch: Patch) -> None:
    def add(_self: Sequencer, spans: Any, batch: Any) -> list[Chunk]:
        offset, chunks = 0, []
        for span in spans:
            if span.rows:
                chunks.append(Chunk(batch.slice(offset, span.rows), span))
            offset += span.rows
        return chunks

    patch.setattr(Sequencer, "add", add)


@mutant("I10", "I7")
def new_ordered_reader_waits_for_windows_done_before_it(patch: Patch) -> None:
    patch.setattr(Sequencer, "_skip_done", lambda _self, index: index)


@mutant("I10")
def returned_windows_count_as_lookahead(patch: Patch) -> None:
    def grant_size(state: Any, table: WindowTable, request: Any) -> int:
        first_open = min(table.records, default=table.cursor)
        ahead = max(1, len(state.workers)) - (table.cursor - first_open)
        return max(0, min(request.count, ahead))

    patch.setattr(ordering, "grant_size", grant_size)


# The end


@mutant("I1")
def readers_see_the_end_while_windows_are_open(patch: Patch) -> None:
    def is_over_for(self: WindowTable, _reader: Any) -> bool:
        return self.is_exhausted and self.cursor == self.planned and not self.orphans

    patch.setattr(WindowTable, "is_over_for", is_over_for)


@mutant("I10", "contradict")
def iterations_never_finish(patch: Patch) -> None:
    patch.setattr(Iteration, "finish_if_done", lambda _self: None)


@mutant("I10")
def windows_have_no_final_row(patch: Patch) -> None:
    original = Rebatcher.end_window

    def end_window(self: Rebatcher, window: int, generation: int, end_row: int) -> Any:
        for element in original(self, window, generation, end_row):
            yield element._replace(spans=tuple(s._replace(final=False) for s in element.spans))
        self._spans = [span._replace(final=False) for span in self._spans]

    patch.setattr(Rebatcher, "end_window", end_window)


def _with_world(patch: Patch, name: str, value: object) -> None:
    original = ReaderNode.boot

    def boot(self: ReaderNode) -> None:
        setattr(self.world, name, value)
        # Losses in such a world have causes of their own.
        self.world.checker.is_troubled = True
        original(self)

    patch.setattr(ReaderNode, "boot", boot)


def lose_frames(patch: Patch) -> None:
    """Has streams lose a frame that has frames of the same window before and after it."""
    _with_world(patch, "lost_frames", 1)


def send_frames_once(patch: Patch) -> None:
    """Keeps streams from delivering frames twice."""
    _with_world(patch, "doubles_frames", False)


def keep_zombies(patch: Patch) -> None:
    """Lets workers with expired leases go on sending what they had, which is harmless by itself."""
    update = StreamTable.update

    def update_only(self: StreamTable, workers: Any, now_s: float) -> None:
        known = {worker: slot.stream.address for worker, slot in self._slots.items()}
        update(self, {**known, **workers}, now_s)

    def rejoin(self: WorkerService, worker_id: str, *_place: object) -> None:
        self.worker_id = worker_id

    patch.setattr(StreamTable, "update", update_only)
    patch.setattr(WorkerService, "rejoin", rejoin)


def trust_rows(patch: Patch) -> None:
    """Has the reader keep rows that it has already, but streams send none twice.

    That is harmless by itself.
    """
    send_frames_once(patch)
    _trust(patch, checks_age=True, drops_known=False, refuses_gaps=True)
