"""Columns of lists: what they become, in every Arrow layout; pooled rows and their gradients."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import pstrain as ps
from pstrain.errors import DataError, InvalidArgumentError
from pstrain.features.schema import Category, Features, FeatureSchema
from pstrain.gradients.tape import GradientTape
from pstrain.layers import Embedding
from pstrain.models import Model
from tests.unit.pstrain.gradients.finite_differences import check_gradients, weighted_sum

pytestmark = pytest.mark.usefixtures("own_parameters")

LISTS = [[1, 3], [], None, [2, 2, 2], [0]]


def schema(**options: Any) -> FeatureSchema:
    return FeatureSchema(
        dense=["x"],
        categorical={
            "tags": Category(4, hashed=False, pooling="mean", **options),
            "color": Category(3, hashed=False),
        },
    )


def batch(lists: pa.Array, **more: Any) -> pa.RecordBatch:
    size = len(lists)
    return pa.RecordBatch.from_pydict(
        {
            "x": pa.array(np.linspace(-1, 1, size), pa.float32()),
            "color": pa.array([i % 3 for i in range(size)]),
            "tags": lists,
            "label": pa.array([i % 2 for i in range(size)]),
            **more,
        }
    )


@pytest.mark.parametrize(
    "type_",
    [pa.list_(pa.int64()), pa.large_list(pa.int32()), pa.list_(pa.uint8())],
)
def test_list_column_is_encoded_as_bags(type_: pa.DataType) -> None:
    features = schema().encode(batch(pa.array(LISTS, type_)))
    bags = features.bags
    assert bags is not None
    assert bags.ids.tolist() == [1, 3, 2, 2, 2, 0]
    assert bags.offsets.tolist() == [0, 2, 2, 2, 5, 6]
    np.testing.assert_allclose(bags.scales, [0.5, 0.5, 1 / 3, 1 / 3, 1 / 3, 1.0])
    assert bags.fields == (0,)
    assert features.ids.tolist() == [[5 + i % 3] for i in range(5)]
    assert features.table_ids.tolist() == [5, 6, 7, 5, 6, 1, 3, 2, 2, 2, 0]


def test_sliced_and_fixed_size_list_columns_are_encoded() -> None:
    lists = pa.array([[1, 1], [2, 3], None, [0, 2]], pa.list_(pa.int64(), 2))
    bags = schema().encode(batch(lists)).bags
    assert bags is not None
    assert bags.ids.tolist() == [1, 1, 2, 3, 0, 2]
    assert bags.offsets.tolist() == [0, 2, 4, 4, 6]
    cut = schema().encode(batch(pa.array(LISTS)).slice(2, 3)).bags
    assert cut is not None
    assert (cut.ids.tolist(), cut.offsets.tolist()) == ([2, 2, 2, 0], [0, 0, 3, 4])


def test_list_column_of_null_type_is_encoded_as_empty_lists() -> None:
    bags = schema().encode(batch(pa.nulls(3))).bags
    assert bags is not None
    assert (bags.ids.tolist(), bags.offsets.tolist()) == ([], [0, 0, 0, 0])


def test_null_within_list_gets_null_row() -> None:
    bags = schema().encode(batch(pa.array([[1, None], [3]]))).bags
    assert bags is not None
    assert bags.ids.tolist() == [1, 4, 3]


def test_text_in_lists_is_hashed_like_plain_text() -> None:
    lists = FeatureSchema(categorical={"t": Category(50, pooling="sum")})
    plain = FeatureSchema(categorical={"t": Category(50)})
    for type_ in (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())):
        words = pa.array(["a", "b", "a"]).cast(type_)
        column = pa.ListArray.from_arrays(pa.array([0, 2, 3], pa.int32()), words)
        bags = lists.encode(pa.RecordBatch.from_pydict({"t": column})).bags
        expected = plain.encode(pa.RecordBatch.from_pydict({"t": words})).ids.reshape(-1)
        assert bags is not None
        assert bags.ids.tolist() == expected.tolist()


def test_list_values_are_scaled_by_their_weights() -> None:
    weights = pa.array([[3.0, 1.0], [], None, [1.0, 1.0, 2.0], [5.0]])
    of = schema(weights="w").encode(batch(pa.array(LISTS), w=weights)).bags
    assert of is not None
    np.testing.assert_allclose(of.scales, [0.75, 0.25, 0.25, 0.25, 0.5, 1.0])


def test_list_in_dense_or_label_column_is_refused_with_remedy() -> None:
    lists = pa.array([[1.0, 2.0]])
    rows = pa.record_batch({"d": lists, "label": pa.array([1])})
    said = r"dense column 'd' holds list<.*>: .*each place.*with_column.*pooling='mean'\)"
    with pytest.raises(DataError, match=said):
        FeatureSchema(dense=("d",)).encode(rows)
    with pytest.raises(DataError, match=r"label column 'd' holds list.*2\.0\]\): map it"):
        FeatureSchema(dense=("label",), label="d").encode(rows)


def test_weights_may_be_integers_that_float32_rounds() -> None:
    weights = pa.array([[20_000_001, 1], [], None, [1, 1, 2], [5]])
    of = schema(weights="w").encode(batch(pa.array(LISTS), w=weights)).bags
    assert of is not None
    assert of.scales[0] == pytest.approx(1.0)


def test_invalid_list_columns_and_weights_are_refused() -> None:
    wrong = pa.array([[1.0], [], None, [1.0], [1.0]])
    with pytest.raises(DataError, match=r"'w', row 0: 1 weights for 2 values of column 'tags'"):
        schema(weights="w").encode(batch(pa.array(LISTS), w=wrong))
    with pytest.raises(InvalidArgumentError, match="lacks w"):
        schema(weights="w").encode(batch(pa.array(LISTS)))
    with pytest.raises(DataError, match="'tags' holds int64, its schema says lists"):
        schema().encode(batch(pa.array([1, 2])))
    with pytest.raises(DataError, match="id 9 is outside"):
        schema().encode(batch(pa.array([[1, 9]])))
    with pytest.raises(InvalidArgumentError, match="'max'"):
        Category(4, pooling="max")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="not pooled"):
        Category(4, weights="w")


def test_list_columns_of_arrow_schema_are_pooled_by_mean() -> None:
    found = FeatureSchema.from_arrow(
        pa.schema([("t", pa.list_(pa.string())), ("u", pa.large_list(pa.int32()))]), label=None
    )
    assert {c.pooling for c in found.categorical.values()} == {"mean"}
    with pytest.raises(InvalidArgumentError, match="not a feature"):
        FeatureSchema.from_arrow(pa.schema([("t", pa.list_(pa.float32()))]), label=None)


def test_schema_with_list_columns_survives_json() -> None:
    before = schema(weights="w")
    assert FeatureSchema.from_json(json.loads(json.dumps(before.to_json()))) == before


def test_mapping_of_lists_is_encoded_like_batch() -> None:
    found = schema().encode({"x": [0.0, 1.0], "color": [0, 1], "tags": [[1], [2, 3]]})
    fixed = schema().encode({"x": [0.0], "color": [0], "tags": np.array([[2, 3]])})
    assert found.bags is not None
    assert fixed.bags is not None
    assert found.bags.ids.tolist() == [1, 2, 3]
    assert fixed.bags.ids.tolist() == [2, 3]


# -- layers and models over lists

COMBINERS = {"sum": 1.0, "mean": 2.0, "sqrtn": 2.0**0.5}


@pytest.mark.parametrize("combiner", COMBINERS)
def test_embedding_pools_lists_by_combiner(combiner: Any) -> None:
    layer = Embedding(6, 3, combiner=combiner)
    table = layer.variables[0].numpy()
    lists = pa.array([[4, 1], [], None, [5]])
    expected = [(table[4] + table[1]) / COMBINERS[combiner], table[0] * 0, table[0] * 0, table[5]]
    np.testing.assert_allclose(layer(lists), expected, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(layer(np.array([[4, 1]])), [expected[0]], rtol=1e-5)
    np.testing.assert_allclose(layer(pa.chunked_array([lists])), expected, rtol=1e-5, atol=1e-7)


def test_embedding_refuses_invalid_lists() -> None:
    layer = Embedding(6, 3, combiner="mean")
    with pytest.raises(InvalidArgumentError, match="id 6 is outside"):
        layer(pa.array([[1], [6]]))
    with pytest.raises(InvalidArgumentError, match="null id"):
        layer(pa.array([[1, None]]))
    with pytest.raises(InvalidArgumentError, match="shape"):
        layer(np.array([1, 2]))
    with pytest.raises(InvalidArgumentError, match="one field"):
        Embedding([2, 3], 3, combiner="mean")


@pytest.mark.parametrize("combiner", COMBINERS)
def test_pooled_gradients_match_finite_differences(combiner: Any) -> None:
    layer = Embedding(6, 3, combiner=combiner)
    lists = pa.array([[4, 1, 4], [], [2], [1, 5]])
    check_gradients(layer.variables, lambda: weighted_sum(layer(lists)), rtol=5e-3)


MIXED = FeatureSchema(
    dense=["x"],
    categorical={
        "color": Category(3, hashed=False),
        "tags": Category(4, hashed=False, pooling="sqrtn", weights="w"),
        "shape": Category(2, hashed=False),
        "words": Category(5, pooling="sum"),
    },
)


def mixed_batch(rows: int = 24) -> pa.RecordBatch:
    random = np.random.default_rng(2)
    sizes = random.integers(0, 4, rows)
    tags = [random.integers(0, 4, size).tolist() for size in sizes]
    return batch(
        pa.array(tags, pa.list_(pa.int64())),
        w=pa.array([random.uniform(0.5, 2, size).tolist() for size in sizes]),
        shape=pa.array(random.integers(0, 2, rows)),
        words=pa.array([[f"w{v % 7}" for v in tag] for tag in tags], pa.list_(pa.string())),
    )


MODELS: dict[str, Callable[[], Model]] = {
    "linear": lambda: ps.models.LogisticRegression(MIXED),
    "factorization_machine": lambda: ps.models.FactorizationMachine(MIXED, dim=3),
    "wide_deep": lambda: ps.models.WideDeep(MIXED, dim=3, hidden=(6, 4)),
    "wide_deep, projected": lambda: ps.models.WideDeep(MIXED, dim=8, hidden=(4,)),
    "deep_fm": lambda: ps.models.DeepFM(MIXED, dim=3, hidden=(6,)),
    "dlrm": lambda: ps.models.DLRM(MIXED, dim=3, bottom=(4,), top=(5,)),
    "dcn": lambda: ps.models.DCNv2(MIXED, dim=3, hidden=(5,)),
}


@pytest.mark.parametrize("kind", MODELS)
def test_every_model_trains_on_list_columns(kind: str) -> None:
    model, rows = MODELS[kind](), mixed_batch()
    random = np.random.default_rng(7)
    for variable in model.variables:
        variable.assign_add(random.normal(scale=0.3, size=variable.shape).astype(np.float32))
    # The step is small: a kink of a rectifier within a step would falsify the difference.
    check_gradients(model.trainable_variables[:2], lambda: model.loss(rows), step=2e-3, rtol=5e-3)
    optimizer = ps.optimizers.Adagrad(0.3)
    before = float(model.loss(rows))
    for _ in range(20):
        with GradientTape() as tape:
            loss = model.loss(rows)
        optimizer.apply_gradients(tape.gradients(loss))
    assert float(model.loss(rows)) < before


def test_lists_of_one_value_predict_like_plain_column() -> None:
    """Compares the same model over a plain column and over lists of one value."""
    ids = np.random.default_rng(0).integers(0, 4, 40)
    single = FeatureSchema(categorical={"a": Category(4, hashed=False)}, label=None)
    listed = FeatureSchema(categorical={"a": Category(4, hashed=False, pooling="sum")}, label=None)
    first, second = (ps.models.WideDeep(s, dim=8, hidden=(4,)) for s in (single, listed))
    np.testing.assert_allclose(
        first.predict_on_batch({"a": ids}),
        second.predict_on_batch({"a": ids[:, None]}),
        rtol=1e-5,
    )


def test_features_without_lists_have_no_bags() -> None:
    features = Features(np.empty((2, 0), np.float32), np.array([[1], [2]]), None)
    assert features.bags is None
    assert np.shares_memory(features.table_ids, features.ids)
