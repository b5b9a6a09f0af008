"""Which keys an eviction takes, and the order of its steps."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pstrain.errors import InvalidArgumentError, UnavailableError
from pstrain.features.eviction import (
    Eviction,
    IdleCounts,
    IdleKeys,
    Table,
    check_keep,
    evict,
    shares_of,
)
from pstrain.features.key_map import KeyFields
from tests.unit.pstrain.paramserver.shard_cases import ids, make_spec


@given(
    st.lists(st.lists(st.integers(0, 9), max_size=6), min_size=1, max_size=5),
    st.none() | st.integers(0, 60),
)
def test_shares_leave_as_many_keys_as_are_kept_and_those_used_last(
    counts: list[list[int]], keep: int | None
) -> None:
    shares = shares_of([ids(*each) for each in counts], keep)
    idle = [[age for age, n in enumerate(each) for _ in range(n)] for each in counts]
    used = sum(map(len, idle))
    gone = []
    for ages, share in zip(idle, shares, strict=True):
        tied = ages.count(share.periods)
        assert 0 <= share.ties <= tied
        gone += [age for age in ages if age > share.periods] + [share.periods] * share.ties
    assert len(gone) == max(0, used - (used if keep is None else keep))
    kept = sorted(age for ages in idle for age in ages)
    for age in gone:
        kept.remove(age)
    assert not gone or not kept or max(kept) <= min(gone)


def test_ties_are_given_up_in_proportion() -> None:
    shares = shares_of([ids(100, 50), ids(0, 10), ids(0, 100, 1), ids()], 181)
    assert [share.periods for share in shares] == [1] * 4
    assert [share.ties for share in shares] == [24, 5, 50, 0]


def test_shares_of_billions_of_keys_are_exact() -> None:
    counts = [ids(0, 2_000_000_000), ids(0, 2_000_000_001)]
    shares = shares_of(counts, 1_000_000_000)
    assert [share.ties for share in shares] == [1_500_000_000, 1_500_000_001]


class Recorded:
    """The steps of an eviction of keys 7 to 9, noted; ``broken`` names one that fails."""

    def __init__(self, broken: str = "") -> None:
        self.done: list[Any] = []
        self.broken = broken

    def _note(self, name: str, *what: Any) -> None:
        if name == self.broken:
            raise UnavailableError(name)
        self.done.append((name, *what))

    def count_idle(self, _mapping: Any, parts: Any) -> IdleCounts:
        self._note("count", [tuple(part) for part in parts])
        return IdleCounts([4, 5, 5], [ids(3, 0, 1), ids(0, 0, 1), ids(2)])

    def idle_keys(self, _mapping: Any, _parts: Any, shares: Any) -> list[IdleKeys]:
        self._note("list", [tuple(share) for share in shares])
        return [IdleKeys(ids(3), ids(7)), IdleKeys(ids(4), ids(8)), IdleKeys(ids(7), ids(9))]

    def reset_rows(self, table: Any, rows: Any) -> None:
        self._note("reset", table.id, rows.tolist())

    def remove_keys(
        self, _mapping: Any, _parts: Any, found: Any, buckets: Any, periods: Any
    ) -> None:
        bounds = [each.tolist() for each in buckets]
        self._note("remove", [each.keys.tolist() for each in found], bounds, periods)


def eviction() -> Eviction:
    """Returns an eviction from fields of 6 and 4 rows on shards of 4 and 6 rows."""
    tables = (
        Table(make_spec(10, id=2), ids(0, 0)),
        Table(make_spec(30, id=5), ids(10, 2)),
    )
    return Eviction(make_spec(10, 1, cuts=(4,)), KeyFields.of([6, 4], [1, 1]), (3, None), tables)


def test_rows_are_reset_before_their_keys_are_removed() -> None:
    steps = Recorded()
    assert evict(eviction(), steps) == 3
    assert steps.done == [
        ("count", [(0, 0, 4), (1, 4, 6), (1, 6, 10)]),
        ("list", [(2, 1), (2, 1), (2, 0)]),
        ("reset", 2, [3, 4, 7]),
        ("reset", 5, [9, 13, 14]),
        ("remove", [[7], [8], [9]], [[1, 4], [4, 6], [7, 10]], [4, 5, 5]),
    ]


def test_no_key_is_removed_if_a_row_cannot_be_reset() -> None:
    steps = Recorded("reset")
    with pytest.raises(UnavailableError):
        evict(eviction(), steps)
    assert [name for name, *_ in steps.done] == ["count", "list"]


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        (-1, "'a': keep must be a non-negative integer, got -1"),
        (10, r"'a': keep must be below the capacity \(10\), .* got 10"),
        (2.5, "'a': keep must be a non-negative integer, got 2.5"),
        (True, "'a': keep must be a non-negative integer, got True"),
    ],
)
def test_keep_outside_the_capacity_is_refused(keep: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        check_keep("'a'", keep, 10)
