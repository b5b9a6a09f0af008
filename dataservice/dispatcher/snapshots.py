"""The state of datasets that are being saved, and how facts change it.

Pure; a part of `state`. A snapshot owns its windows as a reader that never leaves: windows of a
lost worker become pending again at once, since no reader has received rows of them. Invariants: a
window is done exactly if the files that hold its rows are among the chunks; a closed snapshot keeps
only its totals.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple, get_args

from dataservice.dispatcher import snapshot_events as ev
from dataservice.dispatcher.images import image_of, table_of
from dataservice.dispatcher.window_records import Phase
from dataservice.dispatcher.windows import WindowTable
from dataservice.ranges import RowMark
from dataservice.vocabulary import DatasetId, ReaderId, SnapshotId, WorkerId

SnapshotFact = (
    ev.SnapshotStarted
    | ev.SnapshotRoundOpened
    | ev.SnapshotWindowsLeased
    | ev.SnapshotWindowsFinished
    | ev.SnapshotFailed
    | ev.SnapshotMarkerLeased
    | ev.SnapshotDone
    | ev.SnapshotRestored
)
SNAPSHOT_FACTS: Final = get_args(SnapshotFact)
# Closed snapshots are remembered so that handles learn the outcome; the oldest are forgotten.
CLOSED_SNAPSHOTS_KEPT: Final = 1_000


class Totals(NamedTuple):
    """Counts of what has been written."""

    windows_done: int = 0
    windows_planned: int = 0
    rows: int = 0
    size_bytes: int = 0
    chunks: int = 0


@dataclass(slots=True)
class Snapshot:
    """A dataset that is being saved to a folder.

    `chunks` maps a number to (rows, bytes, batches, tag). `error` is JSON, "" while there is none.
    `marker_worker` has to write DONE or ERROR. `windows` is None once the snapshot is closed.
    """

    snapshot_id: SnapshotId
    dataset_id: DatasetId
    path: str
    compression: str
    storage_options: str = field(repr=False)
    is_whole: bool
    windows: WindowTable | None
    chunks: dict[int, tuple[int, int, int, str]] = field(default_factory=dict)
    closed_totals: Totals = field(default_factory=Totals)
    error: str = ""
    marker_worker: WorkerId | None = None

    @property
    def is_closed(self) -> bool:
        return self.windows is None

    @property
    def reader(self) -> ReaderId:
        """The reader id under which the snapshot owns windows."""
        return ReaderId(self.snapshot_id)

    @property
    def is_written(self) -> bool:
        """True if all windows are written, so that at most DONE is missing."""
        return not self.error and (self.windows is None or self.windows.is_finished())

    @property
    def awaits_marker(self) -> bool:
        """True if only DONE or ERROR is left to write."""
        return not self.is_closed and (bool(self.error) or self.is_written)

    @property
    def totals(self) -> Totals:
        if self.windows is None:
            return self.closed_totals
        return Totals(
            self.windows.done,
            self.windows.planned,
            sum(rows for rows, *_ in self.chunks.values()),
            sum(size_bytes for _, size_bytes, *_ in self.chunks.values()),
            len(self.chunks),
        )

    def leased_to(self, worker_id: WorkerId) -> tuple[int, ...]:
        """Returns the windows that are leased to a worker."""
        return () if self.windows is None else tuple(self.windows.leased_to(worker_id, self.reader))

    def apply(self, event: SnapshotFact) -> None:
        """Applies one fact about this snapshot; a closed one has no windows to change."""
        match event:
            case ev.SnapshotRoundOpened() if self.windows is not None:
                self.windows.open_round()
            case ev.SnapshotWindowsLeased() if self.windows is not None:
                self.windows.lease(event.worker_id, self.reader, 0, event.windows)
            case ev.SnapshotWindowsFinished() if self.windows is not None:
                self._finish(self.windows, event)
            case ev.SnapshotFailed():
                self.error = self.error or event.error
            case ev.SnapshotMarkerLeased():
                self.marker_worker = event.worker_id
            case ev.SnapshotDone():
                self._close()

    def lose_worker(self, worker_id: WorkerId) -> None:
        """Takes the windows and the marker from a lost worker, so that other workers write them."""
        if self.marker_worker == worker_id:
            self.marker_worker = None
        if self.windows is None:
            return
        self.windows.fence_worker(worker_id)
        fenced = sorted(self.windows.readers[self.reader].fencing)
        records = self.windows.records
        marks = [RowMark(index, records[index].generation, 0, False) for index in fenced]
        self.windows.release(self.reader, marks)

    def _finish(self, table: WindowTable, event: ev.SnapshotWindowsFinished) -> None:
        """Records windows that are written, once each."""
        for index, rows in zip(event.windows, event.rows, strict=True):
            record = table.records.get(index)
            if record is not None and record.phase is Phase.LEASED:
                table.consume(self.reader, (RowMark(index, record.generation, rows, True),))
        self.chunks.update({number: tuple(rest) for number, *rest in event.chunks})

    def _close(self) -> None:
        """Closes the snapshot; keeps only the totals, which people may still ask for."""
        self.closed_totals = self.totals
        self.windows = self.marker_worker = None
        self.chunks.clear()
        # Storage options may hold secrets, and nothing is written any more.
        self.storage_options = "{}"


@dataclass(slots=True)
class Snapshots:
    """All snapshots, in the order of their start, and the latest of each path."""

    by_id: dict[SnapshotId, Snapshot] = field(default_factory=dict)
    by_path: dict[str, SnapshotId] = field(default_factory=dict)

    def apply(self, event: SnapshotFact) -> None:
        """Applies one fact; facts about a forgotten snapshot are ignored."""
        if isinstance(event, ev.SnapshotStarted | ev.SnapshotRestored):
            self._add(event)
        elif (snapshot := self.by_id.get(event.snapshot_id)) is not None:
            snapshot.apply(event)
        if isinstance(event, ev.SnapshotDone):
            self._forget_oldest()

    def lose_worker(self, worker_id: WorkerId) -> None:
        """Takes the windows of a lost worker back in all snapshots."""
        for snapshot in self.by_id.values():
            snapshot.lose_worker(worker_id)

    def at(self, path: str) -> Snapshot | None:
        """Returns the latest snapshot of a path, or None."""
        snapshot_id = self.by_path.get(path)
        return None if snapshot_id is None else self.by_id[snapshot_id]

    def open_ones(self) -> Iterator[Snapshot]:
        """Yields the snapshots that are not closed."""
        return (snapshot for snapshot in self.by_id.values() if not snapshot.is_closed)

    def facts(self) -> Iterator[ev.SnapshotRestored]:
        """Yields the facts that restore these snapshots."""
        for snapshot in self.by_id.values():
            yield ev.SnapshotRestored(
                snapshot_id=snapshot.snapshot_id,
                dataset_id=snapshot.dataset_id,
                path=snapshot.path,
                compression=snapshot.compression,
                storage_options=snapshot.storage_options,
                is_whole=snapshot.is_whole,
                table=None if snapshot.windows is None else image_of(snapshot.windows),
                chunks=tuple((number, *rest) for number, rest in snapshot.chunks.items()),
                totals=tuple(snapshot.closed_totals),
                error=snapshot.error,
                marker_worker=snapshot.marker_worker,
                is_closed=snapshot.is_closed,
            )

    def _add(self, event: ev.SnapshotStarted | ev.SnapshotRestored) -> None:
        snapshot = Snapshot(
            event.snapshot_id,
            event.dataset_id,
            event.path,
            event.compression,
            event.storage_options,
            event.is_whole,
            None,
        )
        if isinstance(event, ev.SnapshotStarted):
            snapshot.windows = WindowTable(event.plan)
        else:
            snapshot.windows = None if event.table is None else table_of(event.table)
            snapshot.chunks = {number: tuple(rest) for number, *rest in event.chunks}
            snapshot.closed_totals = Totals(*event.totals)
            snapshot.error = event.error
            snapshot.marker_worker = event.marker_worker
        if snapshot.windows is not None:
            snapshot.windows.add_reader(snapshot.reader)
        self.by_id[event.snapshot_id] = snapshot
        self.by_path[event.path] = event.snapshot_id

    def _forget_oldest(self) -> None:
        closed = [snapshot for snapshot in self.by_id.values() if snapshot.is_closed]
        for snapshot in closed[: max(0, len(closed) - CLOSED_SNAPSHOTS_KEPT)]:
            del self.by_id[snapshot.snapshot_id]
            if self.by_path.get(snapshot.path) == snapshot.snapshot_id:
                del self.by_path[snapshot.path]
