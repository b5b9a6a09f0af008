"""Checks what must hold in every state; run after each step in tests, never on the hot path.

Compares every index with the records that it indexes. Raises AssertionError with the offending
ids.
"""

from __future__ import annotations

from dataservice.dispatcher.jobs import ENDINGS_KEPT, PROGRAMS_KEPT, Iteration, Job
from dataservice.dispatcher.round_table import check_rounds
from dataservice.dispatcher.snapshots import Snapshot
from dataservice.dispatcher.state import DispatcherState
from dataservice.dispatcher.window_records import Phase
from dataservice.dispatcher.windows import WindowTable
from dataservice.vocabulary import ShardingPolicy


def check_invariants(state: DispatcherState) -> None:
    """Raises AssertionError if two parts of the state contradict each other."""
    _check_registries(state)
    for iteration in state.iterations.values():
        _check_iteration(state, iteration)
        if iteration.windows is not None:
            check_windows(iteration.windows)
            _check_references(state, iteration, iteration.windows)
    for snapshot in state.snapshots.by_id.values():
        _check_snapshot(state, snapshot)


def _check_registries(state: DispatcherState) -> None:
    for address, worker_id in state.worker_by_address.items():
        assert state.workers[worker_id].address == address, worker_id
    assert len(state.worker_by_address) == len(state.workers), "two workers share an address"
    assert all(0 <= index < len(state.worker_list) for index in state.bound), state.bound
    assert len(set(state.bound.values())) == len(state.bound), "two places share an address"
    assert not state.worker_list or set(state.worker_by_address) <= set(state.bound.values())
    for name, job_id in state.job_by_name.items():
        assert state.jobs[job_id].name == name, name
    for job in state.jobs.values():
        assert job.dataset_id in state.datasets, job.job_id
        for repetition, iteration_id in job.iterations.items():
            iteration = state.iterations[iteration_id]
            assert (iteration.job_id, iteration.repetition) == (job.job_id, repetition)
        _check_history(state, job)
    for worker_id in state.workers:
        assert set(state.worker_iterations.of(worker_id)) <= state.iterations.keys(), worker_id
    assert str(state.next_dataset_number) not in state.datasets
    assert sum(len(job.iterations) for job in state.jobs.values()) == len(state.iterations)
    assert not set(state.departed) & set(state.iteration_of_reader), "a reader is here and gone"


def _check_history(state: DispatcherState, job: Job) -> None:
    history = job.history
    read = any(state.iterations[i].readers for i in job.iterations.values())
    assert history.idle_since_s is None or not read, f"{job.job_id} is read and idle"
    assert len(history.endings) <= ENDINGS_KEPT, job.job_id
    assert not any(repetition in history.older for repetition in history.endings), job.job_id


def _check_iteration(state: DispatcherState, iteration: Iteration) -> None:
    job = state.jobs[iteration.job_id]
    assert iteration.windows is None or job.policy is ShardingPolicy.DYNAMIC
    assert not iteration.tasks or job.policy is ShardingPolicy.OFF
    # A recalled iteration has nothing to give, and so no shards.
    assert bool(iteration.shards) == job.policy.is_static or iteration.finished
    assert len(iteration.programs) <= PROGRAMS_KEPT, iteration.iteration_id
    assert not iteration.shards or iteration.finished == all(iteration.shards)
    assert (iteration.rounds is not None) == bool(job.options.num_consumers)
    if iteration.rounds is not None:
        check_rounds(iteration.rounds)
        assert set(iteration.rounds.members.values()) == set(iteration.readers)
        assert iteration.rounds.suspects <= set(state.workers), iteration.rounds.suspects
    for worker_id in iteration.workers() & set(state.workers):
        involved = state.worker_iterations.of(worker_id)
        assert iteration.iteration_id in involved, (worker_id, iteration.iteration_id)
    for reader_id in iteration.readers:
        assert state.iteration_of_reader[reader_id] == iteration.iteration_id, reader_id
    if iteration.windows is None:
        live = {worker for worker, finished in iteration.tasks.items() if not finished}
        assert live <= set(state.workers), live
        assert iteration.finished or not iteration.tasks or live
    else:
        assert iteration.finished == iteration.windows.is_finished(), iteration.iteration_id


def _check_references(state: DispatcherState, iteration: Iteration, table: WindowTable) -> None:
    assert set(table.readers) == set(iteration.readers)
    assert table.grants.workers() <= set(state.workers), "a worker that is gone has a grant"
    for worker_id, windows in table.leases.items():
        assert windows, worker_id
        assert worker_id in state.workers, worker_id
    for case in table.suspicions.cases.values():
        assert set(case.accused) <= state.accused & set(state.workers), case


