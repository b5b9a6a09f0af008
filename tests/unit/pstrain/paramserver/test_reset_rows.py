"""Rows that begin anew, with their slots, and the keys that are removed from theirs."""

from __future__ import annotations

import numpy as np
import pytest

from pstrain.errors import FailedPreconditionError, InvalidArgumentError
from pstrain.paramserver.messages import Call, LateBody
from pstrain.paramserver.requests import answer
from pstrain.paramserver.shard import Shard
from pstrain.paramserver.store import Store
from tests.unit.pstrain.paramserver.shard_cases import ADAGRAD, ADAM, ids, make_spec, ones


def trained(rule: object = ADAM) -> Shard:
    shard = Shard(make_spec(10, cuts=(4,)), 1)
    shard.update(rule, None, ones(6))
    return shard


@pytest.mark.parametrize("rule", [ADAGRAD, ADAM])
def test_reset_rows_have_initial_values_and_slots(rule: object) -> None:
    shard, initial = trained(rule), Shard(make_spec(10, cuts=(4,)), 1)
    initial.make_slots(rule)
    before, version = shard.slab.copy(), shard.version
    shard.reset_rows(ids(5, 9))
    np.testing.assert_array_equal(shard.slab[[1, 5]], initial.slab[[1, 5]])
    np.testing.assert_array_equal(shard.slab[[0, 2, 3, 4]], before[[0, 2, 3, 4]])
    assert shard.version > version
    shard.update(rule, ids(5), ones(1))
    initial.update(rule, ids(5), ones(1))
    np.testing.assert_array_equal(shard.slab[1], initial.slab[1])


def test_snapshot_has_rows_as_they_were_before_a_reset() -> None:
    shard = trained()
    shard.snapshot("first").close()
    before, snapshot = shard.slab.copy(), shard.snapshot("second", since="first")
    shard.reset_rows(ids(5, 9))
    (block,) = snapshot.blocks()
    np.testing.assert_array_equal(np.concatenate(block.columns(), axis=1), before)
    later = shard.snapshot("third", since="second")
    assert later.changed is not None
    assert (later.changed.between(0, 6) + 4).tolist() == [5, 9]


def ask(store: Store, header: dict[str, object], *arrays: np.ndarray) -> None:
    body = LateBody.of(arrays)
    answer(store, Call(header, None if body is None else body.to_buffer()))


def test_rows_whose_first_slots_are_unknown_are_not_reset() -> None:
    store = Store()
    spec = make_spec(10)
    shard = store.create(spec, 0)
    shard.restore(0, [ones(10), ones(10)], "adagrad")
    before = shard.slab.copy()
    header = {"kind": "reset_rows", "items": [[spec.id, 0, 2, 0]]}
    with pytest.raises(FailedPreconditionError, match="train for a step first"):
        ask(store, header, ids(3, 4))
    with pytest.raises(InvalidArgumentError, match="id 10 is outside"):
        ask(store, header, ids(3, 10))
    np.testing.assert_array_equal(shard.slab, before)
    shard.update(ADAGRAD, ids(1), ones(1))
    ask(store, header, ids(3, 4))
    assert (shard.slab[3] != before[3]).any()


def test_repeated_reset_keeps_what_was_trained_since() -> None:
    store = Store()
    spec = make_spec(10)
    shard = store.create(spec, 0)
    initial = shard.slab.copy()
    resets = [{"kind": "reset_rows", "items": [[spec.id, 0, 1, number]]} for number in (6, 7, 8)]
    for header in resets[:2]:
        shard.slab[...] = 7
        ask(store, header, ids(3))
        np.testing.assert_array_equal(shard.slab[3], initial[3])
    shard.slab[...] = 7
    for header in resets[:2]:
        ask(store, header, ids(3))
    assert (shard.slab == 7).all()
    ask(store, resets[2], ids(3))
    np.testing.assert_array_equal(shard.slab[3], initial[3])
