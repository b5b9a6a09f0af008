"""What a worker makes of leased windows: rows from the right one on, in order, none lost."""

from __future__ import annotations

import gc
import pathlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import dataservice as ds
from dataservice.dataset.plan import encode_plan, freeze_schemas
from dataservice.dataset.splits import linearise, plan_splits, plan_windows
from dataservice.dataset.static_sharding import Share, list_sources
from dataservice.errors import (
    CancelledError,
    DataLossError,
    InternalError,
    InvalidArgumentError,
    UnavailableError,
    UserFunctionError,
)
from dataservice.ranges import Pairs, Ranges
from dataservice.runtime.checksum import checksum
from dataservice.runtime.frames import decode_batch
from dataservice.wire.bookmarks import Bookmark, decode_bookmark
from dataservice.wire.elements import NO_WINDOW, Header, RowSpan, unpack
from dataservice.worker.cached_task import CachedFrames, CachedTask
from dataservice.worker.leases import Grant, Lease, LeaseFeed
from dataservice.worker.outgoing import Frame, FrameBuffer, FrameSender
from dataservice.worker.producer import WindowProducer
from dataservice.worker.task import Pipeline
from dataservice.worker.task_producer import Task, TaskProducer, tasks_of

SCHEMA = pa.schema({"id": pa.int64()})
TIMEOUT_S = 10.0


def pipeline_of(dataset: ds.Dataset) -> Pipeline:
    return Pipeline(encode_plan(freeze_schemas(dataset.node)), "AUTO", allow_functions=True)


def leases_of(dataset: ds.Dataset, *, start_row: int = 0, epoch: int = 0) -> list[Lease]:
    linear = linearise(dataset.node)
    windows = plan_windows(linear, plan_splits(linear), epoch)
    return [Lease(w.index, 0, start_row, epoch, w.index, w.splits) for w in windows]


def rows_of(pipeline: Pipeline, lease: Lease) -> list[int]:
    pieces = pipeline.run_window(lease, lambda: False)
    return [value for batch, _ in pieces for value in batch.column("id").to_pylist()]


def test_windows_together_are_the_dataset() -> None:
    dataset = ds.Dataset.range(1_000)
    pipeline = pipeline_of(dataset)
    assert [i for lease in leases_of(dataset) for i in rows_of(pipeline, lease)] == list(
        range(1_000)
    )


@pytest.mark.parametrize("start_row", [0, 1, 7, 15, 16])
def test_a_replay_begins_at_its_row_also_under_a_shuffle(start_row: int) -> None:
    dataset = ds.Dataset.range(1_000).shuffle(100, seed=3)
    pipeline = pipeline_of(dataset)
    lease = leases_of(dataset, epoch=2)[1]
    whole = rows_of(pipeline, lease)
    assert rows_of(pipeline, lease._replace(start_row=start_row)) == whole[start_row:]
    first = next(pipeline.run_window(lease._replace(start_row=start_row), lambda: False))[1]
    assert first == start_row


def test_operators_after_batch_apply_to_whole_elements() -> None:
    dataset = ds.Dataset.range(100).batch(10).map(lambda b: {"id": b["id"] - b["id"].min()})
    pipeline = pipeline_of(dataset)
    assert not pipeline.is_divisible
    elements = run_producer(pipeline, leases_of(dataset))
    assert [ids for ids, _ in elements if ids] == [list(range(10))] * 10


def test_a_filter_after_batch_may_leave_spans_without_rows() -> None:
    dataset = ds.Dataset.range(20).batch(10).filter(ds.col("id") >= 10)
    elements = run_producer(pipeline_of(dataset), leases_of(dataset))
    assert [ids for ids, _ in elements if ids] == [list(range(10, 20))]
    assert sum(span.rows for _, spans in elements for span in spans) == 20


class Dispatcher:
    """Hands out the leases it was given, then says that there are no more."""

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
def test_rows_leave_in_the_order_of_the_leases(threads: int, buffer_bytes: int) -> None:
    dataset = ds.Dataset.range(2_000).batch(64)
    elements = run_producer(
        pipeline_of(dataset), leases_of(dataset), threads=threads, buffer_bytes=buffer_bytes
    )
    assert [i for ids, _ in elements for i in ids] == list(range(2_000))
    assert [len(ids) for ids, _ in elements if ids] == [64] * 31 + [16]
    told = [(s.window, row) for _, spans in elements for s in spans for row in range(*s[2:4])]
    assert len(told) == len(set(told)) == 2_000


