"""Variables as handles: making, reading, indexing and changing them, whole and cut."""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pstrain import initializers
from pstrain.checkpoints.checkpoint import Checkpoint
from pstrain.errors import FailedPreconditionError, InvalidArgumentError, InvalidTypeError
from pstrain.gradients.recording import leaf, record
from pstrain.gradients.tape import GradientTape
from pstrain.gradients.tensor import Tensor
from pstrain.optimizers import SGD, Adagrad
from pstrain.serialization import results
from pstrain.trainer.staging import ClosureRun
from pstrain.variables.base import new_handle
from pstrain.variables.indexed_slices import IndexedSlices
from pstrain.variables.local_parameters import LocalParameters
from pstrain.variables.parameters import current_staging, current_step, step_scope
from pstrain.variables.per_worker import PerWorkerVariable
from pstrain.variables.scope import LocalPlacement, local_parameters, placement_scope
from pstrain.variables.variable import ShardedVariable, Variable, create_variable
from pstrain.vocabulary import Fetch, OptimizerSpec, StepToken, Update

OPERATORS = ("*", "/", "//", "%", "**", "@", "&", "|", "^")
ROWS = np.arange(20, dtype=np.float32).reshape(10, 2)
ROW_KEYS: list[Any] = [
    [4, 0, 4],
    [-1, 2],
    np.arange(10) % 3 == 0,
    np.array([[0, 1], [2, 0]]),
    [[[-1]], [[3]]],
    np.array(3),
    ([4, -1, 4], 1),
    ([[4], [0]], [0, 1]),
    ([[4], [0]], slice(None), None),
    (np.arange(10) % 3 == 0, ..., 0),
]


class CutPlacement(LocalPlacement):
    """A placement that cuts each variable of three or more rows into three shards."""

    def place(self, shape: tuple[int, ...], dtype: str) -> list[int]:  # noqa: ARG002
        return [0, 0, 0] if shape and shape[0] >= 3 else [0]


@pytest.fixture(params=["whole", "cut"])
def table(request: pytest.FixtureRequest) -> Iterator[Any]:
    placement = LocalPlacement() if request.param == "whole" else CutPlacement()
    with placement_scope(placement):
        yield Variable(ROWS, name="table")


def test_variable_kind_and_part_names_follow_placement() -> None:
    with placement_scope(CutPlacement()):
        cut, scalar = Variable(ROWS, name="table"), Variable(1.5)
    assert isinstance(cut, ShardedVariable)
    assert isinstance(scalar, Variable)
    assert [part.name for part in cut.variables] == [f"table/part_{i}" for i in range(3)]
    assert [part.shape for part in cut] == [(4, 2), (3, 2), (3, 2)]
    assert cut.name == "table"
    assert scalar.device == "/job:localhost"


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (1.0, None, "float32"),
        (3, None, "int64"),
        ([1.0, 2.0], None, "float32"),
        (np.zeros(2), None, "float64"),
        (np.zeros(2, np.int32), None, "int32"),
        (1, "float32", "float32"),
        (lambda: 2.0, None, "float32"),
    ],
)
def test_dtype_follows_initial_value(value: Any, dtype: str | None, expected: str) -> None:
    with local_parameters():
        assert Variable(value, dtype=dtype).dtype == expected


@pytest.mark.parametrize(
    "make",
    [
        lambda: Variable(),
        lambda: Variable("text"),
        lambda: create_variable(initializers.zeros(), name="x"),
        lambda: create_variable(initializers.zeros(), shape=(-1, 3), name="x"),
        lambda: create_variable(np.zeros(3), shape=(2,), name="x"),
        lambda: Variable(initializers.normal()((3, 2)), shape=(4, 2)),
    ],
)
def test_invalid_variable_arguments_are_refused(make: Any) -> None:
    with local_parameters(), pytest.raises(InvalidArgumentError):
        make()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dtype": "float33"}, "dtype of variable 'x' must be one of .*got 'float33'"),
        ({"shape": (None, 2)}, r"shape of variable 'x' must be .*got \(None, 2\)"),
        ({"shape": "12"}, "shape of variable 'x' must be .*got '12'"),
        ({"initial_value": lambda rows: rows}, "gives variable 'x' its .*'rows'"),
        ({"initial_value": initializers.zeros()((2, 1.5))}, r"shape of variable 'x' .*\(2, 1.5\)"),
    ],
)
def test_invalid_argument_error_names_argument_variable_and_value(
    arguments: dict[str, Any], message: str
) -> None:
    with local_parameters(), pytest.raises(InvalidTypeError, match=message):
        Variable(**{"initial_value": 1.0, "name": "x", **arguments})
    without = message.replace("variable 'x'", "a variable")
    with local_parameters(), pytest.raises(InvalidTypeError, match=without):
        Variable(**{"initial_value": 1.0, **arguments})


