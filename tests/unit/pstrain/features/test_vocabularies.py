"""Vocabularies: given, learnt, looked up in every Arrow layout, saved."""

from __future__ import annotations

import json
import pathlib
import pickle
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pstrain as ps
from dataservice import Dataset
from pstrain.errors import (
    DataError,
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
)
from pstrain.features.schema import Category, FeatureSchema
from pstrain.features.tokens import TokenCounts, Vocabulary
from pstrain.layers import Embedding, IntegerLookup, StringLookup
from pstrain.variables.scope import local_parameters


def ids(vocabulary: Vocabulary, column: pa.Array, base: int = 0) -> list[int]:
    out = np.empty((len(column), 1), np.int64)
    vocabulary.ids_into("c", column, base, out, 0)
    return out.reshape(-1).tolist()


TEXT_TYPES = [
    pa.string(),
    pa.large_string(),
    pa.binary(),
    pa.string_view(),
    pa.dictionary(pa.int8(), pa.string()),
]


@pytest.mark.parametrize("type_", TEXT_TYPES, ids=str)
def test_text_gets_same_ids_in_every_arrow_layout(type_: pa.DataType) -> None:
    vocabulary = Vocabulary(["b", "a", ""], num_oov_indices=2)
    column = pa.array(["a", "", None, "b", "zz"]).cast(type_)
    *known, unknown = ids(vocabulary, column, base=100)
    assert known == [103, 104, 105, 102]
    assert unknown in (100, 101)
    assert ids(vocabulary, column.slice(3, 1)) == [2]


@pytest.mark.parametrize("type_", [pa.int8(), pa.int32(), pa.int64(), pa.uint16()], ids=str)
def test_integers_get_same_ids_in_every_width(type_: pa.DataType) -> None:
    assert ids(Vocabulary([7, 5]), pa.array([5, 7, None, 6], type_)) == [2, 1, 3, 0]


@given(
    tokens=st.lists(st.text(max_size=4), max_size=40, unique=True),
    asked=st.lists(st.text(max_size=4), max_size=40),
)
def test_vocabulary_maps_exactly_its_own_text_tokens(tokens: list[str], asked: list[str]) -> None:
    found = ids(Vocabulary(tokens), pa.array([*tokens, *asked], pa.string()))
    place = {token: 1 + number for number, token in enumerate(tokens)}
    assert found == [place.get(value, 0) for value in [*tokens, *asked]]


@given(
    tokens=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=40, unique=True),
    asked=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=40),
)
def test_vocabulary_maps_exactly_its_own_integers(tokens: list[int], asked: list[int]) -> None:
    vocabulary = Vocabulary(pa.array(tokens, pa.int64()))
    found = ids(vocabulary, pa.array([*tokens, *asked], pa.int64()))
    place = {token: 1 + number for number, token in enumerate(tokens)}
    assert found == [place.get(value, 0) for value in [*tokens, *asked]]


def test_invalid_vocabularies_and_values_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="'a' more than once"):
        Vocabulary(["a", "b", "a"])
    with pytest.raises(InvalidArgumentError, match="null"):
        Vocabulary(["a", None])
    with pytest.raises(InvalidArgumentError, match="-1"):
        Vocabulary(["a"], num_oov_indices=-1)
    with pytest.raises(DataError, match="row 1: 'q' is not in the vocabulary"):
        ids(Vocabulary(["a"], num_oov_indices=0), pa.array(["a", "q"]))
    with pytest.raises(DataError, match="its vocabulary strings"):
        ids(Vocabulary(["a"]), pa.array([1]))
    with pytest.raises(DataError, match="cast it to integers"):
        ids(Vocabulary([1]), pa.array([1.5]))


def test_vocabulary_survives_pickle_and_json_and_compares_by_value() -> None:
    vocabulary = Vocabulary(["x", "y"], num_oov_indices=3)
    assert pickle.loads(pickle.dumps(vocabulary)) == vocabulary
    assert Vocabulary.from_json(json.loads(json.dumps(vocabulary.to_json()))) == vocabulary
    assert vocabulary != Vocabulary(["x", "y"])
    assert hash(vocabulary) == hash(Vocabulary(["y", "x"], 3))


