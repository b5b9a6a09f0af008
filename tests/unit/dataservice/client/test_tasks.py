"""A reader's tasks: every row of a pass or share once, however often reading is resumed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataservice.client.tasks import TaskMark, TaskTracker
from dataservice.errors import DataLossError
from dataservice.ranges import Pairs, Ranges
from dataservice.vocabulary import ShardingPolicy
from dataservice.wire.bookmarks import Bookmark, decode_bookmark, encode_bookmark
from dataservice.wire.elements import RowSpan

OFF, DATA = ShardingPolicy.OFF, ShardingPolicy.DATA


def span(task: int, first: int, end: int) -> RowSpan:
    return RowSpan(task, 0, first, end)


def take(tracker: TaskTracker, worker: str, *spans: RowSpan) -> tuple[RowSpan, ...]:
    accepted = tracker.receive(worker, spans).spans
    tracker.consume(accepted)
    return accepted


def test_share_begun_anew_by_worker_gives_no_row_twice() -> None:
    tracker = TaskTracker(DATA)
    tracker.assign_passes(["a"])
    assert take(tracker, "a", span(1, 0, 4), span(1, 4, 8)) == (span(1, 0, 4), span(1, 4, 8))
    tracker.assign_passes(["a", "again"])
    assert tracker.received_for("again") == {"1": ((0, 8),)}
    accepted = tracker.receive("again", [span(1, 0, 4), span(1, 4, 10)])
    assert (accepted.slices, accepted.spans) == (((8, 2),), (span(1, 8, 10),))


def test_frame_gives_only_rows_on_either_side_of_those_received() -> None:
    tracker = TaskTracker(DATA)
    tracker.assign_passes(["a"])
    take(tracker, "a", span(1, 4, 6))
    accepted = tracker.receive("a", [span(0, 0, 2), span(1, 0, 10)])
    assert accepted.slices == ((0, 2), (2, 4), (8, 4))
    assert accepted.spans == (span(0, 0, 2), span(1, 0, 4), span(1, 6, 10))


def test_size_of_share_is_known_once_its_worker_has_ended() -> None:
    tracker = TaskTracker(DATA)
    tracker.assign_passes(["a", "b"])
    take(tracker, "b", span(1, 0, 4))
    take(tracker, "a", span(0, 0, 4))
    tracker.receive("b", [span(2, 0, 4)])
    tracker.record_end("a")
    marks = (TaskMark(0, ((0, 4),), 4), TaskMark(1, ((0, 4),), None))
    assert tracker.marks() == tracker.marks([[span(2, 0, 4)]]) == marks
    assert TaskTracker(DATA, marks).marks() == marks


def test_each_worker_is_assigned_its_own_pass() -> None:
    tracker = TaskTracker(OFF)
    tracker.assign_passes(["a", "b"])
    tracker.assign_passes(["b", "c"])
    assert [tracker.received_for(worker) for worker in "abc"] == [{"0": ()}, {"1": ()}, {"2": ()}]


def test_saved_passes_are_dealt_to_workers_present_first() -> None:
    saved = [TaskMark(0, ((0, 4),), None), TaskMark(1, (), None), TaskMark(2, ((0, 4),), 4)]
    for workers, dealt in (
        ("a", [{"0": ((0, 4),), "1": ()}]),
        ("abc", [{"0": ((0, 4),)}, {"1": ()}, {}]),
    ):
        tracker = TaskTracker(OFF, saved)
        tracker.assign_passes([])
        tracker.assign_passes(workers)
        tracker.assign_passes([*workers, "late"])
        assert [tracker.received_for(worker) for worker in workers] == dealt
        assert tracker.received_for("late") == {}


def test_task_mark_has_consumed_rows_only() -> None:
    tracker = TaskTracker(OFF)
    tracker.assign_passes(["a"])
    spans = take(tracker, "a", span(0, 0, 4), span(0, 4, 8))
    tracker.receive("a", [span(0, 8, 12)])
    assert tracker.marks() == (TaskMark(0, ((0, 8),), None),)
    assert tracker.marks([spans[1:]]) == (TaskMark(0, ((0, 4),), None),)
    tracker.record_end("a")
    tracker.consume([span(0, 8, 12)])
    (mark,) = tracker.marks()
    assert mark == TaskMark(0, ((0, 12),), 12)
    assert mark.is_over
    assert TaskMark.from_json(mark.to_json()) == mark


def test_task_size_is_known_only_without_gap() -> None:
    tracker = TaskTracker(OFF)
    tracker.assign_passes(["a"])
    take(tracker, "a", span(0, 4, 8))
    tracker.record_end("a")
    assert tracker.marks() == (TaskMark(0, ((4, 8),), None),)


def test_rows_without_task_number_are_refused() -> None:
    tracker = TaskTracker(OFF)
    tracker.assign_passes(["a"])
    with pytest.raises(DataLossError, match="does not number its tasks"):
        tracker.receive("a", [span(-1, 0, 4)])


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 60), st.text(), st.text())
def test_decoding_bookmark_inverts_encoding(task: int, row: int, plan: str, stream: str) -> None:
    sent = Bookmark(row, plan, stream)
    assert decode_bookmark(encode_bookmark(task, sent)) == (task, sent)


@pytest.mark.parametrize(
    "encoded",
    [
        b"",
        b"\xff",
        b"1",
        b"[]",
        b"[0, 1]",
        b'[0, -1, "p", "{}"]',
        b'[0, 1, "p", []]',
        b'[0, 1, 2, "s"]',
    ],
)
def test_damaged_bookmark_is_data_loss(encoded: bytes) -> None:
    with pytest.raises(DataLossError, match="damaged bookmark"):
        decode_bookmark(encoded)


@pytest.mark.parametrize(
    "encoded",
    [
        [-1, [], None],
        [0, [[3, 2]], None],
        [0, [[0, 1], [1, 2]], 3],
        [0, [[-1, 2], [3, 4]], None],
    ],
)
def test_damaged_task_mark_is_refused(encoded: list[object]) -> None:
    with pytest.raises(ValueError, match="task"):
        TaskMark.from_json(encoded)


def bookmark(row: int) -> Bookmark:
    return Bookmark(row, "plan", json.dumps({"at": row}))


def test_task_mark_has_newest_bookmark_without_missing_rows() -> None:
    tracker = TaskTracker(OFF)
    tracker.assign_passes(["a"])
    tracker.record_bookmark(0, bookmark(4))
    tracker.record_bookmark(0, bookmark(8))
    tracker.record_bookmark(0, bookmark(6))  # from a worker that begins anew
    assert [mark.bookmark for mark in tracker.marks()] == [None]
    spans = take(tracker, "a", span(0, 0, 4), span(0, 4, 9))
    assert [mark.bookmark for mark in tracker.marks()] == [bookmark(8)]
    assert [mark.bookmark for mark in tracker.marks([spans[1:]])] == [bookmark(4)]
    take(tracker, "a", span(0, 10, 12))
    tracker.record_bookmark(0, bookmark(12))
    assert [mark.bookmark for mark in tracker.marks()] == [bookmark(8)], "row 9 is missing"
    assert tracker.stream_command("a") == {
        "tasks": {"0": ((0, 9), (10, 12))},
        "bookmarks": {"0": bookmark(8)},
        "varied": True,
    }


def test_mark_of_finished_task_has_no_bookmark() -> None:
    tracker = TaskTracker(OFF)
    tracker.assign_passes(["a"])
    for row in range(2, 10, 2):
        spans = take(tracker, "a", span(0, row - 2, row))
        tracker.record_bookmark(0, bookmark(row))
    tracker.record_end("a")
    assert [mark.bookmark for mark in tracker.marks()] == [None]
    assert [mark.bookmark for mark in tracker.marks([spans])] == [bookmark(6)]


def test_bookmark_survives_resume_without_newer_bookmarks() -> None:
    tracker = TaskTracker(OFF)
    tracker.assign_passes(["a"])
    tracker.record_bookmark(0, bookmark(4))
    take(tracker, "a", span(0, 0, 5))
    encoded = json.loads(json.dumps([mark.to_json() for mark in tracker.marks()]))
    again = TaskTracker(OFF, [TaskMark.from_json(item) for item in encoded])
    again.assign_passes(["b"])
    assert again.stream_command("b") == {
        "tasks": {"0": ((0, 5),)},
        "bookmarks": {"0": bookmark(4)},
        "varied": True,
    }
    assert again.marks() == tracker.marks()


def test_task_mark_of_older_version_has_no_bookmark() -> None:
    assert TaskMark.from_json([0, [[0, 3]], None]) == TaskMark(0, ((0, 3),), None)


def test_tracker_keeps_few_bookmarks_and_always_a_usable_one() -> None:
    tracker = TaskTracker(OFF)
    tracker.assign_passes(["a"])
    for row in range(1, 200):
        tracker.record_bookmark(0, bookmark(row))
    assert tracker.stream_command("a")["bookmarks"] == {}, "nothing was received"
    for row in range(400):
        take(tracker, "a", span(0, row, row + 1))
        tracker.record_bookmark(0, bookmark(row + 1))
        (mark,) = tracker.marks()
        assert mark.bookmark is not None
    assert mark.bookmark == bookmark(400)
    kept = [row for row in range(1, 401) if is_kept(tracker, row)]
    assert kept == list(range(369, 401)), "positions may leave out what was taken since"


def test_usable_bookmark_stays_until_the_next_one_is_usable() -> None:
    tracker = TaskTracker(OFF)
    tracker.assign_passes(["a"])
    for number in range(1, 33):  # as many as are kept
        tracker.record_bookmark(0, bookmark(10 * number))
    take(tracker, "a", span(0, 0, 15))
    tracker.record_bookmark(0, bookmark(330))
    assert [mark.bookmark for mark in tracker.marks()] == [bookmark(10)]
    take(tracker, "a", span(0, 15, 20))
    tracker.record_bookmark(0, bookmark(340))
    assert [mark.bookmark for mark in tracker.marks()] == [bookmark(20)]
    spans = take(tracker, "a", span(0, 20, 400))
    assert [mark.bookmark for mark in tracker.marks()] == [bookmark(340)]
    assert [mark.bookmark for mark in tracker.marks([spans])] == [bookmark(20)]


def is_kept(tracker: TaskTracker, row: int) -> bool:
    """True if a position that leaves out all rows from `row` on has the bookmark of that row."""
    (mark,) = tracker.marks([[span(0, row, 1_000)]])
    return mark.bookmark == bookmark(row)


class ModelWorkers:
    """The workers of one life of a program, each with a queue of the parts that it has to make."""

    def __init__(self, tracker: TaskTracker, told: dict[str, dict[str, Pairs]], rows: int) -> None:
        self.queues = {
            worker: [
                span(int(number), first, end)
                for number, had in tasks.items()
                for begin in range(0, rows, 3)
                for first, end in Ranges(had).missing(begin, min(begin + 3, rows))
            ]
            for worker, tasks in told.items()
        }
        self.tracker = tracker

    def next_of(self, worker: str, *, displaced: bool, again: bool) -> tuple[RowSpan, ...]:
        """Delivers a worker's next frame; returns the spans of it that are new.

        `displaced` delivers the frame behind it. `again`: the frame will come once more.
        """
        queue = self.queues[worker]
        if not queue:
            self.tracker.record_end(worker)
            return ()
        frame = queue.pop(min(int(displaced), len(queue) - 1))
        if again:
            queue.insert(0, frame)
        return self.tracker.receive(worker, [frame]).spans


@given(st.data(), st.integers(1, 12), st.integers(1, 3))
def test_every_row_of_every_pass_is_consumed_once_across_resumes(
    data: st.DataObject, rows: int, first: int
) -> None:
    """A life ends at any moment, with any number of workers, and with received rows unused."""
    used: list[tuple[int, int]] = []
    state: list[TaskMark] = []
    for life in range(4):
        workers = [
            f"{life}-{n}" for n in range(first if not life else data.draw(st.integers(1, 4)))
        ]
        encoded = json.loads(json.dumps([mark.to_json() for mark in state]))
        tracker = TaskTracker(OFF, [TaskMark.from_json(item) for item in encoded])
        tracker.assign_passes(workers)
        made = ModelWorkers(
            tracker, {worker: tracker.received_for(worker) for worker in workers}, rows
        )
        is_last = life == 3
        waiting: list[RowSpan] = []
        for _ in range(10_000 if is_last else data.draw(st.integers(0, 12))):
            if is_last and not any(made.queues.values()) and not waiting:
                break
            worker = (
                data.draw(st.sampled_from(workers))
                if not is_last
                else next((name for name, queue in made.queues.items() if queue), workers[0])
            )
            odd = not is_last and data.draw(st.booleans())
            waiting += made.next_of(worker, displaced=odd, again=odd and data.draw(st.booleans()))
            for part in waiting if is_last else waiting[: data.draw(st.integers(0, 2))]:
                tracker.consume([part])
                used += [(part.window, row) for row in range(part.first_row, part.end_row)]
                waiting = waiting[1:]
        state = list(tracker.marks())
    assert sorted(used) == [(task, row) for task in range(first) for row in range(rows)]
