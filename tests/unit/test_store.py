"""Shards and the store: values, slots, updates, checkpoints, and changes that apply once."""

from __future__ import annotations

import itertools
import pathlib
import threading
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pstrain import initializers
from pstrain.errors import (
    AlreadyExistsError,
    DataLossError,
    InvalidArgumentError,
    NotFoundError,
)
from pstrain.paramserver.checkpoint import Saved, SavedShard, read_into, verify, write_shard
from pstrain.paramserver.commits import Entry, PartKey
from pstrain.paramserver.shard import Shard
from pstrain.paramserver.steps import ShardUpdate
from pstrain.paramserver.store import Store
from pstrain.vocabulary import InitializerSpec, OptimizerSpec, ShardSpec, VariableSpec

SGD = OptimizerSpec(name="sgd", learning_rate=0.5)
ADAGRAD = OptimizerSpec(
    name="adagrad", learning_rate=0.1, parameters={"epsilon": 1e-7}, slots=(0.1,)
)


def make_spec(
    rows: int = 10,
    width: int = 3,
    *,
    cuts: tuple[int, ...] = (),
    dtype: str = "float32",
    initializer: InitializerSpec | None = None,
    **changed: Any,
) -> VariableSpec:
    bounds = [0, *cuts, rows]
    fields: dict[str, Any] = {
        "id": 1,
        "name": "table",
        "shape": (rows, width),
        "dtype": dtype,
        "trainable": True,
        "initializer": initializer or initializers.uniform(seed=3),
        "shards": tuple(
            ShardSpec(ps=0, row_start=a, row_stop=b) for a, b in itertools.pairwise(bounds)
        ),
    }
    return VariableSpec(**{**fields, **changed})


def values_of(shard: Shard) -> np.ndarray:
    out = np.empty((shard.row_stop - shard.row_start, shard.width), shard.spec.dtype)
    shard.read(shard.row_start, shard.row_stop, out)
    return out


def ones(rows: int, width: int = 3) -> np.ndarray:
    return np.ones((rows, width), np.float32)


