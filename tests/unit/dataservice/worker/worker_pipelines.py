"""Worker pipelines for tests, their leases, and the elements in the frames that they make."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

import dataservice as ds
from dataservice.dataset.division.linearise import linearise
from dataservice.dataset.division.splits import plan_splits
from dataservice.dataset.node import freeze_schemas
from dataservice.dataset.plan import encode_plan
from dataservice.errors import CancelledError
from dataservice.runtime.checksum import checksum
from dataservice.runtime.frames import decode_batch
from dataservice.wire.elements import Header, RowSpan, unpack
from dataservice.worker.leases import Lease
from dataservice.worker.outgoing import Frame, FrameBuffer, FrameSender
from dataservice.worker.task import Pipeline
from dataservice.worker.task_producer import Task, TaskProducer
from tests.planned_windows import plan_windows

SCHEMA = pa.schema({"id": pa.int64()})
TIMEOUT_S = 10.0


def pipeline_of(dataset: ds.Dataset) -> Pipeline:
    return Pipeline(encode_plan(freeze_schemas(dataset.node)), "AUTO", allow_functions=True)


def leases_of(dataset: ds.Dataset, *, start_row: int = 0, epoch: int = 0) -> list[Lease]:
    linear = linearise(dataset.node)
    windows = plan_windows(linear, plan_splits(linear), epoch)
    return [Lease(w.index, 0, start_row, epoch, w.index, w.splits) for w in windows]


def frames_of(
    buffer: FrameBuffer, schema: pa.Schema = SCHEMA
) -> Iterator[tuple[list[int], tuple[RowSpan, ...]]]:
    while True:
        try:
            frame = buffer.get(TIMEOUT_S)
        except CancelledError:
            return
        assert frame is not None, "the producer gave nothing"
        header, body = sent(frame)
        if body is None:
            yield [], header.spans
            continue
        assert checksum(body) == header.checksum
        batch = decode_batch(body, schema)
        yield batch.column("id").to_pylist(), header.spans


class Wire:
    """A channel that keeps what was sent."""

    shares_memory = False

    def send(self, header: bytes, body: pa.Buffer | None = None) -> None:
        self.message = header, body


def sent(frame: Frame) -> tuple[Header, pa.Buffer | None]:
    wire = Wire()
    FrameSender(wire).send(frame)  # type: ignore[arg-type]
    header, body = wire.message
    return unpack(header), body


def task_of(
    dataset: ds.Dataset, on_drained: Callable[[], None], tasks: Sequence[Task] = (Task(),)
) -> TaskProducer:
    return TaskProducer(
        pipeline_of(dataset),
        epoch=0,
        buffer_bytes=1 << 20,
        name="test",
        on_drained=on_drained,
        tasks=tasks,
    )