def test_token_counts_add_up_over_batches_and_compactions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pstrain.features.tokens._COMPACT_AT_ROWS", 4)
    counts = TokenCounts("c")
    for column in (
        pa.array(["a", "b", None, "a"]),
        pa.array([["c", "b"], None, []], pa.list_(pa.string())),
        pa.array(["c", "c"]).dictionary_encode(),
        pa.array([None, None]),
        pa.array(["d", "e", "f", "g"], pa.large_string()),
    ):
        counts.add(column)
    assert counts.most_common().to_pylist() == ["c", "b", "a", "g", "f", "e", "d"]
    assert counts.most_common(2).to_pylist() == ["c", "b"]
    assert TokenCounts("c").most_common().to_pylist() == []
    with pytest.raises(DataError, match="double"):
        counts.add(pa.array([1.5]))


# -- the lookup layers, with the examples of Keras' documentation


def test_adapted_vocabulary_is_ordered_by_frequency() -> None:
    layer = StringLookup()
    layer.adapt([["a", "c", "d"], ["d", "z", "b"]])
    assert layer.get_vocabulary() == ["[UNK]", "d", "z", "c", "b", "a"]
    assert layer.vocabulary_size() == 6
    assert layer([["a", "c", "d"], ["d", "z", "q"]]).tolist() == [[5, 3, 1], [1, 2, 0]]
    assert layer(np.array(["d"], object)).dtype == np.int64


def test_mask_token_comes_before_unknown_values() -> None:
    layer = StringLookup(vocabulary=["a", "b"], mask_token="", num_oov_indices=2)
    assert layer.get_vocabulary() == ["", "[UNK]", "[UNK]", "a", "b"]
    assert layer.get_vocabulary(include_special_tokens=False) == ["a", "b"]
    found = layer(["", "a", "b", "q"]).tolist()
    assert found[:3] == [0, 3, 4]
    assert found[3] in (1, 2)
    assert layer(pa.array([None, "b"])).to_pylist() == [0, 4]


def test_lookup_without_oov_indices_refuses_unknown_values() -> None:
    layer = StringLookup(vocabulary=["yes", "no"], num_oov_indices=0, mask_token=None)
    assert layer(["no", "yes"]).tolist() == [1, 0]
    with pytest.raises(ValueError, match="'maybe'"):
        layer(["maybe"])
    with pytest.raises(ValueError, match="null"):
        layer(pa.array([None, "yes"]))


@pytest.mark.parametrize("type_", TEXT_TYPES, ids=str)
def test_mask_token_is_known_without_oov_indices(type_: pa.DataType) -> None:
    layer = StringLookup(vocabulary=["a", "b"], mask_token="", num_oov_indices=0)
    assert layer(["", "a", "b"]).tolist() == [0, 1, 2]
    assert layer(pa.array(["b", "", None, "a"]).cast(type_)).to_pylist() == [2, 0, 0, 1]
    with pytest.raises(DataError, match="maybe"):
        layer(pa.array(["", "a", "maybe"]).cast(type_))


def test_mask_token_is_told_from_values_that_are_no_int64() -> None:
    layer = IntegerLookup(vocabulary=[4], mask_token=0)
    assert layer(np.array([2**63 + 5, 4, 0], np.uint64)).tolist() == [1, 2, 0]
    assert layer(np.array([True, False])).tolist() == [1, 0]


def test_integers_beyond_64_bits_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="64 bits"):
        IntegerLookup(vocabulary=[4])([2**64, 4])
    for options in ({"vocabulary": [2**63]}, {"mask_token": -(2**64)}):
        with pytest.raises(InvalidArgumentError, match="tokens of a IntegerLookup"):
            IntegerLookup(**options)  # type: ignore[arg-type]


def test_lookups_take_missing_values_of_pandas() -> None:
    words = pd.Series(["a", None, "q"])
    layer = StringLookup(mask_token="")
    layer.adapt(words)
    assert layer.get_vocabulary() == ["", "[UNK]", "q", "a"]
    assert layer(words).tolist() == [3, 0, 2]
    assert layer(words.astype("category")).tolist() == [3, 0, 2]
    large = 2**53 + 1  # which is no float
    numbers = pd.Series([large, None, 7], dtype="Int64")
    assert IntegerLookup(vocabulary=[large], mask_token=0)(numbers).tolist() == [2, 0, 1]
    with pytest.raises(InvalidArgumentError, match="several types"):
        layer(["a", 1, None])