@pytest.mark.parametrize(
    ("dtype", "message"),
    [
        ("bfloat16", "got 'bfloat16': give dtype='float32'; .*transport_dtype='bfloat16'"),
        (np.uint16, "got 'uint16': give dtype='uint32'"),
        (object, "got 'object': .*StringLookup"),
        ("complex64", "got 'complex64'$"),
    ],
)
def test_unsupported_dtype_error_names_alternative(dtype: Any, message: str) -> None:
    with local_parameters(), pytest.raises((ValueError, TypeError), match=message):
        Variable(np.zeros(2), name="x", dtype=dtype)


@pytest.mark.parametrize("dtype", ["float16", "int16", "int8", "uint8", "uint32", "uint64"])
def test_numeric_dtype_is_kept_through_changes_and_checkpoint(dtype: str, tmp_path: Path) -> None:
    with local_parameters():
        table = Variable(np.ones((3, 2), dtype), name="table")
        table.assign_add(2)
        table.scatter_sub([0, 0], np.ones((2, 2), dtype))
        table.scatter_update([2], [[7, 9]])
        path = Checkpoint(table=table).save(tmp_path)
        Checkpoint(table=table.assign(0)).restore(path)
        assert table.numpy().dtype == table.sparse_read([0]).dtype == dtype
        assert table.numpy().tolist() == [[1, 1], [3, 3], [7, 9]]


def test_largest_uint64_values_are_kept_exactly(tmp_path: Path) -> None:
    with local_parameters():
        count = Variable(np.array([2**64 - 2, 1], np.uint64), name="count")
        count.scatter_add([0], [1])
        path = Checkpoint(count=count).save(tmp_path)
        Checkpoint(count=count.assign([0, 0])).restore(path)
        assert count.numpy().tolist() == [2**64 - 1, 1]
        for wrong in (-1, 2**64):
            with pytest.raises(InvalidArgumentError, match="'count'"):
                count.assign([wrong, 0])


def test_unsigned_values_out_of_range_are_refused_not_wrapped() -> None:
    with local_parameters():
        count = Variable([1, 2], name="count", dtype="uint8")
        for value in (-1, 256, [0, 1000]):
            with pytest.raises(InvalidArgumentError, match="is outside of the uint8"):
                count.assign(value)
        with pytest.raises(InvalidArgumentError, match="cannot be divided by 0"):
            count.scatter_div([0], [0])
        for wrong in ([-1, 0], [0.5, 1]):
            with pytest.raises(InvalidArgumentError, match="'count'"):
                Variable(wrong, name="count", dtype="uint8")


@pytest.mark.parametrize("shape", [(0, 3), (0,), (3, 0)])
def test_empty_variable_can_be_trained_saved_and_indexed(
    shape: tuple[int, ...], tmp_path: Path
) -> None:
    with local_parameters():
        empty, one = Variable(np.zeros(shape, np.float32), name="empty"), Variable(1.0, name="one")
        optimizer = Adagrad(0.1)
        optimizer.apply_gradients([(np.ones(shape), empty), (1.0, one)])
        values = {"empty": empty, "one": one, "optimizer": optimizer}
        path = Checkpoint(**values).save(tmp_path)
        Checkpoint(**values).restore(path).assert_consumed()
        assert empty.assign(2.0).numpy().shape == empty[::-1].shape == shape
        assert empty.sparse_read([]).shape == (0, *shape[1:])


def test_integer_is_accepted_as_one_axis_shape() -> None:
    with local_parameters():
        assert Variable(1.0, shape=3).numpy().tolist() == [1.0, 1.0, 1.0]  # type: ignore[arg-type]
        assert Variable(initializers.ones()(2)).numpy().tolist() == [1.0, 1.0]


