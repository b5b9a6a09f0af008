"""A worker's production of leased windows: from the right row on, in order, no row lost."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import dataservice as ds
from dataservice.errors import CancelledError, InternalError, UnavailableError, UserFunctionError
from dataservice.sharding import Split
from dataservice.wire.elements import RowSpan
from dataservice.worker.leases import Grant, Lease, LeaseFeed
from dataservice.worker.outgoing import FrameBuffer
from dataservice.worker.producer import WindowProducer
from dataservice.worker.task import Pipeline
from tests.unit.dataservice.worker.worker_pipelines import (
    SCHEMA,
    TIMEOUT_S,
    frames_of,
    leases_of,
    pipeline_of,
    task_of,
)


def rows_of(pipeline: Pipeline, lease: Lease) -> list[int]:
    pieces = pipeline.run_window(lease, lambda: False)
    return [value for batch, _ in pieces for value in batch.column("id").to_pylist()]


def test_windows_together_yield_all_rows_of_dataset() -> None:
    dataset = ds.Dataset.range(1_000)
    pipeline = pipeline_of(dataset)
    assert [i for lease in leases_of(dataset) for i in rows_of(pipeline, lease)] == list(
        range(1_000)
    )


@pytest.mark.parametrize("start_row", [0, 1, 7, 15, 16])
def test_replay_of_shuffled_window_begins_at_its_start_row(start_row: int) -> None:
    dataset = ds.Dataset.range(1_000).shuffle(100, seed=3)
    pipeline = pipeline_of(dataset)
    lease = leases_of(dataset, epoch=2)[1]
    whole = rows_of(pipeline, lease)
    assert rows_of(pipeline, lease._replace(start_row=start_row)) == whole[start_row:]
    first = next(pipeline.run_window(lease._replace(start_row=start_row), lambda: False))[1]
    assert first == start_row


@pytest.mark.parametrize("start_row", [0, 5, 16_384, 20_000, 49_999, 50_000])
def test_replay_of_window_of_many_batches_begins_at_its_start_row(start_row: int) -> None:
    pipeline = pipeline_of(ds.Dataset.range(60_000))
    splits = (Split(start=100, stop=50_100, rows=50_000),)
    whole = Lease(0, 0, 0, 0, 0, splits)
    assert len(list(pipeline.run_window(whole, lambda: False))) > 2
    got = []
    for batch, first in pipeline.run_window(whole._replace(start_row=start_row), lambda: False):
        ids = batch.column("id").to_pylist()
        assert ids[0] == first + 100
        got += ids
    assert got == list(range(100 + start_row, 50_100))


def test_windows_without_rows_are_reported_as_ended() -> None:
    dataset = ds.Dataset.range(1_000).filter(ds.col("id") >= 900)
    leases = leases_of(dataset)
    elements = run_producer(pipeline_of(dataset), leases)
    assert [row for ids, _ in elements for row in ids] == list(range(900, 1_000))
    ended = [span.window for _, spans in elements for span in spans if span.final]
    assert ended == [lease.window for lease in leases]


def test_operators_after_batch_apply_to_whole_elements() -> None:
    dataset = ds.Dataset.range(100).batch(10).map(lambda b: {"id": b["id"] - b["id"].min()})
    pipeline = pipeline_of(dataset)
    assert not pipeline.is_divisible
    elements = run_producer(pipeline, leases_of(dataset))
    assert [ids for ids, _ in elements if ids] == [list(range(10))] * 10


def test_filter_after_batch_keeps_spans_of_removed_rows() -> None:
    dataset = ds.Dataset.range(20).batch(10).filter(ds.col("id") >= 10)
    elements = run_producer(pipeline_of(dataset), leases_of(dataset))
    assert [ids for ids, _ in elements if ids] == [list(range(10, 20))]
    assert sum(span.rows for _, spans in elements for span in spans) == 20


class Dispatcher:
    """A dispatcher that hands out its leases, and then says that there are no more."""

    def __init__(self, leases: Sequence[Lease], *, ends: bool = True) -> None:
        self.leases = list(leases)
        self.returned: list[Lease] = []
        self.given_back = threading.Event()
        self._ends = ends
        self._lock = threading.Lock()
        self.closed = threading.Event()

    def ask(self, count: int, wait_s: float) -> Grant:
        with self._lock:
            granted, self.leases = self.leases[:count], self.leases[count:]
        if not granted and not self._ends and wait_s:
            self.closed.wait(TIMEOUT_S)
            return Grant((), True)
        return Grant(tuple(granted), self._ends and not granted)

    def give_back(self, leases: Sequence[Lease]) -> None:
        self.returned.extend(leases)
        self.given_back.set()


def producer_of(
    pipeline: Pipeline, dispatcher: Dispatcher, *, threads: int = 1, buffer_bytes: int = 1 << 20
) -> WindowProducer[FrameBuffer]:
    feed = LeaseFeed(dispatcher.ask, dispatcher.give_back, ahead=threads + 1, name="test")
    return WindowProducer(
        feed,
        pipeline,
        FrameBuffer(max(1, buffer_bytes // 2), pipeline.compression),
        threads=threads,
        buffer_bytes=buffer_bytes,
        name="test",
    )


def run_producer(
    pipeline: Pipeline, leases: Sequence[Lease], **settings: int
) -> list[tuple[list[int], tuple[RowSpan, ...]]]:
    producer = producer_of(pipeline, Dispatcher(leases), **settings)
    producer.start()
    try:
        return list(frames_of(producer.frames))
    finally:
        producer.close()


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("buffer_bytes", [1, 1 << 20])
def test_rows_are_produced_in_order_of_leases(threads: int, buffer_bytes: int) -> None:
    dataset = ds.Dataset.range(2_000).batch(64)
    elements = run_producer(
        pipeline_of(dataset), leases_of(dataset), threads=threads, buffer_bytes=buffer_bytes
    )
    assert [i for ids, _ in elements for i in ids] == list(range(2_000))
    assert [len(ids) for ids, _ in elements if ids] == [64] * 31 + [16]
    told = [(s.window, row) for _, spans in elements for s in spans for row in range(*s[2:4])]
    assert len(told) == len(set(told)) == 2_000


def test_partial_batch_is_sent_while_no_window_is_available() -> None:
    dataset = ds.Dataset.range(10).batch(4)
    dispatcher = Dispatcher(leases_of(dataset), ends=False)
    producer = producer_of(pipeline_of(dataset), dispatcher)
    producer.start()
    frames = frames_of(producer.frames)
    got: list[int] = []
    while len(got) < 10:
        got += next(frames)[0]
    producer.close()
    dispatcher.closed.set()
    assert got == list(range(10))


def test_partial_batch_waits_while_more_windows_are_asked_for() -> None:
    dataset = ds.Dataset.range(10).batch(4)
    asked_again, may_answer = threading.Event(), threading.Event()

    class SlowDispatcher(Dispatcher):
        def ask(self, count: int, wait_s: float) -> Grant:
            if len(self.leases) < 10:
                asked_again.set()
                assert may_answer.wait(TIMEOUT_S)
            return super().ask(count, wait_s)

    producer = producer_of(pipeline_of(dataset), SlowDispatcher(leases_of(dataset)))
    producer.start()
    assert asked_again.wait(TIMEOUT_S)
    assert producer.frames.get(0.1) is None
    may_answer.set()
    assert [len(ids) for ids, _ in frames_of(producer.frames) if ids] == [4, 4, 2]
    producer.close()


@pytest.mark.parametrize(
    ("build", "sizes"),
    [
        (lambda rows: rows.batch(4).repeat(2), [4, 4, 2] * 2),
        (lambda rows: rows.batch(4, drop_remainder=True).repeat(2), [4, 4] * 2),
        (lambda rows: rows.repeat(2).batch(4), [4] * 5),
    ],
)
def test_only_batches_of_repeated_rows_mix_rows_of_two_passes(
    build: Callable[[ds.Dataset], ds.Dataset], sizes: list[int]
) -> None:
    dataset = build(ds.Dataset.range(10))
    passes = [leases_of(dataset, epoch=0), leases_of(dataset, epoch=1)]
    count = len(passes[0])
    second = [lease._replace(window=lease.window + count) for lease in passes[1]]
    elements = run_producer(pipeline_of(dataset), [*passes[0], *second])
    assert [len(ids) for ids, _ in elements if ids] == sizes
    ended = [span.window for _, spans in elements for span in spans if span.final]
    assert sorted(ended) == list(range(2 * count))


def test_dropped_remainder_still_accounts_for_rows_of_its_windows() -> None:
    dataset = ds.Dataset.range(10).batch(4, drop_remainder=True)
    elements = run_producer(pipeline_of(dataset), leases_of(dataset))
    assert [ids for ids, _ in elements if ids] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert sum(s.rows for _, spans in elements for s in spans) == 10


def test_rows_before_error_are_delivered_before_it() -> None:
    def explode(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if (columns["id"] >= 500).any():
            raise ValueError("no ids from 500 on")
        return columns

    dataset = ds.Dataset.range(1_000).map(explode, schema=SCHEMA)
    producer = producer_of(pipeline_of(dataset), Dispatcher(leases_of(dataset)))
    producer.start()
    got: list[int] = []
    frames = frames_of(producer.frames)
    with pytest.raises(UserFunctionError, match="no ids from 500 on"):
        got.extend(i for ids, _ in frames for i in ids)
    producer.close()
    assert got == list(range(len(got)))
    assert 400 < len(got) <= 500


def interrupt(_columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    raise KeyboardInterrupt("from a function")


def test_keyboard_interrupt_in_user_function_reaches_reader_as_error() -> None:
    dataset = ds.Dataset.range(1_000).map(interrupt, schema=SCHEMA)
    windows = producer_of(pipeline_of(dataset), Dispatcher(leases_of(dataset)))
    task = task_of(dataset, lambda: None)
    for producer in (windows, task):
        producer.start()
        with pytest.raises(UserFunctionError, match="left by KeyboardInterrupt: from a function"):
            producer.frames.get(TIMEOUT_S)
        producer.close()


@pytest.mark.parametrize(
    ("error", "told", "message"),
    [
        (KeyError("defect"), InternalError, r"leasing windows failed: KeyError\('defect'\)"),
        (UnavailableError("the dispatcher is away"), UnavailableError, "away"),
    ],
)
def test_leasing_failure_ends_stream_with_its_error(
    error: Exception, told: type[Exception], message: str
) -> None:
    def ask(_count: int, _wait_s: float) -> Grant:
        raise error

    feed = LeaseFeed(ask, lambda _leases: None, ahead=2, name="test")
    pipeline = pipeline_of(ds.Dataset.range(4))
    producer = WindowProducer(
        feed,
        pipeline,
        FrameBuffer(1 << 19, pipeline.compression),
        threads=1,
        buffer_bytes=1 << 20,
        name="test",
    )
    producer.start()
    with pytest.raises(told, match=message):
        producer.frames.get(TIMEOUT_S)


def test_defect_in_compute_thread_ends_stream_with_its_error() -> None:
    dataset = ds.Dataset.range(4)
    dispatcher = Dispatcher(leases_of(dataset))
    producer = producer_of(pipeline_of(dataset), dispatcher)

    def defect() -> None:
        raise KeyError("defect")

    producer._feed.take_locked = defect  # type: ignore[method-assign, assignment]
    producer.start()
    with pytest.raises(KeyError, match="defect"):
        producer.frames.get(TIMEOUT_S)


def test_unused_leases_are_given_back_when_stream_ends() -> None:
    dataset = ds.Dataset.range(100_000)
    leases = leases_of(dataset)
    dispatcher = Dispatcher(leases)
    feed = LeaseFeed(dispatcher.ask, dispatcher.give_back, ahead=3, name="test")
    feed.start()
    with feed.lock:
        assert feed.changed.wait_for(lambda: len(dispatcher.leases) == len(leases) - 3, TIMEOUT_S)
        assert feed.take_locked() == leases[0]
    feed.stop()
    assert dispatcher.given_back.wait(TIMEOUT_S)
    assert leases[1:3] == dispatcher.returned[:2]
    assert leases[0] not in dispatcher.returned


def test_closed_producer_reports_unavailable_and_gives_leases_back() -> None:
    dataset = ds.Dataset.range(100_000).batch(10)
    leases = leases_of(dataset)
    dispatcher = Dispatcher(leases)
    producer = producer_of(pipeline_of(dataset), dispatcher, buffer_bytes=1)
    producer.start()
    assert producer.frames.get(TIMEOUT_S) is not None
    with producer._feed.lock:
        # Two windows may be open, so that the third lease waits.
        granted = producer._feed.changed.wait_for(
            lambda: len(dispatcher.leases) < len(leases) - 2, TIMEOUT_S
        )
    assert granted
    producer.close()
    with pytest.raises(UnavailableError):
        producer.frames.get(TIMEOUT_S)
    assert dispatcher.given_back.wait(TIMEOUT_S)


def test_closed_producer_frees_rows_of_windows_in_flight() -> None:
    dataset = ds.Dataset.range(100_000).batch(10)
    pipeline = pipeline_of(dataset)
    holds_rows, is_closed = threading.Event(), threading.Event()

    def run_window(
        lease: Lease, _cancelled: object, _omissions: object
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Gives no rows of the first window, so that the rows of the next have to wait."""
        if lease.window:
            yield pa.record_batch({"id": pc.random(1_000)}), 0
            holds_rows.set()
        assert is_closed.wait(TIMEOUT_S)
        raise CancelledError("the window is not wanted any more")

    pipeline.run_window = run_window  # type: ignore[assignment, method-assign]
    gc.collect()
    gc.disable()
    try:
        before = pa.total_allocated_bytes()
        producer = producer_of(pipeline, Dispatcher(leases_of(dataset)), threads=2)
        producer.start()
        assert holds_rows.wait(TIMEOUT_S)
        assert pa.total_allocated_bytes() > before
        producer.close()
        is_closed.set()
        producer.join(time.monotonic() + TIMEOUT_S)
        assert pa.total_allocated_bytes() == before
    finally:
        gc.enable()
