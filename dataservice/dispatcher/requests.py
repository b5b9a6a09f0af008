"""What is asked of the dispatcher, and what it answers: the values that decisions are made of.

One request per kind of call, named in the imperative; the wire and its types stay outside.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from dataservice.dispatcher.events import Event
from dataservice.dispatcher.plans import RowMark
from dataservice.dispatcher.resumption import SavedPosition
from dataservice.dispatcher.round_table import Block
from dataservice.dispatcher.suspicion import Quarantined
from dataservice.job_options import DEFAULT_OPTIONS, JobOptions
from dataservice.ranges import Consumed
from dataservice.sharding import Window
from dataservice.vocabulary import (
    DatasetId,
    IterationId,
    JobId,
    ReaderId,
    ShardingPolicy,
    WorkerId,
)

# As a returned window: whatever the worker was leased for the reader, since a new stream begins.
ALL_WINDOWS: Final = -1


class Decision(NamedTuple):
    """Facts to record and apply, in this order, and what to answer once they are durable."""

    events: tuple[Event, ...]
    reply: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterDataset:
    """`dataset_id` None asks for a number; `fingerprint` "" compares with nothing."""

    plan: bytes
    schema: bytes
    cardinality: int
    compression: str
    dataset_id: str | None = None
    fingerprint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterWorker:
    worker_id: WorkerId
    address: str
    host: str = ""
    pid: int = 0
    host_id: str = ""
    formerly: WorkerId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenIteration:
    """The ids are for what does not exist yet; `reader_id` is the reader's own.

    `program_age_s`: how long the reader's process has run, `dataset_age_s`: how long it has had the
    dataset, 0 where it has read the repetition by this one before. `opened_s`: the time of day.
    `fingerprint` is of the plan that the reader knows by this id; "" compares with nothing.
    `restores`: it reads nothing before it goes to a position, which it may have yet to ask for.
    """

    dataset_id: DatasetId
    policy: ShardingPolicy
    job_name: str | None
    repetition: int
    delivery: str
    reader_id: ReaderId
    job_id: JobId
    iteration_id: IterationId
    reader_host: str = ""
    reader_pid: int = 0
    program_age_s: float = 0.0
    dataset_age_s: float = 0.0
    opened_s: float = 0.0
    options: JobOptions = DEFAULT_OPTIONS
    position: SavedPosition | None = None
    consumer_index: int = -1
    owner: str = ""
    fingerprint: str = ""
    restores: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseWindows:
    worker_id: WorkerId
    iteration_id: IterationId
    reader_id: ReaderId
    count: int
    returned: tuple[RowMark, ...] = ()
    sequence: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    reader_id: ReaderId
    iteration_id: IterationId
    consumed: tuple[RowMark, ...] = ()
    released: tuple[RowMark, ...] = ()
    broken_worker_ids: tuple[WorkerId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRounds:
    """How far a consumer is, by the round tables of `version`, and how far ahead it may ask.

    `sought`: it was told to go on at this round, whoever consumed those before. `roll`: the roll
    call that it knows of.
    """

    reader_id: ReaderId
    iteration_id: IterationId
    version: int = 0
    received: int = 0
    consumed: int = 0
    sought: int = 0
    window: int = 1
    roll: int = 0
    broken_worker_ids: tuple[WorkerId, ...] = ()


class RoundsAnswer(NamedTuple):
    """Who gives the rounds from `begin` on, and which may be handed out.

    `missing` consumers have no reader, `late` ones received less than the one that asks, or have
    yet to stop for the roll call `roll`.
    """

    blocks: tuple[Block, ...]
    version: int
    complete: int
    low: int
    begin: int
    missing: tuple[int, ...]
    late: tuple[int, ...]
    roll: int


class Lease(NamedTuple):
    """One window to run for a reader, from output row `start_row` on."""

    window_index: int
    generation: int
    start_row: int
    epoch: int
    window: Window


class LeaseAnswer(NamedTuple):
    """`ended`: no window will ever come for this reader.

    `pause_s`: as many wait for windows as may, and this one is to ask again after that.
    """

    leases: tuple[Lease, ...]
    ended: bool
    pause_s: float = 0.0


class OpenAnswer(NamedTuple):
    """What a reader has joined; `num_shards` and `listing` are those of a static policy.

    `notice` tells people of those who read the repetition before.
    """

    job_id: JobId
    iteration_id: IterationId
    dataset_id: DatasetId
    num_shards: int = 0
    listing: str = ""
    notice: str = ""
    division: str = ""


class PositionAnswer(NamedTuple):
    """What was consumed by nobody who reads now, and the readers that there are."""

    base: Consumed
    readers: tuple[ReaderId, ...]


class SyncAnswer(NamedTuple):
    """`ended`: this reader has nothing more to receive, unless another gives windows back.

    Without windows that holds once its streams from all of its workers have ended.
    `missing` describes the workers whose shards are due and who are not there; `awaited` are the
    readers whose saved positions have yet to be loaded, `quarantined` the windows given up.
    """

    fences: tuple[RowMark, ...]
    ended: bool
    iteration_finished: bool
    missing: tuple[str, ...] = ()
    awaited: tuple[str, ...] = ()
    quarantined: tuple[Quarantined, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """The place of a worker on the fixed list, and how many places there are; 0: no list."""

    index: int
    count: int