def test_ragged_id_lists_are_refused(table: Any) -> None:
    for read in (table.embedding_lookup, table.sparse_read):
        with pytest.raises(InvalidArgumentError, match="several lengths"):
            read([[1], [2, 3]])


def test_assignment_by_index_is_refused(table: Any) -> None:
    with pytest.raises(InvalidTypeError, match=r"write variable\.scatter_update"):
        table[0:2] = 1.0


@pytest.mark.parametrize(
    "key",
    [
        3,
        -1,
        slice(2, 7),
        slice(None),
        slice(None, None, -1),
        slice(8, 1, -3),
        slice(5, 5),
        (3, 1),
        (slice(2, 9, 2), 0),
        (slice(1, 3), slice(None), None),
        ...,
        None,
        True,
        *ROW_KEYS,
    ],
    ids=str,
)
def test_indexing_equals_numpy_indexing(table: Any, key: Any) -> None:
    np.testing.assert_array_equal(table[key], ROWS[key])


@pytest.mark.parametrize("key", ROW_KEYS, ids=str)
def test_row_index_reads_and_trains_only_its_rows(
    table: Any, key: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table.parameters, "read", None)
    with GradientTape() as tape:
        found = table[key]
        loss = np.sum(found * found)
    np.testing.assert_array_equal(found.value, ROWS[key])
    gradient = tape.gradient(loss, table)
    expected = np.zeros_like(ROWS)
    np.add.at(expected, key, 2 * ROWS[key])
    first = key[0] if isinstance(key, tuple) else key
    rows = np.unique(np.arange(10)[first])
    assert sorted(gradient.indices) == rows.tolist()
    np.testing.assert_array_equal(gradient.values[np.argsort(gradient.indices)], expected[rows])


@pytest.mark.parametrize("index", [10, -11, [0, 10], [-11]])
def test_index_out_of_range_raises_index_error(table: Any, index: Any) -> None:
    with pytest.raises(IndexError, match=r"index (10|-11) is outside variable 'table'"):
        table[index]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint64"])
def test_index_of_small_integer_dtype_is_accepted(dtype: str) -> None:
    rows = np.arange(40_000, dtype=np.float32)
    last = -1 if dtype.startswith("int") else 99
    with local_parameters():
        table = Variable(rows, name="table")
    for index in (np.dtype(dtype).type(last), np.array([last, 5], dtype)):
        np.testing.assert_array_equal(table[index], rows[index])
    with pytest.raises(IndexError, match="is outside"):
        table[np.array([2**64 - 1], np.uint64)]


def test_sparse_read_returns_rows_in_request_order(table: Any) -> None:
    np.testing.assert_array_equal(table.sparse_read([9, 0, 9]), ROWS[[9, 0, 9]])
    np.testing.assert_array_equal(table.embedding_lookup([[1], [8]]), ROWS[[[1], [8]]])
    assert table.sparse_read([]).shape == (0, 2)
    with pytest.raises(InvalidArgumentError, match="10"):
        table.sparse_read([10])
    with pytest.raises(InvalidArgumentError, match="one axis"):
        table.sparse_read([[1]])
    with pytest.raises(InvalidArgumentError, match="integers"):
        table.sparse_read([1.5])


def test_assign_changes_whole_variable(table: Any) -> None:
    table.assign_add(np.ones((10, 2)))
    table.assign_sub(0.5)
    np.testing.assert_array_equal(table.numpy(), ROWS + 0.5)
    table.assign(7)
    assert (np.asarray(table) == 7).all()
    assert table.numpy().dtype == np.float32
    with pytest.raises(InvalidArgumentError, match=r"\(2,\).*table"):
        table.assign(np.ones(2))


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("update", 8.0),
        ("add", 15.0 + 4 + 8),
        ("sub", 15.0 - 4 - 8),
        ("mul", 15.0 * 4 * 8),
        ("div", 15.0 / 4 / 8),
        ("max", 15.0),
    ],
)
def test_scatter_applies_repeated_rows_in_turn(table: Any, op: str, expected: float) -> None:
    getattr(table, f"scatter_{op}")([7, 7], [[4, 4], [8, 8]])
    present = table.numpy()
    assert present[7, 1] == expected
    np.testing.assert_array_equal(np.delete(present, 7, 0), np.delete(ROWS, 7, 0))


