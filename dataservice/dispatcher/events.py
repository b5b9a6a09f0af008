"""Facts about the data service: what happened, in the past tense.

`DispatcherState.apply` reads nothing else; `journal_frames` writes them down. Those of coordinated
reads are in `round_events`, those of saved datasets in `snapshot_events`. Pure: no clock, no
random, so ids and times are fields. Invariant: every field is one that the journal can hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dataservice.dispatcher.images import TableImage
from dataservice.dispatcher.plans import RowMark, WindowPlan
from dataservice.dispatcher.resumption import Resumption
from dataservice.job_options import DEFAULT_OPTIONS, JobOptions
from dataservice.ranges import Consumed
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
    """Something that happened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetRegistered(Event):
    dataset_id: DatasetId
    plan: bytes
    schema: bytes
    cardinality: int
    compression: str
    fingerprint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetDeleted(Event):
    """A dataset is gone. Its id stays used: workers may still know the plan by it."""

    dataset_id: DatasetId


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerListSet(Event):
    """The fixed list of workers became this one; none of its places is bound yet."""

    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceBound(Event):
    """A place of the worker list belongs to this address from now on."""

    index: int
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRegistered(Event):
    """A worker joined; it gets a task of every unfinished OFF iteration.

    `formerly`: the id under which the same process was taken for lost: nothing has killed it.
    """

    worker_id: WorkerId
    address: str
    host: str
    pid: int
    host_id: str = ""
    formerly: WorkerId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLost(Event):
    """A worker was silent for too long or replaced.

    Its leases are fenced, its OFF tasks count as finished, its shards stay unfinished. `left`: it
    said so, and nothing has killed it.
    """

    worker_id: WorkerId
    left: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerAcquitted(Event):
    """A worker of which a stream broke was heard of afterwards."""

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
