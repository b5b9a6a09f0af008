"""Decisions about datasets that are being saved: starting, leasing windows to workers, the end.

Pure, like `decide`. Rules: a path has at most one unfinished snapshot. A worker that asks for work
names all windows that it holds, and is told again of any others that are leased to it, so that
repeated requests and lost answers change nothing. The first error ends a snapshot. One worker
writes the last file, DONE or ERROR.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any, Final

from dataservice.dispatcher import snapshot_events as ev
from dataservice.dispatcher.events import DatasetRegistered, Event
from dataservice.dispatcher.plans import WindowPlan
from dataservice.dispatcher.requests import Decision, Lease
from dataservice.dispatcher.snapshot_requests import Marker, StartSnapshot, Task, WorkOnSnapshot
from dataservice.dispatcher.snapshots import Snapshot
from dataservice.dispatcher.state import DispatcherState
from dataservice.dispatcher.windows import WindowTable
from dataservice.errors import (
    CancelledError,
    ExistingFileError,
    InvalidArgumentError,
    NotFoundError,
    UnavailableError,
    UnknownDatasetError,
    error_to_dict,
)
from dataservice.sharding import Split
from dataservice.vocabulary import SnapshotId, WorkerId

# The names of the last files; the dataset package owns the layout of the folder.
_DONE: Final = "DONE"
_ERROR: Final = "ERROR"
# An undivided plan has one window, whose size is known only after it has run.
WHOLE: Final = WindowPlan(splits=(Split(),), target_rows=1)
# Bounds the retries of a window that kills its workers. Generous, as workers are also lost for
# other reasons, and the only window of an undivided plan meets all of these.
MAX_TAKEOVERS: Final = 10


def find(state: DispatcherState, snapshot_id: SnapshotId) -> Snapshot:
    """Returns the snapshot; NotFoundError if it is not known."""
    snapshot = state.snapshots.by_id.get(snapshot_id)
    if snapshot is None:
        raise NotFoundError(
            f"snapshot {snapshot_id} is not known: it was finished long ago, or the dispatcher was "
            "restarted without fault_tolerant_mode; then delete its folder and save again"
        )
    return snapshot


def attach(state: DispatcherState, request: StartSnapshot) -> Snapshot | None:
    """Returns the snapshot that the request asks for; None if it has yet to begin.

    ExistingFileError if the folder holds, or will hold, another one.
    """
    dataset = dataset_of(state, request)
    begun = state.snapshots.by_id.get(request.snapshot_id)
    if begun is not None:
        # A retry of the request that began it, in whatever state the snapshot is.
        return begun
    known = state.snapshots.at(request.path)
    if known is None or known.is_closed:
        if request.found_id:
            raise ExistingFileError(_already_there(request, known))
        return None
    if known.error or request.found_id not in ("", known.snapshot_id):
        raise ExistingFileError(_already_there(request, known))
    differences = _differences(state.datasets[known.dataset_id], dataset)
    if known.compression != request.compression:
        differences.append(f"compression ({known.compression}, now {request.compression})")
    if differences:
        raise ExistingFileError(
            f"snapshot {known.snapshot_id} is being written to {request.path}, with another "
            f"{', '.join(differences)}; choose another path, or cancel it first"
        )
    return known


def dataset_of(state: DispatcherState, request: StartSnapshot) -> DatasetRegistered:
    """Returns the dataset to save; UnknownDatasetError if it is not registered."""
    if not request.path:
        raise InvalidArgumentError("the path of a snapshot must not be empty")
    dataset = state.datasets.get(request.dataset_id)
    if dataset is None:
        raise UnknownDatasetError(f"Dataset id {request.dataset_id} not found; register it first")
    return dataset


def _already_there(request: StartSnapshot, known: Snapshot | None) -> str:
    what = "of another service, or of a dispatcher that was restarted without fault_tolerant_mode"
    if known is not None and request.found_id in ("", known.snapshot_id):
        what = "which failed" if known.error else "which is finished"
    found = request.found_id or (known.snapshot_id if known else "")
    return (
        f"{request.path} already holds snapshot {found}, {what}; choose another path, or delete "
        "the folder first"
    )


def _differences(known: DatasetRegistered, other: DatasetRegistered) -> list[str]:
    found = []
    if known.schema != other.schema:
        found.append("schema")
    if known.fingerprint != other.fingerprint:
        found.append("plan")
    return found


def start(state: DispatcherState, request: StartSnapshot, plan: WindowPlan | None) -> Decision:
    """Begins a snapshot, or attaches to an unfinished one. Answers its id.

    With `plan` None one worker at a time writes the whole dataset. InvalidArgumentError for an
    endless dataset.
    """
    existing = attach(state, request)
    if existing is not None:
        return Decision((), existing.snapshot_id)
    if plan is not None and plan.rounds is None:
        raise InvalidArgumentError(
            "Saving an infinite dataset is not allowed; put take(n) after repeat(), or give "
            "repeat a count"
        )
    started = ev.SnapshotStarted(
        snapshot_id=request.snapshot_id,
        dataset_id=request.dataset_id,
        path=request.path,
        compression=request.compression,
        storage_options=request.storage_options,
        is_whole=plan is None,
        plan=WHOLE if plan is None else plan,
    )
    opened = ev.SnapshotRoundOpened(snapshot_id=request.snapshot_id)
    return Decision((started, opened), request.snapshot_id)


def report(state: DispatcherState, request: WorkOnSnapshot) -> Decision:
    """Records what a worker has written, its error, or that the last file is written."""
    snapshot = find(state, request.snapshot_id)
    if request.marked:
        done = ev.SnapshotDone(snapshot_id=request.snapshot_id)
        return Decision((done,) if snapshot.awaits_marker else ())
    if snapshot.error or snapshot.windows is None:
        return Decision(())
    facts: list[Event] = []
    leased = set(snapshot.leased_to(request.worker_id))
    new = tuple(written for written in request.written if written.window in leased)
    if new:
        finished = ev.SnapshotWindowsFinished(
            snapshot_id=request.snapshot_id,
            windows=tuple(written.window for written in new),
            rows=tuple(sum(chunk.rows for chunk in written.chunks) for written in new),
            chunks=tuple(tuple(chunk) for written in new for chunk in written.chunks),
        )
        facts.append(finished)
    if request.error:
        facts.append(ev.SnapshotFailed(snapshot_id=request.snapshot_id, error=request.error))
    return Decision(tuple(facts))


def open_round(state: DispatcherState, snapshot_id: SnapshotId) -> Decision:
    """Opens the next reading of the splits once all windows so far have been leased."""
    snapshot = find(state, snapshot_id)
    if snapshot.error or snapshot.windows is None or not snapshot.windows.needs_round():
        return Decision(())
    return Decision((ev.SnapshotRoundOpened(snapshot_id=snapshot_id),))


def lease(state: DispatcherState, request: WorkOnSnapshot) -> Decision:
    """Leases windows to write: those leased already that the worker lacks, then fresh ones.

    Answers a tuple of leases. Towards the end it grants fewer than asked for, so that all workers
    share the last windows. Fails the snapshot if a window has lost `MAX_TAKEOVERS` workers.
    """
    snapshot = find(state, request.snapshot_id)
    table = snapshot.windows
    if snapshot.error or table is None or request.count <= 0:
        return Decision((), ())
    unknown = [w for w in snapshot.leased_to(request.worker_id) if w not in request.holding]
    wanted = max(0, request.count - len(unknown))
    if table.is_exhausted:
        wanted = min(wanted, -(-table.claimable(snapshot.reader) // (2 * len(state.workers))))
    fresh = table.candidates(snapshot.reader, wanted)
    for window in fresh:
        record = table.records.get(window)
        if record is not None and record.generation >= MAX_TAKEOVERS:
            return Decision((_given_up(snapshot, window, table),), ())
    leases = tuple(_lease(table, window) for window in (*unknown, *fresh))
    if not fresh:
        return Decision((), leases)
    leased = ev.SnapshotWindowsLeased(
        snapshot_id=request.snapshot_id, worker_id=request.worker_id, windows=fresh
    )
    return Decision((leased,), leases)


def _given_up(snapshot: Snapshot, index: int, table: WindowTable) -> ev.SnapshotFailed:
    paths = sorted({str(split.path) for split in table.locate(index)[1].splits if split.path})
    what = f"window {index}" + (f", of {', '.join(paths[:3])}," if paths else "")
    error = UnavailableError(
        f"{what} lost its data worker {MAX_TAKEOVERS} times while it was written; does it crash "
        "them, or take more memory than they have? Look at their logs"
    )
    return ev.SnapshotFailed(
        snapshot_id=snapshot.snapshot_id, error=json.dumps(error_to_dict(error))
    )


def _lease(table: WindowTable, index: int) -> Lease:
    round_number, window = table.locate(index)
    return Lease(index, 0, 0, table.plan.epoch_of(round_number), window)


def lease_marker(state: DispatcherState, request: WorkOnSnapshot) -> Decision:
    """Has the worker write the last file, if it is due and no other worker does.

    Answers a Marker, or None.
    """
    snapshot = find(state, request.snapshot_id)
    if not snapshot.awaits_marker or snapshot.marker_worker not in (None, request.worker_id):
        return Decision((), None)
    if snapshot.marker_worker is not None:
        return Decision((), _marker(snapshot))
    leased = ev.SnapshotMarkerLeased(snapshot_id=request.snapshot_id, worker_id=request.worker_id)
    return Decision((leased,), _marker(snapshot))


def _marker(snapshot: Snapshot) -> Marker:
    content: dict[str, Any] = {"snapshot_id": snapshot.snapshot_id}
    if snapshot.error:
        content["error"] = json.loads(snapshot.error)
        return Marker(_ERROR, json.dumps(content))
    totals = snapshot.totals
    content["rows"], content["size_bytes"] = totals.rows, totals.size_bytes
    content["chunks"] = [[number, *rest] for number, rest in sorted(snapshot.chunks.items())]
    return Marker(_DONE, json.dumps(content, separators=(",", ":")))


def cancel(state: DispatcherState, snapshot_id: SnapshotId) -> Decision:
    """Fails a snapshot whose windows are not all written; otherwise changes nothing."""
    snapshot = find(state, snapshot_id)
    if snapshot.is_closed or snapshot.error or snapshot.is_written:
        return Decision(())
    error = CancelledError(f"the snapshot {snapshot.path} was cancelled")
    return Decision(
        (ev.SnapshotFailed(snapshot_id=snapshot_id, error=json.dumps(error_to_dict(error))),)
    )


def work_for(
    state: DispatcherState, worker_id: WorkerId, active: Collection[SnapshotId], limit: int
) -> tuple[SnapshotId, ...]:
    """Returns the snapshots that a worker has to begin, besides those on which it is `active`.

    At most `limit` snapshots in all; those with the fewest workers come first.
    """
    open_ones = [s for s in state.snapshots.open_ones() if s.snapshot_id not in active]
    due = [snapshot for snapshot in open_ones if _has_work(snapshot, worker_id)]
    due.sort(key=lambda snapshot: len(snapshot.windows.leases) if snapshot.windows else 0)
    return tuple(snapshot.snapshot_id for snapshot in due[: max(0, limit - len(active))])


def _has_work(snapshot: Snapshot, worker_id: WorkerId) -> bool:
    if snapshot.awaits_marker:
        return snapshot.marker_worker in (None, worker_id)
    table = snapshot.windows
    assert table is not None, f"{snapshot.snapshot_id} is open and has no windows"
    claimable = table.claimable(snapshot.reader) > 0 or table.needs_round()
    return claimable or bool(snapshot.leased_to(worker_id))


def task_of(snapshot: Snapshot) -> Task:
    """Returns what the writers of a snapshot, and those who wait for it, need to know."""
    table = snapshot.windows
    one_round = table is not None and table.is_exhausted and table.rounds_opened <= 1
    return Task(
        snapshot.dataset_id,
        snapshot.path,
        snapshot.compression,
        snapshot.storage_options,
        snapshot.is_whole,
        table.planned if table is not None and one_round and not snapshot.is_whole else None,
        snapshot.error,
    )


def progress(snapshot: Snapshot, rows_under_way: int = 0) -> dict[str, Any]:
    """Returns the progress of a snapshot as JSON values."""
    totals = snapshot.totals
    table = snapshot.windows
    state = "writing"
    if snapshot.error:
        state = "failed"
    elif snapshot.is_closed:
        state = "done"
    return {
        "snapshot_id": snapshot.snapshot_id,
        "path": snapshot.path,
        "dataset_id": snapshot.dataset_id,
        "state": state,
        "windows_done": totals.windows_done,
        "windows": totals.windows_planned,
        "more_rounds": table is not None and not table.is_exhausted,
        "rows": totals.rows + rows_under_way,
        "size_bytes": totals.size_bytes,
        "chunks": totals.chunks,
        "workers": 0 if table is None else len(table.leases),
        "is_whole": snapshot.is_whole,
        "error": json.loads(snapshot.error)["message"] if snapshot.error else None,
    }
