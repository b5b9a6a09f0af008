"""Reads one iteration of a job: elements from all its workers, every row once.

One thread per worker stream fills a bounded buffer, one thread talks to the dispatcher, any
number of threads take elements. Knows nothing of pipelines. Invariant: an element that was
accepted by the tracker reaches a taker, unless the reader is closed first.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from dataservice.client.buffer import ElementBuffer
from dataservice.client.connection import DEFAULT_TIMEOUT_S, Connection
from dataservice.client.pacing import GROUP_S, Pacing
from dataservice.client.statistics import ReadStatistics
from dataservice.client.streams import Slot, StreamTable
from dataservice.client.tracker import RowMark, Tracker
from dataservice.client.worker_stream import StreamEvents, WorkerStream
from dataservice.config import DEFAULT_BUFFER_BYTES, DEFAULT_DISPATCHER_TIMEOUT_MS
from dataservice.dataset.columns import concat_batches
from dataservice.errors import CancelledError, DataLossError, DataServiceError, InternalError
from dataservice.runtime.frames import decode_schema
from dataservice.runtime.identity import new_id
from dataservice.runtime.threads import StoppableThread
from dataservice.vocabulary import ShardingPolicy
from dataservice.wire import dispatcher_pb2 as pb
from dataservice.wire.elements import Header, RowSpan

logger = logging.getLogger(__name__)

DEFAULT_BUFFERED_ELEMENTS = 16
# Elements under way from one worker: enough to hide the way there and back.
MAX_CREDIT = 16
RELEASE_TIMEOUT_S = 2.0
# A worker sends a sign of life each second; many missed ones mean that it is frozen.
SILENCE_S = 10.0
MAX_DAMAGED_STREAMS = 3
_TAKE_POLL_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSpec:
    """What to read and how; `timeout_s` bounds the wait for the dispatcher when opening."""

    target: str
    dataset_id: str
    policy: ShardingPolicy
    job_name: str | None = None
    repetition: int = 0
    delivery: str = "exactly_once"
    max_elements: int = DEFAULT_BUFFERED_ELEMENTS
    buffer_bytes: int = DEFAULT_BUFFER_BYTES
    timeout_s: float = DEFAULT_TIMEOUT_S
    token: str | None = None


class Delivery(NamedTuple):
    """One element and where its rows come from; give it to `acknowledge` when it is used up."""

    batch: pa.RecordBatch
    spans: tuple[RowSpan, ...]
    size_bytes: int


class ServiceReader:
    """A reader of one iteration. Thread safe; `close` frees it, also after an error."""

    def __init__(self, spec: ReadSpec) -> None:
        self._spec = spec
        self.statistics = ReadStatistics()
        self._lock = threading.Lock()
        self._wakeup = threading.Condition(self._lock)
        self._tracker = Tracker()
        self._buffer: ElementBuffer[Delivery] = ElementBuffer(spec.max_elements, spec.buffer_bytes)
        self._streams = StreamTable(self._open_stream)
        self._outstanding = 0
        self._takers = 0
        self._ended = False
        self._finished = False
        self._urgent = False
        self._closed = False
        self._damaged = 0
        self._failure: DataServiceError | None = None
        self._connection = Connection(spec.target, token=spec.token)
        try:
            self._join = self._open()
        except BaseException:
            self._connection.close()
            raise
        self.schema = decode_schema(self._join.schema)
        self.reader_id = self._join.reader_id
        self.iteration_id = self._join.iteration_id
        self._pacing = Pacing(min(1.0, self._join.heartbeat_s or 1.0), time.monotonic())
        self._thread = StoppableThread(
            self._synchronise, owner=f"reader {self.reader_id}", name="sync", on_failure=self._crash
        )
        self._update_streams(self._join.workers)
        self._thread.start()

    def _open(self) -> pb.OpenIterationReply:
        spec = self._spec
        request = pb.OpenIterationRequest(
            dataset_id=spec.dataset_id,
            policy=int(spec.policy),
            job_name=spec.job_name,
            repetition=spec.repetition,
            delivery=spec.delivery,
            reader_id=new_id("reader"),
        )
        return self._connection.open_iteration(request, timeout_s=spec.timeout_s)

    # Taking

    def take(self) -> Delivery | None:
        """The next element, None when nothing is left for this reader at present.

        Blocks. Raises what a worker's pipeline or the dispatcher failed with, once; the reader is
        closed then. A closed reader raises CancelledError.
        """
        started_s = time.monotonic()
        delivery = self._buffer.get(0.0) if self._failure is None else None
        if delivery is None:
            delivery = self._wait_for_element()
            self.statistics.note_wait(time.monotonic() - started_s)
        if delivery is None:
            return None
        with self._lock:
            self._outstanding -= 1
        self.statistics.note_element(delivery.batch.num_rows, delivery.size_bytes)
        return delivery

    def acknowledge(self, delivery: Delivery) -> None:
        """Says that an element is used up: none of its rows will be delivered again."""
        with self._lock:
            self._tracker.consume(delivery.spans)
            self._wake_if_idle()

    def position(self) -> dict[str, Any]:
        """JSON-able: the iteration and the rows consumed of each of its unfinished windows."""
        with self._lock:
            marks = [list(mark) for mark in self._tracker.all_marks()]
        return {"iteration_id": self.iteration_id, "marks": marks}

    def _wait_for_element(self) -> Delivery | None:
        with self._lock:
            self._takers += 1
            self._wake_if_idle()
        try:
            while True:
                self._check()
                if self._take_end():
                    return None
                delivery = self._buffer.get(_TAKE_POLL_S)
                if delivery is not None:
                    return delivery
        finally:
            with self._lock:
                self._takers -= 1

    def _check(self) -> None:
        with self._lock:
            failure, self._failure = self._failure, None
            closed = self._closed
        if failure is not None:
            self.close()
            raise failure
        if closed:
            raise CancelledError("the iterator is closed; call iter() on the dataset again")

    def _take_end(self) -> bool:
        """Whether the end was announced; a later call asks for it anew."""
        with self._lock:
            if self._outstanding:
                return False
            ended, self._ended = self._ended, False
            return ended or self._finished

    # Streams

    def _update_streams(self, workers: Iterable[pb.WorkerInfo]) -> None:
        members = {worker.worker_id: worker.address for worker in workers}
        with self._lock:
            if not self._closed and not self._finished:
                self._streams.follow(members, time.monotonic())

    def _open_stream(self, worker_id: str, address: str) -> WorkerStream:
        stream = WorkerStream(
            worker_id,
            address,
            {
                "iteration": self.iteration_id,
                "reader": self.reader_id,
                "dataset": self._join.dataset_id or self._spec.dataset_id,
                "policy": int(self._spec.policy),
                "epoch": self._spec.repetition,
                "credit": max(2, min(MAX_CREDIT, self._spec.max_elements)),
            },
            self.schema,
            StreamEvents(
                self._on_frame, self._on_end, self._on_broken, self._on_failure, self._crash
            ),
            token=self._connection.token,
            tls=self._connection.tls,
            silence_s=SILENCE_S,
        )
        stream.start()
        return stream

    def _on_frame(
        self, stream: WorkerStream, header: Header, batch: pa.RecordBatch | None, size_bytes: int
    ) -> None:
        with self._lock:
            if stream.is_dropped():
                return
            accepted = self._tracker.receive(
                stream.worker_id, header.spans, divisible=header.divisible
            )
            self._ended = False
            self._streams.note_frame(stream)
            self._pacing.note_arrival()
            if not accepted.slices or batch is None:
                self._tracker.consume(accepted.spans)
                self._wake_if_idle()
                return
            self._outstanding += 1
        whole = sum(length for _, length in accepted.slices) == sum(s.rows for s in header.spans)
        kept = batch if whole else _cut(batch, accepted.slices)
        self._buffer.put(Delivery(kept, accepted.spans, size_bytes), size_bytes)

    def _on_end(self, stream: WorkerStream) -> None:
        with self._lock:
            self._streams.note_end(stream)
            self._pacing.note_arrival()
            self._wakeup.notify_all()

    def _on_broken(self, stream: WorkerStream, error: DataServiceError) -> None:
        logger.info("stream from worker %s broke: %s", stream.address, error)
        with self._lock:
            if isinstance(error, DataLossError):
                self._damaged += 1
            if self._damaged <= MAX_DAMAGED_STREAMS:
                self._tracker.fence_source(stream.worker_id)
                self._streams.note_broken(stream, time.monotonic())
                self._urgent = True
                self._wakeup.notify_all()
                return
        self._on_failure(error)

    def _on_failure(self, error: DataServiceError) -> None:
        with self._lock:
            if self._failure is None:
                self._failure = error
        self._buffer.wake()

    def _crash(self, error: BaseException) -> None:
        if not isinstance(error, DataServiceError):
            error = InternalError(f"a thread of the reader failed: {error!r}")
        self._on_failure(error)

    # Talking to the dispatcher

    def _synchronise(self, stop: threading.Event) -> None:
        while not stop.is_set():
            with self._lock:
                while not stop.is_set() and (remaining_s := self._time_to_call()) > 0:
                    self._wakeup.wait(min(remaining_s, GROUP_S))
                if stop.is_set():
                    return
                call = self._prepare_call()
            try:
                reply = self._connection.sync(
                    call.request,
                    timeout_s=DEFAULT_DISPATCHER_TIMEOUT_MS / 1_000,
                    should_stop=stop.is_set,
                )
            except CancelledError:
                return
            except DataServiceError as error:
                self._on_failure(error)
                return
            self._digest(call, reply)

    def _time_to_call(self) -> float:
        due_s = self._pacing.due_s(
            urgent=self._urgent or bool(self._tracker.releases()),
            idle=self._is_idle(),
            has_news=self._tracker.has_news(),
        )
        return due_s - time.monotonic()

    def _is_idle(self) -> bool:
        """A taker waits and nothing that is known of is on its way."""
        if not self._takers or self._outstanding or self._finished:
            return False
        if self._spec.policy is ShardingPolicy.OFF:
            return self._streams.are_silent()
        return self._tracker.is_quiet()

    def _wake_if_idle(self) -> None:
        # Only then: a switch to the dispatcher thread for every element would cost more than it.
        if self._is_idle():
            self._wakeup.notify_all()

    def _prepare_call(self) -> _Call:
        idle = self._is_idle()
        if idle:
            self._tracker.settle()
        marks, releases = self._tracker.marks(), self._tracker.releases()
        broken = self._streams.unreported()
        self._urgent = False
        request = pb.SyncRequest(
            reader_id=self.reader_id,
            iteration_id=self.iteration_id,
            consumed=[_to_wire(mark) for mark in marks],
            released=[_to_wire(mark) for mark in releases],
            broken_worker_ids=[slot.stream.worker_id for slot in broken],
            idle=idle,
            rows_consumed=self.statistics.rows,
            wait_share=self.statistics.take_wait_share(),
        )
        return _Call(request, marks, releases, broken, idle)

    def _digest(self, call: _Call, reply: pb.SyncReply) -> None:
        with self._lock:
            self._tracker.confirm(call.marks, call.releases)
            for slot in call.broken:
                slot.is_reported = True
            for mark in reply.fences:
                self._tracker.fence(mark.window, mark.generation, mark.row)
            if call.idle and reply.ended and self._is_idle():
                self._ended = True
            if reply.iteration_finished and not self._outstanding and self._is_idle_or_unwatched():
                self._finished = True
            self._pacing.note_call(time.monotonic(), idle=call.idle)
            news = self._ended or self._finished
        if news:
            self._buffer.wake()
        self._update_streams(reply.workers)

    def _is_idle_or_unwatched(self) -> bool:
        """The end is only the end once streams that may still deliver have ended."""
        if self._spec.policy is ShardingPolicy.OFF:
            return self._streams.are_silent()
        return True

    # The end

    def close(self) -> None:
        """Gives the rest of the iteration to others and ends all threads. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._thread.request_stop()
            streams = self._streams.all()
            self._wakeup.notify_all()
        for stream in streams:
            stream.drop()
        self._buffer.close()
        self._release()
        self._connection.close()
        # A thread inside the transport can take the process with it when the interpreter goes.
        deadline_s = time.monotonic() + RELEASE_TIMEOUT_S
        self._thread.stop(RELEASE_TIMEOUT_S)
        for stream in streams:
            stream.stop(max(0.0, deadline_s - time.monotonic()))

    def _release(self) -> None:
        with self._lock:
            marks = self._tracker.all_marks()
        request = pb.ReleaseReaderRequest(
            reader_id=self.reader_id,
            iteration_id=self.iteration_id,
            consumed=[_to_wire(mark) for mark in marks],
        )
        try:
            self._connection.release_reader(request, timeout_s=RELEASE_TIMEOUT_S)
        except DataServiceError as error:
            logger.info("could not release reader %s: %s", self.reader_id, error)


class _Call(NamedTuple):
    """What a call to the dispatcher says, to be confirmed when it is answered."""

    request: pb.SyncRequest
    marks: tuple[RowMark, ...]
    releases: tuple[RowMark, ...]
    broken: tuple[Slot, ...]
    idle: bool


def _cut(batch: pa.RecordBatch, slices: tuple[tuple[int, int], ...]) -> pa.RecordBatch:
    return concat_batches([batch.slice(offset, length) for offset, length in slices])


def _to_wire(mark: RowMark) -> pb.Mark:
    return pb.Mark(window=mark.window, generation=mark.generation, row=mark.row, final=mark.final)