def test_a_short_rest_goes_out_when_no_window_is_to_be_had() -> None:
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


@pytest.mark.parametrize("drop_remainder", [False, True])
def test_no_batch_has_rows_of_two_passes_when_batches_are_repeated(drop_remainder: bool) -> None:
    dataset = ds.Dataset.range(10).batch(4, drop_remainder).repeat(2)
    passes = [leases_of(dataset, epoch=0), leases_of(dataset, epoch=1)]
    count = len(passes[0])
    second = [lease._replace(window=lease.window + count) for lease in passes[1]]
    elements = run_producer(pipeline_of(dataset), [*passes[0], *second])
    one_pass = [4, 4] if drop_remainder else [4, 4, 2]
    assert [len(ids) for ids, _ in elements if ids] == one_pass * 2
    ended = [span.window for _, spans in elements for span in spans if span.final]
    assert sorted(ended) == list(range(2 * count))


def test_a_dropped_remainder_still_ends_its_windows() -> None:
    dataset = ds.Dataset.range(10).batch(4, drop_remainder=True)
    elements = run_producer(pipeline_of(dataset), leases_of(dataset))
    assert [ids for ids, _ in elements if ids] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert sum(s.rows for _, spans in elements for s in spans) == 10


def test_rows_before_an_error_leave_before_it() -> None:
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


def test_no_way_to_leave_a_pipeline_leaves_its_reader_waiting() -> None:
    dataset = ds.Dataset.range(1_000).map(interrupt, schema=SCHEMA)
    windows = producer_of(pipeline_of(dataset), Dispatcher(leases_of(dataset)))
    task = task_of(dataset, lambda: None)
    for producer in (windows, task):
        producer.start()
        with pytest.raises(UserFunctionError, match="left by KeyboardInterrupt: from a function"):
            producer.frames.get(TIMEOUT_S)
        producer.close()


def test_a_defect_in_leasing_ends_the_stream_with_its_error() -> None:
    def ask(_count: int, _wait_s: float) -> Grant:
        raise KeyError("defect")

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
    with pytest.raises(InternalError, match=r"leasing windows failed: KeyError\('defect'\)"):
        producer.frames.get(TIMEOUT_S)


def test_a_defect_in_a_compute_thread_ends_the_stream_with_its_error() -> None:
    dataset = ds.Dataset.range(4)
    dispatcher = Dispatcher(leases_of(dataset))
    producer = producer_of(pipeline_of(dataset), dispatcher)

    def defect() -> None:
        raise KeyError("defect")

    producer._feed.take_held = defect  # type: ignore[method-assign, assignment]
    producer.start()
    with pytest.raises(KeyError, match="defect"):
        producer.frames.get(TIMEOUT_S)


def test_leases_in_store_are_given_back_when_the_stream_ends() -> None:
    dataset = ds.Dataset.range(100_000)
    leases = leases_of(dataset)
    dispatcher = Dispatcher(leases)
    feed = LeaseFeed(dispatcher.ask, dispatcher.give_back, ahead=3, name="test")
    feed.start()
    with feed.lock:
        assert feed.news.wait_for(lambda: len(dispatcher.leases) == len(leases) - 3, TIMEOUT_S)
        assert feed.take_held() == leases[0]
    feed.stop()
    assert dispatcher.given_back.wait(TIMEOUT_S)
    assert leases[1:3] == dispatcher.returned[:2]
    assert leases[0] not in dispatcher.returned


def test_a_dispatcher_that_stays_away_ends_the_stream_with_its_error() -> None:
    def ask(_count: int, _wait_s: float) -> Grant:
        raise UnavailableError("the dispatcher is away")

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
    with pytest.raises(UnavailableError, match="away"):
        producer.frames.get(TIMEOUT_S)


def test_a_closed_producer_does_not_look_like_one_that_is_done() -> None:
    dataset = ds.Dataset.range(100_000).batch(10)
    producer = producer_of(pipeline_of(dataset), Dispatcher(leases_of(dataset)), buffer_bytes=1)
    producer.start()
    assert producer.frames.get(TIMEOUT_S) is not None
    producer.close()
    with pytest.raises(UnavailableError):
        producer.frames.get(TIMEOUT_S)


