"""Reads one iteration of a job: elements from all its workers, every row once.

Responsible for the threads: one per worker stream fills a bounded buffer, one talks to the
dispatcher, any number take elements. Knows no pipelines. Invariant: an element that the tracker
accepted reaches a taker, unless the reader is closed first.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterable, Sequence

import pyarrow as pa

from dataservice.client import quarantine
from dataservice.client.buffer import ElementBuffer
from dataservice.client.cutting import TakenElement, cut, new_rows
from dataservice.client.joined_iteration import RELEASE_TIMEOUT_S, JoinedIteration
from dataservice.client.pacing import Pacing
from dataservice.client.read_spec import ReadSpec
from dataservice.client.sequence import Sequencer
from dataservice.client.session import Call, ReadSession
from dataservice.client.statistics import ReadStatistics
from dataservice.client.streams import StreamTable, stop_threads
from dataservice.client.targets import Targets
from dataservice.client.tasks import TaskMark, TaskTracker
from dataservice.client.wait_limits import ReaderWaits
from dataservice.client.worker_stream import StreamEvents, WorkerStream, failure_of
from dataservice.config import DEFAULT_BUFFER_BYTES, DEFAULT_DISPATCHER_TIMEOUT_MS
from dataservice.dataset.columns import encoded_bytes
from dataservice.dataset.omission_log import OmissionLog
from dataservice.errors import CancelledError, DataServiceError
from dataservice.ranges import Consumed, RowMark
from dataservice.runtime.exchanges.in_process import is_served_here
from dataservice.runtime.identity import host_identity
from dataservice.runtime.process.interrupts import NO_INTERRUPTS, HeldInterrupts
from dataservice.runtime.threads import StoppableThread
from dataservice.vocabulary import ShardingPolicy
from dataservice.wire import dispatcher_pb2 as pb
from dataservice.wire.bookmarks import decode_bookmark
from dataservice.wire.elements import Header, RowSpan

logger = logging.getLogger(__name__)

# Elements in flight from one worker, which may come as one frame. Few enough to fit into the buffer
# while a third of it is taken, and enough to hide the round trip.
MAX_CREDIT = 16
_TAKE_POLL_S = 1.0


class ServiceReader:
    """A reader of one iteration. Thread safe; must be closed, also after an error."""

    def __init__(
        self,
        spec: ReadSpec,
        omissions: OmissionLog | None = None,
        interrupts: HeldInterrupts = NO_INTERRUPTS,
    ) -> None:
        """Joins; `interrupts` may end the wait for that. `omissions` records what is left out."""
        self._spec = spec
        self.statistics = ReadStatistics(omissions)
        self._buffer: ElementBuffer[TakenElement] = ElementBuffer(
            spec.max_elements, DEFAULT_BUFFER_BYTES
        )
        self._lock = threading.Lock()
        self._wakeup = threading.Condition(self._lock)
        self._closed = False
        self._failure: DataServiceError | None = None
        self._sleeps_until_s = 0.0
        self._targets = Targets(spec.options, spec.policy, host_identity())
        self.iteration = JoinedIteration(spec, interrupts)
        try:
            self._targets.narrow(self.iteration.joined)
            self._sequencer = self._new_sequencer()
        except BaseException:
            self.iteration.close()
            raise
        self.notice = self.iteration.joined.notice  # to be logged with the first element taken
        # In all other cases the reader is alone, or leases say who has which rows.
        self._shares_tasks = not (spec.has_windows or spec.trainer_id or spec.job_name is None)
        self._tasks = self._new_tasks()
        self._session = self._new_session()
        # Taken before `_lock`, so that elements enter the buffer in their order.
        self._emitting = threading.Lock()
        here = socket.gethostname() if self._targets.only_local else None
        self._waits = ReaderWaits(spec.target, spec.timeout_s, here)
        self._thread = StoppableThread(
            self._synchronise,
            owner=f"reader {self.iteration.reader_id}",
            name="sync",
            on_failure=self._on_failure,
        )
        with self._lock:
            self._session.begin(self.iteration.joined, time.monotonic())
        self._thread.start()

    def _new_tasks(self) -> TaskTracker | None:
        if not self._spec.counts_tasks:
            return None
        position = self._spec.position
        if position is None:
            return TaskTracker(self._spec.policy)
        return TaskTracker(self._spec.policy, position.tasks, varied=position.varied)

    def _new_session(self) -> ReadSession:
        pacing = Pacing(self.iteration.heartbeat_s, time.monotonic())
        return ReadSession(
            self._spec,
            self.iteration.reader_id,
            self.iteration.id,
            StreamTable(self._open_stream),
            pacing,
            tasks=self._tasks,
            is_in_process=is_served_here,
        )

    def _new_sequencer(self) -> Sequencer | None:
        if not self._spec.options.ordered:
            return None
        position = self._spec.position
        chunk_rows = 0 if position is None else position.chunk_rows
        return Sequencer(self.iteration.base()[0], chunk_rows)

    @property
    def chunk_rows(self) -> int:
        """The number of rows at whose multiples an ordered reader cuts windows; 0 for none yet."""
        return 0 if self._sequencer is None else self._sequencer.chunk_rows

    # Taking

    def take(self, interrupts: HeldInterrupts = NO_INTERRUPTS) -> TakenElement | None:
        """Returns the next element, or None if nothing is left for this reader at present.

        Blocks; an interrupt from `interrupts` may end the wait, and loses no element. If a worker's
        pipeline or the dispatcher failed, raises that error once and closes the reader. A closed
        reader raises CancelledError.
        """
        started_s = time.monotonic()
        taken = self._buffer.get(0.0) if self._failure is None else None
        if taken is None:
            taken = self._wait_for_element(interrupts)
            self.statistics.record_wait(time.monotonic() - started_s)
        if taken is None:
            return None
        with self._lock:
            self._session.record_taken()
            self._wake_if_idle()  # it may have been all that another thread could wait for
        if taken.stream is not None:
            taken.stream.record_taken(taken.spans)
        self.statistics.record_element(taken.batch.num_rows, taken.size_bytes)
        return taken

    def acknowledge(self, spans: Sequence[RowSpan]) -> None:
        """Marks rows as consumed: none of them will be delivered again."""
        with self._lock:
            self._session.consume(spans)
            self._wake_if_idle()
            self._wake_to_report()

    def marks_if_consumed(self, spans: Sequence[RowSpan]) -> tuple[RowMark, ...]:
        """Returns the marks to report to the dispatcher if these rows are consumed too."""
        with self._lock:
            return self._session.marks_if_consumed(spans)

    @property
    def is_over(self) -> bool:
        """True if an end is final; in a shared job, rows that others give back may still come."""
        return self._spec.job_name is None or self._session.is_finished

    def consumed(self) -> Consumed:
        """Returns what was acknowledged here since the reader was opened."""
        with self._lock:
            return self._session.consumed()

    def tasks(self, later: Iterable[Sequence[RowSpan]]) -> tuple[TaskMark, ...]:
        """Returns the acknowledged rows of each task, without the rows in `later`.

        Returns an empty tuple if the reader does not count rows by task.
        """
        with self._lock:
            return () if self._tasks is None else self._tasks.marks(later)

    def _wait_for_element(self, interrupts: HeldInterrupts) -> TakenElement | None:
        with self._lock:
            self._session.begin_wait()
            self._wake_if_idle()
        try:
            while True:
                wakes = self._buffer.wakes  # before the checks, or news that follow would be missed
                interrupts.let_through()
                self._check()
                with self._lock:
                    has_ended = self._session.take_end()
                if has_ended:
                    self._check()
                    return None
                taken = self._buffer.get(interrupts.poll_s(_TAKE_POLL_S), wakes)
                if taken is not None:
                    return taken
        finally:
            with self._lock:
                self._session.end_wait()

    def _check(self) -> None:
        with self._lock:
            failure, self._failure, closed = self._failure, None, self._closed
        if failure is not None:
            self.close()
            raise failure
        if closed:
            raise CancelledError("the iterator is closed; call iter() on the dataset again")

    # Streams

    def _open_stream(self, worker_id: str, address: str) -> WorkerStream:
        stream = WorkerStream(
            worker_id,
            address,
            {
                **self.iteration.stream_command(),
                **({} if self._tasks is None else self._tasks.stream_command(worker_id)),
                "trainer": self._spec.trainer_id,
                "shards": self.iteration.num_shards,
                "listing": self.iteration.joined.listing,
                "confirm_end": self._spec.policy is not ShardingPolicy.DYNAMIC,
                "credit": max(2, min(MAX_CREDIT, self._spec.max_elements * 2 // 3)),
            },
            self.iteration.schema,
            StreamEvents(
                on_open=self.statistics.record_protocol,
                on_frame=self._on_frame,
                on_broken=self._on_broken,
                on_failure=self._on_failure,
                on_end=self._on_end,
                on_missed=self.statistics.record_missed,
                on_omitted=self.statistics.omissions.record_all,
                on_bookmark=self._on_bookmark,
            ),
            token=self.iteration.connection.token,
            tls=self.iteration.connection.tls,
            protocol=self._spec.protocol,
        )
        stream.start()
        return stream

    def _on_frame(
        self, stream: WorkerStream, header: Header, batch: pa.RecordBatch | None, size_bytes: int
    ) -> None:
        if self._sequencer is not None:
            with self._emitting:
                self._put_in_turn(self._sequencer, stream, header, batch)
            return
        with self._lock:
            if stream.is_dropped():
                return
            accepted = self._session.accept(stream, header)
            self._wake_if_idle()
            self._wake_to_report()  # a frame without rows counts as consumed
        if batch is None or not accepted.slices:
            return
        row_bytes = size_bytes / max(1, header.rows)
        rows = new_rows(batch, header, accepted)
        origin = stream if self._shares_tasks else None
        elements = [
            TakenElement(element, spans, round(row_bytes * element.num_rows), origin)
            for element, spans in cut(rows, accepted.spans, header.element_rows)
        ]
        self._pass_on(elements)

    def _put_in_turn(
        self,
        sequencer: Sequencer,
        stream: WorkerStream,
        header: Header,
        batch: pa.RecordBatch | None,
    ) -> None:
        """Passes on the elements whose turn has come with this frame; waits for room if need be."""
        with self._lock:
            if stream.is_dropped():
                return
            accepted = self._session.accept(stream, header)
            rows = None if batch is None else new_rows(batch, header, accepted)
            chunks = sequencer.add(accepted.spans, rows)
            self._session.record_sequenced(len(chunks), waits=sequencer.holds_anything)
            self._wake_if_idle()
            self._wake_to_report()  # a frame without rows counts as consumed
        elements = [
            TakenElement(chunk.batch, (chunk.span,), encoded_bytes(chunk.batch)) for chunk in chunks
        ]
        self._pass_on(elements)

    def _pass_on(self, elements: Sequence[TakenElement]) -> None:
        """Stores elements in the buffer; returns when it is time to receive more."""
        self._buffer.put((taken, taken.size_bytes) for taken in elements)
        self._buffer.await_low()

    def _on_bookmark(self, encoded: bytes) -> None:
        task, bookmark = decode_bookmark(encoded)
        with self._lock:
            if self._tasks is not None:
                self._tasks.record_bookmark(task, bookmark)

    def _on_end(self, stream: WorkerStream) -> None:
        with self._lock:
            self._session.record_end(stream)
            self._wakeup.notify_all()

    def _on_broken(self, stream: WorkerStream, error: DataServiceError) -> None:
        logger.info("the stream from worker %s broke: %s", stream.address, error)
        with self._lock:
            may_retry = self._session.record_broken(stream, error, time.monotonic())
            self._wakeup.notify_all()
        if not may_retry:
            self._on_failure(error)

    def _on_failure(self, error: BaseException) -> None:
        with self._lock:
            self._failure = self._failure or failure_of(error)
        self._buffer.wake()

    # Talking to the dispatcher

    def _synchronise(self, stop: threading.Event) -> None:
        while not stop.is_set():
            with self._lock:
                self._sleep_until_due(stop)
                call = self._session.prepare_call(self.statistics)
            if stop.is_set():
                return
            try:
                reply = self.iteration.connection.sync(
                    call.request,
                    timeout_s=DEFAULT_DISPATCHER_TIMEOUT_MS / 1_000,
                    should_stop=stop.is_set,
                )
                self._targets.narrow(reply)
            except CancelledError:
                return
            except DataServiceError as error:
                self._on_failure(error)
                return
            has_ended = self._apply_reply(call, reply, time.monotonic())
            absence = self._absence(reply)
            if absence is not None:
                self._on_failure(absence)
                return
            if has_ended or self._failure is not None:
                self._buffer.wake()

    def _sleep_until_due(self, stop: threading.Event) -> None:
        while not stop.is_set():
            now_s = time.monotonic()
            left_s = self._session.time_to_call(now_s)
            if left_s <= 0:
                return
            self._sleeps_until_s = now_s + left_s
            self._wakeup.wait(left_s)

    def _apply_reply(self, call: Call, reply: pb.SyncReply, now_s: float) -> bool:
        """Applies a reply and returns whether the end has come.

        Sets the reader's failure if windows in quarantine are missing that may not be left out.
        """
        with self._lock:
            has_ended = not self._closed and self._session.apply_reply(call, reply, now_s)
            lack = (reply.quarantined, self._spec.options, self.statistics.omissions)
            self._failure = self._failure or quarantine.check_quarantined(
                *lack, has_ended=has_ended
            )
        return has_ended

    def _absence(self, reply: pb.SyncReply) -> DataServiceError | None:
        """Returns the error to fail with if workers or other readers were missing for too long."""
        with self._lock:
            waits = self._session.is_waited_on()
            has_workers = bool(self._session.workers.addresses)
            unreachable = self._session.out_of_reach() if waits else {}
        return self._waits.check(
            reply,
            waits=waits,
            has_workers=has_workers,
            unreachable=unreachable,
            rows=self.statistics.rows,
            now_s=time.monotonic(),
        )

    def _wake_if_idle(self) -> None:
        # Only if idle: a switch to that thread for every element would cost more than the element.
        if self._session.is_idle():
            self._wakeup.notify_all()

    def _wake_to_report(self) -> None:
        # Once for all that is consumed until then.
        if self._session.must_report_before(self._sleeps_until_s):
            self._sleeps_until_s = 0.0
            self._wakeup.notify_all()

    # The end

    def close(self) -> None:
        """Gives unconsumed rows to other readers and ends all threads. Idempotent; time-bounded."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._thread.request_stop()
            streams = self._session.streams.all()
            request = self._session.release_request(self.statistics)
            self._wakeup.notify_all()
        # Before the streams end, since from then on other readers may get what was not taken.
        deadline_s = time.monotonic() + RELEASE_TIMEOUT_S
        for stream in streams:
            stream.leave(max(0.0, deadline_s - time.monotonic()))
        for stream in streams:
            stream.drop()
        self._buffer.close()
        with self.iteration.leaving() as connection:
            connection.release_reader(request, timeout_s=RELEASE_TIMEOUT_S)
        stop_threads(self._thread, streams, RELEASE_TIMEOUT_S)