def ids(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


# -- shards


def test_cut_or_whole_a_variable_starts_the_same() -> None:
    whole = values_of(Shard(make_spec(), 0))
    cut = make_spec(cuts=(4, 7))
    parts = [values_of(Shard(cut, index)) for index in range(3)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_an_integer_variable_keeps_its_dtype() -> None:
    shard = Shard(make_spec(dtype="int64", initializer=initializers.constant(7)), 0)
    out = np.empty((2, 3), np.int64)
    shard.gather(ids(9, 0), out)
    assert (out == 7).all()


@pytest.mark.parametrize(
    "initializer",
    [InitializerSpec(name="sevens"), InitializerSpec(name="uniform", parameters={"mean": 1.0})],
)
def test_an_unknown_initializer_is_named(initializer: InitializerSpec) -> None:
    with pytest.raises(InvalidArgumentError, match=r"sevens|'mean'"):
        Shard(make_spec(initializer=initializer), 0)


def test_gather_names_the_id_and_the_variable() -> None:
    shard = Shard(make_spec(cuts=(4,)), 1)
    out = np.empty((2, 3), np.float32)
    shard.gather(ids(4, 9), out)
    np.testing.assert_array_equal(out, values_of(shard)[[0, 5]])
    with pytest.raises(InvalidArgumentError, match=r"id 3 .*\[4, 10\).*'table'"):
        shard.gather(ids(4, 3), out)


def test_slots_arrive_with_the_first_update_that_needs_them() -> None:
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


def test_slots_of_another_optimizer_start_anew() -> None:
    shard = Shard(make_spec(), 0)
    shard.update(ADAGRAD, None, ones(10))
    shard.optimizer = "another"
    shard.update(ADAGRAD, ids(0), ones(1))
    np.testing.assert_allclose(shard.slab[0, 3:], 1.1)
    np.testing.assert_allclose(shard.slab[1, 3:], 0.1)


@pytest.mark.parametrize("op", ["set", "add", "sub"])
def test_assign_changes_a_range(op: str) -> None:
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


def test_every_change_gives_a_new_version() -> None:
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
def test_what_cannot_be_done_is_refused_and_changes_nothing(call: Any) -> None:
    shard = Shard(make_spec(), 0)
    before = values_of(shard)
    with pytest.raises(InvalidArgumentError):
        call(shard)
    np.testing.assert_array_equal(values_of(shard), before)
    assert shard.version == 0


def test_integers_are_not_trained() -> None:
    shard = Shard(make_spec(dtype="int64", initializer=initializers.zeros()), 0)
    with pytest.raises(InvalidArgumentError, match="int64"):
        shard.check_rule(SGD)


# -- store


def test_creating_again_is_harmless_and_another_variable_is_refused() -> None:
    store = Store()
    first = store.create(make_spec(), 0)
    first.assign("set", 0, ones(10))
    assert store.create(make_spec(), 0) is first
    with pytest.raises(AlreadyExistsError, match=r"'table'.*'other'"):
        store.create(make_spec(name="other"), 0)


def test_an_absent_shard_is_named() -> None:
    with pytest.raises(NotFoundError, match="shard 2 of variable 9"):
        Store().shard(9, 2)


def test_a_decided_part_is_applied_once() -> None:
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


def test_a_step_with_one_bad_update_is_refused_before_anything_is_held() -> None:
    store = Store()
    shard = store.create(make_spec(initializer=initializers.zeros()), 0)
    good, bad = ShardUpdate(shard, ids(1), ones(1)), ShardUpdate(shard, ids(10), ones(1))
    with pytest.raises(InvalidArgumentError):
        store.checked_update([good, bad], SGD, None)
    assert not values_of(shard).any()


def test_concurrent_updates_are_all_kept() -> None:
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


def test_quiet_waits_for_changes_and_keeps_new_ones_out() -> None:
    store = Store()
    shard = store.create(make_spec(initializer=initializers.zeros()), 0)
    inside, leave = threading.Event(), threading.Event()
    order: list[str] = []

    def change() -> None:
        def slow() -> None:
            inside.set()
            leave.wait(10)
            order.append("change")

        store.apply([slow])

    def save() -> None:
        with store.quiet():
            order.append("save")

    first, second = threading.Thread(target=change), threading.Thread(target=save)
    first.start()
    assert inside.wait(10)
    second.start()
    leave.set()
    first.join(10)
    second.join(10)
    assert order == ["change", "save"]
    store.apply([store.checked_update([ShardUpdate(shard, None, ones(10))], SGD, None)])
    assert shard.version == 1


# -- shards as files


def _trained(cuts: tuple[int, ...], rule: OptimizerSpec = ADAGRAD, width: int = 3) -> list[Shard]:
    spec = make_spec(50, width, cuts=cuts)
    shards = [Shard(spec, index) for index in range(len(spec.shards))]
    for shard in shards:
        rows = np.arange(shard.row_start, shard.row_stop, dtype=np.float32)
        gradient = np.ascontiguousarray(np.broadcast_to(rows[:, None], (len(rows), width)))
        shard.update(rule, None, gradient)
    return shards


@pytest.mark.parametrize("before", [(), (20,), (10, 11, 40)])
@pytest.mark.parametrize("after", [(), (25,), (5, 30)])
def test_any_cut_restores_onto_any_other(
    tmp_path: pathlib.Path, before: tuple[int, ...], after: tuple[int, ...]
) -> None:
    shards = _trained(before)
    saved = [write_shard(str(tmp_path), "m/table", shard) for shard in shards]
    spec = make_spec(50, 3, cuts=after, id=9, initializer=initializers.zeros())
    targets = [("m/table", Shard(spec, index)) for index in range(len(spec.shards))]
    verify(str(tmp_path), targets, saved)
    read_into(str(tmp_path), targets, saved)
    expected = np.concatenate([shard.slab for shard in shards])
    np.testing.assert_array_equal(np.concatenate([t.slab for _, t in targets]), expected)
    assert {t.optimizer for _, t in targets} == {"adagrad"}


ADAM = OptimizerSpec(
    name="adam",
    learning_rate=0.1,
    parameters={"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7},
    slots=(0.0, 0.0),
    row_slots=(0.0,),
)


@pytest.mark.parametrize("width", [1, 3])
def test_what_is_kept_per_row_comes_back(tmp_path: pathlib.Path, width: int) -> None:
    (shard,) = _trained((), ADAM, width)
    saved = write_shard(str(tmp_path), "m/table", shard)
    with pa.ipc.open_file(str(tmp_path / saved.file)) as reader:
        assert reader.schema.names == ["values", "slot_0", "slot_1", "row_slot_0"]
    target = Shard(make_spec(50, width, initializer=initializers.zeros()), 0)
    read_into(str(tmp_path), [("m/table", target)], [saved])
    np.testing.assert_array_equal(target.slab, shard.slab)
    assert (target.slots, target.row_slots) == (2, 1)
    for one in (shard, target):
        one.update(ADAM, ids(1, 7), ones(2, width))
    np.testing.assert_array_equal(target.slab, shard.slab)


def test_a_rule_without_its_numbers_is_refused() -> None:
    lacking = OptimizerSpec(name="adagrad", learning_rate=0.1, slots=(0.1,))
    with pytest.raises(InvalidArgumentError, match="needs epsilon; missing: epsilon"):
        Shard(make_spec(), 0).check_rule(lacking)


def test_files_are_plain_arrow(tmp_path: pathlib.Path) -> None:
    (shard,) = _trained(())
    saved = write_shard(str(tmp_path), "m/table", shard)
    with pa.ipc.open_file(str(tmp_path / saved.file)) as reader:
        table = reader.read_all()
        assert reader.schema.metadata[b"variable"] == b"m/table"
    assert table.column_names == ["values", "slot_0"]
    np.testing.assert_array_equal(table["values"].to_pylist()[49], values_of(shard)[49])


def test_saved_survives_json() -> None:
    part = SavedShard("a", (3, 2), "float32", 0, 3, "f", 10, 11, None)
    saved = Saved((part,), "s", {"0": {"low_water": 1, "applied": []}})
    assert Saved.from_json(saved.to_json()) == saved


def _verify(tmp_path: pathlib.Path, saved: list[SavedShard], **changed: Any) -> None:
    spec = make_spec(**{"rows": 50, **changed})
    verify(str(tmp_path), [("m/table", Shard(spec, 0))], saved)


def test_what_does_not_fit_is_named_with_both_shapes(tmp_path: pathlib.Path) -> None:
    saved = [write_shard(str(tmp_path), "m/table", shard) for shard in _trained(())]
    with pytest.raises(InvalidArgumentError, match=r"'m/table'.*\(51, 3\).*\(50, 3\)"):
        _verify(tmp_path, saved, rows=51)
    with pytest.raises(InvalidArgumentError, match=r"float64.*float32"):
        _verify(tmp_path, saved, dtype="float64", initializer=initializers.zeros())
    with pytest.raises(NotFoundError, match="m/table"):
        _verify(tmp_path, [part._replace(name="m/other") for part in saved])


def test_missing_rows_and_files_are_noticed(tmp_path: pathlib.Path) -> None:
    saved = [write_shard(str(tmp_path), "m/table", shard) for shard in _trained((20, 30))]
    _verify(tmp_path, saved)
    with pytest.raises(DataLossError, match="rows from 20"):
        _verify(tmp_path, [saved[0], saved[2]])
    (tmp_path / saved[1].file).unlink()
    with pytest.raises(NotFoundError, match=saved[1].file):
        _verify(tmp_path, saved)


@pytest.mark.parametrize("position", [0, 700, -1])
def test_a_flipped_bit_is_noticed(tmp_path: pathlib.Path, position: int) -> None:
    saved = [write_shard(str(tmp_path), "m/table", shard) for shard in _trained(())]
    path = tmp_path / saved[0].file
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(DataLossError, match=saved[0].file):
        _verify(tmp_path, saved)
