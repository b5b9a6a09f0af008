"""A job of the data service as the source of a local pipeline.

The node is a description: opening it joins the job, under the run's epoch as repetition number,
so operators after `distribute` run in the reading process. Knows plans and the reader. Invariant:
a stream that is closed or forgotten gives its windows to other readers.
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from dataservice.client.connection import DEFAULT_TIMEOUT_S
from dataservice.client.reader import (
    DEFAULT_BUFFERED_ELEMENTS,
    RELEASE_TIMEOUT_S,
    ReadSpec,
    ServiceReader,
)
from dataservice.config import DEFAULT_BUFFER_BYTES
from dataservice.dataset.node import (
    INFINITE_CARDINALITY,
    UNKNOWN_CARDINALITY,
    Node,
    register_node,
)
from dataservice.dataset.stream import BatchStream, RunContext, State
from dataservice.errors import UnimplementedError
from dataservice.job_options import JobOptions
from dataservice.vocabulary import ShardingPolicy

# Policies under which what is endless as a whole is endless for each worker.
_ALL_SEE_ALL = (ShardingPolicy.OFF, ShardingPolicy.DYNAMIC, ShardingPolicy.DATA)


@register_node
@dataclass(frozen=True, eq=False, kw_only=True)
class ServiceSource(Node):
    """Elements of a registered dataset, produced by data workers.

    `elements` is the cardinality of the registered plan; how many of them one reader gets depends
    on the others, so only 0 and infinity carry over.
    """

    kind: ClassVar[str] = "service"
    loose: ClassVar[frozenset[str]] = frozenset(
        {"target", "max_elements", "buffer_bytes", "consumer_index", "trainer_id", "protocol"}
    )

    target: str
    dataset_id: str
    policy: int
    schema: pa.Schema
    elements: int = UNKNOWN_CARDINALITY
    is_batched: bool = False
    job_name: str | None = None
    delivery: str = "exactly_once"
    ordered: bool = False
    num_consumers: int = 0
    consumer_index: int = -1
    target_workers: str = "AUTO"
    trainer_id: str = ""
    on_error: str = "raise"
    protocol: str | None = None
    max_elements: int = DEFAULT_BUFFERED_ELEMENTS
    buffer_bytes: int = DEFAULT_BUFFER_BYTES
    timeout_s: float = DEFAULT_TIMEOUT_S

    @property
    def batched(self) -> bool:
        return self.is_batched

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
        endless = self.elements == INFINITE_CARDINALITY
        return INFINITE_CARDINALITY if endless and policy in _ALL_SEE_ALL else UNKNOWN_CARDINALITY

    def sample(self, context: RunContext) -> pa.RecordBatch:  # noqa: ARG002
        return pa.RecordBatch.from_pylist([], schema=self.schema)

    def open(self, context: RunContext) -> BatchStream:
        spec = ReadSpec(
            target=self.target,
            dataset_id=self.dataset_id,
            policy=ShardingPolicy(self.policy),
            job_name=self.job_name,
            repetition=context.epoch,
            delivery=self.delivery,
            options=self.options,
            consumer_index=self.consumer_index,
            trainer_id=self.trainer_id,
            protocol=self.protocol,
            max_elements=self.max_elements,
            buffer_bytes=self.buffer_bytes,
            timeout_s=self.timeout_s,
        )
        ledger = None if context.omitted is None else context.omitted.ledger
        return ServiceStream(ServiceReader(spec, ledger), context)


class ServiceStream(BatchStream):
    """One reader's elements. Several threads may take from it at once.

    An element counts as consumed, and is not replayed, once it was returned.
    """

    def __init__(self, reader: ServiceReader, context: RunContext) -> None:
        self.reader = reader
        self._context = context
        self._finalizer = weakref.finalize(self, _abandon, reader)

    def __next__(self) -> pa.RecordBatch:
        self._context.check()
        delivery = self.reader.take()
        if delivery is None:
            raise StopIteration
        self.reader.acknowledge(delivery)
        return delivery.batch

    def stats(self) -> dict[str, Any]:
        """Rows, bytes and waiting time of this reader."""
        return self.reader.statistics.as_dict()

    def state(self) -> State:
        """The marks that this reader has consumed; for display, since they cannot be restored."""
        return self.reader.position()

    def restore(self, state: State) -> None:
        raise UnimplementedError(
            f"a reader of the data service cannot continue from a saved position "
            f"({state.get('iteration_id')}); start a new repetition, or save a local dataset"
        )

    def close(self) -> None:
        self._finalizer.detach()
        self.reader.close()

    def location(self) -> str:
        return f"data service iteration {self.reader.iteration_id}"


def _abandon(reader: ServiceReader) -> None:
    """Closes the reader of a stream that nobody holds any more.

    Collection may come at any point of any thread, also where that thread holds the reader's lock,
    so another one does the work. The main thread, and so the end of the process, waits for it.
    """
    closing = threading.Thread(target=reader.close, name="reader-close", daemon=True)
    try:
        closing.start()
    except RuntimeError:
        # From Python 3.12 on no thread starts while the interpreter shuts down.
        reader.close()
        return
    if threading.current_thread() is threading.main_thread():
        closing.join(RELEASE_TIMEOUT_S)
