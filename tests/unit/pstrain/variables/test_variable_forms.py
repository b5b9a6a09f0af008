"""Initial values by shard, joined variables, copies per trainer, slices with indices."""

from __future__ import annotations

import contextvars
import functools
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import pstrain as ps
from pstrain.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    UnimplementedError,
)
from pstrain.trainer.context import trainer_scope
from pstrain.variables.parameters import step_scope
from pstrain.variables.scope import LocalPlacement, local_parameters, placement_scope
from pstrain.vocabulary import StepToken

pytestmark = pytest.mark.usefixtures("own_parameters")


class ThreeShardPlacement(LocalPlacement):
    """A placement for three trainers that cuts each variable with an axis into three shards."""

    @property
    def num_workers(self) -> int:
        return 3

    def place(self, shape: tuple[int, ...], dtype: str) -> list[int]:  # noqa: ARG002
        return [0] * min(3, shape[0]) if shape else [0]


@pytest.fixture
def cut() -> Iterator[None]:
    with placement_scope(ThreeShardPlacement()):
        yield


# -- initial values


def test_initializer_is_passed_to_servers_in_every_form(cut: None) -> None:  # noqa: ARG001
    initializer = ps.initializers.uniform(seed=3)
    forms = [
        ps.Variable(initializer, shape=(10, 2)),
        ps.Variable(initializer((10, 2))),
        ps.Variable(lambda: initializer((10, 2))),
    ]
    assert {type(v) for v in forms} == {ps.ShardedVariable}
    assert all(v.spec.initializer == initializer for v in forms)
    values = [v.numpy() for v in forms]
    assert values[0].dtype == np.float32
    np.testing.assert_array_equal(values[0], values[1])
    np.testing.assert_array_equal(values[0], values[2])
    whole = initializer((4,), "float64")
    assert ps.Variable(whole, dtype="float32").dtype == np.float32
    with pytest.raises(InvalidArgumentError, match="shape="):
        ps.Variable(initializer)


def test_initial_value_function_is_called_per_shard(cut: None) -> None:  # noqa: ARG001
    asked = []

    def by_partition(partition_shape: Any, partition_offset: Any) -> np.ndarray:
        asked.append((partition_shape, partition_offset))
        start = partition_offset[0]
        return np.arange(start, start + partition_shape[0])[:, None] * np.ones(2)

    def by_info(shard_info: ps.ShardInfo) -> np.ndarray:
        assert asked.pop(0) == (shard_info.shape, shard_info.offset)
        start = shard_info.offset[0]
        return np.arange(start, start + shard_info.shape[0])[:, None] * np.ones(2)

    first = ps.Variable(by_partition, shape=(10, 2))
    assert asked == [((4, 2), (0, 0)), ((3, 2), (4, 0)), ((3, 2), (7, 0))]
    second = ps.Variable(by_info, shape=(10, 2))
    expected = np.arange(10)[:, None] * np.ones(2)
    np.testing.assert_array_equal(first.numpy(), expected)
    np.testing.assert_array_equal(second.numpy(), expected)
    with pytest.raises(InvalidArgumentError, match="expected"):
        ps.Variable(lambda shard_info: np.zeros(7), shape=(10, 2))  # noqa: ARG005
    with pytest.raises(InvalidArgumentError, match="cannot become int64 without loss"):
        ps.Variable(lambda shard_info: np.full(shard_info.shape, 1.5), shape=(10,), dtype="int64")
    with pytest.raises(InvalidArgumentError, match="shape="):
        ps.Variable(by_info)


