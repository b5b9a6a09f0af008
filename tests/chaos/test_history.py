"""The judgement of a history finds rows that were lost, repeated or made up."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.chaos.history import REPORT_S, History, Written, damage, missing_rows

KILLED_S = 100.0
EXPECTED = frozenset(range(10))


def judged(lived: Sequence[int], *written: Written, reports_late: bool = False) -> list[str]:
    killed_s = KILLED_S if written else None
    return damage(EXPECTED, lived, written, killed_s, reports_late=reports_late)


def test_every_row_once_is_fine() -> None:
    assert judged([3, 1, 2, 0, 4, 9, 8, 7, 6, 5]) == []
    assert missing_rows(EXPECTED, range(10), []) == set()


def test_rows_may_be_with_the_dead_reader() -> None:
    written = Written(KILLED_S - 50, (0, 1))
    assert judged(range(2, 10), written) == []
    assert missing_rows(EXPECTED, range(2, 9), [written]) == {9}


@pytest.mark.parametrize(
    ("lived", "message"),
    [([1, 1], "the readers got 1 rows more than once: [1]"), ([1, 10], "should not come: [10]")],
)
def test_what_stays_wrong(lived: list[int], message: str) -> None:
    (fault,) = judged(lived)
    assert message in fault


def test_only_what_a_dead_reader_could_not_report_comes_again() -> None:
    late = Written(KILLED_S - REPORT_S / 2, (0, 1))
    early = Written(KILLED_S - REPORT_S * 2, (2, 3))
    assert judged([0, 1, 4], early, late) == []
    (fault,) = judged([0, 1, 3], early, late)
    assert "reported come again: [3]" in fault
    assert judged([0, 1, 3], early, late, reports_late=True) == []


def test_a_dead_reader_must_not_get_rows_twice_either() -> None:
    (fault,) = judged([], Written(1.0, (5,)), Written(2.0, (5,)), reports_late=True)
    assert "the killed reader got 1 rows more than once" in fault


def test_an_end_counts_only_after_the_last_row() -> None:
    history = History()
    history.note_end("reader")
    history.note_rows([1, 2])
    ended_s = history.ended_s("reader")
    assert ended_s is not None
    assert ended_s <= history.last_s
    assert history.rows() == [1, 2]
