"""A reader's elements as a stream of a local pipeline, with a position that can be saved.

Responsible for joining the job when it is first needed, for the account of what was handed out, and
for making positions from it. Knows nothing of how elements arrive, which is the reader's task.
Invariant: a stream that is closed or garbage-collected gives its windows to other readers.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from dataservice.client.connection import DispatcherConnection
from dataservice.client.joined_iteration import abandon
from dataservice.client.positions import ReaderPosition, rewind
from dataservice.client.read_spec import ReadSpec
from dataservice.client.reader import ServiceReader
from dataservice.client.steps import ConsumedMark, Step, SteppedSource, StreamPosition
from dataservice.dataset.plan import decode_plan, encode_plan
from dataservice.dataset.seeds import drawn_seeds, with_drawn_seeds
from dataservice.dataset.stream import BatchStream, RunContext, State
from dataservice.errors import (
    CancelledError,
    DataServiceError,
    FailedPreconditionError,
    InvalidArgumentError,
    UnimplementedError,
)
from dataservice.ranges import Consumed
from dataservice.runtime.process.ending import end_with_program
from dataservice.runtime.process.forking import Origin
from dataservice.wire import dispatcher_pb2 as pb
from dataservice.wire.elements import RowSpan

logger = logging.getLogger(__name__)

_LAST_CALL_TIMEOUT_S: Final = 5.0


class ServiceStream(BatchStream, SteppedSource):
    """The elements of one reader. Several threads may take from it at once.

    `plan` is the fingerprint of the dataset's plan; `seeds` are its seeds that were drawn because
    the user gave none. An element counts as consumed, and is not replayed, once it was returned;
    if the run has `receipt_sources`, once a position after the element was acknowledged.
    """

    def __init__(
        self, spec: ReadSpec, context: RunContext, *, plan: str = "", seeds: tuple[int, ...] = ()
    ) -> None:
        self._spec = spec
        self._plan = plan
        self._given_seeds = seeds
        self.has_fixed_order = spec.options.ordered
        self._context = context
        self._omissions = None if context.omitted is None else context.omitted.log
        self._origin = Origin()
        self._lock = threading.Lock()
        self._reader: ServiceReader | None = None
        self._position: ReaderPosition | None = None  # the position that was loaded
        self._base: tuple[Consumed, tuple[str, ...]] | None = None  # as of the last end
        self._seeds: tuple[int, ...] | None = None
        self._last = Step()
        # An account keeps all later steps in memory, so there is one only if receipts advance it.
        self._consumed_mark = None if context.receipt_sources is None else ConsumedMark(self._last)
        self._receipt_sources = context.receipt_sources
        self._has_ended = False
        self._is_over = False  # no more elements can come, and the reader is closed
        self._closed = False
        if context.receipt_sources is not None:
            context.receipt_sources.add(self)

    def join(self) -> ServiceReader:
        """Returns the reader; joins the job first unless it has joined already."""
        with self._lock:
            if self._reader is None:
                if self._closed:
                    raise FailedPreconditionError("the iterator is closed; make a new one")
                spec = self._spec_to_join()
                self._reader = ServiceReader(spec, self._omissions, self._context.interrupts)
                self._finalizer = weakref.finalize(self, abandon, self._reader.close)
                end_with_program(self._reader, ServiceReader.close)
                self._check_seeds(self._reader)
                self._check_division(self._reader)
            return self._reader

    def _spec_to_join(self) -> ReadSpec:
        spec = self._spec
        if self._receipt_sources is not None:
            spec = replace(spec, owner=self._receipt_sources.owner)
        if self._position is not None:
            dataset_id = self._with_seeds(self._position.seeds)
            spec = replace(spec, position=self._position, dataset_id=dataset_id)
        return spec

    def try_to_join(self) -> None:
        """Joins the job; leaves it to the first element if the dispatcher refuses to let it join.

        A position that is loaded before then may change that.
        """
        try:
            self.join()
        except FailedPreconditionError as error:
            logger.debug("not joined before the first element is asked for: %s", error)

    def _check_seeds(self, reader: ServiceReader) -> None:
        """Raises InvalidArgumentError if other readers began the job with other seeds."""
        if self._position is not None:
            self._position.check_matches(seeds=self._seeds_of(reader))

    def _check_division(self, reader: ServiceReader) -> None:
        """Raises InvalidArgumentError if the position counts other shares than the job's."""
        position = self._position
        if position is None or position.has_windows:
            return
        if position.shards != reader.iteration.num_shards:
            raise InvalidArgumentError(
                f"the state counts {position.policy} shares of a list of {position.shards} "
                f"workers, and the dispatcher at {self.target} has a list of "
                f"{reader.iteration.num_shards} (DispatcherConfig.worker_addresses), which divides "
                "the data in another way; use a list of the same length, or "
                "ShardingPolicy.DYNAMIC, which any number can go on with"
            )
        if position.division != reader.iteration.division:
            raise InvalidArgumentError(
                "the state was saved while the sources had other files; read the same files, or "
                "start over without the state"
            )

    def __next__(self) -> pa.RecordBatch:
        self._context.check()
        self._context.interrupts.let_through()
        self._origin.check(f"this iterator over the data service at {self.target}")
        if self._is_over:
            raise StopIteration
        reader = self.join()
        # Not logged on joining: a program that loads a position knows about the earlier readers.
        notice, reader.notice = reader.notice, ""
        if notice:
            logger.warning("%s", notice)
        try:
            taken = reader.take(self._context.interrupts)
        except CancelledError:
            if self._is_over:  # another thread saw the end
                raise StopIteration from None
            raise
        if taken is None:
            self._record_end(reader)
            raise StopIteration
        step = Step(self._last.number + 1, taken.batch.num_rows, taken.spans)
        with self._lock:
            self._has_ended = False
            self._last.next = step
            self._last = step
        if self._receipt_sources is None:
            reader.acknowledge(taken.spans)
        return taken.batch

    @property
    def target(self) -> str:
        """The address of the service that the stream reads."""
        return self._spec.target

    @property
    def has_ended(self) -> bool:
        return self._has_ended

    def is_settled(self) -> bool:
        with self._lock:
            return self._consumed_mark is None or self._consumed_mark.is_at(self._last)

    def acknowledge(self, position: StreamPosition) -> None:
        with self._lock:
            reader = self._reader
            if reader is None or self._consumed_mark is None:
                return
            spans = self._consumed_mark.advance(position)
        reader.acknowledge(spans)
        if self._closed and self.is_settled():
            self.abandon()

    def marks(self, position: StreamPosition) -> dict[str, Any] | None:
        with self._lock:
            reader = self._reader
            if reader is None or self._consumed_mark is None:
                return None
            spans = self._consumed_mark.spans_until(position)
        marks = [list(mark) for mark in reader.marks_if_consumed(spans)]
        return {"service": self.target, "reader": reader.iteration.reader_id, "marks": marks}

    def stats(self) -> dict[str, Any]:
        """Returns counters of rows, bytes and waits, and the protocol of each worker's stream."""
        return {} if self._reader is None else self._reader.statistics.as_dict()

    def state(self) -> State:
        with self._lock:
            return StreamPosition(self, self._last)  # type: ignore[return-value]

    def state_after(self, state: State, rows: int) -> State | None:
        assert isinstance(state, StreamPosition)
        return state.after(rows)  # type: ignore[return-value]

    def reader_position(self, later: Iterator[tuple[RowSpan, ...]]) -> ReaderPosition:
        if self._reader is None and self._position is not None:
            return self._position
        _check_can_go_on(self._spec)
        reader = self.join()
        # With windows there are no tasks, and `later` is left unread for `_consumed`.
        tasks = reader.tasks(later)
        consumed, peers = self._consumed(reader, later)
        return ReaderPosition(
            plan=self._plan,
            division=reader.iteration.division,
            policy=self._spec.policy.name,
            delivery=self._spec.delivery,
            ordered=self._spec.options.ordered,
            repetition=self._spec.repetition,
            seeds=self._seeds_of(reader),
            consumed=consumed,
            origins=(reader.iteration.reader_id,),
            peers=peers,
            chunk_rows=reader.chunk_rows,
            shards=reader.iteration.num_shards,
            tasks=tasks,
            varied=self._position is None or self._position.varied,
        )

    def _consumed(
        self, reader: ServiceReader, later: Iterator[tuple[RowSpan, ...]]
    ) -> tuple[Consumed, tuple[str, ...]]:
        """Returns the consumed rows by window, without those in `later`, and the job's readers."""
        if not self._spec.has_windows:
            return Consumed(), (reader.iteration.reader_id,)
        # While the reader is open, asks again: other readers may have left since the end, and only
        # the dispatcher knows what they had consumed.
        is_gone = self._closed or self._is_over
        known = self._base if is_gone else None
        base, peers = reader.iteration.base() if known is None else known
        consumed = base.copy()
        # Before walking through `later`, which contains also what is taken meanwhile.
        consumed.merge(reader.consumed())
        rewind(consumed, later)
        return consumed, peers

    def _record_end(self, reader: ServiceReader) -> None:
        """Closes the reader if no more elements can come and no receipts are awaited.

        First fetches what a position at the end needs, since an operator that reads ahead may also
        close the reader.
        """
        self._has_ended = True
        try:
            base = reader.iteration.base(_LAST_CALL_TIMEOUT_S) if self._spec.has_windows else None
            self._seeds_of(reader, _LAST_CALL_TIMEOUT_S)
        except DataServiceError as error:
            logger.debug("the position at the end is not known: %s", error)
            if not self._is_over:  # else another thread has fetched it and closed the reader
                self._base = None
            return
        self._base = base
        if self._receipt_sources is None and reader.is_over:
            self._is_over = True
            reader.close()

    def _seeds_of(self, reader: ServiceReader, timeout_s: float | None = None) -> tuple[int, ...]:
        """Returns the seeds of the plan that the job reads, which another reader may have made."""
        if reader.iteration.dataset_id == self._spec.dataset_id:
            return self._given_seeds
        if self._seeds is None:
            plan = reader.iteration.plan(timeout_s)
            self._seeds = tuple(drawn_seeds(decode_plan(plan)))
        return self._seeds

    def _with_seeds(self, seeds: tuple[int, ...]) -> str:
        """Returns the id of the plan with these drawn seeds; registers it if they differ."""
        spec = self._spec
        if seeds == self._given_seeds:
            return spec.dataset_id
        with DispatcherConnection(spec.target) as connection:
            known = connection.get_dataset(spec.dataset_id, timeout_s=spec.timeout_s)
            node = with_drawn_seeds(decode_plan(known.plan), list(seeds))
            request = pb.RegisterDatasetRequest(
                plan=encode_plan(node),
                schema=known.schema,
                cardinality=known.cardinality,
                compression=known.compression,
                fingerprint=known.fingerprint,
            )
            return connection.register_dataset(request, timeout_s=spec.timeout_s)

    def restore(self, state: State) -> None:
        _check_can_go_on(self._spec)
        position = ReaderPosition.from_json(state)
        position.check_matches(
            plan=self._plan,
            policy=self._spec.policy.name,
            delivery=self._spec.delivery,
            ordered=self._spec.options.ordered,
            repetition=self._spec.repetition,
        )
        self._position = position
        # At once, so that the call that loads a position raises the error if it does not fit.
        self.join()

    def close(self) -> None:
        """Closes the stream; while receipts are awaited, the reader stays open."""
        with self._lock:
            self._closed = True
        if self.is_settled():
            self.abandon()

    def abandon(self) -> None:
        with self._lock:
            self._closed = True
            reader = self._reader
        if reader is not None and self._origin.is_here:
            self._finalizer.detach()
            reader.close()

    def location(self) -> str:
        return "" if self._reader is None else f"data service {self._reader.iteration.id}"


def _check_can_go_on(spec: ReadSpec) -> None:
    """Raises UnimplementedError if no position of this reader can say what is left to read."""
    if spec.trainer_id:
        raise UnimplementedError(
            f"trainer {spec.trainer_id} reads through a cross-trainer cache, which delivers at "
            "most once, so it cannot continue from a saved position; leave cross_trainer_cache out"
        )
    if spec.has_windows:
        return
    if spec.job_name is not None:
        raise UnimplementedError(
            f"readers of job {spec.job_name!r} under ShardingPolicy.{spec.policy.name} take "
            "elements first come, first served, so no position can say what the others have "
            "had; leave job_name out for a job with one reader, or distribute with "
            "ShardingPolicy.DYNAMIC"
        )