def test_changes_return_variable(table: Any) -> None:
    assert table.scatter_update([1], [[4, 4]]) is table
    assert table.batch_scatter_update([[0]] * 10, [[4.0]] * 10) is table
    assert results.decode(results.encode(table.assign(2.0))).shape == (10, 2)


def test_changes_in_step_return_variable_that_is_read_only_where_it_is_used(table: Any) -> None:
    with step_scope(StepToken("s", 4, 1)):
        changed = table.assign(1.0).assign_add(2.0).scatter_add([1], [[4, 4]])
        assert changed.numpy()[:2].tolist() == [[3, 3], [7, 7]]
        assert float(np.sum(changed)) == float(np.sum(table)) == 68.0
        assert changed[1].tolist() == changed.sparse_read([1])[0].tolist() == [7, 7]
        assert type(changed) is type(table)
        found = results.decode(results.encode({"changed": changed, "same": [table]}))
        assert results.decode(results.encode(changed)) is None
        sent = copy.copy(changed)
    assert found["changed"] is None
    assert found["same"][0].tolist() == table.numpy().tolist()
    assert not sent.is_unread


def test_scatter_min_keeps_smaller_value(table: Any) -> None:
    table.scatter_min([7], [[100, 1]])
    np.testing.assert_array_equal(table[7], [14, 1])


def test_shard_of_variable_acts_as_variable_of_its_rows() -> None:
    with placement_scope(CutPlacement()):
        table = Variable(ROWS, name="table")
    part = table.variables[1]
    np.testing.assert_array_equal(part.numpy(), ROWS[4:7])
    part.assign(np.zeros((3, 2)))
    part.scatter_add([0], np.ones((1, 2)))
    np.testing.assert_array_equal(part.sparse_read([2, 0]), [[0, 0], [1, 1]])
    np.testing.assert_array_equal(table[3:8], [[6, 7], [1, 1], [0, 0], [0, 0], [14, 15]])
    with pytest.raises(InvalidArgumentError, match="part_1"):
        part.sparse_read([3])


def test_arithmetic_uses_value_of_variable() -> None:
    with local_parameters():
        x = Variable(4.0)
    assert (float(x), int(x), x + 1, 1 - x, 2 * x, x / 2, -x) == (4, 4, 5, -3, 8, 2, -4)
    with pytest.raises(TypeError, match="scalar"):
        len(x)


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: 1 / x,
        lambda x: x // 2,
        lambda x: 7 % x,
        lambda x: x**2,
        lambda x: 2**x,
        lambda x: x @ np.ones(3),
        lambda x: np.ones(3) @ x,
        lambda x: np.float32(2) * x,
        lambda x: abs(-x),
        lambda x: x == 2,
        lambda x: x != [1, 2, 3],
        lambda x: (x > 1) & (x < 3),
        list,
    ],
)
def test_operators_equal_numpy_operators(compute: Any) -> None:
    array = np.array([1.0, 2.0, 4.0], np.float32)
    with local_parameters():
        found, expected = compute(Variable(array)), compute(array)
    np.testing.assert_array_equal(found, expected)
    assert np.asarray(found).dtype == np.asarray(expected).dtype


def test_bool_variables_combine_to_bools() -> None:
    with local_parameters():
        x = Variable([True, False])
    assert (~x).tolist() == [False, True]
    assert (x & [True, True]).tolist() == [True, False]
    assert (x ^ x).tolist() == [False, False]
    assert (False | x).tolist() == [True, False]


def test_scalar_variable_acts_as_number_and_not_as_sequence() -> None:
    with local_parameters():
        x, zero, half = Variable(3), Variable(0), Variable(0.5)
    assert x == 3
    assert x
    assert not zero
    assert list(range(x)) == [0, 1, 2]
    assert f"{half:.2f} {x:03d}" == "0.50 003"
    assert f"{x}" == str(x)
    assert (x.ndim, x.size) == (0, 1)
    with pytest.raises(TypeError):
        range(half)
    with pytest.raises(TypeError, match="0-d"):
        list(x)
    with pytest.raises(InvalidArgumentError, match="scalar without rows"):
        x.sparse_read([0])


