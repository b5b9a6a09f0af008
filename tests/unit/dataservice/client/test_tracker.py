"""The reader's marks: every row once, although frames come twice, late, or from fenced workers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataservice.client.tracker import Tracker
from dataservice.errors import DataLossError
from dataservice.ranges import Consumed, Ranges, RowMark
from dataservice.wire.elements import NO_WINDOW, RowSpan


def span(first: int, end: int, *, window: int = 0, generation: int = 0, final: bool = False):
    return RowSpan(window, generation, first, end, final)


def test_rows_received_in_order_are_all_new() -> None:
    tracker = Tracker()
    assert tracker.receive("a", [span(0, 4)]).slices == ((0, 4),)
    assert tracker.receive("a", [span(4, 9, final=True)]).slices == ((0, 5),)


def test_rows_received_twice_are_dropped() -> None:
    tracker = Tracker()
    tracker.receive("a", [span(0, 4)])
    for again in (span(0, 4), span(0, 2)):
        accepted = tracker.receive("a", [again])
        assert accepted.slices == ()
        assert accepted.spans == ()


def test_overlapping_frame_is_trimmed_to_new_rows() -> None:
    tracker = Tracker()
    tracker.receive("a", [span(0, 4)])
    accepted = tracker.receive("b", [span(2, 8, generation=1), span(0, 3, window=7)])
    assert accepted.slices == ((2, 4), (6, 3))
    assert accepted.spans[0] == span(4, 8, generation=1)


def test_overlapping_indivisible_frame_is_data_loss() -> None:
    tracker = Tracker()
    tracker.receive("a", [span(0, 4)])
    with pytest.raises(DataLossError, match="4 of 6 rows"):
        tracker.receive("b", [span(2, 8, generation=1)], divisible=False)
    assert tracker.receive("a", [span(4, 5)]).slices == ((0, 1),)


def test_indivisible_frame_is_accepted_whole_and_once() -> None:
    tracker = Tracker()
    for slices in (((0, 4),), ()):
        assert tracker.receive("a", [span(0, 4)], divisible=False).slices == slices


def test_gap_in_rows_is_data_loss_and_changes_nothing() -> None:
    tracker = Tracker()
    tracker.receive("a", [span(0, 4)])
    with pytest.raises(DataLossError, match="window 0 generation 0 continues at row 5"):
        tracker.receive("a", [span(0, 3, window=1), span(5, 8)])
    assert tracker.receive("a", [span(0, 3, window=1)]).slices == ((0, 3),)


def test_window_begun_by_other_reader_starts_at_row_of_its_lease() -> None:
    tracker = Tracker()
    accepted = tracker.receive("a", [span(100, 120, generation=3)])
    assert accepted.slices == ((0, 20),)
    tracker.consume(accepted.spans)
    assert tracker.marks() == (RowMark(0, 3, 120, False),)


def test_fenced_generation_is_refused_and_its_rows_released() -> None:
    tracker = Tracker()
    tracker.receive("a", [span(0, 4)])
    tracker.fence(0, 0)
    assert tracker.releases() == (RowMark(0, 0, 4, False),)
    assert tracker.receive("a", [span(4, 9)]).slices == ()
    assert tracker.receive("b", [span(4, 9, generation=1)]).slices == ((0, 5),)


def test_rows_of_older_generation_are_refused_without_fence() -> None:
    tracker = Tracker()
    tracker.receive("a", [span(0, 4, generation=1)])
    assert tracker.receive("b", [span(4, 9)]).slices == ()
    assert tracker.receive("a", [span(4, 9, generation=1)]).slices == ((0, 5),)


def test_nothing_is_outstanding_from_fenced_lease() -> None:
    tracker = Tracker()
    tracker.receive("a", [span(0, 4), span(0, 4, window=1)])
    tracker.fence(0, 0)
    assert not tracker.is_quiet()
    tracker.fence(1, 0)
    assert tracker.is_quiet()


def test_fence_of_unseen_window_releases_no_rows_and_leaves_its_start_open() -> None:
    tracker = Tracker()
    tracker.fence(5, 2)
    assert tracker.releases() == (RowMark(5, 2, 0, False),)
    assert tracker.marks() == ()
    assert tracker.receive("a", [span(0, 3, window=5, generation=2)]).slices == ()
    assert tracker.receive("b", [span(40, 43, window=5, generation=3)]).slices == ((0, 3),)


def test_fenced_window_received_whole_is_released_as_final() -> None:
    tracker = Tracker()
    tracker.receive("a", [span(0, 4, final=True)])
    tracker.fence(0, 0)
    assert tracker.releases() == (RowMark(0, 0, 4, True),)


def test_fencing_worker_spares_other_workers_and_finished_windows() -> None:
    tracker = Tracker()
    tracker.receive("a", [span(0, 4), span(0, 2, window=1, final=True)])
    tracker.receive("b", [span(0, 4, window=2)])
    tracker.fence_source("a")
    assert tracker.releases() == (RowMark(0, 0, 4, False),)
    tracker.confirm((), tracker.releases())
    assert tracker.releases() == ()
    tracker.fence_source("a")
    assert tracker.releases() == (), "no lease of it is left"


def test_marks_are_reported_until_confirmed() -> None:
    tracker = Tracker()
    accepted = tracker.receive("a", [span(0, 4, final=True)])
    tracker.consume(accepted.spans)
    marks = tracker.marks()
    assert marks == (RowMark(0, 0, 4, True),)
    assert tracker.marks() == marks
    assert tracker.has_unreported()
    tracker.confirm(marks, ())
    assert tracker.marks() == ()
    assert not tracker.has_unreported()


def test_marks_are_reported_as_far_as_rows_were_consumed_since() -> None:
    tracker = Tracker()
    for first in (0, 4):
        tracker.consume(tracker.receive("a", [span(first, first + 4)]).spans)
        assert tracker.marks() == (RowMark(0, 0, first + 4, False),)
        tracker.confirm(tracker.marks(), ())
        assert tracker.marks() == ()


def test_marks_count_rows_that_are_about_to_be_consumed() -> None:
    tracker = Tracker()
    frame = [span(0, 4), span(0, 2, window=1, final=True), span(0, 3, window=2)]
    spans = tracker.receive("a", frame).spans
    tracker.consume(spans[2:])
    marks = {RowMark(0, 0, 4, False), RowMark(1, 0, 2, True), RowMark(2, 0, 3, False)}
    assert set(tracker.marks_if_consumed(spans[:2])) == marks
    tracker.consume(spans[:2])
    assert set(tracker.marks_if_consumed([span(0, 2)])) == marks, "they were consumed meanwhile"
    tracker.confirm(tracker.marks(), ())
    assert set(tracker.marks_if_consumed(spans)) == {mark for mark in marks if not mark.final}


def test_consumed_windows_and_rows_are_told_whether_reported_or_not() -> None:
    tracker = Tracker()
    frame = [span(0, 4, window=window, final=window < 2) for window in range(4)]
    tracker.consume(tracker.receive("a", frame).spans[:3])
    tracker.confirm(tracker.marks()[:1], ())
    tracker.fence(9, 2)
    assert tracker.consumed() == Consumed(Ranges([(0, 2)]), {2: 4})
    begun = (RowMark(1, 0, 4, True), RowMark(2, 0, 4, False), RowMark(3, 0, 0, False))
    assert tracker.all_marks() == begun


def test_finished_window_accepts_no_more_rows() -> None:
    tracker = Tracker()
    tracker.consume(tracker.receive("a", [span(0, 4, final=True)]).spans)
    tracker.confirm(tracker.marks(), ())
    assert tracker.receive("b", [span(0, 4, generation=9)]).slices == ()
    assert tracker.receive("a", [span(0, 4, window=1)]).slices == ((0, 4),)


def test_empty_window_is_marked_final_without_consumption() -> None:
    tracker = Tracker()
    assert tracker.receive("a", [span(0, 0, final=True)]).slices == ()
    assert tracker.is_quiet()
    assert tracker.marks() == (RowMark(0, 0, 0, True),)


def test_window_end_may_arrive_after_last_row() -> None:
    tracker = Tracker()
    tracker.consume(tracker.receive("a", [span(0, 4)]).spans)
    assert not tracker.is_quiet()
    tracker.receive("a", [span(4, 4, final=True)])
    assert tracker.is_quiet()
    assert tracker.marks() == (RowMark(0, 0, 4, True),)


def test_tracker_is_quiet_once_windows_are_received_whole() -> None:
    tracker = Tracker()
    tracker.receive("a", [span(0, 4)])
    assert not tracker.is_quiet()
    tracker.receive("a", [span(4, 6, final=True)])
    assert tracker.is_quiet()


def test_released_whole_window_still_reports_its_consumption() -> None:
    tracker = Tracker()
    accepted = tracker.receive("a", [span(0, 4, final=True), span(0, 2, window=1)])
    tracker.release_received()
    assert tracker.releases() == (RowMark(0, 0, 4, True),)
    assert tracker.has_unreported()
    tracker.confirm((), tracker.releases())
    tracker.release_received()
    assert tracker.releases() == (), "it was released before"
    tracker.consume(accepted.spans)
    assert RowMark(0, 0, 4, True) in tracker.marks()


def test_window_consumed_whole_needs_no_release() -> None:
    tracker = Tracker()
    tracker.consume(tracker.receive("a", [span(0, 4, final=True)]).spans)
    tracker.release_received()
    assert tracker.releases() == ()


def test_fence_of_unseen_window_is_released_at_start_of_its_lease() -> None:
    tracker = Tracker()
    tracker.fence(5, 2, 40)
    assert tracker.releases() == (RowMark(5, 2, 40, False),)
    tracker.fence(5, 3, 60)
    assert tracker.releases()[1:] == (RowMark(5, 3, 60, False),)


def test_rows_without_window_are_accepted_once_from_each_worker() -> None:
    tracker = Tracker()
    for worker in ("a", "b"):
        for first in (0, 8, 16):
            shared = RowSpan(NO_WINDOW, 0, first, first + 8)
            assert tracker.receive(worker, [shared]).slices == ((0, 8),)
            tracker.consume([shared])
    assert tracker.receive("a", [RowSpan(NO_WINDOW, 0, 8, 16)]).slices == ()
    assert tracker.marks() == ()


def test_late_fence_of_an_older_generation_lets_none_back_in() -> None:
    tracker = Tracker()
    tracker.fence(0, 5)
    tracker.fence(0, 3)
    assert tracker.receive("a", [span(0, 4, generation=4)]).slices == ()
    assert tracker.receive("a", [span(0, 4, generation=6)]).slices == ((0, 4),)


def test_frames_without_rows_change_nothing() -> None:
    tracker = Tracker()
    assert tracker.receive("a", []).slices == tracker.receive("a", []).slices == ()
    assert tracker.is_quiet()


def test_rows_are_consumed_whatever_other_rows_come_with_them() -> None:
    tracker = Tracker()
    tracker.receive("a", [span(0, 4), span(0, 4, window=1), span(0, 4, window=2)])
    unknown, early = RowSpan(NO_WINDOW, 0, 0, 4), span(2, 4, window=1)
    tracker.consume([unknown, early, span(0, 3, window=2)])
    assert tracker.marks() == (RowMark(2, 0, 3, False),)
    tracker.consume([span(0, 2, window=1)])
    assert tracker.marks() == (RowMark(1, 0, 4, False), RowMark(2, 0, 3, False))


def test_fence_of_finished_window_is_answered_as_final_and_forgotten() -> None:
    tracker = Tracker()
    tracker.consume(tracker.receive("a", [span(0, 4, final=True)]).spans)
    tracker.confirm(tracker.marks(), ())
    before = tracker.consumed()
    tracker.fence(0, 3, 2)
    assert tracker.releases() == (RowMark(0, 3, 2, True),)
    assert tracker.consumed() == before


@given(st.permutations(range(6)))
def test_out_of_order_consumption_marks_only_unbroken_prefix(order: list[int]) -> None:
    tracker = Tracker()
    parts = [tracker.receive("a", [span(i * 3, i * 3 + 3, final=i == 5)]).spans for i in range(6)]
    done: set[int] = set()
    for index in order:
        tracker.consume(parts[index])
        done.add(index)
        unbroken = next((i for i in range(6) if i not in done), 6)
        row = tracker.marks()[0].row if tracker.marks() else 0
        assert row == unbroken * 3


@given(st.data())
def test_every_row_is_accepted_once_under_any_schedule_of_fences_and_replays(
    data: st.DataObject,
) -> None:
    """A modelled worker replays a window from the released mark after each fence; zombies go on."""
    rows = data.draw(st.integers(0, 12), label="rows")
    tracker, got, generation, position = Tracker(), [], 0, 0
    zombies: list[RowSpan] = []
    while True:
        move = data.draw(st.sampled_from(["send", "send", "fence", "zombie", "again"]))
        if move == "send":
            end = min(rows, position + data.draw(st.integers(1, 4)))
            frame = RowSpan(0, generation, position, end, end == rows)
            position = end
        elif move == "fence":
            zombies.append(RowSpan(0, generation, position, min(rows, position + 3), False))
            tracker.fence(0, generation)
            position = tracker.releases()[-1].row
            tracker.confirm((), tracker.releases())
            generation += 1
            continue
        elif move == "zombie" and zombies:
            frame = zombies[-1]
        else:
            frame = RowSpan(0, generation, 0, position, False)
        accepted = tracker.receive("w", [frame])
        for offset, length in accepted.slices:
            got.extend(range(frame.first_row + offset, frame.first_row + offset + length))
        tracker.consume(accepted.spans)
        if any(mark.final for mark in tracker.marks()):
            break
    assert got == list(range(rows))
