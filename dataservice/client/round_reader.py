"""Reads as one consumer of coordinated reads: in each step, its own element of the common round.

Responsible for the threads: one per worker receives elements, one talks to the dispatcher, any
number take elements. Does not know which rounds may be handed out or asked for: the tracker decides
that. Invariant: rounds come in order, each with elements of one worker for all consumers; a wait
for other consumers is logged and has an end.
"""

from __future__ import annotations

import logging
import threading
import time

import pyarrow as pa

from dataservice.client.cutting import TakenElement
from dataservice.client.joined_iteration import (
    MAX_HEARTBEAT_S,
    RELEASE_TIMEOUT_S,
    JoinedIteration,
)
from dataservice.client.known_workers import KnownWorkers
from dataservice.client.read_spec import ReadSpec
from dataservice.client.round_stream import RoundStream
from dataservice.client.rounds import Answer, Block, Report, RoundPacing, RoundTracker
from dataservice.client.statistics import ReadStatistics
from dataservice.client.streams import Slot, StreamTable, stop_threads
from dataservice.client.wait_limits import (
    MissingConsumersWait,
    NoWorkerWait,
    UnreachableWorkersWait,
)
from dataservice.client.worker_stream import (
    StreamEvents,
    WorkerStream,
    failure_of,
)
from dataservice.config import DEFAULT_BUFFER_BYTES, DEFAULT_DISPATCHER_TIMEOUT_MS
from dataservice.errors import CancelledError, DataServiceError
from dataservice.runtime.process.interrupts import NO_INTERRUPTS, HeldInterrupts
from dataservice.runtime.threads import StoppableThread
from dataservice.wire import dispatcher_pb2 as pb
from dataservice.wire.elements import Header

logger = logging.getLogger(__name__)

_TAKE_POLL_S = 1.0
# Within this time all present consumers have stopped, as each calls the dispatcher at least once
# in half of it.
_ALIGN_S = 2 * MAX_HEARTBEAT_S