def _check_snapshot(state: DispatcherState, snapshot: Snapshot) -> None:
    snapshot_id, table = snapshot.snapshot_id, snapshot.windows
    assert state.snapshots.at(snapshot.path) is not None, snapshot.path
    assert snapshot.marker_worker is None or snapshot.awaits_marker, snapshot_id
    assert snapshot.marker_worker is None or snapshot.marker_worker in state.workers, snapshot_id
    if table is None:
        assert not snapshot.chunks, snapshot_id
        return
    check_windows(table)
    assert snapshot.dataset_id in state.datasets, snapshot_id
    assert set(table.readers) == {snapshot.reader}, snapshot_id
    assert set(table.leases) <= set(state.workers), snapshot_id
    mine = table.readers[snapshot.reader]
    assert not mine.fencing, "windows of lost workers go straight back"
    assert not mine.received, snapshot_id
    assert all(record.start_row == 0 for record in table.records.values()), snapshot_id
    assert sum(rows for rows, *_ in snapshot.chunks.values()) == table.rows_consumed, snapshot_id
    if not snapshot.is_whole:
        open_windows = set(table.records) | set(range(table.cursor, table.planned))
        assert not open_windows & set(snapshot.chunks), snapshot_id


def check_windows(table: WindowTable) -> None:
    """Raises AssertionError if an index of the table contradicts its records."""
    assert 0 <= table.cursor <= table.planned
    assert table.done == table.cursor - len(table.records), "a window is neither open nor done"
    assert all(0 <= index < table.cursor for index in table.records)
    for index, record in table.records.items():
        assert (record.phase is Phase.LEASED) == (record.worker is not None), index
        assert (record.owner is not None) or record.phase is Phase.PENDING, index
        assert (index in table.orphans) == (record.owner is None), index
        if record.worker is not None:
            assert index in table.leases[record.worker], index
        if record.owner is not None:
            assert index in table.readers[record.owner].owned, index
    for worker, windows in table.leases.items():
        assert all(table.records[index].worker == worker for index in windows), worker
    for reader, mine in table.readers.items():
        assert all(table.records[index].owner == reader for index in mine.owned), reader
        for phase, indices in (
            (Phase.PENDING, set(mine.pending)),
            (Phase.FENCING, mine.fencing),
            (Phase.RECEIVED, mine.received),
        ):
            expected = {i for i in mine.owned if table.records[i].phase is phase}
            assert indices == expected, (reader, phase)
    assert set(table.orphans) <= set(table.records)
    for held in table.rounds:
        indices_held = range(held.first, held.first + len(held.windows))
        left = sum(index >= table.cursor or index in table.records for index in indices_held)
        assert held.unfinished == left > 0, held.number
    left_in_all = table.planned - table.cursor + len(table.records)
    assert sum(held.unfinished for held in table.rounds) == left_in_all
    assert table.grants.workers() == {worker for worker, _ in table.grants}
    assert {reader for _, reader in table.grants} <= set(table.readers), "a grant for nobody"
    assert 0 <= table.lost_uncounted <= table.lost_windows <= table.done
    assert table.lost_rows >= 0
    assert not (table.replays and table.lost_windows), "what is replayed is not lost"
    _check_suspicions(table)


def _check_suspicions(table: WindowTable) -> None:
    cases = table.suspicions.cases
    assert set(cases) <= set(table.records), "a window that is not open is suspected"
    assert all(case.weight for case in cases.values())
    pairs = {(worker, index) for index, case in cases.items() for worker in case.named()}
    named = table.suspicions.windows_of.items()
    assert pairs == {(worker, index) for worker, indices in named for index in indices}
    for index, record in table.records.items():
        guilty = table.suspicions.is_guilty(index)
        assert not guilty or record.phase in (Phase.FENCING, Phase.RECEIVED), index
    given_up = [entry.window for entry in table.quarantined]
    assert len(set(given_up)) == len(given_up), given_up
    assert not set(given_up) & set(table.records), given_up
    for worker, windows in table.leases.items():
        # Between an accusation and the release that follows there may be several suspects.
        suspects = [
            index
            for index in windows
            if table.suspicions.is_suspect(index) and worker not in cases[index].accused
        ]
        assert len(suspects) <= 1, (worker, suspects)
