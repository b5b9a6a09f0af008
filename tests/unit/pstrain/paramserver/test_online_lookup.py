"""Ids for keys that no vocabulary lists, in one process."""

from __future__ import annotations

import logging
import pathlib
import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import pstrain as ps
from pstrain.errors import DataError, InvalidArgumentError
from pstrain.gradients.tape import GradientTape
from pstrain.kernels.keys import NO_KEY, NO_ROW, NO_ROW_EVER
from pstrain.paramserver.messages import Call, LateBody
from pstrain.paramserver.requests import answer
from pstrain.paramserver.shard import Shard
from pstrain.paramserver.store import Store
from pstrain.trainer.client import RemoteParameters
from pstrain.variables.scope import local_parameters
from tests.unit.pstrain.paramserver.shard_cases import ids, make_spec, values_of


def lookup(capacity: Any = 1_000, **options: Any) -> ps.layers.OnlineLookup:
    with local_parameters():
        return ps.layers.OnlineLookup(capacity, **options)


def test_each_new_key_gets_unique_stable_id() -> None:
    users = lookup(3_000)
    keys = np.random.default_rng(0).integers(NO_KEY + 1, 2**63 - 1, (40, 50))
    found = users(keys, training=True)
    assert found.shape == keys.shape
    assert found.dtype == np.int64
    assert len(np.unique(found)) == 2_000
    assert (found > 0).all()
    assert (found < 3_000).all()
    np.testing.assert_array_equal(users(keys[::-1], training=True), found[::-1])
    np.testing.assert_array_equal(users(keys), found)
    assert len(users) == 2_000
    np.testing.assert_array_equal(users.variables[0].numpy()[found], keys)


def test_keys_get_ids_only_in_training() -> None:
    users = lookup()
    assert users([1, 2]).tolist() == [0, 0]
    with GradientTape():
        trained = users([1, 2]).tolist()
        assert users([3], training=False).tolist() == [0]
    assert 0 not in trained
    assert users([3, 2, 1]).tolist() == [0, *trained[::-1]]
    assert len(users) == 2


def test_lookup_accepts_strings_lists_and_dictionary_arrays() -> None:
    words = lookup()
    lists = pa.array([["a", "b"], [], ["a", None]])
    found = words(lists, training=True)
    (a, b), _, (again, null) = found.to_pylist()
    assert (again, null) == (a, 0)
    assert a != b
    assert words(np.array([["b", "a"]])).tolist() == [[b, a]]
    assert words(["b", None]).tolist() == [b, 0]
    assert words(pa.array(["b", "c", None]).dictionary_encode()).to_pylist() == [b, 0, 0]
    assert words(pa.chunked_array([["a"], ["b"]])).to_pylist() == [a, b]
    assert words(pa.array([], pa.string())).to_pylist() == []
    assert words([]).tolist() == []


def test_fields_have_separate_id_ranges() -> None:
    pair = lookup([10, 5])
    keys = np.array([[7, 7], [8, 7], [9, 8]])
    found = pair(keys, training=True)
    assert (found > 0).all()
    assert (found < [10, 5]).all()
    assert len(set(found[:, 0])) == 3
    assert found[0, 1] == found[1, 1] != found[2, 1]
    assert pair.stats() == {"capacity": 13, "used": 5, "refused": 0}
    with local_parameters():
        table = ps.layers.Embedding(pair.capacities, 4)
    assert table(found).shape == (3, 8)


def test_keys_beyond_capacity_share_unknown_id_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    users = lookup(11)
    with caplog.at_level(logging.WARNING):
        found = users(np.arange(30), training=True)
        users(np.arange(30, 40), training=True)
    assert sorted(found) == [0] * 20 + list(range(1, 11))
    assert users.stats() == {"capacity": 10, "used": 10, "refused": 30}
    assert [record.message for record in caplog.records] == [
        "'online_lookup' has no row left for some new keys, which share the row of unknown ones: "
        "raise its capacity (11), or min_count"
    ]
    np.testing.assert_array_equal(users(np.arange(30)), found)


def test_keys_refused_for_capacity_are_requested_once(monkeypatch: pytest.MonkeyPatch) -> None:
    users = lookup(11)
    parameters, asked = users.variables[0].parameters, []
    claim = parameters.claim

    def claim_and_note(spec: Any, wanted: Any, **options: Any) -> Any:
        asked.append(sorted(wanted.keys.tolist()))
        return claim(spec, wanted, **options)

    monkeypatch.setattr(parameters, "claim", claim_and_note)
    users([1, 2], training=True)
    assert users([3, 3]).tolist() == [0, 0]
    assert users([3]).tolist() == [0]
    found = users(np.arange(12), training=True)
    for _ in range(2):
        np.testing.assert_array_equal(users(np.arange(12)), found)
        np.testing.assert_array_equal(users(np.arange(12), training=True), found)
    assert asked == [[1, 2], [3], [3], [0, *range(3, 12)]]
    users.variables[0].assign(np.full(11, NO_KEY))
    assert users([int(np.flatnonzero(found == 0)[0])], training=True)[0] > 0