def test_initial_value_function_with_keyword_arguments_is_called_per_shard(cut: None) -> None:  # noqa: ARG001
    asked = []

    def identity(shape: Any, dtype: Any, **partition: Any) -> np.ndarray:
        asked.append(partition)
        first = partition.get("partition_offset", (0, 0))[0]
        rows = partition.get("partition_shape", shape)[0]
        return np.eye(*shape, dtype=dtype)[first : first + rows]

    def passes_on(**names: Any) -> np.ndarray:
        return np.eye(5, **names)

    def ignores(**_: Any) -> np.ndarray:
        return np.eye(5)

    whole = functools.partial(identity, (5, 5), "int64")
    for initial in (whole, passes_on, ignores):
        made = ps.Variable(initial, shape=(5, 5), dtype="int64")
        np.testing.assert_array_equal(made.numpy(), np.eye(5))
    assert [each["partition_shape"] for each in asked] == [(2, 5), (2, 5), (1, 5)]
    asked.clear()
    assert ps.Variable(whole, dtype="int64").shape == (5, 5)
    assert asked == [{}]


# -- joined


def joined() -> ps.ShardedVariable:
    parts = [ps.Variable(np.arange(n, n + k, dtype=np.float32)) for n, k in ((0, 3), (3, 2))]
    return ps.ShardedVariable(parts, name="both")


def test_joined_variables_read_as_one() -> None:
    both = joined()
    assert (both.name, both.shape, both.dtype) == ("both", (5,), np.float32)
    assert both.numpy().tolist() == [0, 1, 2, 3, 4]
    assert both[1:4].tolist() == [1, 2, 3]
    assert both[-1] == 4
    assert both[::-2].tolist() == [4, 2, 0]
    assert both[np.array([True, False, False, False, True])].tolist() == [0, 4]
    assert both.sparse_read([4, 0, 3]).tolist() == [4, 0, 3]
    assert both.embedding_lookup([[4, 0], [3, 3]]).tolist() == [[4, 0], [3, 3]]
    assert (both + 1).tolist() == [1, 2, 3, 4, 5]
    assert [part.numpy().tolist() for part in both] == [[0, 1, 2], [3, 4]]


def test_changes_of_joined_variable_reach_its_parts() -> None:
    both = joined()
    both.assign(np.ones(5))
    both.assign_add([1, 2, 3, 4, 5])
    both.assign_sub(1.0)
    both.scatter_add([4, 0, 4], [10, 20, 30])
    both.scatter_update(ps.IndexedSlices(values=[7.0], indices=[1]))
    assert [part.numpy().tolist() for part in both.variables] == [[21, 7, 3], [4, 45]]


def test_shards_of_variable_can_be_joined_again(cut: None) -> None:  # noqa: ARG001
    parts = ps.Variable(np.zeros((6, 2), np.float32)).variables
    again = ps.ShardedVariable(parts[1:])
    again.assign(np.arange(8).reshape(4, 2))
    assert again[2].tolist() == [4, 5]
    assert parts[1].numpy().tolist() == [[0, 1], [2, 3]]


def test_joined_variables_are_saved_and_restored(tmp_path: pathlib.Path) -> None:
    class Model:
        def __init__(self) -> None:
            self.variables = [ps.ShardedVariable([joined(), joined().variables[0]])]

    both, model = joined(), Model()
    checkpoint = ps.Checkpoint(both=both, model=model)
    path = checkpoint.save(tmp_path)
    both.assign(0)
    model.variables[0].assign(0)
    checkpoint.restore(path).assert_consumed()
    assert both.numpy().tolist() == [0, 1, 2, 3, 4]
    assert model.variables[0].numpy().tolist() == [0, 1, 2, 3, 4, 0, 1, 2]


def test_incompatible_parts_of_joined_variable_are_refused() -> None:
    with pytest.raises(TypeError, match="list of Variables"):
        ps.ShardedVariable(ps.Variable([1.0]))
    with pytest.raises(TypeError, match="float"):
        ps.ShardedVariable([1.0])
    with pytest.raises(ValueError, match="dtypes"):
        ps.ShardedVariable([ps.Variable([1.0]), ps.Variable([1])])
    with pytest.raises(ValueError, match="first only"):
        ps.ShardedVariable([ps.Variable([[1.0]]), ps.Variable([[1.0, 2.0]])])
    with pytest.raises(ValueError, match="axes"):
        ps.ShardedVariable([ps.Variable(1.0)])
    with pytest.raises(InvalidArgumentError, match="id 9"):
        joined().sparse_read([9])
    with pytest.raises(UnimplementedError, match="variables"):
        joined().parameters.fetch([])


