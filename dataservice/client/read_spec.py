"""What a reader of the data service reads, and the requests that ask for it.

Responsible for the messages that a spec turns into. Holds values only: knows no threads and no
connections. Invariant: a spec never changes; every open request made from it is for a new reader.
"""

from __future__ import annotations

from dataclasses import dataclass

from dataservice.client.connection import DEFAULT_TIMEOUT_S
from dataservice.client.positions import ReaderPosition, position_message
from dataservice.job_options import DEFAULT_OPTIONS, JobOptions
from dataservice.runtime.identity import new_id
from dataservice.vocabulary import EXACTLY_ONCE, ShardingPolicy
from dataservice.wire import dispatcher_pb2 as pb

# Room for a whole frame of 16 elements while a third of the buffer is still taken.
DEFAULT_BUFFERED_ELEMENTS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSpec:
    """What one reader reads and how.

    `timeout_s` bounds each of these waits: for the dispatcher when opening, for the one worker that
    has a static share, for any worker while there is none, for workers that cannot be reached
    before the first rows, for the other readers of a job that goes on from saved positions, and
    for a consumer that is missing from coordinated reads. `owner` names who will tell the
    dispatcher what became of the reader's rows if the reader is lost; with "" they go to other
    readers. `position` is where this reader goes on. `protocol` is how elements travel, None for
    the fastest way to each worker.
    `registered` is the fingerprint under which the dataset was registered. `made_s` is the
    monotonic time at which this program made the dataset, None if the program has already read the
    repetition through this dataset. `restores` says that a position is restored before anything is
    read.
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
    timeout_s: float = DEFAULT_TIMEOUT_S
    owner: str = ""
    position: ReaderPosition | None = None
    made_s: float | None = None
    restores: bool = False

    @property
    def has_windows(self) -> bool:
        """True if rows are counted by window, and readers share the windows."""
        return self.policy is ShardingPolicy.DYNAMIC

    @property
    def counts_tasks(self) -> bool:
        """True if rows are counted by task: no other reader can get rows of the job's tasks."""
        has_tasks = not self.has_windows and not self.options.num_consumers
        return has_tasks and self.job_name is None


def open_request(spec: ReadSpec) -> pb.OpenIterationRequest:
    """Returns a request to join the iteration of `spec` as a new reader."""
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
