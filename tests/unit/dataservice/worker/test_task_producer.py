"""A worker's production of a task without windows: passes, shares, bookmarks, and one end."""

from __future__ import annotations

import json
import logging
import pathlib
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dataservice as ds
from dataservice.dataset.division.static_sharding import Share, list_sources
from dataservice.dataset.node import freeze_schemas
from dataservice.dataset.plan import encode_plan
from dataservice.errors import (
    CancelledError,
    DataLossError,
    InvalidArgumentError,
    UnavailableError,
)
from dataservice.ranges import Pairs, Ranges
from dataservice.wire.bookmarks import Bookmark, decode_bookmark
from dataservice.wire.elements import NO_WINDOW, RowSpan, pack_missed
from dataservice.worker import task_producer
from dataservice.worker.cached_task import CachedFrames, CachedTask
from dataservice.worker.outgoing import Frame
from dataservice.worker.rebatch import Element
from dataservice.worker.task import Pipeline
from dataservice.worker.task_producer import BookmarkMaker, Task, TaskProducer, tasks_of
from tests.unit.dataservice.worker.worker_pipelines import (
    SCHEMA,
    TIMEOUT_S,
    frames_of,
    pipeline_of,
    task_of,
)
from tests.unit.manual_clock import ManualClock


def test_task_runs_whole_plan_once_and_reports_drained_once() -> None:
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


def test_resumed_task_produces_only_rows_its_reader_lacks() -> None:
    dataset = ds.Dataset.range(10).batch(4)
    assert rest_of(dataset, Task(3, ((0, 5), (8, 9)))) == [
        ([5, 6, 7], RowSpan(3, 0, 5, 8)),
        ([9], RowSpan(3, 0, 9, 10)),
    ]


def test_producer_runs_its_tasks_in_sequence_skipping_complete_ones() -> None:
    dataset = ds.Dataset.range(4).batch(4)
    assert rest_of(dataset, Task(0, ((0, 2),)), Task(1, ((0, 4),)), Task(2)) == [
        ([2, 3], RowSpan(0, 0, 2, 4)),
        ([0, 1, 2, 3], RowSpan(2, 0, 0, 4)),
    ]
    assert rest_of(dataset) == []


def orders_of(dataset: ds.Dataset, *tasks: Task) -> list[list[int]]:
    return [ids for ids, _ in rest_of(dataset.batch(50), *tasks)]


def test_parallel_passes_differ_where_shuffle_has_no_seed() -> None:
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
def test_seeded_or_cached_shuffle_has_same_order_in_all_passes(
    alike: Callable[[ds.Dataset], ds.Dataset],
) -> None:
    first, second = orders_of(alike(ds.Dataset.range(50)), Task(0), Task(1, variant="1"))
    assert first == second


def elements_with_bookmarks(
    pipeline: Pipeline, *tasks: Task, share: Share | None = None
) -> list[tuple[list[int], RowSpan, Bookmark | None]]:
    """Returns a worker's elements, each with its span and the bookmark that is sent with it."""
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


def test_frames_of_cached_task_are_cut_to_fit_small_cache() -> None:
    frames = CachedFrames(500, None)
    task = CachedTask(pipeline_of(ds.Dataset.range(100).repeat()), frames, name="test")
    task.start()
    try:
        taken = [frame for _ in range(20) if (frame := frames.get("trainer", TIMEOUT_S))]
    finally:
        task.close()
    assert [span.first_row for frame in taken for span in frame.spans] == list(range(0, 300, 15))
    assert frames.size_bytes <= 500


def test_elements_of_cached_task_are_not_cut() -> None:
    frames = CachedFrames(2_000, None)
    task = CachedTask(pipeline_of(ds.Dataset.range(100).repeat().batch(64)), frames, name="test")
    task.start()
    try:
        taken = [frame for _ in range(3) if (frame := frames.get("trainer", TIMEOUT_S))]
    finally:
        task.close()
    assert [frame.rows for frame in taken] == [64, 64, 64]


def element_of(rows: int) -> Element:
    return Element(pa.record_batch({"id": np.arange(rows)}), ())


def test_elements_without_rows_or_larger_than_the_cache_are_not_cached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frames = CachedFrames(1_000, None)
    for empty in (Element(None, ()), element_of(0)):
        frames.put(empty)
    assert frames.get("trainer", 0) is None
    frames.put(element_of(10))
    monkeypatch.setattr(frames, "_wait_until_wanted", lambda _: pytest.fail("waits for ever"))
    with pytest.raises(InvalidArgumentError, match=r"does not fit .* of 1000 bytes"):
        frames.put(element_of(1_000))


