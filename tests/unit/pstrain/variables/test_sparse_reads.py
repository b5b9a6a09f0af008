"""Rows that are read under a tape: their values, and where their gradient goes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pstrain.errors import InvalidArgumentError
from pstrain.gradients.tape import GradientTape
from pstrain.gradients.tensor import Tensor
from pstrain.optimizers import SGD
from pstrain.variables.indexed_slices import IndexedSlices
from pstrain.variables.scope import LocalPlacement, local_parameters, placement_scope
from pstrain.variables.variable import ShardedVariable, Variable

ROWS = np.arange(20, dtype=np.float32).reshape(10, 2)


class CutPlacement(LocalPlacement):
    """A placement that cuts tables into three shards: rows 0 to 3, 4 to 6 and 7 to 9."""

    def place(self, shape: tuple[int, ...], dtype: str) -> list[int]:  # noqa: ARG002
        return [0, 0, 0] if shape else [0]


def _joined() -> ShardedVariable:
    return ShardedVariable([Variable(ROWS[:4], name="low"), Variable(ROWS[4:], name="high")])


@pytest.fixture(params=["whole", "cut", "joined"])
def table(request: pytest.FixtureRequest) -> Iterator[Any]:
    placement = CutPlacement() if request.param == "cut" else LocalPlacement()
    with placement_scope(placement):
        yield _joined() if request.param == "joined" else Variable(ROWS, name="table")


def _changed(table: Any, tape: GradientTape, loss: Tensor) -> list[list[float]]:
    """Applies a step at rate 1; returns what it subtracts from each row."""
    before = table.numpy()
    SGD(1.0).apply_gradients(tape.gradients(loss))
    return (before - table.numpy()).tolist()


def test_gradient_of_row_is_sum_over_its_lookups(table: Any) -> None:
    ids, factors = [[9, 0], [9, 3]], np.arange(8, dtype=np.float32).reshape(2, 2, 2)
    with GradientTape() as tape:
        rows = table.embedding_lookup(ids)
        loss = np.sum(rows * factors)
    assert isinstance(rows, Tensor)
    np.testing.assert_array_equal(rows.value, ROWS[ids])
    expected = np.zeros((10, 2))
    expected[[9, 0, 3]] = [[0 + 4, 1 + 5], [2, 3], [6, 7]]
    assert _changed(table, tape, loss) == expected.tolist()


def test_gradients_of_several_sparse_reads_add_up(table: Any) -> None:
    with GradientTape() as tape:
        first, second = table.sparse_read([1, 8]), table.sparse_read(np.array([8, 5]))
        loss = np.sum(first @ np.ones((2, 1), np.float32)) + np.sum(second) * 10.0
    expected = np.zeros((10, 2))
    expected[1], expected[8], expected[5] = 1, 11, 10
    assert _changed(table, tape, loss) == expected.tolist()


def test_sparse_read_of_no_ids_returns_empty_tensor(table: Any) -> None:
    with GradientTape():
        assert table.sparse_read([]).shape == (0, 2)


def test_invalid_ids_are_refused_under_tape_too(table: Any) -> None:
    with GradientTape():
        with pytest.raises(InvalidArgumentError, match=r"id 10 .*outside"):
            table.sparse_read([3, 10])
        with pytest.raises(InvalidArgumentError, match="integers"):
            table.embedding_lookup([1.5])


def test_rows_of_a_column_of_matrices_are_those_of_the_matrix(table: Any) -> None:
    ids = pa.array([[1, 8], [0, 3]], pa.list_(pa.int64(), 2))
    np.testing.assert_array_equal(table.embedding_lookup(ids), table.numpy()[[[1, 8], [0, 3]]])


def test_rows_read_without_tape_are_arrays(table: Any) -> None:
    for found in (table.embedding_lookup([[1]]), table.sparse_read([1]), table[2:4], table[[3]]):
        assert isinstance(found, np.ndarray)


@pytest.mark.parametrize(
    "key",
    [3, -1, slice(2, 8), slice(None, None, 3), [3, 1, 3], ROWS[:, 0] > 5, (slice(1, 7), 0), ...],
    ids=repr,
)
def test_indexed_values_have_gradient_of_their_rows(table: Any, key: Any) -> None:
    with GradientTape() as tape:
        found = table[key]
        loss = np.sum(found)
    assert isinstance(found, Tensor)
    np.testing.assert_array_equal(found.value, ROWS[key])
    expected = np.zeros((10, 2))
    np.add.at(expected, key, 1)
    assert _changed(table, tape, loss) == expected.tolist()


def test_rows_of_untrained_variable_are_arrays_under_tape() -> None:
    with local_parameters(), GradientTape():
        for variable in (Variable(ROWS, trainable=False), Variable(np.arange(3))):
            assert isinstance(variable.sparse_read([1]), np.ndarray)


def test_gradient_of_looked_up_variable_covers_only_its_rows() -> None:
    with local_parameters():
        table, other = Variable(ROWS, name="table"), Variable(ROWS, name="other")
        with GradientTape() as tape:
            loss = np.mean(table.embedding_lookup([7, 7, 2, 2]))
        gradients = tape.gradient(loss, [table, other])
        update, none = gradients
        assert none is None
        assert update.gradient.dtype == np.float32
        found = dict(zip(update.lookup.unique.tolist(), update.gradient.tolist(), strict=True))
        assert found == {7: [0.25, 0.25], 2: [0.25, 0.25]}
        SGD(4.0).apply_gradients(zip(gradients, [table, other], strict=True))
        np.testing.assert_array_equal(table[[7, 2, 3]], ROWS[[7, 2, 3]] - [[1], [1], [0]])


def test_lookup_gradients_work_for_rank_1_and_rank_3_variables() -> None:
    with local_parameters():
        for shape in ((10,), (10, 2, 3)):
            variable = Variable(np.ones(shape, np.float32))
            with GradientTape() as tape:
                rows = variable.embedding_lookup([[4, 4, 9]])
                loss = np.sum(rows * rows)
            assert rows.shape == (1, 3, *shape[1:])
            SGD(0.25).apply_gradients(tape.gradients(loss))
            assert np.all(variable[4] == 0.0)
            assert np.all(variable[9] == 0.5)
            assert np.all(variable[:4] == 1.0)


def test_shard_of_variable_has_gradient_of_its_rows() -> None:
    with placement_scope(CutPlacement()):
        table = Variable(ROWS, name="table")
        part, unread = table.variables[1], table.variables[2]
        with GradientTape() as tape:
            loss = np.sum(part.embedding_lookup([2, 0, 2])) + np.sum(table.sparse_read([0, 4]))
        slices = tape.gradient(loss, part)
        assert isinstance(slices, IndexedSlices)
        found = dict(zip(slices.indices.tolist(), slices.values.tolist(), strict=True))
        assert found == {2: [2.0, 2.0], 0: [2.0, 2.0]}
        assert len(tape.gradient(loss, unread).indices) == 0
        assert sorted(tape.gradient(loss, table).lookup.unique.tolist()) == [0, 4, 6]


def test_joined_variable_trains_only_its_trainable_parts() -> None:
    with local_parameters():
        frozen, trained = Variable(ROWS[:4], trainable=False), Variable(ROWS[4:], name="trained")
        table = ShardedVariable([frozen, trained])
        with GradientTape() as tape:
            rows = table.sparse_read([9, 1, 4])
            loss = np.sum(rows)
        np.testing.assert_array_equal(rows.value, ROWS[[9, 1, 4]])
        (update,) = tape.gradients(loss)
        assert update.variable.name == "trained"
        assert sorted(update.lookup.unique.tolist()) == [0, 5]  # type: ignore[union-attr]


def test_gradients_of_rows_and_of_whole_variable_add_up(table: Any) -> None:
    with GradientTape() as tape:
        loss = np.sum(table.sparse_read([1, 6, 6])) + 0.5 * np.sum(table * table)
    expected = ROWS.copy()
    expected[1] += 1
    expected[6] += 2
    assert _changed(table, tape, loss) == expected.tolist()
