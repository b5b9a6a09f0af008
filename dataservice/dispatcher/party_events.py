"""Facts about what registers with a dispatcher, datasets and workers: a part of `events`.

Pure: no clock, no random. Invariant: every field is one that the codec knows by its type.
"""

from __future__ import annotations

from dataclasses import dataclass

from dataservice.dispatcher.fact import Event
from dataservice.vocabulary import DatasetId, WorkerId


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
