"""Shards and the store: values, slots, updates, checkpoints, and changes that apply once."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from pstrain import initializers
from pstrain.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    NotFoundError,
)
from pstrain.paramserver.commits import Entry, PartKey
from pstrain.paramserver.shard import Shard
from pstrain.paramserver.steps import ShardUpdate
from pstrain.paramserver.store import Store
from pstrain.vocabulary import InitializerSpec, OptimizerSpec
from tests.unit.pstrain.paramserver.shard_cases import ADAGRAD, SGD, ids, make_spec, ones, values_of

SOON_S = 0.05
"""Long enough for a thread that fails to wait to be noticed."""

LACKING = OptimizerSpec(name="adagrad", learning_rate=0.1, slots=(0.1,))
"""A rule without the number that it needs."""

# -- shards


def test_initial_values_do_not_depend_on_partition() -> None:
    whole = values_of(Shard(make_spec(), 0))
    cut = make_spec(cuts=(4, 7))
    parts = [values_of(Shard(cut, index)) for index in range(3)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_integer_variable_keeps_its_dtype() -> None:
    shard = Shard(make_spec(dtype="int64", initializer=initializers.constant(7)), 0)
    out = np.empty((2, 3), np.int64)
    shard.gather(ids(9, 0), out)
    assert (out == 7).all()


@pytest.mark.parametrize(
    "initializer",
    [InitializerSpec(name="sevens"), InitializerSpec(name="uniform", parameters={"mean": 1.0})],
)
def test_unknown_initializer_is_refused_by_name(initializer: InitializerSpec) -> None:
    with pytest.raises(InvalidArgumentError, match=r"sevens|'mean'"):
        Shard(make_spec(initializer=initializer), 0)


def test_gather_error_names_id_and_variable() -> None:
    shard = Shard(make_spec(cuts=(4,)), 1)
    out = np.empty((2, 3), np.float32)
    shard.gather(ids(4, 9), out)
    np.testing.assert_array_equal(out, values_of(shard)[[0, 5]])
    with pytest.raises(InvalidArgumentError, match=r"id 3 .*\[4, 10\).*'table'"):
        shard.gather(ids(4, 3), out)


def test_slots_are_created_by_first_update_that_needs_them() -> None:
    shard = Shard(make_spec(), 0)
    before = values_of(shard)
    shard.update(SGD, ids(2), ones(1))
    assert shard.slots == 0
    shard.update(ADAGRAD, ids(2, 5), ones(2))
    assert shard.slots == 1
    np.testing.assert_allclose(shard.slab[2, 3:], 1.1)
    np.testing.assert_allclose(shard.slab[3, 3:], 0.1)
    after = values_of(shard)
    np.testing.assert_allclose(after[5], before[5] - 0.1 / np.sqrt(1.1), rtol=1e-5)
    np.testing.assert_array_equal(after[[0, 1, 3, 4]], before[[0, 1, 3, 4]])


def test_slots_are_reset_when_optimizer_changes() -> None:
    shard = Shard(make_spec(), 0)
    shard.update(ADAGRAD, None, ones(10))
    shard.optimizer = "another"
    shard.update(ADAGRAD, ids(0), ones(1))
    np.testing.assert_allclose(shard.slab[0, 3:], 1.1)
    np.testing.assert_allclose(shard.slab[1, 3:], 0.1)


@pytest.mark.parametrize("op", ["set", "add", "sub"])
def test_assign_changes_row_range_only(op: str) -> None:
    shard = Shard(make_spec(cuts=(4,)), 1)
    expected = values_of(shard)
    change = {"set": 2.0, "add": expected[1:3] + 2, "sub": expected[1:3] - 2}[op]
    expected[1:3] = change
    shard.assign(op, 5, 2 * ones(2))
    np.testing.assert_array_equal(values_of(shard), expected)


def test_scatter_adds_up_repeated_ids() -> None:
    shard = Shard(make_spec(initializer=initializers.constant(2)), 0)
    shard.scatter("add", ids(1, 1, 3), ones(3))
    shard.scatter("mul", ids(5), 4 * ones(1))
    shard.scatter("min", ids(6), ones(1))
    shard.scatter("div", ids(7), 4 * ones(1))
    shard.scatter("set", ids(8, 8), np.stack([ones(1)[0], 9 * ones(1)[0]]))
    assert values_of(shard)[:, 0].tolist() == [2, 4, 2, 3, 2, 8, 1, 0.5, 9, 2]


def test_every_change_increments_version() -> None:
    shard = Shard(make_spec(), 0, version=40)
    shard.update(SGD, None, ones(10))
    shard.assign("set", 0, ones(1))
    shard.scatter("add", ids(0), ones(1))
    assert shard.version == 43


@pytest.mark.parametrize(
    "call",
    [
        lambda s: s.assign("times", 0, ones(1)),
        lambda s: s.assign("set", 9, ones(2)),
        lambda s: s.scatter("pow", ids(0), ones(1)),
        lambda s: s.scatter("add", ids(10), ones(1)),
        lambda s: s.check_rule(OptimizerSpec(name="sgdd", learning_rate=1)),
        lambda s: s.check_rule(OptimizerSpec(name="sgd", learning_rate=1, slots=(0.0, 0.0))),
        lambda s: s.check_gradient(ids(0), ones(2)),
        lambda s: s.check_gradient(None, ones(3)),
        lambda s: s.check_gradient(ids(11), ones(1)),
    ],
)
def test_invalid_operation_is_refused_and_changes_nothing(call: Any) -> None:
    shard = Shard(make_spec(), 0)
    before = values_of(shard)
    with pytest.raises(InvalidArgumentError):
        call(shard)
    np.testing.assert_array_equal(values_of(shard), before)
    assert shard.version == 0


def test_training_integer_variable_is_refused() -> None:
    shard = Shard(make_spec(dtype="int64", initializer=initializers.zeros()), 0)
    with pytest.raises(InvalidArgumentError, match="int64"):
        shard.check_rule(SGD)


# -- store


def test_create_is_idempotent_and_refuses_other_variable_with_same_id() -> None:
    store = Store()
    first = store.create(make_spec(), 0)
    first.assign("set", 0, ones(10))
    assert store.create(make_spec(), 0) is first
    with pytest.raises(AlreadyExistsError, match=r"'table'.*'other'"):
        store.create(make_spec(name="other"), 0)


def test_shards_begin_with_first_version_of_their_store() -> None:
    """So no version that a client knows from before a restart is taken for that of new values."""
    store, spec = Store(first_version=7), make_spec(cuts=(4,))
    assert store.create(spec, 0).version == 7
    assert store.create(spec, 1, ones(6)).version == 7


def test_slots_are_made_for_all_shards_if_rule_is_complete() -> None:
    store, spec = Store(), make_spec(cuts=(4,))
    shards = [store.create(spec, index) for index in range(2)]
    with pytest.raises(InvalidArgumentError, match="missing: epsilon"):
        store.make_slots(shards, LACKING)
    assert [shard.slots for shard in shards] == [0, 0]
    assert store.make_slots(shards, ADAGRAD) == 0
    assert [shard.slots for shard in shards] == [1, 1]


def test_missing_shard_error_names_shard_and_variable() -> None:
    with pytest.raises(NotFoundError, match="shard 2 of variable 9"):
        Store().shard(9, 2)


def test_decided_part_is_applied_once() -> None:
    store = Store()
    shard = store.create(make_spec(initializer=initializers.zeros()), 0)
    counter_spec = make_spec(
        1, 1, id=2, name="n", shape=(), dtype="int64", initializer=initializers.zeros()
    )
    counter = store.create(counter_spec, 0)
    step = store.checked_update([ShardUpdate(shard, ids(1), ones(1))], SGD, counter)
    for key, applied in [((4, 0, 0), True), ((4, 0, 0), False), ((4, 0, 1), True)]:
        assert store.decide("t", PartKey(*key), [step], [Entry(*key, None)], []) is applied
    store.prepare("t", PartKey(3, 0, 0), [step])
    assert values_of(counter)[0, 0] == 2
    for _ in range(2):
        store.commit("t", PartKey(3, 0, 0))
    assert values_of(counter)[0, 0] == 3
    np.testing.assert_allclose(values_of(shard)[1], -1.5)
    store.advance(5)
    assert not store.decide("t", PartKey(4, 0, 2), [step], [], [])


def test_step_with_one_bad_update_is_refused_without_effect() -> None:
    store = Store()
    shard = store.create(make_spec(initializer=initializers.zeros()), 0)
    good, bad = ShardUpdate(shard, ids(1), ones(1)), ShardUpdate(shard, ids(10), ones(1))
    with pytest.raises(InvalidArgumentError):
        store.checked_update([good, bad], SGD, None)
    assert not values_of(shard).any()


def test_concurrent_updates_are_all_applied() -> None:
    store = Store()
    shard = store.create(make_spec(64, 4, initializer=initializers.zeros()), 0)
    step = OptimizerSpec(name="sgd", learning_rate=-1.0)

    def push() -> None:
        for _ in range(200):
            store.apply([store.checked_update([ShardUpdate(shard, None, ones(64, 4))], step, None)])

    threads = [threading.Thread(target=push) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (values_of(shard) == 800).all()


def test_quiet_waits_for_changes_in_progress_and_blocks_new_ones() -> None:
    store = Store()
    inside, leave = threading.Event(), threading.Event()
    order: list[str] = []

    def slow() -> None:
        inside.set()
        assert leave.wait(10)
        order.append("change")

    def save() -> None:
        with store.quiet():
            order.append("save")
            late.start()
            late.join(SOON_S)
            order.append("saved")

    change, saving, late = (
        threading.Thread(target=target, args=arguments, daemon=True)
        for target, arguments in (
            (store.apply, ([slow],)),
            (save, ()),
            (store.apply, ([lambda: order.append("late")],)),
        )
    )
    change.start()
    assert inside.wait(10)
    saving.start()
    saving.join(SOON_S)
    leave.set()
    for thread in (change, saving, late):
        thread.join(10)
    assert order == ["change", "save", "saved", "late"]


def test_optimizer_rule_with_missing_parameters_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="needs epsilon; missing: epsilon"):
        Shard(make_spec(), 0).check_rule(LACKING)


# -- deleting


def test_deleted_variable_has_no_shards_left() -> None:
    store = Store()
    for variable in (1, 2):
        for index in (0, 1):
            store.create(make_spec(cuts=(4,), id=variable), index)
    store.delete([1, 3])
    store.delete([1])
    assert [(shard.spec.id, shard.index) for shard in store.shards()] == [(2, 0), (2, 1)]
    with pytest.raises(NotFoundError):
        store.shard(1, 0)


def test_variable_that_is_deleted_while_it_is_made_does_not_appear(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As its program may have been interrupted, and drops what it had begun to make."""
    store, fill = Store(), Shard.fill

    def fill_and_delete(shard: Shard, size_bytes: int) -> int:
        store.delete([shard.spec.id])
        return fill(shard, size_bytes)

    monkeypatch.setattr(Shard, "fill", fill_and_delete)
    assert store.make(make_spec(), 0) == 0
    assert store.shards() == []


def test_step_that_was_checked_before_is_made_on_a_deleted_variable() -> None:
    store = Store()
    shard = store.create(make_spec(), 0)
    step = store.checked_update([ShardUpdate(shard, ids(1), ones(1))], SGD, None)
    store.delete([1])
    store.apply([step])
    assert store.shards() == []
