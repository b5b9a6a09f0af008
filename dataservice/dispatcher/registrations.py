"""The values that are registered with a dispatcher: datasets and workers.

Pure. Knows nothing of jobs. Invariant: a registered value never changes.
"""

from __future__ import annotations

from dataclasses import dataclass

from dataservice.vocabulary import DatasetId, WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """A registered plan, which is opaque here and never unpickled in this process.

    `fingerprint` is equal for plans that the same program makes; "" if it is not known.
    """

    dataset_id: DatasetId
    plan: bytes
    schema: bytes
    cardinality: int
    compression: str
    fingerprint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    worker_id: WorkerId
    address: str
    host: str
    pid: int
    host_id: str = ""