def test_inverted_lookup_maps_ids_to_tokens() -> None:
    layer = StringLookup(vocabulary=["a", "b"], invert=True)
    assert layer([[1, 0], [2, 9]]).tolist() == [["a", "[UNK]"], ["b", "[UNK]"]]


def test_max_tokens_counts_special_ids_too() -> None:
    layer = StringLookup(max_tokens=3, mask_token="")
    layer.adapt(pa.table({"w": ["x", "x", "y", ""]}), column="w")
    assert layer.get_vocabulary() == ["", "[UNK]", "x"]
    with pytest.raises(InvalidArgumentError, match="max_tokens=3"):
        StringLookup(max_tokens=3, vocabulary=["a", "b", "c"])
    with pytest.raises(InvalidArgumentError, match="above 1"):
        StringLookup(max_tokens=1)


@pytest.mark.parametrize("source", ["dataset", "batches", "chunked", "file"])
def test_vocabulary_is_learned_from_dataset_batches_array_or_file(
    source: str, tmp_path: pathlib.Path
) -> None:
    table = pa.table({"w": ["x", "y", "y"], "n": [1, 2, 3]})
    layer = StringLookup()
    if source == "dataset":
        layer.adapt(Dataset.from_table(table).batch(2), column="w")
    elif source == "batches":
        layer.adapt(table.to_batches(), "w")
    elif source == "chunked":
        layer.adapt(table["w"])
    else:
        path = tmp_path / "vocabulary.txt"
        path.write_text("[UNK]\ny\nx\n")
        layer.set_vocabulary(path)
    assert layer.get_vocabulary() == ["[UNK]", "y", "x"]
    if source == "dataset":
        with pytest.raises(InvalidArgumentError, match="column="):
            layer.adapt(table)


def test_integer_lookup_learns_and_maps_integers() -> None:
    layer = IntegerLookup()
    layer.adapt(np.array([[12, 1138, 42], [42, 1000, 36]]))
    assert layer.get_vocabulary() == [-1, 42, 1138, 1000, 36, 12]
    assert layer([[12, 1138], [7, 42]]).tolist() == [[5, 2], [0, 1]]


