"""Facts about the data service: what happened, in the past tense, and how each is written down.

The journal holds nothing else, and `DispatcherState.apply` reads nothing else. Pure: no clock, no
random, so ids are fields. A frame is one decision, JSON of a list of facts: a torn tail loses a
whole decision or nothing. Invariant: `decode_frame(encode_frame(events)) == events`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

from dataservice.dispatcher import round_events
from dataservice.dispatcher.fact import Event as Event
from dataservice.dispatcher.images import TableImage, image_from_json, image_to_json
from dataservice.dispatcher.party_events import (
    DatasetDeleted as DatasetDeleted,
)
from dataservice.dispatcher.party_events import (
    DatasetRegistered as DatasetRegistered,
)
from dataservice.dispatcher.party_events import (
    PlaceBound as PlaceBound,
)
from dataservice.dispatcher.party_events import (
    WorkerAcquitted as WorkerAcquitted,
)
from dataservice.dispatcher.party_events import (
    WorkerListSet as WorkerListSet,
)
from dataservice.dispatcher.party_events import (
    WorkerLost as WorkerLost,
)
from dataservice.dispatcher.party_events import (
    WorkerRegistered as WorkerRegistered,
)
from dataservice.dispatcher.plans import RowMark, WindowPlan, plan_from_json, plan_to_json
from dataservice.dispatcher.resumption import Resumption
from dataservice.errors import DataLossError
from dataservice.job_options import DEFAULT_OPTIONS, JobOptions
from dataservice.ranges import Consumed
from dataservice.vocabulary import (
    DatasetId,
    IterationId,
    JobId,
    ReaderId,
    ShardingPolicy,
    SnapshotId,
    WorkerId,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCreated(Event):
    job_id: JobId
    name: str | None
    dataset_id: DatasetId
    policy: ShardingPolicy
    delivery: str
    options: JobOptions = DEFAULT_OPTIONS
    created_s: float = 0.0  # time of day


@dataclass(frozen=True, slots=True, kw_only=True)
class JobIdled(Event):
    """The last reader of a job, of whatever repetition, had gone at this time of day."""

    job_id: JobId
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDeleted(Event):
    """A job, its iterations and their readers are gone; its name is free."""

    job_id: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationCreated(Event):
    """A repetition of a job began; under OFF every worker has a task of it.

    `num_shards` is that of a static policy, 0 for others; `listing` stands for the files that it
    deals out.
    """

    iteration_id: IterationId
    job_id: JobId
    repetition: int
    num_shards: int = 0
    listing: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationCollected(Event):
    """An iteration that nobody read or used was dropped; its repetition may begin anew."""

    iteration_id: IterationId


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationRetired(Event):
    """A finished iteration that nobody reads was dropped; its job remembers that it ended."""

    iteration_id: IterationId


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationRecalled(Event):
    """A repetition that ended is there again, finished, for a reader that came late."""

    iteration_id: IterationId
    job_id: JobId
    repetition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowsPlanned(Event):
    """An iteration got its splits; windows follow from them and the round."""

    iteration_id: IterationId
    plan: WindowPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationResumed(Event):
    """A reader loaded what `origins` had saved; with the last of `peers` the iteration goes on.

    Loaded once more after that, it changes only who has loaded it.
    """

    iteration_id: IterationId
    reader_id: ReaderId
    origins: tuple[str, ...]
    peers: tuple[str, ...]
    consumed: Consumed


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOpened(Event):
    """The windows of the next reading of the splits became claimable."""

    iteration_id: IterationId


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderJoined(Event):
    reader_id: ReaderId
    iteration_id: IterationId
    host: str
    pid: int
    owner: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderReleased(Event):
    """A reader closed: what it did not consume goes to others."""

    reader_id: ReaderId


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderLost(Event):
    """A reader is fenced: as if it had closed, and it may not come back."""

    reader_id: ReaderId
    reason: str = "it was silent for too long, so its rows went to others"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerReleased(Event):
    """Who answers for readers said that they are all gone: no reader of this owner comes again."""

    owner: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowsLeased(Event):
    iteration_id: IterationId
    reader_id: ReaderId
    worker_id: WorkerId
    sequence: int
    windows: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsConsumed(Event):
    """A reader is done with these rows; they are never delivered again."""

    iteration_id: IterationId
    reader_id: ReaderId
    marks: tuple[RowMark, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowsFenced(Event):
    """Leases ended whose owner has yet to say what it received."""

    iteration_id: IterationId
    windows: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowsAccused(Event):
    """The stream from a worker broke while it had these windows: one may have killed it."""

    iteration_id: IterationId
    worker_id: WorkerId
    windows: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowsReleased(Event):
    """A reader said what it received and takes no more under these leases."""

    iteration_id: IterationId
    reader_id: ReaderId
    marks: tuple[RowMark, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFinished(Event):
    """A worker handed out the last element of its pass over the whole dataset."""

    iteration_id: IterationId
    worker_id: WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFinished(Event):
    """Readers have received the last element of a static shard."""

    iteration_id: IterationId
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationRestored(Event):
    """An iteration as it was when the journal was shortened; its readers follow."""

    iteration_id: IterationId
    job_id: JobId
    repetition: int
    finished: bool
    tasks: tuple[tuple[Any, ...], ...]
    table: TableImage | None
    shards: tuple[bool, ...] = ()
    listing: str = ""
    programs: tuple[str, ...] = ()
    resumption: Resumption | None = None
    rounds: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHistoryRestored(Event):
    """Which repetitions of a job had ended when the journal was shortened.

    `endings`: (repetition, programs...); `older`: ranges of repetitions.
    """

    job_id: JobId
    idle_since_s: float | None
    endings: tuple[tuple[Any, ...], ...]
    older: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadersDeparted(Event):
    """Readers that were gone, and why, when the journal was shortened."""

    reasons: tuple[tuple[Any, ...], ...]


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


# Not Event.__subclasses__(): slots make dataclasses classes anew, and both would be listed.
FACTS: Final[dict[str, type[Event]]] = {
    name: value
    for name, value in [*vars(round_events).items(), *globals().items()]
    if isinstance(value, type) and issubclass(value, Event) and value is not Event
}


def _encode_bytes(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _decode_marks(rows: list[list[int]]) -> tuple[RowMark, ...]:
    return tuple(RowMark(window, generation, row, bool(f)) for window, generation, row, f in rows)


# Fields whose type JSON does not have, by the name of the type.
_ENCODERS: dict[str, Callable[[Any], Any]] = {
    "bytes": _encode_bytes,
    "Consumed": Consumed.to_json,
    "JobOptions": JobOptions.to_json,
    "Resumption | None": lambda value: None if value is None else value.to_json(),
    "WindowPlan": plan_to_json,
    "TableImage | None": image_to_json,
}
_DECODERS: dict[str, Callable[[Any], Any]] = {
    "bytes": base64.b64decode,
    "Consumed": Consumed.from_json,
    "JobOptions": JobOptions.from_json,
    "Resumption | None": lambda row: None if row is None else Resumption.from_json(row),
    "WindowPlan": plan_from_json,
    "TableImage | None": image_from_json,
    "ShardingPolicy": ShardingPolicy,
    "tuple[tuple[Any, ...], ...]": lambda rows: tuple(tuple(row) for row in rows),
    "tuple[int, ...]": tuple,
    "tuple[str, ...]": tuple,
    "tuple[bool, ...]": tuple,
    "tuple[RowMark, ...]": _decode_marks,
}


def encode_frame(events: Sequence[Event]) -> bytes:
    """One decision as bytes."""
    return json.dumps([_encode_event(event) for event in events], separators=(",", ":")).encode()


def decode_frame(frame: bytes) -> tuple[Event, ...]:
    """The facts of a frame; DataLossError when it holds anything else."""
    try:
        return tuple(_decode_event(item) for item in json.loads(frame))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataLossError(
            f"the journal holds a frame that is not a list of known facts ({error!r}); was it "
            "written by a newer version? Use that version, or start with an empty work_dir"
        ) from error


# Of each fact: the names of its fields, with what they are.
_FIELDS: Final = {
    name: [(entry.name, str(entry.type)) for entry in fields(cls)] for name, cls in FACTS.items()
}


def _encode_event(event: Event) -> list[Any]:
    fact = type(event).__name__
    values: dict[str, Any] = {}
    for name, kind in _FIELDS[fact]:
        value, encode = getattr(event, name), _ENCODERS.get(kind)
        values[name] = value if encode is None else encode(value)
    return [fact, values]


def _decode_event(item: list[Any]) -> Event:
    fact, values = item
    arguments: dict[str, Any] = {}
    for name, kind in _FIELDS[fact]:
        value, decode = values[name], _DECODERS.get(kind)
        arguments[name] = value if decode is None else decode(value)
    return FACTS[fact](**arguments)