def test_cache_is_filled_a_few_elements_ahead_of_the_first_trainer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class WaitsError(Exception):
        pass

    def wait(_size_bytes: int) -> None:
        raise WaitsError

    for rows, ahead in ((1, 8), (1_000, 1)):
        frames = CachedFrames(10_000, None)
        monkeypatch.setattr(frames, "_wait_until_wanted", wait)
        for _ in range(2):
            for _ in range(ahead):
                frames.put(element_of(rows))
            with pytest.raises(WaitsError):
                frames.put(element_of(rows))
            while frames.get("first", 0):
                pass


def test_trainer_behind_the_cache_is_told_what_it_missed() -> None:
    frames = CachedFrames(10_000, None)
    assert frames.get("slow", 0) is None
    for _ in range(3):
        frames.put(element_of(1_000))
        frames.get("fast", 0)
    told, frame = frames.get("slow", 0), frames.get("slow", 0)
    assert told is not None
    assert (told.rows, told.payload, told.header) == (0, None, pack_missed(2))
    assert frame is not None
    assert frame.spans == (RowSpan(NO_WINDOW, 0, 2_000, 3_000),)
    assert frame.size_bytes == frames.size_bytes > 8_000


def test_discarded_cache_holds_nothing_and_says_that_its_worker_gave_up() -> None:
    frames = CachedFrames(1_000, None)
    trainer = frames.of_trainer("trainer")
    frames.put(element_of(10))
    assert (taken := trainer.get(0)) is not None
    assert taken.spans == (RowSpan(NO_WINDOW, 0, 0, 10),)
    frames.put(element_of(10))
    frames.discard()
    assert frames.size_bytes == 0
    assert (told := trainer.get(0)) is not None
    assert told.header == pack_missed(1)
    with pytest.raises(UnavailableError, match="the worker gave the stream up"):
        trainer.get(0)
    with pytest.raises(CancelledError):
        frames.put(element_of(10))


@pytest.mark.parametrize(
    ("dataset", "elements", "message"),
    [
        (ds.Dataset.range(10).batch(5), 2, r"ended after 10 rows .* end it with repeat\(\)"),
        (ds.Dataset.range(10).filter(ds.col("id") < 0), 0, "has no elements on this worker"),
    ],
)
def test_cached_dataset_that_ends_is_an_error_after_its_elements(
    dataset: ds.Dataset, elements: int, message: str
) -> None:
    frames = CachedFrames(10_000, None)
    task = CachedTask(pipeline_of(dataset), frames, name="test")
    task.start()
    try:
        for _ in range(elements):
            assert frames.get("trainer", TIMEOUT_S) is not None
        with pytest.raises(InvalidArgumentError, match=message):
            frames.get("trainer", TIMEOUT_S)
    finally:
        task.close()


def test_cache_that_ends_gives_what_it_has_before_its_failure() -> None:
    frames = CachedFrames(1_000, None)
    frames.put(element_of(10))
    frames.end(DataLossError("the first failure"))
    frames.end(DataLossError("the second failure"))
    for name in ("a", "b"):
        assert frames.get(name, 0) is not None
        with pytest.raises(DataLossError, match="the first failure"):
            frames.get(name, 0)


