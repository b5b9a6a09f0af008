"""Keys that an OnlineLookup evicts, and their rows, in one process."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pstrain as ps
from pstrain.errors import FailedPreconditionError, InvalidArgumentError, InvalidTypeError
from pstrain.variables.parameters import step_scope
from pstrain.variables.scope import local_parameters
from pstrain.vocabulary import StepToken

CAPACITY = 40


class Users:
    """A lookup, a table of its rows, and steps that train both."""

    def __init__(self, capacity: Any = CAPACITY, **options: Any) -> None:
        with local_parameters():
            self.lookup = ps.layers.OnlineLookup(capacity, **options)
            self.table = ps.layers.Embedding(capacity, 3)
            self.optimizer = ps.optimizers.Adagrad(0.5)

    def train(self, keys: Any) -> list[int]:
        """Trains on keys; returns their ids."""
        with ps.GradientTape() as tape:
            ids = self.lookup(keys)
            loss = np.sum(self.table(ids))
        self.optimizer.apply_gradients(tape.gradients(loss))
        return np.asarray(ids).tolist()

    def evict(self, keep: Any) -> int:
        return self.lookup.evict(keep, self.table)

    def find(self, keys: Any) -> list[int]:
        return np.asarray(self.lookup(keys)).tolist()

    def rows(self) -> np.ndarray:
        """Returns the rows of the table with their slots."""
        spec = self.table.variables[0].spec
        return self.table.parameters._store.shard(spec.id, 0).slab.copy()


def test_keys_trained_last_are_kept() -> None:
    users = Users()
    users.train(range(10))
    assert users.evict(20) == 0
    late = users.train([3, 4, 5])
    assert users.evict(3) == 7
    assert users.find([3, 4, 5]) == late
    assert users.find([0, 1, 2, *range(6, 10)]) == [0] * 7
    assert users.lookup.stats() == {"capacity": CAPACITY - 1, "used": 3, "refused": 0}


def test_rows_of_evicted_keys_begin_anew_and_go_to_new_keys() -> None:
    users = Users()
    ids = users.train(range(CAPACITY - 1))
    assert sorted(ids) == list(range(1, CAPACITY))
    fresh = Users()
    fresh.train([])
    fresh.optimizer.apply_gradients(
        [(np.zeros((CAPACITY, 3), np.float32), fresh.table.variables[0])]
    )
    trained = users.rows()
    assert (trained[1:] != fresh.rows()[1:]).any(axis=1).all()
    assert users.train([100]) == [0]
    users.evict(CAPACITY - 1)
    kept = users.train(range(30))
    trained = users.rows()
    assert users.evict(30) == 9
    free = sorted(set(range(1, CAPACITY)) - set(kept))
    np.testing.assert_array_equal(users.rows()[free], fresh.rows()[free])
    np.testing.assert_array_equal(users.rows()[[0, *kept]], trained[[0, *kept]])
    assert sorted(users.train(range(200, 209))) == free


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.lists(st.integers(0, 30), max_size=12), st.integers(0, 19)), max_size=12),
    st.integers(2, 20),
)
def test_mapping_with_evictions_agrees_with_dicts(
    calls: list[tuple[list[int], int]], capacity: int
) -> None:
    """Ties are settled as the mapping has settled them; all else must be as in the dicts."""
    with local_parameters():
        lookup = ps.layers.OnlineLookup(capacity)
        table = ps.Variable(np.zeros((capacity, 1), np.float32))
    row_of: dict[int, int] = {}
    used_in: dict[int, int] = {}
    for period, (keys, keep) in enumerate(calls):
        ids = lookup(keys, training=True).tolist()
        for key, row in zip(keys, ids, strict=True):
            assert row_of.get(key, row) == row
            if row:
                row_of[key], used_in[key] = row, period
        assert 0 not in ids or len(row_of) == capacity - 1
        assert len(set(row_of.values())) == len(row_of)
        table.assign(np.arange(capacity, dtype=np.float32)[:, None])
        before, keep = dict(row_of), min(keep, capacity - 1)
        assert lookup.evict(keep, table) == max(0, len(row_of) - keep)
        found = lookup(list(row_of)).tolist()
        row_of = {key: row for key, row in zip(row_of, found, strict=True) if row}
        assert all(before[key] == row for key, row in row_of.items())
        assert len(row_of) == min(len(before), keep) == lookup.stats()["used"]
        gone = before.keys() - row_of.keys()
        assert (
            not row_of
            or not gone
            or (max(used_in[key] for key in gone) <= min(used_in[key] for key in row_of))
        )
        expected = [0 if row in {before[key] for key in gone} else row for row in range(capacity)]
        assert table.numpy().reshape(-1).tolist() == expected


def test_evaluation_is_no_use_of_a_key() -> None:
    users = Users()
    users.train([1, 2])
    users.evict(39)
    users.find([1, 2])
    assert users.train([2])
    users.find([1])
    assert users.evict(1) == 1
    assert users.find([1]) == [0]
    assert users.find([2]) != [0]


def test_counts_of_waiting_keys_outlast_an_eviction() -> None:
    users = Users(min_count=3)
    assert users.train([7]) == [0]
    users.evict(5)
    assert users.train([7]) == [0]
    users.evict(5)
    (row,) = users.train([7])
    assert row > 0
    users.evict(5)
    # Below min_count, but known to have a row: its use counts.
    users.train([8, 8, 8])
    users.evict(5)
    assert users.train([7]) == [row]
    assert users.evict(1) == 1
    assert users.find([7, 8]) == [row, 0]
    assert users.evict(0) == 1
    assert users.train([7]) == [0]


def test_each_field_keeps_its_own_number() -> None:
    users = Users([20, 30])
    pairs = np.stack([np.arange(18), np.arange(100, 118)], axis=1)
    ids = np.array(users.train(pairs))
    assert users.evict([5, 29]) == 13
    left = np.array(users.find(pairs))
    assert np.count_nonzero(left, axis=0).tolist() == [5, 18]
    np.testing.assert_array_equal(left[:, 1], ids[:, 1])


def test_keys_used_before_a_restore_count_as_recent(tmp_path: pathlib.Path) -> None:
    users = Users()
    checkpoint = ps.Checkpoint(lookup=users.lookup, table=users.table)
    first = users.train([1, 2, 3])
    users.evict(30)
    users.train([4])
    before, path = users.rows(), checkpoint.save(tmp_path)
    assert users.evict(1) == 3
    users.train([50, 51])
    checkpoint.restore(path)
    assert users.find([1, 2, 3]) == first
    np.testing.assert_array_equal(users.rows(), before)
    assert users.find([50, 51]) == [0, 0]
    users.train([2])
    users.evict(30)
    users.train([1])
    assert users.evict(2) == 2
    assert 0 not in users.find([1])


def test_checkpoint_after_an_eviction_holds_the_keys_that_are_left(
    tmp_path: pathlib.Path,
) -> None:
    users = Users(100)
    checkpoint = ps.Checkpoint(lookup=users.lookup, table=users.table)
    users.train(range(60))
    checkpoint.save(tmp_path, incremental=True)
    users.evict(99)
    kept = users.train(range(20))
    users.evict(20)
    new = users.train([70])
    path = checkpoint.save(tmp_path, incremental=True)
    other = Users(100)
    ps.Checkpoint(lookup=other.lookup, table=other.table).restore(path)
    assert other.lookup.stats()["used"] == 21
    assert other.find(range(20)) == kept
    assert other.find([70, *range(20, 60)]) == new + [0] * 40
    np.testing.assert_array_equal(other.rows(), users.rows())


@pytest.mark.parametrize(
    ("keep", "tables", "kind", "message"),
    [
        (-1, "table", InvalidArgumentError, "keep must be a non-negative integer, got -1"),
        (CAPACITY, "table", InvalidArgumentError, r"keep must be below the capacity \(40\)"),
        ("9", "table", InvalidTypeError, "keep must be a non-negative integer, got '9'"),
        (None, "table", InvalidTypeError, "keep must be a non-negative integer, got None"),
        ([1, 2], "table", InvalidArgumentError, r"has 1 fields, got keep=\[1, 2\]"),
        (5, 7, InvalidTypeError, "tables are layers or variables that its ids are rows of, got 7"),
        (5, "small", InvalidArgumentError, "has the 40 rows that the ids stand for"),
        (5, "elsewhere", InvalidArgumentError, "is not kept where the keys are"),
    ],
)
def test_unusable_arguments_of_evict_are_refused(
    keep: Any, tables: Any, kind: type[Exception], message: str
) -> None:
    users = Users()
    users.train(range(10))
    with local_parameters():
        others = {"small": ps.layers.Embedding(9, 3)}
    others |= {"table": users.table, "elsewhere": Users().table}
    with pytest.raises(kind, match=message):
        users.lookup.evict(keep, others.get(tables, tables))
    assert users.lookup.stats()["used"] == 10


def test_scheduled_function_cannot_evict() -> None:
    users = Users()
    with (
        step_scope(StepToken("session", 1, 0)),
        pytest.raises(FailedPreconditionError, match="evict them in the program"),
    ):
        users.evict(5)


def test_key_evicted_during_a_lookup_is_looked_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    users = Users()
    users.train([1, 2])
    users.evict(30)
    parameters = users.lookup.variables[0].parameters
    claim = parameters.claim

    def claim_late(*arguments: Any, **options: Any) -> Any:
        rows = claim(*arguments, **options)
        monkeypatch.undo()
        users.evict(0)
        return rows

    monkeypatch.setattr(parameters, "claim", claim_late)
    assert users.find([1, 2]) == [0, 0]


@pytest.mark.parametrize("capacity", [2**31, 10**30])
def test_capacity_that_no_table_can_have_is_refused_before_memory_is_taken(capacity: int) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"capacity must be in .*got {capacity}"):
        ps.layers.OnlineLookup(capacity)
