"""Ids and rows grouped by field, against NumPy and plain Python."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pstrain.errors import InvalidArgumentError
from pstrain.features.field_groups import FieldGroups, group_by_field, group_rows
from pstrain.variables.rows import look_up
from pstrain.vocabulary import InitializerSpec, ShardSpec, VariableSpec


def _ids(examples: list[list[int]], fields: int) -> np.ndarray:
    return np.array(examples, np.int64).reshape(-1, fields)


def _check(ids: np.ndarray, distinct: np.ndarray, groups: FieldGroups) -> None:
    """Checks that every part of ``groups`` agrees with the ids."""
    size, fields = ids.shape
    np.testing.assert_array_equal(distinct[groups.inverse()], ids.reshape(-1))
    repeating = 0
    for field in range(fields):
        mine = ids[:, field].tolist()
        start, middle, stop = groups.starts[field], groups.middles[field], groups.starts[field + 1]
        found = distinct[groups.order[start:stop]].tolist()
        first_seen = list(dict.fromkeys(mine))
        several = [key for key in first_seen if mine.count(key) > 1]
        assert found == several + [key for key in first_seen if mine.count(key) == 1]
        assert middle - start == len(several)
        for key in several:
            repeating += 1
            listed = groups.examples[groups.firsts[repeating] : groups.ends[repeating]].tolist()
            assert listed == [i for i in range(size) if mine[i] == key]
            assert (groups.repeated[listed, field] == repeating).all()
        alone = [i for i in range(size) if mine.count(mine[i]) == 1]
        assert not groups.repeated[alone, field].any()
        last = (field + 1) * size
        assert groups.examples[last - len(alone) : last].tolist() == alone
    assert len(groups.firsts) == len(groups.ends) == repeating + 1


@given(
    st.integers(1, 4).flatmap(
        lambda fields: st.tuples(
            st.just(fields),
            st.lists(st.lists(st.integers(-3, 9), min_size=fields, max_size=fields), max_size=30),
        )
    )
)
def test_ids_are_grouped_by_field(case: tuple[int, list[list[int]]]) -> None:
    fields, examples = case
    ids = _ids(examples, fields)
    distinct, groups = group_by_field(ids)
    assert len(distinct) == groups.starts[-1]
    _check(ids, distinct, groups)


def test_fields_with_all_distinct_ids_or_single_id_are_grouped() -> None:
    ids = np.stack([np.arange(5000) << 20, np.full(5000, 7)], axis=1)
    distinct, groups = group_by_field(ids)
    np.testing.assert_array_equal(distinct[groups.inverse()], ids.reshape(-1))
    assert groups.starts.tolist() == [0, 5000, 5001]
    assert groups.middles.tolist() == [0, 5001]


def test_already_looked_up_rows_are_grouped_like_ids() -> None:
    inverse = np.array([3, 1, 3, 0, 2, 1], np.int32)
    groups = group_rows(inverse, 2)
    assert groups.inverse().tolist() == inverse.tolist()
    assert groups.order.tolist() == [3, 2, 1, 0]


def _spec(shards: int) -> VariableSpec:
    bounds = [100 * k // shards for k in range(shards + 1)]
    return VariableSpec(
        id=1,
        name="table",
        shape=(100, 4),
        dtype="float32",
        trainable=True,
        initializer=InitializerSpec(name="zeros"),
        shards=tuple(
            ShardSpec(ps=k, row_start=bounds[k], row_stop=bounds[k + 1]) for k in range(shards)
        ),
    )


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("shared", [False, True])
def test_lookup_by_field_lists_each_id_once_ordered_by_shard(shards: int, shared: bool) -> None:
    random = np.random.default_rng(3)
    ids = random.integers(0, 25, (60, 4)) + (0 if shared else np.arange(4) * 25)
    lookup = look_up(_spec(shards), ids)
    assert isinstance(lookup.found, FieldGroups)
    np.testing.assert_array_equal(lookup.unique[lookup.inverse], ids.reshape(-1))
    assert sorted(lookup.unique.tolist()) == np.unique(ids).tolist()
    for index, shard in enumerate(_spec(shards).shards):
        part = lookup.unique[lookup.offsets[index] : lookup.offsets[index + 1]]
        assert ((part >= shard.row_start) & (part < shard.row_stop)).all()
    _check(ids, lookup.unique, lookup.found)


def test_id_outside_variable_is_refused_with_its_position() -> None:
    ids = np.array([[1, 2], [3, 100], [-1, 5]])
    with pytest.raises(InvalidArgumentError, match=r"id 100 at position 3 is outside \[0, 100\)"):
        look_up(_spec(2), ids)
