"""What the dispatcher is asked about datasets that are being saved, and what it answers.

Values only, made from messages and back at the edge. Knows nothing of the state, nor of what is
decided. Invariant: options of a store, which may be credentials, stay out of what is printed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from dataservice.vocabulary import DatasetId, SnapshotId, WorkerId


class Chunk(NamedTuple):
    """A file that holds rows of a window; `tag` is that of the attempt that wrote it."""

    number: int
    rows: int
    size_bytes: int
    batches: int
    tag: str = ""


class WrittenWindow(NamedTuple):
    """A window and the files that it is in."""

    window: int
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartSnapshot:
    """`snapshot_id` is the caller's, for the snapshot that begins if none is attached to.

    `found_id` is that of the snapshot that is in the folder already, "" for none.
    """

    snapshot_id: SnapshotId
    dataset_id: DatasetId
    path: str
    compression: str
    storage_options: str = field(default="{}", repr=False)
    found_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkOnSnapshot:
    """What a worker has written, holds and wants; `marked`: DONE or ERROR is written."""

    worker_id: WorkerId
    snapshot_id: SnapshotId
    count: int = 0
    holding: tuple[int, ...] = ()
    written: tuple[WrittenWindow, ...] = ()
    error: str = ""
    marked: bool = False


class Task(NamedTuple):
    """What those who write a snapshot, or wait for it, must know.

    `windows` is their number, None where it shows only while writing.
    """

    dataset_id: DatasetId
    path: str
    compression: str
    storage_options: str
    is_whole: bool
    windows: int | None
    error: str


class Marker(NamedTuple):
    """The last file: its name, and what it holds as JSON."""

    name: str
    content: str