# -- scatter forms


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("add", [2, 4, 6]),
        ("sub", [2, 0, 2]),
        ("mul", [2, 4, 8]),
        ("div", [2, 1, 2]),
        ("min", [2, 2, 2]),
        ("max", [2, 2, 4]),
        ("update", [2, 2, 2]),
    ],
)
def test_scatter_takes_indexed_slices(op: str, expected: list[float]) -> None:
    variable = ps.Variable([2.0, 2.0, 4.0])
    getattr(variable, f"scatter_{op}")(ps.IndexedSlices(values=[2.0, 2.0], indices=[1, 2]))
    assert variable.numpy().tolist() == expected
    with pytest.raises(InvalidArgumentError, match="not both"):
        variable.scatter_add(ps.IndexedSlices([1.0], [1]), [1.0])
    with pytest.raises(InvalidArgumentError, match="need rows"):
        variable.scatter_add([1])


def test_batch_scatter_update_changes_given_rows(cut: None) -> None:  # noqa: ARG001
    plain = ps.Variable(np.zeros((4, 2), np.float32))
    plain.batch_scatter_update(ps.IndexedSlices(values=[[1.0, 2.0]], indices=[3]))
    assert plain[3].tolist() == [1, 2]
    nested = ps.Variable(np.zeros((2, 4), np.float32))
    nested.batch_scatter_update([[0, 3], [1, 2]], [[1.0, 2.0], [3.0, 4.0]])
    assert nested.numpy().tolist() == [[1, 0, 0, 2], [0, 3, 4, 0]]
    with pytest.raises(InvalidArgumentError, match="all axes but the last"):
        nested.batch_scatter_update([[0], [1], [2]], [[1.0], [1.0], [1.0]])
    before = nested.numpy().tolist()
    for ids in ([[-1], [0]], [[4], [0]], [[0.5], [0]]):
        with pytest.raises(InvalidArgumentError, match=r"outside \[0, 4\)|must be integers"):
            nested.batch_scatter_update(ids, [[1.0], [1.0]])
    assert nested.numpy().tolist() == before
    counts = ps.Variable(np.zeros((2, 2), np.int64))
    with pytest.raises(InvalidArgumentError, match="without loss"):
        counts.batch_scatter_update([[0], [1]], [[1.5], [1.0]])


# -- copies per trainer


def test_per_worker_variable_has_separate_copy_per_trainer(cut: None) -> None:  # noqa: ARG001
    variable = ps.Variable([1.0, 2.0], name="counts", per_worker_variable=True)
    assert isinstance(variable, ps.PerWorkerVariable)
    assert (variable.shape, variable.trainable) == ((2,), False)
    with trainer_scope(1):
        variable.assign_add([10.0, 20.0])
        assert variable.numpy().tolist() == [11, 22]
        assert variable[0] == 11
    with trainer_scope(7, position=2):  # of a job with holes in its numbering
        variable.assign(5.0)
        assert (variable + 1).tolist() == [6, 6]
    assert [copy.tolist() for copy in variable.read_all()] == [[1, 2], [11, 22], [5, 5]]
    with pytest.raises(FailedPreconditionError, match="read_all"):
        variable.numpy()
    variable.assign(0.0)
    assert not np.any(variable.read_all())
    with pytest.raises(UnimplementedError):
        variable.scatter_add([0], [1.0])


