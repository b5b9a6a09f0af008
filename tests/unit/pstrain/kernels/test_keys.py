"""Kernels that find and claim rows for keys, against plain Python."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pstrain.kernels import claims
from pstrain.kernels import keys as kernels
from pstrain.kernels.keys import BUCKET_ROWS, NO_KEY, NO_ROW, NO_ROW_EVER, VACATED

KEYS = st.integers(VACATED + 1, 2**63 - 1) | st.integers(-3, 12)
MASK = 2**64 - 1


def mixed(key: int) -> int:
    z = (key + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def places(key: int, first: int, capacity: int) -> list[int]:
    """Returns the rows in which a key is looked for, in the order of the search."""
    buckets = -(-(capacity - 1) // BUCKET_ROWS)
    parts = np.array_split(np.arange(first + 1, first + capacity), buckets)
    rows = parts[((mixed(key) >> 32) * buckets) >> 32].tolist()
    start = ((mixed(key) & 0xFFFFFFFF) * len(rows)) >> 32
    return [*rows[start:], *rows[:start]]


def int64(values: object) -> np.ndarray:
    return np.array(values, np.int64).reshape(-1)


def buckets_of(keys: list[int], capacity: int) -> tuple[np.ndarray, np.ndarray]:
    starts, stops = int64(keys), int64(keys)
    fields = np.zeros(len(keys), np.int64)
    kernels.find_buckets(int64(keys), fields, int64([0]), int64([capacity]), starts, stops)
    return starts, stops


@given(st.lists(KEYS, max_size=50), st.integers(2, 5_000), st.integers(0, 10**9))
def test_bucket_of_key_follows_from_its_hash(keys: list[int], capacity: int, first: int) -> None:
    starts, stops = int64(keys), int64(keys)
    first_rows, capacities = int64([0, first]), int64([2, capacity])
    fields = np.ones(len(keys), np.int64)
    kernels.find_buckets(int64(keys), fields, first_rows, capacities, starts, stops)
    for key, start, stop in zip(keys, starts.tolist(), stops.tolist(), strict=True):
        assert sorted(places(key, first, capacity)) == list(range(start, stop))


def claim(table: np.ndarray, keys: list[int], may_claim: list[bool]) -> tuple[list[int], int]:
    """Claims rows for keys as a shard does, but without a lock."""
    starts, stops = buckets_of(keys, len(table))
    rows, chosen = int64(keys), np.zeros(1 << (2 * len(keys)).bit_length(), np.int32)
    may = np.array(may_claim, np.uint8)
    claims.find_rows(table, 0, int64(keys), starts, stops, rows)
    refused = claims.choose_rows(table, 0, int64(keys), starts, stops, may, chosen, rows)
    found = rows >= 0
    table[rows[found], 0] = int64(keys)[found]
    return rows.tolist(), refused


class ReferenceClaims:
    """The same claims made with dicts."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.row_of: dict[int, int] = {}

    def claim(self, keys: list[int], may_claim: list[bool]) -> tuple[list[int], int]:
        rows, refused = [], 0
        for key, may in zip(keys, may_claim, strict=True):
            free = self.free(key)
            if key not in self.row_of and may and free:
                self.row_of[key] = free[0]
            rows.append(self.find(key))
            refused += may and key not in self.row_of
        return rows, refused

    def free(self, key: int) -> list[int]:
        taken = set(self.row_of.values())
        return [row for row in places(key, 0, self.capacity) if row not in taken]

    def evict(self, key: int) -> None:
        self.row_of.pop(key, None)

    def find(self, key: int) -> int:
        return self.row_of.get(key, NO_ROW if self.free(key) else NO_ROW_EVER)


@given(
    st.lists(st.lists(st.tuples(KEYS, st.booleans()), min_size=1, max_size=15), max_size=6),
    st.integers(2, 20) | st.just(1500),
    st.data(),
)
def test_claims_between_evictions_agree_with_dicts(
    requests: list[list[tuple[int, bool]]], capacity: int, data: st.DataObject
) -> None:
    table, twin = np.full((capacity, 1), NO_KEY, np.int64), ReferenceClaims(capacity)
    for request in requests:
        for key in data.draw(st.lists(st.sampled_from([99, *twin.row_of]))):
            table[table == key] = VACATED
            twin.evict(key)
        if data.draw(st.booleans()):
            starts, stops = buckets_of(list(range(2_000)), capacity)
            bounds, unpassed = int64(sorted({*starts, *stops})), int64([0] * capacity)
            count = claims.find_unpassed(table, 0, bounds, unpassed)
            assert (table[unpassed[:count]] == VACATED).all()
            table[unpassed[:count]] = NO_KEY
            # All vacated rows are free ones again if no key is left.
            assert twin.row_of or (table != VACATED).all()
        keys, may_claim = [key for key, _ in request], [may for _, may in request]
        assert claim(table, keys, may_claim) == twin.claim(keys, may_claim)
        asked = [*keys, 99]
        rows = int64(asked)
        missing = claims.find_rows(table, 0, int64(asked), *buckets_of(asked, capacity), rows)
        assert rows.tolist() == [twin.find(key) for key in asked]
        assert missing == rows.tolist().count(NO_ROW)
    assert table[0, 0] == NO_KEY
    assert claims.count_keys(table) == len(twin.row_of)


