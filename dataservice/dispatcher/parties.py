"""What registers with a dispatcher: datasets and workers, as frozen values.

Pure. Knows nothing of jobs. Invariant: what is said of one of them here never changes.
"""

from __future__ import annotations

from dataclasses import dataclass

from dataservice.vocabulary import DatasetId, WorkerId


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """A registered plan, opaque here; it is never unpickled in this process.

    `fingerprint` is equal for plans that the same program makes; "" when it is not known.
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
