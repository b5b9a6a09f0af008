"""Facts about datasets that are being saved, beside those of `events`.

Pure: no clock, no random. Invariant: every field is one that the journal can hold.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dataservice.dispatcher.events import Event
from dataservice.dispatcher.images import TableImage
from dataservice.dispatcher.plans import WindowPlan
from dataservice.vocabulary import DatasetId, SnapshotId, WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotStarted(Event):
    """A dataset is to be written to a folder, window by window; `is_whole`: it has only one."""

    snapshot_id: SnapshotId
    dataset_id: DatasetId
    path: str
    compression: str
    storage_options: str = field(repr=False)
    is_whole: bool
    plan: WindowPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRoundOpened(Event):
    """The windows of the next reading of the splits may be written."""

    snapshot_id: SnapshotId


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotWindowsLeased(Event):
    snapshot_id: SnapshotId
    worker_id: WorkerId
    windows: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotWindowsFinished(Event):
    """Windows are written; `chunks` (number, rows, bytes, batches, tag) hold them.

    `rows` is how many each window has.
    """

    snapshot_id: SnapshotId
    windows: tuple[int, ...]
    rows: tuple[int, ...]
    chunks: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFailed(Event):
    """No more of it is written; `error` is JSON."""

    snapshot_id: SnapshotId
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotMarkerLeased(Event):
    """A worker is to write the last file of a snapshot, DONE or ERROR."""

    snapshot_id: SnapshotId
    worker_id: WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotDone(Event):
    """The last file of a snapshot, DONE or ERROR, is written; nobody works on it any more."""

    snapshot_id: SnapshotId


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRestored(Event):
    """A snapshot as it was when the journal was shortened."""

    snapshot_id: SnapshotId
    dataset_id: DatasetId
    path: str
    compression: str
    storage_options: str = field(repr=False)
    is_whole: bool
    table: TableImage | None
    chunks: tuple[tuple[Any, ...], ...]
    totals: tuple[int, ...]
    error: str
    marker_worker: WorkerId | None
    is_closed: bool