PIPELINES = {
    "batches": lambda rows: rows.batch(8),
    "rows": lambda rows: rows,
    "shuffled": lambda rows: rows.shuffle(40, seed=3).batch(7),
    "shuffled without seed": lambda rows: rows.shuffle(40).batch(7),
    "filtered": lambda rows: rows.filter(ds.col("id") % 3 != 1).batch(5, drop_remainder=True),
    "repeated": lambda rows: rows.shuffle(30, seed=1).repeat(3).batch(9),
    "after the batch": lambda rows: rows.batch(6).map(lambda c: {"id": c["id"] + 1}),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_task_resumed_at_any_bookmark_produces_same_elements(name: str) -> None:
    check_each_bookmark(pipeline_of(PIPELINES[name](ds.Dataset.range(200))))


def check_each_bookmark(pipeline: Pipeline, share: Share | None = None) -> None:
    whole = elements_with_bookmarks(pipeline, Task(2, variant="2"), share=share)
    assert whole
    for index, (_, span, bookmark) in enumerate(whole):
        assert bookmark is not None
        assert bookmark.row == span.first_row
        received = ((0, span.first_row),) if span.first_row else ()
        assert (
            elements_with_bookmarks(pipeline, Task(2, received, bookmark, "2"), share=share)
            == whole[index:]
        )


@pytest.mark.parametrize("policy", [ds.ShardingPolicy.FILE, ds.ShardingPolicy.DATA])
def test_share_resumed_at_any_bookmark_produces_same_elements(
    tmp_path: pathlib.Path, policy: ds.ShardingPolicy
) -> None:
    for number in range(6):
        ids = range(number * 10, number * 10 + 10)
        pq.write_table(pa.table({"id": ids}), tmp_path / f"{number}.parquet")
    dataset = ds.Dataset.from_parquet(str(tmp_path)).shuffle(9, seed=2).batch(3)
    listing = list_sources(dataset.node, policy, 2)
    for index in range(2):
        check_each_bookmark(pipeline_of(dataset), Share(policy, index, 2, listing))


def test_skipped_rows_do_not_shift_bookmarks() -> None:
    def fail_on_some(row: dict[str, int]) -> dict[str, int]:
        if row["id"] % 7 == 3:
            raise ValueError("seven")
        return row

    dataset = ds.Dataset.range(60).map(fail_on_some, format="rows", schema=SCHEMA).batch(4)
    plan = encode_plan(freeze_schemas(dataset.node))
    check_each_bookmark(Pipeline(plan, "AUTO", allow_functions=True, on_error="skip"))


def noting(path: pathlib.Path) -> Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]:
    """Returns a function that writes its rows to a file, so that it may run in any process."""

    def note(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        with path.open("a") as file:
            file.write(" ".join(map(str, columns["id"])) + " ")
        return columns

    return note


@pytest.mark.parametrize(
    ("received", "plan", "begins"),
    [
        (((0, 40),), None, 32),
        (((0, 32), (36, 40)), None, 32),
        (((0, 31), (32, 40)), None, 0),  # a row before the bookmark is missing
        (((0, 40),), "of another version", 0),
    ],
)
def test_rows_before_bookmark_are_recomputed_only_if_missing_or_plan_differs(
    tmp_path: pathlib.Path, received: Pairs, plan: str | None, begins: int
) -> None:
    note = tmp_path / "rows"
    pipeline = pipeline_of(ds.Dataset.range(64).batch(8).map(noting(note)))
    bookmark = elements_with_bookmarks(pipeline, Task(0))[4][2]
    assert bookmark is not None
    if plan is not None:
        bookmark = bookmark._replace(plan=plan)
    note.write_text("")
    rest = elements_with_bookmarks(pipeline, Task(0, received, bookmark))
    assert [row for ids, *_ in rest for row in ids] == [
        r for r in range(64) if r not in Ranges(received)
    ]
    assert list(map(int, note.read_text().split())) == list(range(begins, 64))


def test_nondeterministic_or_shared_task_sends_no_bookmarks() -> None:
    dataset = ds.Dataset.range(16).batch(8)
    assert [bookmark for *_, bookmark in elements_with_bookmarks(pipeline_of(dataset), Task())] == [
        None,
        None,
    ]
    random = pipeline_of(dataset.map(lambda c: c, deterministic=False))
    assert [bookmark for *_, bookmark in elements_with_bookmarks(random, Task(0))] == [None, None]


def test_oversized_position_is_not_sent_as_bookmark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dataservice.worker.task_producer.MAX_POSITION_CHARS", 10)
    made = elements_with_bookmarks(pipeline_of(ds.Dataset.range(16).batch(8)), Task(0))
    assert [bookmark for *_, bookmark in made] == [None, None]


def test_bookmarks_come_at_intervals_which_double_with_each_oversized_position(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock, position = ManualClock(), {"rows": ""}
    monkeypatch.setattr(task_producer, "time", types.SimpleNamespace(monotonic=clock))
    stream: Any = types.SimpleNamespace(state=lambda: position)
    maker = BookmarkMaker(3, "plan", 1.0)

    def sent_at() -> list[float]:
        """Returns after how many of the next four seconds a bookmark is sent."""
        begins_s, sent = clock(), []
        for _ in range(8):
            clock.advance(0.5)
            if bookmark := maker.at(5, stream):
                assert decode_bookmark(bookmark) == (3, Bookmark(5, "plan", json.dumps(position)))
                sent.append(clock() - begins_s)
        return sent

    assert sent_at() == [1, 2, 3, 4]
    position["rows"] = "x" * (1 << 20)
    with caplog.at_level(logging.INFO):
        assert sent_at() == []
    # After 1 s the interval becomes 2 s, after 3 s it becomes 4 s.
    assert [record.args[1] for record in caplog.records if record.args] == [2.0, 4.0]
    position["rows"] = ""
    assert sent_at() == [3]


@pytest.mark.parametrize("stream", ['{"what": 1}', "{", "[]", '{"input": {"split": "x"}}'])
def test_malformed_position_of_bookmark_is_refused_naming_its_row(stream: str) -> None:
    pipeline = pipeline_of(ds.Dataset.range(16).batch(8))
    bookmark = elements_with_bookmarks(pipeline, Task(0))[1][2]
    assert bookmark is not None
    with pytest.raises(InvalidArgumentError, match="saved position of row 8 is malformed"):
        elements_with_bookmarks(pipeline, Task(0, ((0, 8),), bookmark._replace(stream=stream)))


def test_worker_takes_task_of_its_place_or_tasks_it_was_assigned() -> None:
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


def test_task_is_drained_once_no_stream_holds_unconfirmed_frames() -> None:
    ends: list[str] = []
    task = task_of(ds.Dataset.range(10).batch(4), lambda: ends.append("drained"))
    task.start()
    task.begin_stream()
    task.end_stream((), came_to_end=False)
    assert ends == [], "elements are left"
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
    task.end_stream((), came_to_end=False)
    assert ends == ["drained"], "the first stream has told that there is no more"


def test_closed_task_is_not_drained() -> None:
    ends: list[str] = []
    task = task_of(ds.Dataset.range(4), lambda: ends.append("drained"))
    task.begin_stream()
    task.close()
    task.end_stream((), came_to_end=True)
    assert ends == []


def test_frames_taken_by_departed_reader_are_not_sent_again() -> None:
    task = task_of(ds.Dataset.range(10).batch(4), lambda: None)
    task.start()
    task.begin_stream()
    first, second = task.frames.get(TIMEOUT_S), task.frames.get(TIMEOUT_S)
    assert first is not None
    assert second is not None
    task.record_taken([(first.spans[0].window, 0)])
    task.end_stream([first, second], came_to_end=False)
    assert task.frames.get(TIMEOUT_S) is second


def test_frame_of_other_task_with_same_first_row_is_sent_again() -> None:
    task = task_of(ds.Dataset.range(4).batch(4), lambda: None, tasks=(Task(0), Task(1)))
    task.start()
    task.begin_stream()
    first, second = task.frames.get(TIMEOUT_S), task.frames.get(TIMEOUT_S)
    assert first is not None
    assert second is not None
    assert second.spans[0].first_row == first.spans[0].first_row
    task.record_taken([(0, 0)])
    task.end_stream([first, second], came_to_end=False)
    assert task.frames.get(TIMEOUT_S) is second


def test_task_closed_while_frames_are_put_back_keeps_none() -> None:
    task = task_of(ds.Dataset.range(10).batch(4), lambda: None)
    task.start()
    task.begin_stream()
    frame = task.frames.get(TIMEOUT_S)
    assert frame is not None
    closing = threading.Thread(target=task.close)

    def unconfirmed() -> Iterator[Frame]:
        closing.start()
        closing.join(0.1)  # it ends, unless it has to wait for those frames
        yield frame

    task.end_stream(unconfirmed(), came_to_end=False)
    closing.join(TIMEOUT_S)
    assert task.is_closed()
    assert not task.frames.has_returned()


def test_share_runs_the_same_plan_again_so_that_its_cache_is_hit(tmp_path: pathlib.Path) -> None:
    note = tmp_path / "rows"
    rows = ds.Dataset.range(8).shard(ds.SHARD_HINT, 0)
    pipeline = pipeline_of(rows.map(noting(note)).cache().batch(2))
    note.write_text("")
    for epoch in range(2):
        share = Share(ds.ShardingPolicy.HINT, 1, 2)
        batches = pipeline.run_whole(epoch, lambda: False, share)
        assert [batch.column("id").to_pylist() for batch in batches] == [[1, 3], [5, 7]]
    assert note.read_text().split() == ["1", "3", "5", "7"]


def test_shares_of_files_read_by_several_branches_cover_all_rows(tmp_path: pathlib.Path) -> None:
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
