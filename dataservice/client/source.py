"""A job of the data service as the source of a local pipeline: the node of a plan.

Responsible for describing the job. Opening the node makes the stream that reads the run's epoch as
repetition of the job, so operators after `distribute` run in the reading process. Knows plans, but
holds no connection. Invariant: a position saved with one node fits every node that differs from it
only in `outside_fingerprint` fields.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import ClassVar

import pyarrow as pa

from dataservice.client.connection import DEFAULT_TIMEOUT_S, DispatcherConnection
from dataservice.client.coordinated_stream import CoordinatedStream
from dataservice.client.read_spec import DEFAULT_BUFFERED_ELEMENTS, ReadSpec
from dataservice.client.service_stream import ServiceStream
from dataservice.dataset.node import (
    INFINITE_CARDINALITY,
    UNKNOWN_CARDINALITY,
    Node,
    register_node,
    rows_of_known,
)
from dataservice.dataset.plan import decode_plan
from dataservice.dataset.stream import BatchStream, RunContext
from dataservice.dataset.tolerance import as_run
from dataservice.job_options import JobOptions
from dataservice.ranges import Ranges
from dataservice.vocabulary import EXACTLY_ONCE, ShardingPolicy

# Policies under which an endless dataset is endless on each worker.
_ALL_SEE_ALL = (ShardingPolicy.OFF, ShardingPolicy.DYNAMIC, ShardingPolicy.DATA)


@register_node
@dataclass(frozen=True, eq=False, kw_only=True)
class ServiceSource(Node):
    """The elements of a registered dataset, produced by data workers.

    `elements` is the cardinality of the registered plan. How many of these elements one reader gets
    depends on the other readers, so only the values 0 and infinity carry over. `plan` is the
    fingerprint of the plan, `seeds` are its seeds that were drawn because the user gave none, and
    `declared` names the part of it that was declared unrepeatable, "" for none. `registered` is
    the fingerprint under which the dispatcher has the plan; "" is not compared.
    """

    kind: ClassVar[str] = "service"
    outside_fingerprint: ClassVar[frozenset[str]] = frozenset(
        {
            *("target", "dataset_id", "seeds", "elements", "job_name", "timeout_s", "protocol"),
            *("max_elements", "consumer_index", "trainer_id", "target_workers"),
            "declared",
            "registered",
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
    delivery: str = EXACTLY_ONCE
    ordered: bool = False
    num_consumers: int = 0
    consumer_index: int = -1
    target_workers: str = "AUTO"
    trainer_id: str = ""
    on_error: str = "raise"
    max_elements: int = DEFAULT_BUFFERED_ELEMENTS
    timeout_s: float = DEFAULT_TIMEOUT_S
    protocol: str | None = None
    registered: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_made_s", time.monotonic())
        # Repetitions that this program has read through this node.
        object.__setattr__(self, "_read", Ranges())

    @property
    def batched(self) -> bool:
        return self.is_batched

    @property
    def unrepeatable(self) -> str:
        return self.declared

    @property
    def options(self) -> JobOptions:
        """The options that all readers of the job share."""
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

    def sample(self, context: RunContext) -> pa.RecordBatch:
        return rows_of_known(self.schema, self._beginning, context, "the data service")

    def _beginning(self, context: RunContext) -> pa.RecordBatch:
        """Samples the registered dataset in this process.

        Creates no job and asks no data worker, so the rows are missing from no reader's share.
        """
        with DispatcherConnection(self.target) as connection:
            registered = connection.get_dataset(self.dataset_id, timeout_s=self.timeout_s)
        return as_run(decode_plan(registered.plan), self.on_error).sample(context)

    @property
    def has_fixed_order(self) -> bool:
        return self.ordered

    @property
    def is_shared(self) -> bool:
        return self.job_name is not None

    def open(self, context: RunContext) -> BatchStream:
        made_s = self._made_s_of(context.epoch)
        spec = replace(self.spec(context.epoch), made_s=made_s, restores=context.restores)
        if self.num_consumers:
            return CoordinatedStream(spec, context)
        stream = ServiceStream(spec, context, plan=self.plan, seeds=self.seeds)
        if not context.restores:
            stream.try_to_join()
        return stream

    def _made_s_of(self, repetition: int) -> float | None:
        """Returns `ReadSpec.made_s` for a reader that begins now; notes the repetition as read."""
        read: Ranges = self._read  # type: ignore[attr-defined]
        was_read = repetition in read
        read.add(repetition, repetition + 1)
        return None if was_read else self._made_s  # type: ignore[attr-defined]

    def spec(self, repetition: int) -> ReadSpec:
        """Returns the spec of a reader of a repetition."""
        return ReadSpec(
            target=self.target,
            dataset_id=self.dataset_id,
            registered=self.registered,
            policy=ShardingPolicy(self.policy),
            job_name=self.job_name,
            repetition=repetition,
            delivery=self.delivery,
            options=self.options,
            consumer_index=self.consumer_index,
            trainer_id=self.trainer_id,
            max_elements=self.max_elements,
            timeout_s=self.timeout_s,
            protocol=self.protocol,
        )
