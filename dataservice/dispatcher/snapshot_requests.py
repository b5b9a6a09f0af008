"""The dispatcher's requests and answers about datasets that are being saved.

Values only; the endpoint converts them from and to messages. Knows neither the state nor the
decisions. Invariant: storage options, which may be credentials, are left out of `repr`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from dataservice.vocabulary import DatasetId, SnapshotId, WorkerId


class Chunk(NamedTuple):
    """A file that holds rows of a window; `tag` identifies the attempt that wrote it."""

    number: int
    rows: int
    size_bytes: int
    batches: int
    tag: str = ""


class WrittenWindow(NamedTuple):
    """A window and the files that hold its rows."""

    window: int
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartSnapshot:
    """Asks to save a dataset to a folder.

    `snapshot_id`, chosen by the caller, is used if the request begins a snapshot instead of
    attaching to one. `found_id` is the id of the snapshot found in the folder, "" if there is none.
    """

    snapshot_id: SnapshotId
    dataset_id: DatasetId
    path: str
    compression: str
    storage_options: str = field(default="{}", repr=False)
    found_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkOnSnapshot:
    """What a worker has written, holds and wants; `marked` says that DONE or ERROR is written."""

    worker_id: WorkerId
    snapshot_id: SnapshotId
    count: int = 0
    holding: tuple[int, ...] = ()
    written: tuple[WrittenWindow, ...] = ()
    error: str = ""
    marked: bool = False


class Task(NamedTuple):
    """What the writers of a snapshot, and those who wait for it, need to know.

    `windows` is the number of windows, None if it is not known before they are written.
    """

    dataset_id: DatasetId
    path: str
    compression: str
    storage_options: str
    is_whole: bool
    windows: int | None
    error: str


class Marker(NamedTuple):
    """The last file of a snapshot: its name, and its content as JSON."""

    name: str
    content: str