def test_variable_in_list_is_found_by_identity() -> None:
    with local_parameters():
        x, y = Variable(ROWS, name="x"), Variable(ROWS, name="y")
    assert x in [y, x]
    assert x not in [y]
    assert x != y
    assert x is not None
    assert x != None  # noqa: E711
    assert len({x, y, x}) == 2
    with pytest.raises(ValueError, match="ambiguous"):
        bool(x)


def test_comparison_with_other_objects_does_not_read_variable() -> None:
    with local_parameters():
        x = Variable(ROWS, name="x")
        spec = dataclasses.replace(x.spec, shape=(2, 10))
        copies = new_handle(PerWorkerVariable, spec, x.parameters, 0, 2)
    with pytest.raises(FailedPreconditionError):
        copies.numpy()
    for variable in (x, copies):
        for other in (object(), {}, "text", None, len):
            assert other not in [variable]
            assert variable != other


def test_comparison_with_values_of_its_shape_is_elementwise() -> None:
    with local_parameters():
        x = Variable([1.0, 2.0, 3.0], name="x")
    tensor = Tensor([1.0, 0.0, 3.0])
    for equal in (x == tensor, tensor == x, x == (1, 0, 3), x == np.array([1, 0, 3])):
        assert equal.tolist() == [True, False, True]
    assert (x != tensor).tolist() == [False, True, False]
    for other in ((1, 2), [[1], [2, 3]]):
        with pytest.raises(InvalidArgumentError, match=r"'x' is compared with .* shape \(3,\)"):
            x == other  # noqa: B015


def test_variable_combined_with_tensor_gets_gradient() -> None:
    rows = np.array([[1.0], [2.0]], np.float32)
    with local_parameters():
        x, scale, shift = Variable(rows), Variable(3.0), Variable(np.ones((2, 1), np.float32))
        count, frozen = Variable(2), Variable(4.0, trainable=False)
        with GradientTape() as tape:
            found = (scale * leaf(Tensor(x.numpy()), x) / count - shift) * frozen + Tensor(rows)
            loss = Tensor(np.float32(found.value.sum()))
            record(loss, (found,), lambda grad: np.full((2, 1), grad, np.float32))
        gradients = tape.gradients(loss)
        SGD(1.0).apply_gradients(gradients)
    assert found.value.tolist() == [[3.0], [10.0]]
    assert found.dtype == np.float32
    assert len(gradients) == 3
    assert x.numpy().tolist() == [[-5.0], [-4.0]]
    assert float(scale) == -3.0
    assert shift.numpy().tolist() == [[5.0], [5.0]]


@pytest.mark.parametrize(
    ("sign", "remedy"),
    [
        ("+=", r"assign_add\("),
        ("-=", r"assign_sub\("),
        *((f"{sign}=", rf"assign\(variable {re.escape(sign)} ") for sign in OPERATORS),
    ],
)
def test_augmented_assignment_of_variable_is_refused_with_remedy(sign: str, remedy: str) -> None:
    with local_parameters():
        names = {"x": Variable(1.0, name="count")}
    with pytest.raises(TypeError, match=rf"'count': write variable.{remedy}"):
        exec(f"x {sign} 1", names)


def test_changes_outside_range_of_dtype_are_refused() -> None:
    with local_parameters():
        small, flags, counts = Variable([0, 0], dtype="int32"), Variable([True]), Variable([4, 6])
        with pytest.raises(InvalidArgumentError, match="1099511627776 is outside of the int32"):
            small.assign([1, 2**40])
        with pytest.raises(InvalidArgumentError, match="outside of the int64"):
            counts.scatter_add([0], np.array([2**63], np.uint64))
        for make in (lambda: flags.assign_sub(True), lambda: flags.scatter_div([0], [True])):
            with pytest.raises(InvalidArgumentError, match="holds bool"):
                make()
        with pytest.raises(InvalidArgumentError, match="divided by 0"):
            counts.scatter_div([0, 1], [2, 0])
        counts.scatter_div([0, 1], [2, 3])
        assert counts.numpy().tolist() == [2, 2]
        small.assign(np.array([-(2**31), 2**31 - 1]))
        assert small.numpy().tolist() == [-(2**31), 2**31 - 1]


