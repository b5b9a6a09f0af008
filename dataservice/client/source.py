"""A job of the data service as the source of a local pipeline.

The node is a description: opening it joins the job, under the run's epoch as repetition number,
so operators after `distribute` run in the reading process. Knows plans and the reader. Invariant:
a stream that is closed or forgotten gives its windows to other readers.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

import pyarrow as pa

from dataservice.client.abandon import abandon
from dataservice.client.connection import DEFAULT_TIMEOUT_S, Connection
from dataservice.client.positions import ReaderPosition, rewind
from dataservice.client.read_spec import DEFAULT_BUFFERED_ELEMENTS, ReadSpec
from dataservice.client.reader import ServiceReader
from dataservice.client.round_source import CoordinatedStream
from dataservice.client.steps import Account, Step, SteppedSource, StreamPosition
from dataservice.config import DEFAULT_BUFFER_BYTES
from dataservice.dataset.node import (
    INFINITE_CARDINALITY,
    UNKNOWN_CARDINALITY,
    Node,
    register_node,
)
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
from dataservice.job_options import JobOptions
from dataservice.ranges import Consumed
from dataservice.runtime.ending import end_with_program
from dataservice.runtime.forking import Origin
from dataservice.vocabulary import ShardingPolicy
from dataservice.wire import dispatcher_pb2 as pb
from dataservice.wire.elements import RowSpan

logger = logging.getLogger(__name__)

_LAST_CALL_TIMEOUT_S: Final = 5.0
# Policies under which what is endless as a whole is endless for each worker.
_ALL_SEE_ALL = (ShardingPolicy.OFF, ShardingPolicy.DYNAMIC, ShardingPolicy.DATA)


@register_node
@dataclass(frozen=True, eq=False, kw_only=True)
class ServiceSource(Node):
    """Elements of a registered dataset, produced by data workers.

    `elements` is the cardinality of the registered plan; how many of them one reader gets depends
    on the others, so only 0 and infinity carry over. `plan` is the fingerprint of that plan,
    `seeds` are those in it that nobody gave, and `declared` is what of it cannot be replayed.
    """

    kind: ClassVar[str] = "service"
    loose: ClassVar[frozenset[str]] = frozenset(
        {
            *("target", "dataset_id", "seeds", "elements", "job_name", "timeout_s", "protocol"),
            *("max_elements", "buffer_bytes", "consumer_index", "trainer_id", "target_workers"),
            "declared",
        }
    )

    target: str
    dataset_id: str
    policy: int
    schema: pa.Schema
    elements: int = UNKNOWN_CARDINALITY
    is_batched: bool = False
    plan: str = ""
    seeds: tuple[int, ...] = ()
    declared: str = ""
    job_name: str | None = None
    delivery: str = "exactly_once"
    ordered: bool = False
    num_consumers: int = 0
    consumer_index: int = -1
    target_workers: str = "AUTO"
    trainer_id: str = ""
    on_error: str = "raise"
    max_elements: int = DEFAULT_BUFFERED_ELEMENTS
    buffer_bytes: int = DEFAULT_BUFFER_BYTES
    timeout_s: float = DEFAULT_TIMEOUT_S
    protocol: str | None = None

    @property
    def batched(self) -> bool:
        return self.is_batched

    @property
    def has_windows(self) -> bool:
        """Whether rows are counted in windows, which readers share."""
        return ShardingPolicy(self.policy) is ShardingPolicy.DYNAMIC

    @property
    def unrepeatable(self) -> str:
        return self.declared

    @property
    def options(self) -> JobOptions:
        """What it shares with the other readers of its job."""
        return JobOptions(
            ordered=self.ordered,
            num_consumers=self.num_consumers,
            target_workers=self.target_workers,
            cross_trainer_cache=bool(self.trainer_id),
            on_error=self.on_error,
        )

    def cardinality(self) -> int:
        policy = ShardingPolicy(self.policy)
        if self.elements == 0 and policy is not ShardingPolicy.HINT:
            return 0
        if self.num_consumers:
            return INFINITE_CARDINALITY
        endless = self.elements == INFINITE_CARDINALITY
        return INFINITE_CARDINALITY if endless and policy in _ALL_SEE_ALL else UNKNOWN_CARDINALITY

    def sample(self, context: RunContext) -> pa.RecordBatch:  # noqa: ARG002
        return pa.RecordBatch.from_pylist([], schema=self.schema)

    @property
    def is_repeatable(self) -> bool:
        return self.ordered

    def open(self, context: RunContext) -> BatchStream:
        if self.num_consumers:
            return CoordinatedStream(self.spec(context.epoch), context)
        stream = ServiceStream(self, context)
        if not context.restores:
            stream.try_to_join()
        return stream

    def spec(self, repetition: int) -> ReadSpec:
        """How a reader of a repetition reads."""
        return ReadSpec(
            target=self.target,
            dataset_id=self.dataset_id,
            policy=ShardingPolicy(self.policy),
            job_name=self.job_name,
            repetition=repetition,
            delivery=self.delivery,
            options=self.options,
            consumer_index=self.consumer_index,
            trainer_id=self.trainer_id,
            max_elements=self.max_elements,
            buffer_bytes=self.buffer_bytes,
            timeout_s=self.timeout_s,
            protocol=self.protocol,
        )


class ServiceStream(BatchStream, SteppedSource):
    """One reader's elements. Several threads may take from it at once.

    An element counts as consumed, and is not replayed, once it was returned; where the run has a
    holder, once a position after it was acknowledged.
    """

    def __init__(self, source: ServiceSource, context: RunContext) -> None:
        self._source = source
        self.is_repeatable = source.is_repeatable
        self._context = context
        self._ledger = None if context.omitted is None else context.omitted.ledger
        self._origin = Origin()
        self._lock = threading.Lock()
        self._reader: ServiceReader | None = None
        self._position: ReaderPosition | None = None  # that was loaded
        self._base: tuple[Consumed, tuple[str, ...]] | None = None  # at the end
        self._seeds: tuple[int, ...] | None = None
        self._last = Step()
        # It keeps all steps from where it stands, so only where receipts move it on.
        self._account = None if context.holder is None else Account(self._last)
        self._holder = context.holder
        self._has_ended = False
        self._is_over = False  # nothing can come any more, and the reader has gone
        self._closed = False
        if context.holder is not None:
            context.holder.add(self)

    def join(self) -> ServiceReader:
        """The reader, which joins the job now unless it has."""
        with self._lock:
            if self._reader is None:
                if self._closed:
                    raise FailedPreconditionError("the iterator is closed; make a new one")
                spec = self._source.spec(self._context.epoch)
                if self._holder is not None:
                    spec = replace(spec, owner=self._holder.owner)
                if self._position is not None:
                    spec = replace(
                        spec,
                        position=self._position,
                        dataset_id=_with_seeds(self._source, self._position.seeds),
                    )
                self._reader = ServiceReader(spec, self._ledger, self._context.interrupts)
                self._finalizer = weakref.finalize(self, abandon, self._reader)
                end_with_program(self._reader, ServiceReader.close)
                self._check_seeds(self._reader)
                self._check_division(self._reader)
            return self._reader

    def try_to_join(self) -> None:
        """Joins the job, unless only a position that is loaded may let it."""
        try:
            self.join()
        except FailedPreconditionError as error:
            logger.debug("not joined before the first element is asked for: %s", error)

    def _check_seeds(self, reader: ServiceReader) -> None:
        """InvalidArgumentError when others of the job began it with other seeds."""
        if self._position is not None:
            self._position.check_matches(seeds=self._seeds_of(reader))

    def _check_division(self, reader: ServiceReader) -> None:
        """InvalidArgumentError when tasks are of other shares than those of the position."""
        position = self._position
        if position is None or position.has_windows:
            return
        if position.shards != reader.num_shards:
            raise InvalidArgumentError(
                f"the state counts {position.policy} shares of a list of {position.shards} "
                f"workers, and the dispatcher at {self.target} has a list of {reader.num_shards} "
                "(DispatcherConfig.worker_addresses), which divides the data in another way; use a "
                "list of the same length, or ShardingPolicy.DYNAMIC, which any number can go on "
                "with"
            )
        if position.division != reader.division:
            raise InvalidArgumentError(
                "the state counts shares of other files than there are now; read the same files, "
                "or begin anew without the state"
            )

    def __next__(self) -> pa.RecordBatch:
        self._context.check()
        self._context.interrupts.let_through()
        self._origin.check(f"this iterator over the data service at {self.target}")
        if self._is_over:
            raise StopIteration
        reader = self.join()
        # Not when it joins: who loads a position knows of those who read before.
        notice, reader.notice = reader.notice, ""
        if notice:
            logger.warning("%s", notice)
        try:
            delivery = reader.take(self._context.interrupts)
        except CancelledError:
            if self._is_over:  # another thread saw the end
                raise StopIteration from None
            raise
        if delivery is None:
            self._note_end(reader)
            raise StopIteration
        step = Step(self._last.number + 1, delivery.batch.num_rows, delivery.spans)
        with self._lock:
            self._has_ended = False
            self._last.next = step
            self._last = step
        if self._holder is None:
            reader.acknowledge(delivery.spans)
        return delivery.batch

    @property
    def target(self) -> str:
        """The service that it reads."""
        return self._source.target

    @property
    def has_ended(self) -> bool:
        return self._has_ended

    def is_settled(self) -> bool:
        with self._lock:
            return self._account is None or self._account.is_at(self._last)

    def acknowledge(self, position: StreamPosition) -> None:
        with self._lock:
            reader = self._reader
            if reader is None or self._account is None:
                return
            spans = self._account.advance(position)
        reader.acknowledge(spans)
        if self._closed and self.is_settled():
            self.let_go()

    def marks(self, position: StreamPosition) -> dict[str, Any] | None:
        with self._lock:
            reader = self._reader
            if reader is None or self._account is None:
                return None
            spans = self._account.until(position)
        marks = [list(mark) for mark in reader.foresee(spans)]
        return {"service": self.target, "reader": reader.reader_id, "marks": marks}

    def stats(self) -> dict[str, Any]:
        """Rows, bytes and waits of this reader, and how each worker's elements came."""
        return {} if self._reader is None else self._reader.statistics.as_dict()

    def state(self) -> State:
        with self._lock:
            return StreamPosition(self, self._last)  # type: ignore[return-value]

    def state_after(self, state: State, rows: int) -> State | None:
        assert isinstance(state, StreamPosition)
        return state.after(rows)  # type: ignore[return-value]

    def settle(self, later: Iterator[tuple[RowSpan, ...]]) -> ReaderPosition:
        if self._reader is None and self._position is not None:
            return self._position
        _check_policy(self._source)
        reader = self.join()
        # None where there are windows, and the rows that came later are left to those.
        tasks = reader.tasks(later)
        consumed, peers = self._consumed(reader, later)
        return ReaderPosition(
            plan=self._source.plan,
            division=reader.division,
            policy=ShardingPolicy(self._source.policy).name,
            delivery=self._source.delivery,
            ordered=self._source.ordered,
            repetition=self._context.epoch,
            seeds=self._seeds_of(reader),
            consumed=consumed,
            origins=(reader.reader_id,),
            peers=peers,
            chunk_rows=reader.chunk_rows,
            shards=reader.num_shards,
            tasks=tasks,
        )

    def _consumed(
        self, reader: ServiceReader, later: Iterator[tuple[RowSpan, ...]]
    ) -> tuple[Consumed, tuple[str, ...]]:
        """Windows, but for what came later, and who reads."""
        if not self._source.has_windows:
            return Consumed(), (reader.reader_id,)
        base, peers = self._base if self._base is not None else reader.base()
        consumed = base.copy()
        # Before the elements: what is taken meanwhile is among them.
        consumed.merge(reader.consumed())
        rewind(consumed, later)
        return consumed, peers

    def _note_end(self, reader: ServiceReader) -> None:
        """Lets the reader go where nothing can come any more and nobody waits for receipts.

        Before, it learns what a position at the end needs, as an operator that reads ahead closes
        the reader too.
        """
        self._has_ended = True
        try:
            base = reader.base(_LAST_CALL_TIMEOUT_S) if self._source.has_windows else None
            self._seeds_of(reader, _LAST_CALL_TIMEOUT_S)
        except DataServiceError as error:
            logger.debug("the position at the end is not known: %s", error)
            if not self._is_over:  # otherwise another thread knows it, and has closed the reader
                self._base = None
            return
        self._base = base
        if self._holder is None and reader.is_over:
            self._is_over = True
            reader.close()

    def _seeds_of(self, reader: ServiceReader, timeout_s: float | None = None) -> tuple[int, ...]:
        """Seeds of the plan that the job reads, which another reader may have registered."""
        if reader.dataset_id == self._source.dataset_id:
            return self._source.seeds
        if self._seeds is None:
            plan = reader.plan_of(reader.dataset_id, timeout_s or self._source.timeout_s)
            self._seeds = tuple(drawn_seeds(decode_plan(plan)))
        return self._seeds

    def restore(self, state: State) -> None:
        _check_policy(self._source)
        position = ReaderPosition.from_json(state)
        position.check_matches(
            plan=self._source.plan,
            policy=ShardingPolicy(self._source.policy).name,
            delivery=self._source.delivery,
            ordered=self._source.ordered,
            repetition=self._context.epoch,
        )
        self._position = position
        # Now, so that a position that does not fit is an error of the call that loads it.
        self.join()

    def close(self) -> None:
        """Where receipts are awaited, the reader stays until they have come."""
        with self._lock:
            self._closed = True
        if self.is_settled():
            self.let_go()

    def let_go(self) -> None:
        with self._lock:
            self._closed = True
            reader = self._reader
        if reader is not None and self._origin.is_here:
            self._finalizer.detach()
            reader.close()

    def location(self) -> str:
        return "" if self._reader is None else f"data service {self._reader.iteration_id}"