def test_keys_up_to_nine_tenths_of_capacity_all_get_rows() -> None:
    users = lookup(200_000)
    found = users(np.arange(180_000), training=True)
    assert (found > 0).all()
    assert users.stats()["refused"] == 0


def test_keys_below_min_count_get_no_id() -> None:
    users = lookup(min_count=3)
    assert users([5, 6, 5], training=True).tolist() == [0, 0, 0]
    assert users([5, 5]).tolist() == [0, 0]
    five = users([5, 6], training=True).tolist()
    assert five[0] > 0
    assert five[1] == 0
    assert users([6], training=True)[0] > 0
    assert len(users) == 2


def test_key_claimed_by_another_process_gets_id_below_min_count() -> None:
    with local_parameters():
        users = ps.layers.OnlineLookup(100, min_count=2)
    found = users([5, 5], training=True)
    users.variables[0].parameters.key_maps.forget()
    np.testing.assert_array_equal(users([5, 5], training=True), found)


def test_restored_key_mapping_replaces_cached_ids(tmp_path: pathlib.Path) -> None:
    users = lookup(50)
    checkpoint = ps.Checkpoint(lookup=users)
    before = users([1, 2, 3], training=True)
    path = checkpoint.save(tmp_path)
    users([7, 8, 9], training=True)
    checkpoint.restore(path)
    assert users([1, 2, 3, 7, 8, 9]).tolist() == [*before.tolist(), 0, 0, 0]
    fresh = lookup(50)
    ps.Checkpoint(lookup=fresh).restore(path)
    np.testing.assert_array_equal(fresh([1, 2, 3]), before)
    with pytest.raises(InvalidArgumentError, match="shape"):
        ps.Checkpoint(lookup=lookup(60)).restore(path)


def test_assigned_keys_replace_cached_ids() -> None:
    users = lookup(10)
    users([1], training=True)
    keys = np.full(10, NO_KEY)
    keys[4] = 77
    users.variables[0].assign(keys)
    assert users([1]).tolist() == [0]
    keys = users.variables[0]
    keys.scatter_update([4], [NO_KEY])
    assert users([77]).tolist() == [0]


