"""The judgement of a history finds rows that were lost, repeated or made up."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.chaos.history import History, Written, damage, missing_rows

EXPECTED = frozenset(range(10))


def faults_in(lived: Sequence[int], *written: Written) -> list[str]:
    return damage(EXPECTED, lived, written)


def test_every_row_once_has_no_faults() -> None:
    assert faults_in([3, 1, 2, 0, 4, 9, 8, 7, 6, 5]) == []
    assert missing_rows(EXPECTED, range(10), []) == set()


def test_rows_written_by_the_killed_reader_are_not_missing() -> None:
    written = Written(0, (0, 1))
    assert faults_in(range(2, 10), written) == []
    assert missing_rows(EXPECTED, range(2, 9), [written]) == {9}


@pytest.mark.parametrize(
    ("lived", "message"),
    [([1, 1], "the readers got 1 rows more than once: [1]"), ([1, 10], "should not come: [10]")],
    ids=["repeated", "unexpected"],
)
def test_repeated_or_unexpected_rows_are_faults(lived: list[int], message: str) -> None:
    (fault,) = faults_in(lived)
    assert message in fault


def test_only_unreported_rows_of_the_killed_reader_may_come_again() -> None:
    written = [Written(0, (2, 3)), Written(0, (0, 1)), Written(1, (5,))]
    assert faults_in([0, 1, 4, 5], *written) == []
    (fault,) = faults_in([0, 1, 3], *written)
    assert "reported come again: [3]" in fault


def test_rows_repeated_to_the_killed_reader_are_a_fault() -> None:
    (fault,) = faults_in([], Written(0, (5,)), Written(0, (5,)))
    assert "the killed reader got 1 rows more than once" in fault


def test_end_noted_before_the_last_row_is_older_than_it() -> None:
    history = History()
    history.note_end("reader")
    history.note_rows([1, 2])
    ended_s = history.ended_s("reader")
    assert ended_s is not None
    assert ended_s <= history.last_s
    assert history.rows() == [1, 2]