def test_per_worker_scalar_has_copies_and_local_variable_only_one(cut: None) -> None:  # noqa: ARG001
    variable = ps.Variable(0, per_worker_variable=True)
    with trainer_scope(0):
        variable.assign_add(3)
        assert int(variable.numpy()) == 3
    assert [int(copy) for copy in variable.read_all()] == [3, 0, 0]
    with local_parameters():
        alone = ps.Variable(ps.initializers.ones(), shape=(2,), per_worker_variable=True)
        assert alone.numpy().tolist() == [1, 1]
        assert len(alone.read_all()) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"initial_value": [1.5], "dtype": "int32"}, "cannot become int32 without loss"),
        ({"initial_value": np.uint16(1)}, "got 'uint16': give dtype='uint32'"),
        ({"initial_value": [1.0, 2.0], "shape": (3,)}, r"shape \(2,\) does not fit"),
        ({"initial_value": lambda shard_info: shard_info, "shape": (3,)}, "which is not cut"),
    ],
)
def test_invalid_initial_values_of_per_worker_variable_are_refused(
    arguments: dict[str, Any], message: str
) -> None:
    with local_parameters(), pytest.raises(InvalidArgumentError, match=message):
        ps.Variable(**arguments, per_worker_variable=True)


def test_assigning_wrong_shape_to_per_worker_variable_is_refused() -> None:
    with local_parameters():
        counts = ps.Variable([1.0, 2.0], name="counts", per_worker_variable=True)
        with pytest.raises(InvalidArgumentError, match=r"shape \(3,\) does not fit .*'counts'"):
            counts.assign([1.0, 2.0, 3.0])
        with pytest.raises(InvalidArgumentError, match=r"for variable 'counts' .* is not an array"):
            counts.assign([[1.0], [2.0, 3.0]])


# -- gradients of parts and of joined variables


def test_gradients_of_shards_are_applied_as_one_step(cut: None) -> None:  # noqa: ARG001
    table = ps.Variable(np.zeros((7, 2), np.float32))
    momentum = ps.optimizers.Momentum(1.0)
    whole = np.arange(14, dtype=np.float32).reshape(7, 2)
    pieces = [whole[v.first_row : v.first_row + len(v)] for v in table.variables]
    for _ in range(2):
        momentum.apply_gradients(zip(pieces, table.variables, strict=True))
    assert int(momentum.iterations) == 2
    np.testing.assert_allclose(table.numpy(), -2.9 * whole, rtol=1e-6)


def test_sparse_and_dense_gradients_of_shard_add_up(cut: None) -> None:  # noqa: ARG001
    table = ps.Variable(np.zeros((7, 1), np.float32))
    last = table.variables[-1]
    slices = ps.IndexedSlices(np.ones((2, 1), np.float32), [0, 1])
    ones = np.ones(last.shape, np.float32)
    ps.optimizers.SGD(1.0).apply_gradients([(slices, last), (ones, last)])
    expected = np.zeros((7, 1), np.float32)
    expected[last.first_row :] = -1
    expected[last.first_row : last.first_row + 2] = -2
    np.testing.assert_array_equal(table.numpy(), expected)


def test_gradients_of_variable_and_its_shard_together_are_refused(cut: None) -> None:  # noqa: ARG001
    table = ps.Variable(np.zeros((6, 1), np.float32), name="table")
    whole, part = np.ones((6, 1), np.float32), np.ones((2, 1), np.float32)
    sgd = ps.optimizers.SGD(1.0)
    for pairs in ([(whole, table), (part, table.variables[0])], [(whole, table), (whole, table)]):
        with pytest.raises(InvalidArgumentError, match=r"'table'.*each of its parts"):
            sgd.apply_gradients(pairs)
    with pytest.raises(InvalidArgumentError, match=r"shape \(6, 1\).*'table/part_0'"):
        sgd.apply_gradients([(whole, table.variables[0])])
    assert not table.numpy().any()