def test_a_closed_producer_keeps_no_rows_of_windows_under_way() -> None:
    dataset = ds.Dataset.range(100_000).batch(10)
    pipeline = pipeline_of(dataset)
    holds_rows, is_closed = threading.Event(), threading.Event()

    def run_window(
        lease: Lease, _cancelled: object, _omissions: object
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        """The first window gives nothing, so that the rows of the next have to wait."""
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


def task_of(dataset: ds.Dataset, on_drained: Callable[[], None]) -> TaskProducer:
    return TaskProducer(
        pipeline_of(dataset), epoch=0, buffer_bytes=1 << 20, name="test", on_drained=on_drained
    )


def test_a_task_runs_the_whole_plan_once_and_reports_its_end_once() -> None:
    ends: list[str] = []
    task = task_of(ds.Dataset.range(10).batch(4).take(2), lambda: ends.append("drained"))
    task.start()
    elements = list(frames_of(task.frames))
    assert [ids for ids, _ in elements] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert {span.window for _, spans in elements for span in spans} == {NO_WINDOW}
    assert [span.end_row for _, spans in elements for span in spans] == [4, 8]
    for _ in range(2):
        task.begin_stream()
        task.end_stream((), came_to_end=True)
    assert ends == ["drained"]


def rest_of(dataset: ds.Dataset, *tasks: Task) -> list[tuple[list[int], RowSpan]]:
    pipeline = pipeline_of(dataset)
    producer = TaskProducer(
        pipeline, epoch=0, buffer_bytes=1 << 20, name="test", on_drained=lambda: None, tasks=tasks
    )
    producer.start()
    return [(ids, span) for ids, (span,) in frames_of(producer.frames)]


def test_a_task_goes_on_with_the_rows_that_its_reader_lacks() -> None:
    dataset = ds.Dataset.range(10).batch(4)
    assert rest_of(dataset, Task(3, ((0, 5), (8, 9)))) == [
        ([5, 6, 7], RowSpan(3, 0, 5, 8)),
        ([9], RowSpan(3, 0, 9, 10)),
    ]


def test_a_worker_makes_several_passes_one_after_the_other_or_none() -> None:
    dataset = ds.Dataset.range(4).batch(4)
    assert rest_of(dataset, Task(0, ((0, 2),)), Task(1, ((0, 4),)), Task(2)) == [
        ([2, 3], RowSpan(0, 0, 2, 4)),
        ([0, 1, 2, 3], RowSpan(2, 0, 0, 4)),
    ]
    assert rest_of(dataset) == []


def orders_of(dataset: ds.Dataset, *tasks: Task) -> list[list[int]]:
    return [ids for ids, _ in rest_of(dataset.batch(50), *tasks)]


def test_passes_beside_each_other_differ_where_a_shuffle_has_no_seed() -> None:
    drawn = ds.Dataset.range(50).shuffle(50)
    told: dict[str, Pairs] = {"0": (), "1": ()}
    first, second = orders_of(drawn, *tasks_of(told, None, varied=True))
    assert first == drawn.to_table()["id"].to_pylist(), "as without a service"
    assert sorted(second) == sorted(first)
    assert second != first
    rest = tasks_of({"1": ((0, 10),)}, None, varied=True)
    assert orders_of(drawn, *rest) == [second[10:]], "another worker goes on in the same order"
    assert orders_of(drawn, *tasks_of(told, None)) == [first, first], "of states of older versions"
    shared = [orders_of(drawn, *tasks_of(None, None, worker_id=worker)) for worker in "ab"]
    assert shared[0] != shared[1]


@pytest.mark.parametrize(
    "alike",
    [
        lambda rows: rows.shuffle(50, seed=1),
        lambda rows: rows.shuffle(50).cache(),
        lambda rows: rows.batch(5).shuffle(10).cache().unbatch(),
    ],
)
def test_a_given_seed_and_a_cache_have_one_order_in_all_passes(
    alike: Callable[[ds.Dataset], ds.Dataset],
) -> None:
    first, second = orders_of(alike(ds.Dataset.range(50)), Task(0), Task(1, variant="1"))
    assert first == second


def marked(
    pipeline: Pipeline, *tasks: Task, share: Share | None = None
) -> list[tuple[list[int], RowSpan, Bookmark | None]]:
    """What a worker makes that sends a bookmark with each element."""
    producer = TaskProducer(
        pipeline,
        epoch=0,
        buffer_bytes=1 << 20,
        name="test",
        on_drained=lambda: None,
        share=share,
        tasks=tasks,
        bookmark_every_s=0.0,
    )
    producer.start()
    made = []
    while True:
        try:
            frame = producer.frames.get(TIMEOUT_S)
        except CancelledError:
            return made
        assert frame is not None
        assert isinstance(frame.payload, pa.RecordBatch)
        bookmark = decode_bookmark(frame.bookmark)[1] if frame.bookmark else None
        ((span,), ids) = frame.spans, frame.payload.column("id").to_pylist()
        made.append((ids, span, bookmark))


def test_rows_are_cut_to_what_a_small_cache_holds() -> None:
    frames = CachedFrames(500, None)
    task = CachedTask(pipeline_of(ds.Dataset.range(100).repeat()), frames, name="test")
    task.start()
    try:
        taken = [frame for _ in range(20) if (frame := frames.get("trainer", TIMEOUT_S))]
    finally:
        task.close()
    assert [span.first_row for frame in taken for span in frame.spans] == list(range(0, 300, 15))
    assert frames.size_bytes <= 500


PIPELINES = {
    "batches": lambda rows: rows.batch(8),
    "rows": lambda rows: rows,
    "shuffled": lambda rows: rows.shuffle(40, seed=3).batch(7),
    "shuffled anyhow": lambda rows: rows.shuffle(40).batch(7),
    "filtered": lambda rows: rows.filter(ds.col("id") % 3 != 1).batch(5, drop_remainder=True),
    "repeated": lambda rows: rows.shuffle(30, seed=1).repeat(3).batch(9),
    "after the batch": lambda rows: rows.batch(6).map(lambda c: {"id": c["id"] + 1}),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_from_each_bookmark_on_the_same_elements_come(name: str) -> None:
    check_each_bookmark(pipeline_of(PIPELINES[name](ds.Dataset.range(200))))


def check_each_bookmark(pipeline: Pipeline, share: Share | None = None) -> None:
    whole = marked(pipeline, Task(2, variant="2"), share=share)
    assert whole
    for index, (_, span, bookmark) in enumerate(whole):
        assert bookmark is not None
        assert bookmark.row == span.first_row
        had = ((0, span.first_row),) if span.first_row else ()
        assert marked(pipeline, Task(2, had, bookmark, "2"), share=share) == whole[index:]


@pytest.mark.parametrize("policy", [ds.ShardingPolicy.FILE, ds.ShardingPolicy.DATA])
def test_shares_go_on_from_bookmarks(tmp_path: pathlib.Path, policy: ds.ShardingPolicy) -> None:
    for number in range(6):
        ids = range(number * 10, number * 10 + 10)
        pq.write_table(pa.table({"id": ids}), tmp_path / f"{number}.parquet")
    dataset = ds.Dataset.from_parquet(str(tmp_path)).shuffle(9, seed=2).batch(3)
    listing = list_sources(dataset.node, policy, 2)
    for index in range(2):
        check_each_bookmark(pipeline_of(dataset), Share(policy, index, 2, listing))


def test_what_was_left_out_does_not_move_bookmarks() -> None:
    def fail_on_some(row: dict[str, int]) -> dict[str, int]:
        if row["id"] % 7 == 3:
            raise ValueError("seven")
        return row

    dataset = ds.Dataset.range(60).map(fail_on_some, format="rows", schema=SCHEMA).batch(4)
    plan = encode_plan(freeze_schemas(dataset.node))
    check_each_bookmark(Pipeline(plan, "AUTO", allow_functions=True, on_error="skip"))


def noting(path: pathlib.Path) -> Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]:
    """A function that writes down which rows it is given; it may be sent elsewhere."""

    def note(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        with path.open("a") as file:
            file.write(" ".join(map(str, columns["id"])) + " ")
        return columns

    return note


@pytest.mark.parametrize(
    ("had", "plan", "begins"),
    [
        (((0, 40),), None, 32),
        (((0, 32), (36, 40)), None, 32),
        (((0, 31), (32, 40)), None, 0),  # a row before the bookmark is missing
        (((0, 40),), "of another version", 0),
    ],
)
def test_rows_before_a_bookmark_are_made_again_only_where_they_must(
    tmp_path: pathlib.Path, had: Pairs, plan: str | None, begins: int
) -> None:
    note = tmp_path / "rows"
    pipeline = pipeline_of(ds.Dataset.range(64).batch(8).map(noting(note)))
    bookmark = marked(pipeline, Task(0))[4][2]
    assert bookmark is not None
    if plan is not None:
        bookmark = bookmark._replace(plan=plan)
    note.write_text("")
    rest = marked(pipeline, Task(0, had, bookmark))
    assert [row for ids, *_ in rest for row in ids] == [
        r for r in range(64) if r not in Ranges(had)
    ]
    assert list(map(int, note.read_text().split())) == list(range(begins, 64))


def test_no_bookmarks_where_what_follows_would_differ_or_where_readers_share() -> None:
    dataset = ds.Dataset.range(16).batch(8)
    assert [bookmark for *_, bookmark in marked(pipeline_of(dataset), Task())] == [None, None]
    random = pipeline_of(dataset.map(lambda c: c, deterministic=False))
    assert [bookmark for *_, bookmark in marked(random, Task(0))] == [None, None]


def test_a_position_that_is_too_large_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dataservice.worker.task_producer.MAX_POSITION_CHARS", 10)
    made = marked(pipeline_of(ds.Dataset.range(16).batch(8)), Task(0))
    assert [bookmark for *_, bookmark in made] == [None, None]


@pytest.mark.parametrize("stream", ['{"what": 1}', "{", "[]", '{"input": {"split": "x"}}'])
def test_a_malformed_position_is_an_error_that_names_it(stream: str) -> None:
    pipeline = pipeline_of(ds.Dataset.range(16).batch(8))
    bookmark = marked(pipeline, Task(0))[1][2]
    assert bookmark is not None
    with pytest.raises(InvalidArgumentError, match="saved position of row 8 is malformed"):
        marked(pipeline, Task(0, ((0, 8),), bookmark._replace(stream=stream)))


def test_a_worker_makes_the_share_of_its_place_or_what_it_was_told() -> None:
    told = {"0": ((0, 3),), "1": ()}
    assert tasks_of(None, 1) == (Task(),)
    assert tasks_of(told, 0) == (Task(0, ((0, 3),)),)
    assert tasks_of(told, 2) == (Task(2),)
    assert tasks_of(told, None) == (Task(0, ((0, 3),)), Task(1))
    assert tasks_of({}, None) == ()
    at = {"0": [3, "plan", "{}"]}
    assert tasks_of(told, None, at) == (Task(0, ((0, 3),), Bookmark(3, "plan", "{}")), Task(1))
    with pytest.raises(DataLossError, match="damaged bookmark"):
        tasks_of(told, None, {"1": [3]})


def test_a_task_is_drained_once_no_stream_holds_frames_that_may_be_lost() -> None:
    ends: list[str] = []
    task = task_of(ds.Dataset.range(10).batch(4), lambda: ends.append("drained"))
    task.start()
    task.begin_stream()
    task.begin_stream()
    first, second = task.frames.get(TIMEOUT_S), task.frames.get(TIMEOUT_S)
    assert first is not None
    assert second is not None
    task.end_stream((), came_to_end=True)
    assert ends == [], "another stream may still lose its frames"
    task.end_stream([first, second], came_to_end=False)
    assert ends == [], "they wait for the next stream"
    task.begin_stream()
    assert [task.frames.get(TIMEOUT_S), task.frames.get(TIMEOUT_S)] == [first, second]
    task.end_stream((), came_to_end=True)
    assert ends == ["drained"]


def test_a_task_that_is_closed_while_frames_come_back_keeps_none() -> None:
    task = task_of(ds.Dataset.range(10).batch(4), lambda: None)
    task.start()
    task.begin_stream()
    frame = task.frames.get(TIMEOUT_S)
    assert frame is not None
    closing = threading.Thread(target=task.close)

    def unconfirmed() -> Iterator[Frame]:
        closing.start()
        closing.join(0.1)  # to its end, unless it has to wait for those frames
        yield frame

    task.end_stream(unconfirmed(), came_to_end=False)
    closing.join(TIMEOUT_S)
    assert task.is_closed()
    assert not task.frames.has_returned()


def test_shares_of_files_that_several_branches_read(tmp_path: pathlib.Path) -> None:
    # Each branch reads other rows of the files, but the plan names their source once.
    for number in range(4):
        pq.write_table(pa.table({"id": [number, number + 10]}), tmp_path / f"{number}.parquet")
    files = ds.Dataset.from_parquet(str(tmp_path))
    dataset = files.concatenate(files.filter(ds.col("id") < 10))
    pipeline = pipeline_of(dataset)
    listing = list_sources(dataset.node, ds.ShardingPolicy.FILE, 2)
    shares = [Share(ds.ShardingPolicy.FILE, index, 2, listing) for index in range(2)]
    ids = [
        value
        for share in shares
        for batch in pipeline.run_whole(0, lambda: False, share)
        for value in batch.column("id").to_pylist()
    ]
    assert sorted(ids) == sorted([*range(4), *range(10, 14), *range(4)])
