"""The rows of keys that a process knows, and where the table of a mapping is cut into shards."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pstrain.features.key_map import KeyFields, KeyMap, KeyMaps, KeyQuery, distinct
from pstrain.kernels.keys import BUCKET_ROWS, NO_ROW, NO_ROW_EVER, find_buckets
from pstrain.partition import split_rows, split_rows_at

CAPACITIES = st.lists(st.integers(2, 6_000), min_size=1, max_size=5)


def int64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


@given(CAPACITIES, st.integers(1, 40), st.lists(st.integers(), min_size=1, max_size=30))
def test_each_key_bucket_lies_within_one_shard(
    capacities: list[int], shards: int, keys: list[int]
) -> None:
    fields = KeyFields.of(capacities, [1] * len(capacities))
    ranges = split_rows_at(fields.cuts(), fields.rows, shards)
    assert 1 <= len(ranges) <= shards
    assert [start for start, _ in ranges] == [0, *(stop for _, stop in ranges[:-1])]
    assert ranges[-1][1] == fields.rows
    bounds = int64(*(start for start, _ in ranges))
    hashed = np.array([key % 2**63 for key in keys], np.int64)
    for field in range(len(capacities)):
        starts, stops = hashed.copy(), hashed.copy()
        of = np.full(len(keys), field, np.int64)
        find_buckets(hashed, of, fields.first, fields.capacity, starts, stops)
        assert (starts > fields.first[field]).all()
        assert (stops <= fields.first[field] + capacities[field]).all()
        assert (stops - starts <= BUCKET_ROWS).all()
        first, last = (np.searchsorted(bounds, at, side="right") for at in (starts, stops - 1))
        np.testing.assert_array_equal(first, last)


@given(CAPACITIES, st.integers(1, 40))
def test_buckets_in_a_shard_are_those_of_its_keys(capacities: list[int], shards: int) -> None:
    fields = KeyFields.of(capacities, [1] * len(capacities))
    ends = np.cumsum([0, *capacities]).tolist()
    for start, stop in split_rows_at(fields.cuts(), fields.rows, shards):
        cuts = sorted({start, stop, *(end for end in ends if start < end < stop)})
        parts = list(itertools.pairwise(cuts))
        bounds = fields.buckets_in(parts)
        for (first, last), mine in zip(parts, bounds, strict=True):
            field = np.searchsorted(ends, first, side="right") - 1
            keys, of = np.arange(4_000), np.full(4_000, field)
            starts, stops = keys.copy(), keys.copy()
            find_buckets(keys, of, fields.first, fields.capacity, starts, stops)
            inside = {(a, b) for a, b in zip(starts, stops, strict=True) if first <= a < last}
            assert inside == set(itertools.pairwise(mine.tolist()))


def test_shards_of_large_mapping_are_cut_near_even_boundaries() -> None:
    fields = KeyFields.of([1_000_000], [1])
    for shards in (2, 3, 7):
        exact, aligned = (
            split_rows(fields.rows, shards),
            split_rows_at(fields.cuts(), fields.rows, shards),
        )
        for (start, _), (near, _) in zip(exact, aligned, strict=True):
            assert abs(start - near) <= BUCKET_ROWS


def test_small_mapping_gets_fewer_shards_than_requested() -> None:
    cuts = KeyFields.of([100, 50], [1, 1]).cuts()
    assert cuts == [0, 100]
    assert split_rows_at(cuts, 150, 8) == ((0, 100), (100, 150))
    assert split_rows_at([0], 100, 8) == ((0, 100),)


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(-5, 5)), min_size=1, max_size=40))
def test_distinct_keys_are_counted_and_found_again(pairs: list[tuple[int, int]]) -> None:
    fields = KeyFields.of([3_000, 2], [1, 1])
    keys, of = int64(*(key for _, key in pairs)), int64(*(field for field, _ in pairs))
    asked, times, inverse = distinct(keys, of, fields)
    assert (np.diff(asked.starts) >= 0).all()
    found = list(zip(asked.fields.tolist(), asked.keys.tolist(), strict=True))
    assert [found[at] for at in inverse] == pairs
    assert dict(zip(found, times.tolist(), strict=True)) == {
        pair: pairs.count(pair) for pair in pairs
    }


def asked_for(fields: KeyFields, *keys: int) -> KeyQuery:
    return distinct(int64(*keys), np.zeros(len(keys), np.int64), fields)[0]


def look_up(known: KeyMap, *keys: int) -> list[int]:
    """Returns the known rows of ``keys``, -1 for each unknown key."""
    ids, zero = int64(*keys).reshape(-1, 1), int64(0)
    missing = known.replace(ids, zero, zero, zero, zero)
    ids[missing] = -1
    return [int(row) for row in ids[:, 0]]


def test_key_map_memory_is_proportional_to_known_keys() -> None:
    fields = KeyFields.of([100_000], [1])
    known = KeyMap(fields)
    for start in range(0, 50_000, 1_000):
        asked = asked_for(fields, *range(start, start + 1_000))
        known.add(asked, asked.keys + 1)
        known.add(asked, asked.keys + 1)
    assert look_up(known, *range(0, 60_000, 997)) == [
        key + 1 if key < 50_000 else -1 for key in range(0, 60_000, 997)
    ]
    assert known._known.nbytes <= 16 * 4 * 50_000


def test_keys_without_a_row_are_not_remembered() -> None:
    fields = KeyFields.of([10], [1])
    known = KeyMap(fields)
    asked = asked_for(fields, 1, 2)
    known.add(asked, np.where(asked.keys == 1, 5, NO_ROW))
    assert look_up(known, 1, 2) == [5, -1]


def test_refused_keys_are_remembered_up_to_number_of_rows() -> None:
    fields = KeyFields.of([50, 4_950], [1, 1])
    known = KeyMap(fields)
    with_rows = asked_for(fields, *range(40))
    known.add(with_rows, with_rows.keys + 1)
    for start in range(100, 100_000, 100):
        refused = asked_for(fields, *range(start, start + 100))
        for _ in range(2):
            known.add(refused, np.full(100, NO_ROW_EVER))
        assert look_up(known, *range(start, start + 100)) == [0] * 100
        assert look_up(known, *range(40)) == list(range(1, 41))
        # Refused keys are remembered, the earlier ones too, as long as there is room.
        assert start > 4_000 or look_up(known, *range(100, start)) == [0] * (start - 100)
        assert known._known.nbytes <= 16 * 4 * 5_040
    assert look_up(known, 100) == [-1]


def test_same_key_in_two_fields_is_mapped_separately() -> None:
    fields = KeyFields.of([10, 10], [1, 1])
    known = KeyMap(fields)
    asked, _, _ = distinct(int64(7, 7), int64(0, 1), fields)
    known.add(asked, int64(3, 14))
    ids, zeros = int64(7, 7).reshape(1, 2), int64(0, 0)
    assert len(known.replace(ids, int64(0, 1), int64(0, 1), zeros, zeros)) == 0
    assert ids.tolist() == [[3, 4]]


def test_key_map_is_replaced_when_its_generation_changes() -> None:
    fields, maps = KeyFields.of([10], [1]), KeyMaps()
    maps.register(4)
    first = maps.of(4, fields)
    assert maps.of(4, fields) is first
    maps.forget([5])
    maps.advance(maps.generation)
    assert maps.of(4, fields) is first
    generations = [maps.generation]
    for change in (
        lambda: maps.forget([4, 5]),
        maps.forget,
        lambda: maps.advance(generations[-1] + 1),
    ):
        change()
        generations.append(maps.generation)
        second = maps.of(4, fields)
        assert second is not first
        first = second
    assert all(a < b for a, b in itertools.pairwise(generations))


def test_counts_and_warning_outlast_rows_of_a_map() -> None:
    fields, maps = KeyFields.of([10], [3]), KeyMaps()
    asked, first = asked_for(fields, 7), maps.of(4, fields)
    first.has_warned = True
    assert first.admit(asked, int64(2)).may_claim.tolist() == [0]
    maps.forget()
    assert maps.of(4, fields).has_warned, "the program is warned once"
    assert maps.of(4, fields).admit(asked, int64(1)).may_claim.tolist() == [1]


def test_min_count_is_applied_per_field() -> None:
    fields = KeyFields.of([10, 10], [1, 3])
    known = KeyMap(fields)
    asked, _, _ = distinct(int64(7, 7), int64(0, 1), fields)
    admitted = [
        known.admit(asked, np.array(times)).may_claim.tolist() for times in ([1, 1], [1, 1], [1, 1])
    ]
    assert admitted == [[1, 0], [1, 0], [1, 1]]
