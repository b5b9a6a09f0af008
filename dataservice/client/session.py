"""The protocol state of one reader: what it received, and what its next call reports.

Responsible for deciding when the reader is idle, when the end has come, and what a call to the
dispatcher says. Knows no threads, no network and no clock: the reader's lock guards it and the
reader passes the time in. Invariant: the end is announced only when every accepted element was
taken and no stream may still deliver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from dataservice.client.fan_in import FanIn
from dataservice.client.known_workers import KnownWorkers
from dataservice.client.pacing import Pacing
from dataservice.client.read_spec import ReadSpec
from dataservice.client.statistics import ReadStatistics
from dataservice.client.streams import Slot, StreamTable
from dataservice.client.tasks import TaskTracker
from dataservice.client.tracker import Accepted, Tracker
from dataservice.client.worker_stream import WorkerStream
from dataservice.errors import DataServiceError
from dataservice.ranges import Consumed, RowMark
from dataservice.wire import dispatcher_pb2 as pb
from dataservice.wire.elements import Header, RowSpan, elements_in

# The readers of a job join one after the other. Each waits this long before it reads from more
# workers than it would in a job of many readers; otherwise the first readers would keep streams to
# all workers for the whole epoch.
SETTLE_S = 0.5


class Call(NamedTuple):
    """The content of a call to the dispatcher, kept to be confirmed when the reply arrives."""

    request: pb.SyncRequest
    marks: tuple[RowMark, ...]
    releases: tuple[RowMark, ...]
    broken: tuple[Slot[WorkerStream], ...]


class ReadSession:
    """The protocol state of one reader. Not thread safe."""

    def __init__(
        self,
        spec: ReadSpec,
        reader_id: str,
        iteration_id: str,
        streams: StreamTable[WorkerStream],
        pacing: Pacing,
        *,
        tasks: TaskTracker | None = None,
        is_in_process: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """Begins without streams; `begin` opens them.

        `tasks` is given for a reader that is alone in an iteration without windows.
        `is_in_process`: see `FanIn`.
        """
        self._spec = spec
        self.reader_id = reader_id
        self.iteration_id = iteration_id
        self.streams = streams
        self.workers = KnownWorkers()
        self._fan_in = FanIn(reader_id, is_in_process)
        self._settled_s = float("-inf")
        # Trainers that share a cache are given elements, not windows.
        self._has_windows = spec.has_windows and not spec.trainer_id
        self._pacing = pacing
        self._tracker = Tracker()
        self._tasks = tasks
        self._outstanding = 0
        self._waits_for_turn = False
        self._takers = 0
        self._urgent = False
        self._is_leased = False  # by the last reply, unless something came while it was on its way
        self._has_arrived = False  # since the last call
        self._ended = False
        self._finished = False

    # What comes in and goes out

    def accept(self, stream: WorkerStream, header: Header) -> Accepted:
        """Returns what is new in a frame.

        `record_taken` must follow for each element with new rows. Raises DataLossError if rows
        before the frame are missing.
        """
        accepted = self._receive(stream.worker_id, header)
        self._ended = False
        self.streams.record_frame(stream, more_follows=header.more_follows)
        self._record_arrival()
        if accepted.slices and header.rows:
            if not self._spec.options.ordered:
                self._outstanding += elements_in(accepted.rows, header.element_rows)
        else:
            self.consume(accepted.spans)
        return accepted

    def _receive(self, worker_id: str, header: Header) -> Accepted:
        if self._tasks is not None:
            return self._tasks.receive(worker_id, header.spans)
        return self._tracker.receive(worker_id, header.spans, divisible=header.divisible)

    def record_sequenced(self, ready: int, *, waits: bool) -> None:
        """Records that the turn of `ready` more elements came; `waits`: others are held back."""
        self._outstanding += ready
        self._waits_for_turn = waits

    def record_taken(self) -> None:
        """Records that an accepted element was taken."""
        self._outstanding -= 1

    def consume(self, spans: Iterable[RowSpan]) -> None:
        """Marks accepted rows as consumed."""
        if self._tasks is not None:
            self._tasks.consume(spans)
        else:
            self._tracker.consume(spans)

    def marks_if_consumed(self, spans: Iterable[RowSpan]) -> tuple[RowMark, ...]:
        """Returns the marks to report if these rows are consumed too."""
        return self._tracker.marks_if_consumed(spans)

    def begin_wait(self) -> None:
        """Notes that a taker found no element and waits."""
        self._takers += 1

    def end_wait(self) -> None:
        """Notes that a taker stopped waiting."""
        self._takers -= 1

    def is_waited_on(self) -> bool:
        """True if a taker waits and there is no element for it."""
        return self._takers > 0 and not self._outstanding and not self._finished

    def out_of_reach(self) -> dict[str, str]:
        """Returns the addresses of workers that this reader needs but cannot reach, and why."""
        if self._has_windows and self.streams.can_reach_some():
            return {}  # the workers within reach do the work of all
        return self.streams.unreachable()

    def take_end(self) -> bool:
        """Returns whether the end was announced, and forgets it, so that the next taker asks anew.

        The end of a finished iteration is not forgotten.
        """
        if self._outstanding or self._waits_for_turn:
            return False
        ended, self._ended = self._ended, False
        if ended:
            self._pacing.record_end()
        return ended or self._finished

    @property
    def is_finished(self) -> bool:
        """True if the whole iteration is done, for all of its readers; once true, stays true."""
        return self._finished

    def record_end(self, stream: WorkerStream) -> None:
        """Records that a worker has nothing more."""
        self.streams.record_end(stream)
        if self._tasks is not None:
            self._tasks.record_end(stream.worker_id)
        self._record_arrival()

    def _record_arrival(self) -> None:
        # What is leased may have come: a reply that says otherwise was made before.
        self._is_leased, self._has_arrived = False, True
        self._pacing.record_arrival()

    def record_broken(self, stream: WorkerStream, error: DataServiceError, now_s: float) -> bool:
        """Records a lost stream; returns False if too many streams were damaged to try again."""
        self._tracker.fence_source(stream.worker_id)
        self._urgent = True
        return self.streams.record_broken(stream, error, now_s)

    def begin(self, joined: pb.OpenIterationReply, now_s: float) -> None:
        """Takes in the reply to joining and opens streams to all workers, or to some of many."""
        self.workers.replace(joined.workers, joined.members_version)
        self._fan_in.readers = joined.readers
        if self._spec.job_name is not None and not self._spec.options.ordered:
            self._settled_s = now_s + SETTLE_S
        self._pacing.record_interval(joined.heartbeat_interval_ms / 1_000)
        self._update_streams(now_s)

    def _update_streams(self, now_s: float) -> None:
        if self._finished:
            return
        if self._tasks is not None:
            self._tasks.assign_passes(self.workers.addresses)
        addresses = self.workers.addresses
        if self._has_windows:
            self._fan_in.is_settled = now_s >= self._settled_s
            addresses = self._fan_in.choose(addresses, self.streams.count_failing())
        self.streams.update(addresses, now_s)

    # What to report

    def is_idle(self) -> bool:
        """True if a taker waits and nothing that the reader knows of is in flight."""
        if not self._takers or self._outstanding or self._waits_for_turn or self._finished:
            return False
        if self._has_windows:
            return self._tracker.is_quiet() and not self.streams.have_announced_frames()
        return self.streams.are_done()

    def time_to_call(self, now_s: float) -> float:
        """Returns the seconds until the dispatcher should be called."""
        due_s = self._pacing.due_s(
            urgent=self._urgent or bool(self._tracker.releases()),
            idle=self.is_idle(),
            has_unreported=self._tracker.has_unreported(),
            patient=self._is_patient(),
        )
        return due_s - now_s

    def _is_patient(self) -> bool:
        """True if rows of a leased window come next, and no reply is needed for opening streams."""
        return self._is_leased and self._fan_in.is_settled and not self.streams.await_reopening()

    def must_report_before(self, time_s: float) -> bool:
        """True if consumed rows are to be reported to the dispatcher before this time."""
        return self._pacing.report_s < time_s and self._tracker.has_unreported()

    def prepare_call(self, statistics: ReadStatistics) -> Call:
        """Returns a call with everything that was not reported to the dispatcher yet."""
        idle = self.is_idle()
        if idle:
            self._tracker.release_received()
        marks, releases = self._tracker.marks(), self._tracker.releases()
        broken = self.streams.unreported()
        self._urgent = self._has_arrived = False
        request = pb.SyncRequest(
            reader_id=self.reader_id,
            iteration_id=self.iteration_id,
            consumed=[_to_wire(mark) for mark in marks],
            released=[_to_wire(mark) for mark in releases],
            broken_worker_ids=[slot.stream.worker_id for slot in broken],
            idle=idle,
            rows_consumed=statistics.rows,
            wait_share=statistics.take_wait_share(),
            trainer_id=self._spec.trainer_id,
            elements_missed=statistics.missed,
            omitted=pb.Omitted(**statistics.omissions.total().to_json()),
            members_known=self.workers.version,
        )
        return Call(request, marks, releases, broken)

    def apply_reply(self, call: Call, reply: pb.SyncReply, now_s: float) -> bool:
        """Applies the reply to a call; returns whether the end has come."""
        was_idle = call.request.idle
        self._tracker.confirm(call.marks, call.releases)
        for slot in call.broken:
            slot.is_reported = True
        for mark in reply.fences:
            self._tracker.fence(mark.window, mark.generation, mark.row)
        self.workers.apply(reply)
        self._fan_in.readers = reply.readers
        self._is_leased = reply.is_leased and not self._has_arrived
        if was_idle and reply.ended and self.is_idle() and self._has_all():
            self._ended = True
        if reply.iteration_finished and not self._outstanding and self._nothing_can_come():
            self._finished = True
        self._pacing.record_call(now_s, idle=was_idle)
        self._pacing.record_interval(reply.heartbeat_interval_ms / 1_000)
        self._update_streams(now_s)
        return self._ended or self._finished

    def consumed(self) -> Consumed:
        """Returns what this reader consumed."""
        return self._tracker.consumed()

    def release_request(self, statistics: ReadStatistics) -> pb.ReleaseReaderRequest:
        """Returns the reader's last call, after which its unconsumed rows go to other readers."""
        return pb.ReleaseReaderRequest(
            reader_id=self.reader_id,
            iteration_id=self.iteration_id,
            consumed=[_to_wire(mark) for mark in self._tracker.all_marks()],
            omitted=pb.Omitted(**statistics.omissions.total().to_json()),
        )

    def _nothing_can_come(self) -> bool:
        """True if a finished iteration brings no more elements.

        Finished windows were consumed, but elements of finished tasks may still be in flight.
        """
        return self._has_windows or self.streams.are_done()

    def _has_all(self) -> bool:
        """True if no worker has anything more for this reader.

        Without windows only the end of a stream tells that its worker has nothing more.
        """
        return self._has_windows or self.streams.have_ended(self.workers.addresses)


def _to_wire(mark: RowMark) -> pb.Mark:
    return pb.Mark(window=mark.window, generation=mark.generation, row=mark.row, final=mark.final)