class RoundReader:
    """One consumer. Thread safe; must be closed, also after an error.

    Once it exists, the consumers that are present take nothing more until all go on together,
    unless the dispatcher or one of them does not answer for seconds.
    """

    def __init__(self, spec: ReadSpec, interrupts: HeldInterrupts = NO_INTERRUPTS) -> None:
        """Joins, and waits until the present consumers stop; `interrupts` may end the joining."""
        self._spec = spec
        self.statistics = ReadStatistics()
        self._lock = threading.Lock()
        self._arrivals = threading.Condition(self._lock)
        self._wakeup = threading.Condition(self._lock)
        self._closed = False
        self._failure: DataServiceError | None = None
        self._takers = 0
        self._has_aligned = False
        self._sleeps_until_s = 0.0
        self._tracker: RoundTracker[TakenElement] = RoundTracker(
            spec.max_elements, DEFAULT_BUFFER_BYTES
        )
        self.iteration = JoinedIteration(spec, interrupts)
        notice = self.iteration.joined.notice
        if notice:
            logger.warning("%s", notice)
        self._workers = KnownWorkers()
        self._workers.replace(self.iteration.joined.workers, self.iteration.joined.members_version)
        self._streams: StreamTable[RoundStream] = StreamTable(self._open_stream)
        self._pacing = RoundPacing(self.iteration.heartbeat_s, time.monotonic())
        self._missing_consumers = MissingConsumersWait(
            spec.consumer_index, spec.options.num_consumers, spec.timeout_s
        )
        self._no_worker = NoWorkerWait(spec.target, spec.timeout_s)
        self._unreachable = UnreachableWorkersWait(spec.timeout_s)
        self._thread = StoppableThread(
            self._synchronise,
            owner=f"reader {self.iteration.reader_id}",
            name="sync",
            on_failure=self._on_failure,
        )
        self._thread.start()
        self._await_alignment()

    def _await_alignment(self) -> None:
        """Waits up to `_ALIGN_S` until the consumers that are present have stopped."""
        deadline_s = time.monotonic() + _ALIGN_S
        with self._lock:
            while not self._has_aligned and self._failure is None:
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    return
                self._arrivals.wait(left_s)

    # Taking

    def take(self, interrupts: HeldInterrupts = NO_INTERRUPTS) -> TakenElement:
        """Returns the element of the next round.

        Blocks until every consumer holds its element; an interrupt from `interrupts` may end the
        wait, and loses no element. If a worker's pipeline or the dispatcher failed, raises that
        error once and closes the reader. A closed reader raises CancelledError.
        """
        started_s = time.monotonic()
        with self._lock:
            taken = None if self._failure or self._closed else self._tracker.take()
            if taken is not None:
                self._wake_if_sooner()
        if taken is None:
            taken = self._wait_for_round(interrupts)
            self.statistics.record_wait(time.monotonic() - started_s)
        self.statistics.record_element(taken.batch.num_rows, taken.size_bytes)
        return taken

    def _wait_for_round(self, interrupts: HeldInterrupts) -> TakenElement:
        with self._lock:
            self._takers += 1
            try:
                while self._failure is None and not self._closed:
                    interrupts.let_through()
                    taken = self._tracker.take()
                    if taken is not None:
                        self._wake_if_sooner()
                        return taken
                    self._wake_if_sooner()
                    self._arrivals.wait(interrupts.poll_s(_TAKE_POLL_S))
            finally:
                self._takers -= 1
            failure, self._failure = self._failure, None
        if failure is None:
            raise CancelledError("the iterator is closed; call iter() on the dataset again")
        self.close()
        raise failure

    @property
    def next_round(self) -> int:
        """The number of the next round."""
        with self._lock:
            return self._tracker.next_round

    def seek(self, number: int) -> None:
        """Goes on at round `number`, or at a later one if the other consumers are further."""
        with self._lock:
            self._tracker.seek(number)
            self._wakeup.notify_all()

    # Streams

    def _open_stream(self, worker_id: str, address: str) -> RoundStream:
        stream = RoundStream(
            worker_id,
            address,
            {
                **self.iteration.stream_command(),
                "consumer": self._spec.consumer_index,
                "credit": 0,
            },
            self.iteration.schema,
            StreamEvents(
                on_open=self.statistics.record_protocol,
                on_frame=self._on_frame,
                on_broken=self._on_broken,
                on_failure=self._on_failure,
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
        (span,) = header.spans
        item = None if batch is None else TakenElement(batch, (span,), size_bytes)
        with self._lock:
            if stream.is_dropped():
                return
            self._streams.record_frame(stream)
            self._tracker.receive(stream.worker_id, span.window, span.generation, item, size_bytes)
            if self._takers and self._tracker.has_next():
                self._arrivals.notify_all()
            self._wake_if_sooner()

    def _on_broken(self, stream: WorkerStream, error: DataServiceError) -> None:
        logger.info("the stream from worker %s broke: %s", stream.address, error)
        with self._lock:
            self._tracker.forget_worker(stream.worker_id)
            may_retry = self._streams.record_broken(stream, error, time.monotonic())
            self._wakeup.notify_all()
        if not may_retry:
            self._on_failure(error)

    def _on_failure(self, error: BaseException) -> None:
        with self._lock:
            self._failure = self._failure or failure_of(error)
            self._arrivals.notify_all()

    # Talking to the dispatcher

    def _synchronise(self, stop: threading.Event) -> None:
        while not stop.is_set():
            with self._lock:
                self._sleep_until_due(stop)
                report, broken = self._tracker.report(), self._streams.unreported()
                request = self._request(report, broken)
            if stop.is_set():
                return
            try:
                reply = self.iteration.connection.sync_rounds(
                    request,
                    timeout_s=DEFAULT_DISPATCHER_TIMEOUT_MS / 1_000,
                    should_stop=stop.is_set,
                )
            except CancelledError:
                return
            except DataServiceError as error:
                self._on_failure(error)
                return
            with self._lock:
                if self._closed:
                    return
                failure = self._apply_reply(report, broken, reply, time.monotonic())
            if failure is not None:
                self._on_failure(failure)
                return

    def _request(
        self, report: Report, broken: tuple[Slot[RoundStream], ...]
    ) -> pb.SyncRoundsRequest:
        return pb.SyncRoundsRequest(
            reader_id=self.iteration.reader_id,
            iteration_id=self.iteration.id,
            broken_worker_ids=[slot.stream.worker_id for slot in broken],
            rows_consumed=self.statistics.rows,
            wait_share=self.statistics.take_wait_share(),
            members_known=self._workers.version,
            **report._asdict(),
        )

    def _apply_reply(
        self,
        report: Report,
        broken: tuple[Slot[RoundStream], ...],
        reply: pb.SyncRoundsReply,
        now_s: float,
    ) -> DataServiceError | None:
        """Applies a reply and asks workers for the rounds due; returns the error to fail with."""
        for slot in broken:
            slot.is_reported = True
        blocks = tuple(Block(b.first, b.end, b.worker_id, b.generation) for b in reply.blocks)
        answer = Answer(blocks, reply.version, reply.complete, reply.low, reply.begin, reply.roll)
        progress = self._tracker.apply_answer(report, answer)
        self._pacing.record_call(now_s, progress=progress)
        self._pacing.record_interval(reply.heartbeat_interval_ms / 1_000)
        self._workers.apply(reply)
        self._streams.update(self._workers.addresses, now_s)
        self._ask()
        is_told = report.roll == reply.roll
        self._has_aligned |= bool(reply.missing_consumers) or (is_told and not reply.late_consumers)
        self._arrivals.notify_all()
        waits = self._takers > 0 and not self._tracker.has_next()
        starving = waits and not self._workers.addresses
        unreachable = self._streams.unreachable() if waits else {}
        return (
            self._missing_consumers.check(
                waits, reply.missing_consumers, reply.late_consumers, now_s
            )
            or self._no_worker.check(starving, now_s)
            or self._unreachable.check(unreachable, self.statistics.rows, now_s)
        )

    def _ask(self) -> None:
        reachable = self._streams.open_of(self._tracker.givers())
        for worker_id, asks in self._tracker.asks(reachable).items():
            reachable[worker_id].ask(asks, self._tracker.low)

    def _sleep_until_due(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self._sleeps_until_s = self._due_s()
            left_s = self._sleeps_until_s - time.monotonic()
            if left_s <= 0:
                return
            self._wakeup.wait(left_s)

    def _due_s(self) -> float:
        return self._pacing.due_s(
            urgent=bool(self._streams.unreported()) or self._tracker.is_waited_for(),
            waits=(self._takers > 0 and not self._tracker.has_next()) or self._tracker.lacks_work(),
            unreported=self._tracker.unreported,
            window=self._tracker.window,
        )

    def _wake_if_sooner(self) -> None:
        if self._due_s() < self._sleeps_until_s:
            self._wakeup.notify_all()

    # The end

    def close(self) -> None:
        """Gives up the consumer's place and ends all threads. Idempotent; bounded in time."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._thread.request_stop()
            streams = self._streams.all()
            self._wakeup.notify_all()
            self._arrivals.notify_all()
        for stream in streams:
            stream.drop()
        request = pb.ReleaseReaderRequest(
            reader_id=self.iteration.reader_id, iteration_id=self.iteration.id
        )
        with self.iteration.leaving() as connection:
            self._report_last()
            connection.release_reader(request, timeout_s=RELEASE_TIMEOUT_S)
        stop_threads(self._thread, streams, RELEASE_TIMEOUT_S)

    def _report_last(self) -> None:
        """Reports the last progress, so that the other consumers can get as far as this one did."""
        with self._lock:
            if not self._tracker.unreported:
                return
            request = self._request(self._tracker.report(), ())
        self.iteration.connection.sync_rounds(
            request, timeout_s=RELEASE_TIMEOUT_S, should_stop=lambda: False
        )