def test_keys_assigned_during_lookup_are_looked_up_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    users = lookup(50)
    parameters = users.variables[0].parameters
    # No row is free, so the search for a key does not stop early and finds it in any row.
    before, after = np.arange(100, 150), np.arange(100, 150)
    before[[9, 8]] = after[[5, 4]] = 7, 8
    claim = parameters.claim

    def claim_late(*arguments: Any, **options: Any) -> Any:
        rows = claim(*arguments, **options)
        monkeypatch.undo()
        users.variables[0].assign(after)
        return rows

    monkeypatch.setattr(parameters, "claim", claim_late)
    users.variables[0].assign(before)
    assert users([7, 8]).tolist() == [5, 4]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: lookup(1), "capacity must be an integer of at least 2"),
        (lambda: lookup([]), "needs a capacity"),
        (lambda: lookup(None), "needs a capacity, an integer or a list .*got None"),
        (lambda: lookup("100"), "needs a capacity, an integer or a list .*got '100'"),
        (lambda: ps.Category(9, online="yes"), "online must be True or False, got 'yes'"),
        (lambda: ps.Category(9, hashed="no"), "hashed must be True or False, got 'no'"),
        (lambda: lookup(10, min_count=0), "min_count must be a positive integer"),
        (lambda: lookup([5, 5])([1, 2]), r"takes keys \[n, 2\], got shape \(2,\)"),
    ],
)
def test_invalid_lookup_arguments_are_refused(make: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        make()


def test_float_keys_are_refused() -> None:
    with pytest.raises(DataError, match="cast it to integers"):
        lookup()(np.array([1.5]))


def test_local_lookup_cannot_be_pickled() -> None:
    with pytest.raises(TypeError, match=r"strategy\.scope"):
        pickle.dumps(lookup())


def test_empty_lookup_is_truthy_and_repr_shows_capacities() -> None:
    assert lookup()
    assert repr(lookup([10, 5])) == "<OnlineLookup 'online_lookup' 10, 5>"


def key_shard(rows: int = 8, **changed: Any) -> Shard:
    start = ps.initializers.constant(NO_KEY)
    options = {"dtype": "int64", "shape": (rows,), "initializer": start, **changed}
    return Shard(make_spec(rows, cuts=(4,), **options), 1)


def claim(shard: Shard, *keys: int, may_claim: bool = True) -> list[int]:
    count = len(keys)
    bounds = ids(*[4] * count), ids(*[8] * count)
    return shard.claim(ids(*keys), *bounds, np.full(count, may_claim, np.uint8)).tolist()


def test_snapshot_has_keys_of_its_moment() -> None:
    shard = key_shard()
    (row,) = claim(shard, 5)
    before, version = values_of(shard), shard.version
    snapshot = shard.snapshot()
    assert claim(shard, 5) == [row]
    assert shard.version == version
    claim(shard, 6, 7)
    assert shard.version > version
    (block,) = snapshot.blocks()
    np.testing.assert_array_equal(block.columns()[0], before)
    assert (values_of(shard) != before).sum() == 2


def test_repeated_claim_returns_same_rows() -> None:
    shard = key_shard()
    first = claim(shard, 5, 6)
    assert claim(shard, 6, 5) == first[::-1]
    assert claim(shard, 9, may_claim=False) == [NO_ROW]
    assert shard.count_keys() == 2
    assert claim(shard, 9, 9) == claim(shard, 9) * 2
    assert claim(shard, *range(20, 30)).count(NO_ROW_EVER) == 9
    assert shard.refused == 9
    assert claim(shard, 28, 29) == [NO_ROW_EVER] * 2
    assert shard.refused == 11
    assert claim(shard, 29, may_claim=False) == [NO_ROW_EVER]
    assert shard.refused == 11


def ask(store: Store, variable: int, *keys: int, start: int = 4, stop: int = 8) -> Any:
    arrays = [ids(*keys), ids(*[start] * len(keys)), ids(*[stop] * len(keys))]
    header = {"kind": "claim", "items": [[variable, 1, len(keys)]], "is_training": True}
    body = LateBody.of([*arrays, np.ones(len(keys), np.uint8)])
    assert body is not None
    return answer(store, Call(header, body.to_buffer()))


@pytest.mark.parametrize(
    ("changed", "arguments", "message"),
    [
        ({}, {"start": 3}, r"key 5 with rows \[3, 8\) cannot be on shard 1"),
        ({}, {"stop": 9}, r"rows \[4, 9\)"),
        ({}, {"start": 6, "stop": 6}, r"rows \[6, 6\)"),
        ({"dtype": "float32"}, {}, "no keys"),
        ({"shape": (8, 2)}, {}, "no keys"),
    ],
)
def test_invalid_claim_changes_nothing(
    changed: dict[str, Any], arguments: dict[str, int], message: str
) -> None:
    store = Store()
    spec = key_shard(**changed).spec
    shard = store.create(spec, 1)
    before = values_of(shard)
    with pytest.raises(InvalidArgumentError, match=message):
        ask(store, spec.id, 5, **arguments)
    with pytest.raises(InvalidArgumentError):
        ask(store, spec.id, NO_KEY)
    np.testing.assert_array_equal(values_of(shard), before)


def test_newly_claimed_rows_count_as_changed_since_last_snapshot() -> None:
    shard = key_shard()
    claim(shard, 5)
    shard.snapshot("first").close()
    rows = claim(shard, 5, 6, 7)
    snapshot = shard.snapshot("second", since="first")
    assert snapshot.changed is not None
    changed = snapshot.changed.between(0, 4) + shard.row_start
    assert sorted(changed) == sorted(rows[1:])


@pytest.mark.parametrize("kind", ["prepare", "decide", "check"])
def test_closure_that_assigns_keys_is_refused(kind: str) -> None:
    store = Store()
    spec = key_shard().spec
    shard = store.create(spec, 1)
    header = {"trainer": "t", "low_water": 0, "key": [1, 0, 0], "entries": [], "rows": []}
    for change in (
        {"kind": "assign", "op": "set", "start": 4, "count": 1},
        {"kind": "scatter", "op": "set", "count": 0},
    ):
        changes = [{**change, "shard": [spec.id, 1]}]
        with pytest.raises(InvalidArgumentError, match=r"'table' has keys .* assign it in"):
            answer(store, Call({**header, "kind": kind, "changes": changes}, None))
    (row,) = claim(shard, 5)
    assert row > 0


def test_only_int64_shards_initialized_to_no_key_hold_keys() -> None:
    assert key_shard().holds_keys
    assert not key_shard(initializer=ps.initializers.zeros()).holds_keys
    assert not Shard(make_spec(), 0).holds_keys


class ParametersRestoredWhileCounted(RemoteParameters):
    """Parameters whose servers go back to a checkpoint during the first request for counts."""

    def __init__(self) -> None:
        super().__init__([], session="before", token="-")
        self.wait_restored = lambda _error: False

    def ask_all(self, headers: Any, *, timeout_s: float) -> Any:  # noqa: ARG002
        used = 7 if self.session == "after" else 0
        self.session = "after"
        return {ps: {"used": used, "refused": 0} for ps in headers}


def test_key_count_overtaken_by_restore_is_repeated() -> None:
    assert ParametersRestoredWhileCounted().count_keys(key_shard().spec) == {
        "used": 7,
        "refused": 0,
    }