def test_choose_rows_does_not_change_table() -> None:
    table = np.full((8, 1), NO_KEY, np.int64)
    keys, rows = int64([5, 6]), int64([NO_ROW, NO_ROW])
    may, chosen = np.ones(2, np.uint8), np.zeros(4, np.int32)
    claims.choose_rows(table, 0, keys, *buckets_of([5, 6], 8), may, chosen, rows)
    assert (rows > 0).all()
    assert (table == NO_KEY).all()


def known_of(entries: dict[tuple[int, int], int], first: np.ndarray, slots: int) -> np.ndarray:
    """Returns a table of the known rows by (field, key)."""
    known = np.full((slots, 2), -1, np.int64)
    known[:, 0] = NO_KEY
    keys, rows = int64([key for _, key in entries]), int64(list(entries.values()))
    salts = first[int64([field for field, _ in entries])]
    assert kernels.add_known(known, keys, rows, salts) == len(entries)
    assert kernels.add_known(known, keys, rows, salts) == 0
    return known


@given(st.lists(st.tuples(st.integers(0, 2), KEYS | st.just(NO_KEY)), max_size=60), st.data())
def test_replace_known_agrees_with_dict_reference(
    pairs: list[tuple[int, int]], data: st.DataObject
) -> None:
    fields = (np.array([0, 100, 200], np.int64), np.array([100, 100, 100], np.int64))
    some = {pair for pair in pairs if pair[1] != NO_KEY and data.draw(st.booleans())}
    numbers = [0, 0, 0]
    entries = {}
    for field, key in sorted(some):
        numbers[field] += 1
        entries[field, key] = 100 * field + numbers[field]
    known = known_of(entries, fields[0], 256)
    # Column 1 belongs to no field.
    ids = np.array([[key, -7, key, key] for _, key in pairs], np.int64).reshape(-1, 4)
    columns, targets, nulls = int64([0, 2, 3]), int64([1_000, 2_000, 3_000]), int64([7, 8, 9])
    expected, missing = ids.copy(), []
    for i, (_, key) in enumerate(pairs):
        for field, column in enumerate(columns):
            if key == NO_KEY:
                expected[i, column] = nulls[field]
            elif (field, key) in entries:
                expected[i, column] = targets[field] + entries[field, key] - 100 * field
            else:
                missing.append(3 * i + field)
    noted = np.empty(3 * len(pairs), np.int64)
    count = kernels.replace_known(known, ids, columns, *fields, targets, nulls, noted, True)
    np.testing.assert_array_equal(ids, expected)
    assert noted[:count].tolist() == missing


@pytest.mark.parametrize("entry", [(5, -1), (NO_KEY, 3)])
def test_half_written_entry_is_treated_as_unknown(entry: tuple[int, int]) -> None:
    known = known_of({(0, 5): 3}, int64([0]), 4)
    known[known[:, 0] == 5] = entry
    ids, zeros = int64([5]).reshape(1, 1), int64([0])
    missing = int64([9])
    arguments = (ids, zeros, zeros, int64([10]), zeros, zeros, missing)
    assert kernels.replace_known(known, *arguments, True) == 1
    assert kernels.replace_known(known, *arguments, False) == 1
    assert ids[0, 0] == 5
    assert missing[0] == 0


def test_reserved_integers_are_nulls() -> None:
    values, out = int64([NO_KEY, VACATED, VACATED + 1]), np.empty((3, 1), np.int64)
    values.flags.writeable = False
    kernels.place_integers(values, values[:0].view(np.uint8), 0, out, 0)
    assert out[:, 0].tolist() == [NO_KEY, NO_KEY, VACATED + 1]


@given(st.lists(st.tuples(st.integers(-3, 6), st.integers(1, 3)), max_size=40))
def test_key_is_admitted_when_its_occurrences_reach_min_count(met: list[tuple[int, int]]) -> None:
    counts = np.zeros((256, 3), np.int64)
    expected: dict[int, int] = {}
    for key, times in met:
        out = np.empty(1, np.uint8)
        kernels.count_occurrences(counts, int64([key]), int64([0]), int64([times]), int64([4]), out)
        expected[key] = expected.get(key, 0) + times
        assert out[0] == (expected[key] >= 4)
        if out[0]:
            expected[key] = 0


def test_full_occurrence_table_keeps_most_frequent_key() -> None:
    counts, zero, one = np.zeros((4, 3), np.int64), int64([0]), int64([1])
    out = np.empty(1, np.uint8)
    for _ in range(5):
        kernels.count_occurrences(counts, int64([1]), zero, one, int64([9]), out)
    for key in range(2, 1_000):
        kernels.count_occurrences(counts, int64([key]), zero, one, int64([9]), out)
    kernels.count_occurrences(counts, int64([1]), zero, int64([4]), int64([9]), out)
    assert out[0] == 1


def test_keys_not_seen_again_are_replaced_in_occurrence_table() -> None:
    counts, zero, one = np.zeros((4, 3), np.int64), int64([0]), int64([1])
    out = np.empty(1, np.uint8)
    for key in range(1_000):
        kernels.count_occurrences(counts, int64([key]), zero, one, int64([2]), out)
    assert counts[:, 0].min() > 900
