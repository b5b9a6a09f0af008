"""What a reader of the data service wants to read, and how that is asked of the dispatcher.

Values only. Invariant: a spec never changes; every request made of it is a reader of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dataservice.client.connection import DEFAULT_TIMEOUT_S
from dataservice.client.positions import ReaderPosition, position_message
from dataservice.config import DEFAULT_BUFFER_BYTES
from dataservice.job_options import DEFAULT_OPTIONS, JobOptions
from dataservice.runtime.identity import new_id
from dataservice.vocabulary import EXACTLY_ONCE, ShardingPolicy
from dataservice.wire import dispatcher_pb2 as pb

# A frame of them, and a third that may be left when it comes.
DEFAULT_BUFFERED_ELEMENTS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSpec:
    """What to read and how.

    `timeout_s` bounds the wait for the dispatcher when opening, for a worker that alone has a
    static share, for any worker while there is none, and for the other readers of a job that goes
    on from saved positions. `owner` will say what became of the reader's rows should it be lost;
    "": nobody will, they go to other readers. `position` is where this reader goes on.
    `protocol`: how elements travel, None for the best way to each worker. `registered` is the
    fingerprint under which the dataset was registered. `made_s`: when this program made the
    dataset, by the monotonic clock; None where it has read the repetition by it before. `restores`:
    nothing is read before it goes to a position.
    """

    target: str
    dataset_id: str
    policy: ShardingPolicy
    registered: str = ""
    job_name: str | None = None
    repetition: int = 0
    delivery: str = EXACTLY_ONCE
    options: JobOptions = DEFAULT_OPTIONS
    consumer_index: int = -1
    trainer_id: str = ""
    protocol: str | None = None
    max_elements: int = DEFAULT_BUFFERED_ELEMENTS
    buffer_bytes: int = DEFAULT_BUFFER_BYTES
    timeout_s: float = DEFAULT_TIMEOUT_S
    token: str | None = None
    owner: str = ""
    position: ReaderPosition | None = None
    made_s: float | None = None
    restores: bool = False

    @property
    def has_windows(self) -> bool:
        """Whether rows are counted in windows, which readers share."""
        return self.policy is ShardingPolicy.DYNAMIC

    @property
    def counts_tasks(self) -> bool:
        """Whether no other reader can have rows of the tasks that workers make of the job."""
        has_tasks = not self.has_windows and not self.options.num_consumers
        return has_tasks and self.job_name is None


def open_request(spec: ReadSpec) -> pb.OpenIterationRequest:
    """Asks to join what is to be read, as a reader of its own."""
    return pb.OpenIterationRequest(
        dataset_id=spec.dataset_id,
        policy=int(spec.policy),
        job_name=spec.job_name,
        repetition=spec.repetition,
        delivery=spec.delivery,
        options=pb.JobOptions(**spec.options.to_json()),
        reader_id=new_id("reader"),
        consumer_index=spec.consumer_index,
        position=position_message(spec.position),
        owner=spec.owner,
        fingerprint=spec.registered,
        restores=spec.restores,
    )


def stream_command(spec: ReadSpec, joined: pb.OpenIterationReply) -> dict[str, Any]:
    """Tells a worker whose rows of what it is to send; more is said by kind of reader."""
    return {
        "iteration": joined.iteration_id,
        "reader": joined.reader_id,
        "dataset": joined.dataset_id or spec.dataset_id,
        "policy": int(spec.policy),
        "epoch": spec.repetition,
        "options": spec.options.to_json(),
    }
