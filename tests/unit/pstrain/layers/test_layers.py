"""Layers: values against NumPy, gradients against finite differences."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pstrain import initializers
from pstrain.errors import FailedPreconditionError, InvalidArgumentError, InvalidTypeError
from pstrain.features.schema import Features
from pstrain.gradients.tape import GradientTape
from pstrain.gradients.tensor import Tensor
from pstrain.layers import (
    Cross,
    Dense,
    Embedding,
    Interaction,
    NumericEmbedding,
    WideDeepTable,
    concatenate,
)
from pstrain.losses import BinaryCrossentropy
from pstrain.variables.parameters import step_scope
from pstrain.variables.scope import LocalPlacement, placement_scope
from pstrain.variables.variable import ShardedVariable, Variable
from pstrain.vocabulary import StepToken
from tests.unit.pstrain.gradients.finite_differences import check_gradients, weighted_sum

pytestmark = pytest.mark.usefixtures("own_parameters")

RANDOM = np.random.default_rng(5)


@pytest.mark.parametrize("activation", [None, "relu", "sigmoid"])
@pytest.mark.parametrize("use_bias", [True, False])
def test_dense_gradients_match_finite_differences(activation: Any, use_bias: bool) -> None:
    layer = Dense(3, activation, input_size=4, use_bias=use_bias)
    inputs = RANDOM.normal(size=(6, 4)).astype(np.float32)
    check_gradients(layer.variables, lambda: weighted_sum(layer(inputs)))


def test_dense_gradients_flow_to_its_inputs() -> None:
    first, second = Dense(4, "relu", input_size=2, name="a"), Dense(3, input_size=4, name="b")
    # From a generator of its own: none of these is near the kink of the rectifier.
    inputs = np.random.default_rng(6).normal(size=(5, 2)).astype(np.float32)
    check_gradients(first.variables + second.variables, lambda: weighted_sum(second(first(inputs))))


def test_dense_with_relu_agrees_with_numpy() -> None:
    layer = Dense(3, "relu", input_size=4)
    layer.variables[1].assign(np.array([0.5, -0.5, 0.0]))
    inputs = RANDOM.normal(size=(6, 4)).astype(np.float32)
    kernel, bias = (variable.numpy() for variable in layer.variables)
    output = layer(inputs)
    assert output.dtype == np.float32
    np.testing.assert_allclose(output, np.maximum(inputs @ kernel + bias, 0), rtol=1e-5)


def test_dense_with_sigmoid_returns_probabilities() -> None:
    layer = Dense(1, "sigmoid", input_size=4)
    inputs = RANDOM.normal(size=(6, 4)).astype(np.float32)
    kernel, bias = (variable.numpy() for variable in layer.variables)
    expected = 1 / (1 + np.exp(-(inputs @ kernel + bias)))
    np.testing.assert_allclose(layer(inputs), expected, rtol=1e-5)
    labels = np.array([0, 1, 1, 0, 1, 0])
    check_gradients(layer.variables, lambda: BinaryCrossentropy()(labels, layer(inputs)))


def test_dense_kernel_follows_its_initializer() -> None:
    kernel, bias = Dense(2, input_size=3, kernel_initializer=initializers.ones()).variables
    assert (kernel.numpy().tolist(), bias.numpy().tolist()) == ([[1.0, 1.0]] * 3, [0.0, 0.0])
    with pytest.raises(InvalidTypeError, match=r"initializers\.zeros\(\), got 'zeros'"):
        Dense(2, kernel_initializer="zeros")  # type: ignore[arg-type]


def test_unbuilt_dense_is_refused_inside_step() -> None:
    layer = Dense(3)
    with (
        step_scope(StepToken("session", 0, 0)),
        pytest.raises(FailedPreconditionError, match="input_size=4"),
    ):
        layer(np.zeros((2, 4), np.float32))


def test_dense_of_a_scope_is_not_built_outside_of_it() -> None:
    scope = LocalPlacement()
    with placement_scope(scope):
        layer, built = Dense(3, name="hidden"), Dense(3)
        built(np.zeros((1, 4), np.float32))
    outside = contextvars.Context()
    with pytest.raises(FailedPreconditionError, match=r"'hidden' was made inside.*input_size=4"):
        outside.run(layer, np.zeros((2, 4), np.float32))
    assert outside.run(built, np.zeros((2, 4), np.float32)).shape == (2, 3)
    with placement_scope(scope):
        layer(np.zeros((2, 4), np.float32))
    assert layer.parameters is scope.parameters


def test_layer_weights_list_shards_of_variables() -> None:
    layer = Dense(3, input_size=4)
    assert layer.weights == layer.variables
    layer.variables[0] = ShardedVariable([Variable(np.zeros((n, 3))) for n in (3, 1)])
    assert [part.shape for part in layer.weights] == [(3, 3), (1, 3), (3,)]


def test_dense_learns_its_input_size_from_first_call() -> None:
    layer = Dense(3)
    with pytest.raises(FailedPreconditionError, match="no variables yet"):
        layer.requests(np.zeros((1, 2)))
    assert layer(np.zeros((1, 2), dtype=np.float32)).shape == (1, 3)
    with pytest.raises(InvalidArgumentError, match="built for 2 inputs, got 4"):
        layer(np.zeros((1, 4), dtype=np.float32))


@pytest.mark.parametrize(
    "made",
    [
        lambda name: Dense(1, input_size=2, name=name),
        lambda name: Embedding(4, 2, name=name),
        lambda name: Cross(2, 1, name=name),
    ],
)
def test_layer_without_name_is_named_after_its_class(made: Any) -> None:
    layer = made(None)
    assert layer.name == type(layer).__name__.lower()
    assert all(variable.name.startswith(layer.name) for variable in layer.weights)


def test_unknown_activation_is_refused_by_layer_name() -> None:
    with pytest.raises(InvalidArgumentError, match=r"layer 'dense'.*'tanh'"):
        Dense(2, "tanh", input_size=1)  # type: ignore[arg-type]


def test_embedding_gradients_count_repeated_ids() -> None:
    layer = Embedding([3, 4], 2)
    ids = np.array([[0, 3], [2, 3], [0, 0]])
    check_gradients(layer.variables, lambda: weighted_sum(layer(ids)))


def test_embedding_fields_share_one_table() -> None:
    layer = Embedding([3, 4], 2)
    table = layer.variables[0].numpy()
    assert table.shape == (7, 2)
    np.testing.assert_array_equal(layer(np.array([[2, 0]])), [[*table[2], *table[3]]])


def test_embedding_of_one_field_accepts_vector_of_ids() -> None:
    layer = Embedding(5, 2)
    np.testing.assert_array_equal(layer(np.array([4, 1])), layer.variables[0].numpy()[[4, 1]])


@pytest.mark.parametrize("bad", [[0, 4], [-1, 0]])
def test_embedding_refuses_id_out_of_range_with_its_position(bad: list[int]) -> None:
    layer = Embedding([3, 4], 2)
    with pytest.raises(InvalidArgumentError, match=r"row 1, field \d is outside"):
        layer(np.array([[0, 0], bad]))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([1.5, 0.0], "got 1.5"),
        (pa.array([1, None]), "got nan"),
        (np.array([2**64 - 1], np.uint64), "got 18446744073709551615"),
        (["a"], "StringLookup makes ids of strings"),
        (None, "got object of NoneType"),
        ([[1], [2, 3]], "for lists of ids give it combiner="),
        (pa.array([[1], [2, 3]]), "combiner= pools lists"),
    ],
)
def test_embedding_refuses_values_that_are_no_ids(bad: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        Embedding(4, 2)(bad)


def test_embedding_accepts_whole_ids_of_any_dtype() -> None:
    layer = Embedding(4, 2)
    expected = layer(np.array([1, 3])).value
    for dtype in (np.int8, np.uint64, np.float32):
        np.testing.assert_array_equal(layer(np.array([1, 3], dtype)).value, expected)


def test_pooling_embedding_refuses_ragged_python_lists_with_remedy() -> None:
    with pytest.raises(InvalidArgumentError, match=r"^layer 'embedding' pools.*pyarrow\.array"):
        Embedding(4, 2, combiner="mean")([[1], [2, 3]])


def test_embedding_refuses_wrong_number_of_fields() -> None:
    with pytest.raises(InvalidArgumentError, match=r"ids \[n, 2\], got \(1, 3\)"):
        Embedding([3, 4], 2)(np.array([[0, 0, 0]]))


def _features() -> Features:
    ids = np.array([[0, 3], [2, 3], [0, 6]], dtype=np.int64)
    return Features(RANDOM.normal(size=(3, 2)).astype(np.float32), ids, None)


def test_wide_deep_table_returns_matrix_and_wide_sum() -> None:
    layer, features = WideDeepTable(7, 2, 3), _features()
    table = layer.variables[0].numpy()
    assert not table[:, 0].any()
    assert table[:, 1:].all()
    layer.variables[0].assign(table + 1)
    layer.variables[1].assign(np.array([0.25]))
    table = layer.variables[0].numpy()
    matrix, wide = layer(features)
    deep = table[features.ids, 1:].reshape(3, 6)
    np.testing.assert_array_equal(matrix, np.hstack([deep, features.dense]))
    np.testing.assert_allclose(wide, table[features.ids, 0].sum(axis=1, keepdims=True) + 0.25)


def test_wide_deep_table_gradients_match_finite_differences() -> None:
    layer, features = WideDeepTable(7, 2, 3), _features()

    def both() -> Tensor:
        matrix, wide = layer(features)
        return weighted_sum(matrix) + weighted_sum(wide)

    check_gradients(layer.variables, both)


@pytest.mark.parametrize("part", [0, 1])
def test_wide_deep_table_gradients_are_right_when_one_part_is_unused(part: int) -> None:
    layer, features = WideDeepTable(7, 2, 3), _features()
    check_gradients(layer.variables[:1], lambda: weighted_sum(layer(features)[part]))


@pytest.mark.parametrize(("size", "rank"), [(4, None), (4, 2), (9, None)])
def test_cross_gradients_reach_both_inputs(size: int, rank: int | None) -> None:
    start, layer = Dense(size, input_size=3, name="start"), Cross(size, rank)
    inputs = RANDOM.normal(size=(5, 3)).astype(np.float32)

    def forward() -> Tensor:
        first = start(inputs)
        return weighted_sum(layer((first, layer((first, first)))))

    check_gradients(start.variables + layer.variables, forward)


def test_broadcast_output_gradients_reach_layers_with_vector_kernels() -> None:
    """Sums hand on broadcast arrays (strides 0), from which kernels cannot read rows as vectors."""
    start, layer, features = Dense(9, input_size=2), Cross(9), _features()
    table, embedding = WideDeepTable(7, 2, 9), Embedding([3, 4], 9, name="alone")
    ids = np.array([[0, 1], [2, 3], [0, 1]])

    def forward() -> Tensor:
        first = start(features.dense)
        sums = [np.sum(layer((first, first))), np.sum(table(features)[0]), np.sum(embedding(ids))]
        return sum(sums)  # type: ignore[return-value]

    check_gradients([*start.variables, layer.variables[1], table.variables[0]], forward)
    check_gradients(embedding.variables, forward)


def test_cross_refuses_inputs_of_wrong_width() -> None:
    one, other = np.ones((2, 3), np.float32), np.ones((2, 4), np.float32)
    with pytest.raises(InvalidArgumentError, match=r"each \[n, 3\], got x0 of shape \(2, 4\)"):
        Cross(3)((other, one))
    with pytest.raises(InvalidArgumentError, match=r"each \[n, 3\], got x of shape \(2, 4\)"):
        Cross(3)((one, other))


@pytest.mark.parametrize(
    ("layer", "inputs"),
    [(Cross(3), np.ones((1, 3))), (Dense(2), np.ones((1, 3))), (Embedding(3, 2), np.array([1]))],
)
def test_several_inputs_of_layer_are_one_tuple(layer: Any, inputs: Any) -> None:
    with pytest.raises(InvalidTypeError, match=r"several inputs are one tuple, as in layer\(\(x0"):
        layer(inputs, inputs)


def test_cross_multiplies_projection_with_first_input() -> None:
    layer = Cross(3)
    first, last = RANDOM.normal(size=(2, 4, 3)).astype(np.float32)
    kernel, bias = (variable.numpy() for variable in layer.variables)
    expected = first * (last @ kernel + bias) + last
    np.testing.assert_allclose(layer((first, last)), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["dot", "sum"])
def test_interaction_gradients_flow_to_its_inputs(kind: Any) -> None:
    start, layer = Dense(7, input_size=3), Interaction(3, 2, kind)
    inputs = RANDOM.normal(size=(5, 3)).astype(np.float32)
    check_gradients(start.variables, lambda: weighted_sum(layer(start(inputs))))


def test_numeric_embedding_scales_vectors_by_numbers() -> None:
    layer = NumericEmbedding(2, 3)
    numbers = RANDOM.normal(size=(5, 2)).astype(np.float32)
    table = layer.variables[0].numpy()
    expected = (numbers[:, :, None] * table).reshape(5, 6)
    np.testing.assert_allclose(layer(numbers), expected, rtol=1e-6)
    check_gradients(layer.variables, lambda: weighted_sum(layer(numbers)))


def test_numeric_embedding_gradients_flow_to_its_inputs() -> None:
    start, layer = Dense(2, input_size=3, name="start"), NumericEmbedding(2, 3)
    inputs = RANDOM.normal(size=(5, 3)).astype(np.float32)
    check_gradients(start.variables + layer.variables, lambda: weighted_sum(layer(start(inputs))))


@pytest.mark.parametrize(
    ("layer", "inputs", "message"),
    [
        (lambda: Dense(2), np.ones(3, np.float32), r"'dense' takes numbers \[n, k\], got shape"),
        (lambda: Dense(2), np.ones((1, 2, 3), np.float32), r"got shape \(1, 2, 3\)"),
        (lambda: Dense(2), None, r"takes numbers \[n, k\], got"),
        (lambda: Dense(2), [["a"]], r"takes numbers \[n, k\], got list"),
        (lambda: Interaction(3, 2), np.ones(6), "for one example give"),
        (lambda: NumericEmbedding(3, 2), np.ones((5, 1)), r"takes \[n, 3\], got \(5, 1\)"),
        (lambda: Cross(3), np.ones((5, 3)), r"takes \(x0, x\), two matrices, got ndarray"),
    ],
)
def test_layer_inputs_that_are_no_number_matrix_are_refused(
    layer: Any, inputs: Any, message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        layer()(inputs)


def test_interaction_accepts_arrays_of_any_dtype() -> None:
    layer = Interaction(3, 2)
    vectors = np.arange(6).reshape(1, 6)
    for dtype in (np.int32, np.float16, np.float64):
        np.testing.assert_array_equal(layer(vectors.astype(dtype)).value, [[3, 5, 23]])


def test_interaction_accepts_tensors_of_any_dtype_and_layout() -> None:
    vectors = np.arange(12.0).reshape(2, 6)
    for value in (vectors, np.asfortranarray(vectors, np.float32)):
        found = Interaction(3, 2)(Tensor(value))
        np.testing.assert_array_equal(found.value, [[3, 5, 23], [111, 137, 179]])


def test_concatenate_passes_each_part_its_gradient() -> None:
    layers = [Dense(2, input_size=3, name="a"), Dense(1, input_size=3, name="b")]
    inputs = RANDOM.normal(size=(4, 3)).astype(np.float32)
    variables = [variable for layer in layers for variable in layer.variables]
    check_gradients(
        variables, lambda: weighted_sum(concatenate([layer(inputs) for layer in layers]))
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Interaction(3, 2, "cosine"), "kind must be one of 'dot' or 'sum'"),  # type: ignore[arg-type]
        (lambda: Interaction(3, 2)(np.zeros((1, 5), np.float32)), "at least 6"),
    ],
)
def test_invalid_interaction_and_cross_arguments_are_refused(
    make: Callable[[], Any], message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        make()


def test_concatenate_accepts_arrays_and_refuses_mismatched_inputs() -> None:
    layer = Dense(2, input_size=3)
    inputs = np.ones((4, 3), np.float64)
    with GradientTape() as tape:
        joined = concatenate([layer(inputs), inputs], axis=-1)
        loss = np.sum(joined)
    assert joined.shape == (4, 5)
    assert tape.gradients(loss).of(layer.variables[1]).gradient.tolist() == [4.0, 4.0]  # type: ignore[arg-type]
    for wrong in ([], [inputs, inputs[:2]]):
        with pytest.raises(
            InvalidArgumentError, match=r"as many rows each, got (nothing|\(4, 3\))"
        ):
            concatenate(wrong)
    with pytest.raises(InvalidArgumentError, match=r"axis=0: write np.concatenate"):
        concatenate([inputs, inputs], axis=0)


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: Dense(2, input_size=3, kernel_initializer=initializers.ones())(x),
        lambda x: concatenate([x, np.ones((2, 1))]),
        lambda x: Interaction(3, 1)(x),
    ],
)
def test_variable_given_to_layer_as_input_has_gradient(compute: Callable[[Any], Any]) -> None:
    x = Variable(np.ones((2, 3), np.float32), name="x")
    with GradientTape() as tape:
        loss = np.sum(compute(x))
    np.testing.assert_allclose(tape.gradients(loss).of(x).gradient, _slopes(x, compute), atol=1e-2)


def _slopes(x: Variable, compute: Callable[[Any], Any]) -> np.ndarray:
    found = np.zeros((2, 3))
    for place in np.ndindex(2, 3):
        step = np.zeros((2, 3), np.float32)
        step[place] = 0.01
        found[place] = np.sum(compute(x + step).value - compute(x - step).value) / 0.02
    return found


def test_columns_of_matrices_are_inputs_like_matrices() -> None:
    ids, numbers = np.array([[1, 0], [2, 3]]), np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
    tables, dense = Embedding([3, 4], 2), Dense(2, input_size=2)
    columns = [
        pa.FixedSizeListArray.from_arrays(pa.array(m.reshape(-1)), 2) for m in (ids, numbers)
    ]
    np.testing.assert_array_equal(tables(columns[0]), tables(ids))
    np.testing.assert_array_equal(dense(pa.chunked_array([columns[1]])), dense(numbers))
