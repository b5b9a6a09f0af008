"""Facts about the data service: events that happened, named in the past tense.

`DispatcherState.apply` reads only these facts; `journal_frames` encodes them. The facts of
coordinated reads are in `round_events`, those of saved datasets in `snapshot_events`. Knows no
clock and no random numbers, so ids and times are fields. Invariant: the journal can encode every
field.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dataservice.dispatcher.images import TableImage
from dataservice.dispatcher.plans import WindowPlan
from dataservice.dispatcher.resumption import Resumption
from dataservice.job_options import DEFAULT_OPTIONS, JobOptions
from dataservice.ranges import Consumed, RowMark
from dataservice.vocabulary import (
    DatasetId,
    IterationId,
    JobId,
    ReaderId,
    ShardingPolicy,
    WorkerId,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A fact: something that happened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetRegistered(Event):
    """A dataset was registered; its plan is opaque here and never unpickled in this process.

    `fingerprint` is equal for plans that the same program makes; "" if it is not known.
    """

    dataset_id: DatasetId
    plan: bytes
    schema: bytes
    cardinality: int
    compression: str
    fingerprint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetDeleted(Event):
    """A dataset was deleted. Its id stays used, since workers may have its plan under that id."""

    dataset_id: DatasetId


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerListSet(Event):
    """The fixed worker list was replaced by these addresses; none of its places is bound yet."""

    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceBound(Event):
    """A place of the worker list was bound to this address."""

    index: int
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRegistered(Event):
    """A worker joined; it gets a task of every unfinished OFF iteration.

    `formerly` is the id under which the same process was registered before: if that worker was
    taken for lost, no window has killed it.
    """

    worker_id: WorkerId
    address: str
    host: str
    pid: int
    host_id: str = ""
    formerly: WorkerId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLost(Event):
    """A worker was silent for too long, was replaced, or left.

    Its leases are fenced, its OFF tasks count as finished (unless the dataset is endless), its
    shards stay unfinished. With `left` it is known that no window has killed it.
    """

    worker_id: WorkerId
    left: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerAcquitted(Event):
    """A worker gave a sign of life after a stream from it had broken."""

    worker_id: WorkerId


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
    """A job lost its last reader, counting all its repetitions, by this time of day."""

    job_id: JobId
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDeleted(Event):
    """A job was deleted, with its iterations and their readers; its name is free again."""

    job_id: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationCreated(Event):
    """A repetition of a job began; under OFF every worker has a task of it.

    `num_shards` is 0 unless the policy is static; `listing` is a digest of the files that a static
    policy deals out.
    """

    iteration_id: IterationId
    job_id: JobId
    repetition: int
    num_shards: int = 0
    listing: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationCollected(Event):
    """An iteration was dropped since nobody read it, or since a loaded position replaces it.

    Its repetition may begin anew.
    """

    iteration_id: IterationId


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationRetired(Event):
    """A finished iteration without readers was dropped; its job remembers that it ended."""

    iteration_id: IterationId


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationRecalled(Event):
    """A retired repetition was restored, as finished, for a reader that came late."""

    iteration_id: IterationId
    job_id: JobId
    repetition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowsPlanned(Event):
    """An iteration got its plan; its windows follow from the plan and the round number."""

    iteration_id: IterationId
    plan: WindowPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationResumed(Event):
    """A reader loaded the position that the readers `origins` had saved.

    The iteration resumes when the positions of all `peers` are loaded. Loading a position again
    after that only changes which reader counts as having loaded it.
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
    """A reader joined; if it is lost, its `owner` states what became of its rows.

    With `owner` "" the rows of a lost reader go to other readers at once.
    """

    reader_id: ReaderId
    iteration_id: IterationId
    host: str
    pid: int
    owner: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderReleased(Event):
    """A reader closed; the rows that it did not consume go to other readers."""

    reader_id: ReaderId


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderLost(Event):
    """A reader was fenced: the effect is as if it had closed, and its later calls are refused."""

    reader_id: ReaderId
    reason: str = "it was silent for too long, so its rows went to others"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerReleased(Event):
    """An owner stated that all its readers are gone; no further reader of it may join."""

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
    """A reader consumed these rows; they are never delivered again."""

    iteration_id: IterationId
    reader_id: ReaderId
    marks: tuple[RowMark, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowsFenced(Event):
    """Leases ended early; the readers that own them have yet to say which rows they received."""

    iteration_id: IterationId
    windows: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowsAccused(Event):
    """The stream from a worker broke while it ran these windows; one of them may have killed it."""

    iteration_id: IterationId
    worker_id: WorkerId
    windows: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowsReleased(Event):
    """A reader stated what it received under these leases, and accepts no more rows under them."""

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
    """An iteration as it was when the journal was shortened; facts about its readers follow."""

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
    """The ended repetitions of a job when the journal was shortened, or the job began anew.

    `endings` has rows (repetition, programs...), `older` has half-open ranges of repetitions.
    """

    job_id: JobId
    idle_since_s: float | None
    endings: tuple[tuple[Any, ...], ...]
    older: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadersDeparted(Event):
    """The departed readers when the journal was shortened, as pairs of reader and reason."""

    reasons: tuple[tuple[Any, ...], ...]