def test_tape_gives_each_shard_gradient_of_its_rows(cut: None) -> None:  # noqa: ARG001
    dense = ps.Variable(np.arange(6, dtype=np.float32))
    embedding = ps.layers.Embedding([6], 2)
    table = embedding.variables[0]
    before = table.numpy()
    with ps.GradientTape() as tape:
        loss = np.sum(dense * ps.Tensor(np.arange(6, dtype=np.float32)))
        rows = embedding(np.array([[1], [5], [1]]))
        loss = loss + np.sum(rows)
    sources = [*dense.variables, *table.variables]
    gradients = tape.gradient(loss, sources)
    assert [each.tolist() for each in gradients[:3]] == [[0, 1], [2, 3], [4, 5]]
    assert [each.indices.tolist() for each in gradients[3:]] == [[1], [], [1]]
    ps.optimizers.SGD(1.0).apply_gradients(zip(gradients, sources, strict=True))
    np.testing.assert_array_equal(dense.numpy(), np.zeros(6))
    change = (before - table.numpy())[:, 0]
    np.testing.assert_allclose(change, [0, 2, 0, 0, 0, 1], atol=1e-6)


def _pair_of_variables() -> tuple[list[Any], ps.ShardedVariable]:
    parts = [ps.Variable(np.full(n, 2.0, np.float32), name=f"v{n}") for n in (1, 2)]
    return parts, ps.ShardedVariable(parts, name="joined")


def test_joined_variable_is_trained_by_tape_gradients() -> None:
    parts, joined = _pair_of_variables()
    with ps.GradientTape() as tape:
        loss = np.sum(joined * ps.Tensor(np.array([1, 2, 3], np.float32)))
    gradients = tape.gradients(loss)
    assert [gradients.of(part).gradient.tolist() for part in parts] == [[1], [2, 3]]
    ps.optimizers.SGD(1.0).apply_gradients(gradients)
    assert joined.numpy().tolist() == [1, 0, -1]
    with pytest.raises(InvalidArgumentError, match=r"'joined'.*\.variables"):
        tape.gradient(loss, joined)


def test_apply_gradients_accepts_dense_and_sparse_pairs_of_joined_variable() -> None:
    _, joined = _pair_of_variables()
    sgd = ps.optimizers.SGD(1.0)
    sgd.apply_gradients([(np.array([1, 2, 3], np.float32), joined)])
    sgd.apply_gradients([(ps.IndexedSlices(np.ones(4, np.float32), [2, 0, 2, 1]), joined)])
    assert joined.numpy().tolist() == [0, -1, -3]
    with pytest.raises(InvalidArgumentError, match=r"id 3 is outside.*'joined'"):
        sgd.apply_gradients([(ps.IndexedSlices(np.ones(1, np.float32), [3]), joined)])


# -- scheduled functions


@pytest.mark.parametrize(
    "make",
    [
        lambda: ps.Variable(1.0, name="made"),
        lambda: ps.Variable(1.0, name="made", per_worker_variable=True),
        lambda: ps.Variable(ps.initializers.zeros()((4, 2)), name="made"),
        lambda: ps.layers.Embedding(4, 2, name="made"),
        lambda: ps.optimizers.SGD(1.0),
    ],
)
def test_variable_creation_inside_scheduled_function_is_refused(make: Callable[[], Any]) -> None:
    def in_a_step() -> None:
        with step_scope(StepToken("session", 0, 0)):
            make()

    make()
    with pytest.raises(FailedPreconditionError, match=r"'(made|sgd/).*inside strategy\.scope"):
        # Like a trainer's thread, this runs outside the scope that the test is in.
        contextvars.Context().run(in_a_step)


def test_local_scope_inside_scheduled_function_allows_variables() -> None:
    with step_scope(StepToken("session", 0, 0)), local_parameters():
        assert float(ps.Variable(1.5)) == 1.5


# -- what assignments return


def test_assignment_returns_the_variable(cut: None) -> None:  # noqa: ARG001
    for variable in (ps.Variable(1.0), ps.Variable(np.ones(4)), _pair_of_variables()[1]):
        assert variable.assign(3.0) is variable
        assert variable.assign_add(2.0) is variable
        assert float(variable.assign_sub(1.0).numpy().sum()) == 4.0 * variable.size