@pytest.mark.parametrize(
    ("value", "dtype", "what"),
    [
        (1.5, "int64", "without loss"),
        (2, "bool", "without loss"),
        ("a", "float32", "could not convert"),
        ([[1], [2, 3]], None, "inhomogeneous"),
        (2**40, "int32", "outside of the int32"),
        (2**70, "int64", "outside of int64"),
    ],
)
def test_initial_value_that_dtype_cannot_represent_is_refused(
    value: Any, dtype: str | None, what: str
) -> None:
    with local_parameters(), pytest.raises(InvalidArgumentError, match="'mine'") as caught:
        Variable(value, dtype=dtype, name="mine")
    assert what in str(caught.value)


def test_error_for_unnamed_variable_says_a_variable() -> None:
    with local_parameters(), pytest.raises(InvalidArgumentError, match="value of a variable: "):
        Variable([[1], [2, 3]])


def test_whole_floats_are_accepted_as_integer_initial_values() -> None:
    with local_parameters():
        assert Variable([0.0, 3.0], dtype="int64").numpy().tolist() == [0, 3]


def test_fetch_and_apply_handle_rows_and_whole_variables_together(table: Any) -> None:
    beside = LocalPlacement()
    beside.parameters = table.parameters
    with placement_scope(beside):
        bias = Variable(1.0, name="bias")
        steps = Variable(0, name="steps")
    lookup, whole = table.parameters.fetch(
        [Fetch(table.spec, np.array([9, 1, 9])), Fetch(bias.spec)]
    )
    np.testing.assert_array_equal(lookup.unique[lookup.inverse], [9, 1, 9])
    np.testing.assert_array_equal(lookup.rows, ROWS[lookup.unique])
    assert (whole.shape, float(whole)) == ((), 1.0)
    updates = [
        Update(table.spec, np.ones((2, 2), np.float32), lookup),
        Update(bias.spec, np.float32(2.0)),
    ]
    sgd = OptimizerSpec(name="sgd", learning_rate=0.5)
    table.parameters.apply(updates, sgd, iterations=steps.spec)
    np.testing.assert_array_equal(table[[1, 9, 0]], ROWS[[1, 9, 0]] - [[0.5], [0.5], [0]])
    assert (float(bias), int(steps)) == (0.0, 1)
    with pytest.raises(InvalidArgumentError, match="one row per distinct id"):
        table.parameters.apply([Update(table.spec, np.ones((3, 2)), lookup)], sgd)


def test_each_local_scope_has_separate_parameters() -> None:
    with local_parameters() as first:
        x = Variable(1.0)
    with local_parameters() as second:
        y = Variable(2.0)
    assert x.parameters is first
    assert y.parameters is second
    assert (float(x), float(y)) == (1.0, 2.0)
    assert isinstance(first, LocalParameters)


def test_step_scope_provides_token_and_staging() -> None:
    assert (current_step(), current_staging()) == (None, None)
    commits: Any = None
    token, staging = StepToken("s", 4, 1), ClosureRun(StepToken("s", 4, 1), commits)
    with step_scope(token, staging):
        assert (current_step(), current_staging()) == (token, staging)
    with step_scope(token):
        assert current_staging() is None
    assert current_step() is None


def test_shallow_copy_shares_the_variable(table: Any) -> None:
    same = copy.copy(table)
    same.assign(0.0)
    assert not table.numpy().any()
    assert type(same) is type(table)


def test_deep_copy_is_refused_with_remedy(table: Any) -> None:
    with pytest.raises(InvalidTypeError, match=r"'table' has no deep copy.*Variable\(variable\.n"):
        copy.deepcopy({"tables": [table]})


def test_scatter_of_no_rows_changes_nothing(table: Any) -> None:
    table.scatter_add([], [])
    table.scatter_update(IndexedSlices([], []))
    np.testing.assert_array_equal(table.numpy(), ROWS)
    with pytest.raises(InvalidArgumentError, match=r"shape \(0,\) does not fit .* needs \(1, 2\)"):
        table.scatter_add([3], [])
