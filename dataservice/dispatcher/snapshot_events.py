"""Facts about datasets that are being saved, in addition to those in `events`.

Knows no clock and no random numbers. Invariant: the journal can encode every field.
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
    """The saving of a dataset to a folder began; with `is_whole` the plan has only one window."""

    snapshot_id: SnapshotId
    dataset_id: DatasetId
    path: str
    compression: str
    storage_options: str = field(repr=False)
    is_whole: bool
    plan: WindowPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRoundOpened(Event):
    """The windows of the next reading of the splits became claimable."""

    snapshot_id: SnapshotId


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotWindowsLeased(Event):
    snapshot_id: SnapshotId
    worker_id: WorkerId
    windows: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotWindowsFinished(Event):
    """Windows were written; `chunks` (number, rows, bytes, batches, tag) hold their rows.

    `rows` has the number of rows of each window.
    """

    snapshot_id: SnapshotId
    windows: tuple[int, ...]
    rows: tuple[int, ...]
    chunks: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFailed(Event):
    """A snapshot failed or was cancelled, so no more of it is written; `error` is JSON."""

    snapshot_id: SnapshotId
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotMarkerLeased(Event):
    """A worker was chosen to write the last file of a snapshot, DONE or ERROR."""

    snapshot_id: SnapshotId
    worker_id: WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotDone(Event):
    """The last file of a snapshot, DONE or ERROR, was written; the snapshot is closed."""

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
