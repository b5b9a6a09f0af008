"""The dispatcher's requests and answers: the values that decisions take and return.

One request type per kind of call, named in the imperative. Knows no messages of the wire.
Invariant: a request or an answer never changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from dataservice.dispatcher.events import Event
from dataservice.dispatcher.resumption import SavedPosition
from dataservice.dispatcher.round_table import Block
from dataservice.dispatcher.suspicion import Quarantined
from dataservice.job_options import DEFAULT_OPTIONS, JobOptions
from dataservice.ranges import Consumed, RowMark
from dataservice.sharding import Window
from dataservice.vocabulary import (
    DatasetId,
    IterationId,
    JobId,
    ReaderId,
    ShardingPolicy,
    WorkerId,
)


class Decision(NamedTuple):
    """Facts to record and apply, in this order, and the reply to give once they are durable."""

    events: tuple[Event, ...]
    reply: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterDataset:
    """Asks to register a dataset.

    With `dataset_id` None the dispatcher picks a number. An empty `fingerprint` fits every plan.
    """

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
    """Asks to join, or to begin, a repetition of a job as reader `reader_id`.

    `job_id` and `iteration_id` are used if the job or the iteration has yet to be created.
    `program_age_s` is how long the reader's process has run; `dataset_age_s` how long it has had
    the dataset object, 0 if it has read this repetition through that object before. `opened_s` is a
    time of day. `fingerprint` is that of the plan which the reader knows by this dataset id; an
    empty one fits every plan. With `restores` the reader reads nothing before it goes to a saved
    position, which it may have yet to load. `silent` are the readers that may be lost: nobody at
    all was heard, so the dispatcher may have been cut off.
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
    silent: frozenset[ReaderId] = frozenset()


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
    """A consumer's progress under `version` of the round table, and how many rounds it asks ahead.

    `sought` is the round at which a loaded position tells it to go on, even if other readers have
    consumed the rounds before. `roll` is the latest roll call that it knows of, and for which it
    has stopped.
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
    """The workers that give the rounds from `begin` on, and which rounds may be handed out.

    `missing` consumers have no reader; `late` consumers have received fewer rounds than the one
    that asks, or have yet to stop for the roll call `roll`.
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
    """A window that a worker runs for a reader, from output row `start_row` on."""

    window_index: int
    generation: int
    start_row: int
    epoch: int
    window: Window


class LeaseAnswer(NamedTuple):
    """Granted leases; with `ended` there will never be another window for this reader.

    A `pause_s` above 0 means that no more requests may wait: ask again after this time.
    """

    leases: tuple[Lease, ...]
    ended: bool
    pause_s: float = 0.0


class OpenAnswer(NamedTuple):
    """The iteration that a reader has joined; a static policy sets `num_shards` and `listing`.

    `notice` is a text for people about programs that read the repetition before.
    """

    job_id: JobId
    iteration_id: IterationId
    dataset_id: DatasetId
    num_shards: int = 0
    listing: str = ""
    notice: str = ""
    division: str = ""


class PositionAnswer(NamedTuple):
    """What was consumed, except by readers that are there (`base`), and these readers."""

    base: Consumed
    readers: tuple[ReaderId, ...]


class SyncAnswer(NamedTuple):
    """Leases that the reader has to release (`fences`), and what is left for it.

    `ended`: this reader receives nothing more unless another reader gives windows back; in an
    iteration without windows that holds once all of its streams have ended. `missing` describes
    the absent workers whose shards are due, `awaited` the readers whose saved positions have yet to
    be loaded, `quarantined` the windows that were given up. `is_leased`: a window is leased for
    this reader, so rows, or the break of a stream, come before anything else.
    """

    fences: tuple[RowMark, ...]
    ended: bool
    iteration_finished: bool
    missing: tuple[str, ...] = ()
    awaited: tuple[str, ...] = ()
    quarantined: tuple[Quarantined, ...] = ()
    is_leased: bool = False


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """A worker's place on the fixed list; `count` places exist, 0 if there is no list."""

    index: int
    count: int