def _check_policy(source: ServiceSource) -> None:
    if source.trainer_id:
        raise UnimplementedError(
            f"trainer {source.trainer_id} reads through a cross-trainer cache, which delivers at "
            "most once, so it cannot continue from a saved position; leave cross_trainer_cache out"
        )
    if source.has_windows:
        return
    policy = ShardingPolicy(source.policy)
    if source.job_name is not None:
        raise UnimplementedError(
            f"readers of job {source.job_name!r} under ShardingPolicy.{policy.name} get what they "
            "ask for first, so that none of them knows what the others had; leave job_name out "
            "for a job with one reader, or distribute with ShardingPolicy.DYNAMIC"
        )


def _with_seeds(source: ServiceSource, seeds: tuple[int, ...]) -> str:
    """The id of the plan with other drawn seeds; it is registered unless they are the same."""
    if seeds == source.seeds:
        return source.dataset_id
    with Connection(source.target) as connection:
        known = connection.get_dataset(source.dataset_id, timeout_s=source.timeout_s)
        node = with_drawn_seeds(decode_plan(known.plan), list(seeds))
        request = pb.RegisterDatasetRequest(
            plan=encode_plan(node),
            schema=known.schema,
            cardinality=known.cardinality,
            compression=known.compression,
            fingerprint=source.plan,
        )
        return connection.register_dataset(request, timeout_s=source.timeout_s)