def test_integer_lookup_takes_its_vocabulary_from_a_file(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "numbers.txt"
    path.write_text("-1\n10\n30\n")
    assert IntegerLookup(vocabulary=path)([30, 10, 5]).tolist() == [2, 1, 0]
    path.write_text("10\nx\n")
    with pytest.raises(InvalidArgumentError, match="x"):
        IntegerLookup(vocabulary=path)


def test_lookup_without_vocabulary_raises_error_naming_adapt() -> None:
    with pytest.raises(FailedPreconditionError, match="adapt"):
        StringLookup()(["a"])


def test_lookup_of_arrow_lists_returns_arrow_lists() -> None:
    layer = StringLookup(vocabulary=["a", "b"])
    found = layer(pa.array([["a", "q"], [], None, ["b"]]))
    assert found.to_pylist() == [[1, 0], [], [], [2]]
    assert layer(pa.chunked_array([["a"], ["b"]])).to_pylist() == [1, 2]


def test_lookup_is_saved_in_checkpoint_config_and_pickle(tmp_path: pathlib.Path) -> None:
    layer = StringLookup()
    layer.adapt(["a", "a", "b"])
    ps.Checkpoint(lookup=layer).save(tmp_path)
    other = StringLookup()
    ps.Checkpoint(lookup=other).restore(tmp_path)
    assert other.get_vocabulary() == layer.get_vocabulary()
    assert StringLookup(**layer.get_config()).get_vocabulary() == layer.get_vocabulary()
    assert pickle.loads(pickle.dumps(layer))(["b"]).tolist() == [2]


def test_tutorial_example_averages_embeddings_of_words() -> None:
    """Averages the embeddings of the three words of each example."""
    lookup = StringLookup(vocabulary=["avenger", "ironman", "batman", "hulk"])
    with local_parameters():
        embedding = Embedding(len(lookup.get_vocabulary()), 20, combiner="mean")
        words = [["avenger", "hulk", "thor"], ["batman", "hulk", "avenger"]]
        table = embedding.variables[0].numpy()
        expected = table[lookup(words)].mean(axis=1)
        np.testing.assert_allclose(embedding(lookup(words)), expected, rtol=1e-5, atol=1e-7)


# -- in feature schemas


def rows() -> pa.Table:
    return pa.table(
        {
            "word": ["x", "y", "y", None],
            "tags": [[3, 3, 4], [4], [], [3]],
            "label": [0, 1, 0, 1],
        }
    )


@pytest.mark.parametrize("source", ["table", "batches", "dataset"])
def test_schema_learns_vocabularies_from_table_batches_or_dataset(source: str) -> None:
    sources: dict[str, Any] = {
        "table": rows(),
        "batches": rows().to_batches(),
        "dataset": Dataset.from_table(rows()).batch(3),
    }
    start = FeatureSchema.from_arrow(rows().schema)
    schema = start.adapted(sources[source], max_tokens=3)
    assert schema.vocabulary_sizes == (4, 4)
    features = schema.encode(rows().to_batches()[0])
    assert features.ids.reshape(-1).tolist() == [2, 1, 1, 3]
    assert features.bags is not None
    assert (features.bags.ids - 4).tolist() == [1, 1, 2, 2, 1]
    assert FeatureSchema.from_json(json.loads(json.dumps(schema.to_json()))) == schema
    with pytest.raises(InvalidArgumentError, match="nothing"):
        start.adapted(rows(), columns=["nothing"])
    with pytest.raises(InvalidTypeError, match="got the function 'rows': give what it makes"):
        start.adapted(rows)


@pytest.mark.parametrize(
    "column", [pa.array([b"\xff"]), pa.array([2**63], pa.uint64()), pa.array([[b"\xff"]])]
)
def test_values_that_fit_no_vocabulary_are_refused_with_their_column(column: pa.Array) -> None:
    schema = FeatureSchema.from_arrow(pa.schema({"c": column.type}), label=None)
    with pytest.raises(DataError, match=r"column 'c' holds .* does not fit"):
        schema.adapted(pa.table({"c": column}))


def test_category_accepts_vocabulary_as_list_vocabulary_or_lookup() -> None:
    lookup = StringLookup(vocabulary=["a", "b"])
    found = {
        Category(vocabulary=form).buckets  # type: ignore[arg-type]
        for form in (["a", "b"], Vocabulary(["a", "b"]), lookup)
    }
    assert found == {3}
    with pytest.raises(InvalidArgumentError, match="leave it out"):
        Category(7, vocabulary=["a"])  # type: ignore[arg-type]


def test_model_config_contains_its_vocabulary() -> None:
    schema = FeatureSchema.from_arrow(rows().schema).adapted(rows())
    with local_parameters():
        model = ps.models.WideDeep(schema, dim=4, hidden=(4,))
        again = ps.models.from_config(json.loads(json.dumps(model.get_config())))
        assert again.schema == schema
        assert again.predict_on_batch(rows().to_batches()[0]).shape == (4,)


@pytest.mark.parametrize(
    ("lists", "wanted"),
    [
        (pa.array([["b", "a"], ["?", "b"]], pa.list_(pa.string(), 2)), pa.list_(pa.int64(), 2)),
        (pa.array([["b"], [], ["?", "b"]]), pa.large_list(pa.int64())),
        (pa.array([["b"], None], pa.list_(pa.string(), 1)), pa.large_list(pa.int64())),
    ],
)
def test_lookup_keeps_the_lengths_of_lists(lists: pa.Array, wanted: pa.DataType) -> None:
    found = StringLookup(vocabulary=["a", "b"])(lists)
    numbers = {"a": 1, "b": 2, "?": 0}
    assert found.type == wanted
    assert found.to_pylist() == [
        [numbers[word] for word in words or []] for words in lists.to_pylist()
    ]
