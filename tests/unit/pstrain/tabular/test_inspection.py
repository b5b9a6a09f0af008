"""Findings about the columns of a user's table."""

from __future__ import annotations

import datetime

import numpy as np
import pyarrow as pa
import pytest

from pstrain.errors import DataError, InvalidArgumentError
from pstrain.tabular.inspection import ColumnOptions, inspect

ROWS = 2_000


def table(**columns: object) -> pa.Table:
    rng = np.random.default_rng(0)
    return pa.table(
        {
            "clicked": rng.integers(0, 2, ROWS),
            "price": rng.normal(3.0, 2.0, ROWS),
            "hour": rng.integers(0, 24, ROWS),
            "user_id": np.arange(ROWS),
            "amount": rng.integers(0, 1_000, ROWS),
            "digest": rng.integers(2**40, 2**41, ROWS),
            "site": [f"site{value % 50}" for value in range(ROWS)],
            "mobile": rng.integers(0, 2, ROWS).astype(bool),
            **columns,
        }
    )


OPTIONS = ColumnOptions(label="clicked")


def test_columns_are_classified_by_type_and_distinct_values() -> None:
    found = inspect(table(), OPTIONS)
    assert set(found.preparation.dense) == {"price", "amount"}
    assert set(found.preparation.categorical) == {"hour", "user_id", "digest", "site", "mobile"}
    assert set(found.reasons) == set(table().column_names)


def test_column_options_override_classification() -> None:
    found = inspect(
        table(),
        ColumnOptions(label="clicked", dense=["hour"], categorical=["amount"], ignore=["digest"]),
    )
    assert set(found.preparation.dense) == {"price", "hour"}
    assert "amount" in found.preparation.categorical
    assert "digest" not in found.preparation.columns
    assert found.reasons["digest"] == "left out: --ignore"


def test_column_without_values_or_type_may_be_categorical() -> None:
    rows = table(nothing=pa.nulls(ROWS))
    found = inspect(rows, ColumnOptions(label="clicked", categorical=["nothing"]))
    assert found.schema.categorical["nothing"].buckets == 64
    prepared = found.preparation(rows.combine_chunks().to_batches()[0])
    assert prepared["nothing"].null_count == ROWS


def test_labels_of_half_precision_are_prepared() -> None:
    clicks = np.arange(ROWS) % 2
    rows = table(clicked=clicks.astype(np.float16))
    prepared = inspect(rows, OPTIONS).preparation(rows.combine_chunks().to_batches()[0])
    assert prepared["clicked"].to_pylist() == clicks.tolist()


def test_bucket_counts_follow_distinct_values_of_sample() -> None:
    categorical = inspect(table(), OPTIONS).schema.categorical
    assert categorical["site"].buckets == 512
    assert categorical["mobile"].buckets == 64
    assert categorical["user_id"].buckets == 16_384


def test_normalization_is_computed_from_sample() -> None:
    sample = table()
    mean, std = inspect(sample, OPTIONS).schema.normalization["price"]
    assert mean == pytest.approx(sample["price"].to_numpy().mean(), rel=1e-5)
    assert std == pytest.approx(sample["price"].to_numpy().std(), rel=1e-5)


def test_integers_that_float32_rounds_become_dense_columns() -> None:
    cents = np.random.default_rng(1).integers(0, 50_000_000, ROWS)
    found = inspect(table(cents=cents), OPTIONS)
    assert "cents" in found.preparation.dense
    assert found.schema.normalization["cents"][0] == pytest.approx(cents.mean(), rel=1e-5)
    rows = found.preparation(table(cents=cents).combine_chunks().to_batches()[0])
    np.testing.assert_allclose(rows["cents"].to_numpy(), cents, rtol=1e-7)


def test_long_tailed_columns_get_log1p() -> None:
    tail = np.random.default_rng(1).lognormal(0.0, 3.0, ROWS)
    found = inspect(table(spent=tail, balance=-tail), OPTIONS)
    assert found.preparation.log1p == ("spent",)
    assert found.schema.normalization["spent"][0] == pytest.approx(np.log1p(tail).mean(), rel=1e-4)


def test_constant_and_empty_columns_get_unit_deviation() -> None:
    nothing = pa.nulls(ROWS, pa.float64())
    found = inspect(table(same=np.full(ROWS, 7.5), nothing=nothing), OPTIONS)
    assert found.schema.normalization["same"] == (7.5, 1.0)
    assert found.schema.normalization["nothing"] == (0.0, 1.0)


def test_columns_unusable_as_features_are_left_out_with_reason() -> None:
    moments = [datetime.datetime(2020, 1, 1)] * ROWS
    found = inspect(table(seen_at=moments), OPTIONS)
    assert "seen_at" not in found.preparation.columns
    assert found.reasons["seen_at"].startswith("left out: timestamp")


def test_label_may_have_any_two_values() -> None:
    answers = np.where(np.arange(ROWS) % 3 == 0, "yes", "no")
    found = inspect(table(clicked=answers), OPTIONS)
    assert found.preparation.label_values == ("no", "yes")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.arange(ROWS) % 3, "must hold two values, found 3: 0, 1, 2"),
        (np.ones(ROWS), "holds only the value 1.0"),
        (pa.array([None, 1] * (ROWS // 2)), "holds 1000 nulls"),
        (np.array([np.nan, 1.0] * (ROWS // 2)), "holds NaN"),
    ],
)
def test_label_without_exactly_two_values_is_refused(values: object, message: str) -> None:
    with pytest.raises(DataError, match=f"'clicked'.*{message}"):
        inspect(table(clicked=values), OPTIONS)


def test_unknown_or_contradictory_column_options_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"--dense names 'prize'.*price"):
        inspect(table(), ColumnOptions(label="clicked", dense=["prize"]))
    with pytest.raises(InvalidArgumentError, match="--label and --ignore"):
        inspect(table(), ColumnOptions(label="clicked", ignore=["clicked"]))


def test_text_column_given_as_dense_is_refused_by_name() -> None:
    options = ColumnOptions(label="clicked", dense=["site"])
    with pytest.raises(InvalidArgumentError, match="dense column 'site' must hold numbers"):
        inspect(table(site=["a"] * ROWS), options)


def test_table_without_any_feature_is_refused() -> None:
    with pytest.raises(DataError, match="no column is left"):
        inspect(
            table().select(["clicked", "hour"]), ColumnOptions(label="clicked", ignore=["hour"])
        )


def test_list_columns_are_pooled_by_given_options() -> None:
    lists = {
        "tags": [["a", "b"][: value % 3] for value in range(ROWS)],
        "pages": [[value, value + 1] for value in range(ROWS)],
        "vector": [[0.5, 1.5]] * ROWS,
    }
    options = ColumnOptions(label="clicked", pooling={"tags": "sqrtn"}, pool="sum")
    found = inspect(table(**lists), options)
    assert found.preparation.lists == ("tags", "pages")
    assert {"tags", "pages"} < set(found.preparation.columns)
    categorical = found.schema.categorical
    assert (categorical["tags"].pooling, categorical["pages"].pooling) == ("sqrtn", "sum")
    assert (categorical["tags"].buckets, categorical["pages"].buckets) == (64, 16_384)
    assert categorical["site"].pooling is None
    assert found.reasons["tags"] == "categorical: lists of string, pooled by sqrtn"
    assert found.reasons["vector"] == "left out: lists of double are not categories"
    assert inspect(table(**lists), OPTIONS).schema.categorical["pages"].pooling == "mean"


def test_pooling_option_for_non_list_column_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="--pooling names 'site', which holds string"):
        inspect(table(), ColumnOptions(label="clicked", pooling={"site": "sum"}))
    with pytest.raises(InvalidArgumentError, match="--pooling names 'sites', which the data"):
        inspect(table(), ColumnOptions(label="clicked", pooling={"sites": "sum"}))


def test_weight_column_is_prepared_but_is_no_feature() -> None:
    found = inspect(table(), ColumnOptions(label="clicked", weights="price"))
    assert "price" not in found.preparation.columns
    prepared = found.preparation(table().to_batches()[0])
    assert prepared["price"].equals(table()["price"].chunk(0).cast(pa.float32()))
    with pytest.raises(DataError, match="weights of column 'site' are not numbers but string"):
        inspect(table(), ColumnOptions(label="clicked", weights="site"))
    with pytest.raises(DataError, match="weights of column 'price', row 1: nan is not a weight"):
        found.preparation(table(price=[1.0, np.nan] * (ROWS // 2)).to_batches()[0])
    with pytest.raises(InvalidArgumentError, match="'clicked' is named by --label and --weights"):
        inspect(table(), ColumnOptions(label="clicked", weights="clicked"))


def test_types_are_recorded_for_used_columns_only() -> None:
    more = {
        "seen": pa.array([datetime.date(2026, 1, 1)] * ROWS),
        "cost": pa.array([1] * ROWS, pa.decimal128(10, 2)),
    }
    types = inspect(table(**more), OPTIONS).preparation.types
    assert types["site"] == "string"
    assert types["clicked"] == "int64"
    assert not {"seen", "cost"} & types.keys()


def test_labels_of_numbers_have_a_scale_and_are_doubles_in_text_files() -> None:
    options = ColumnOptions(label="amount", predict_numbers=True)
    rows = table(amount=[1, 5] * (ROWS // 2))
    found = inspect(rows, options)
    assert found.label_scale == (3.0, 2.0)
    assert found.preparation.label_values is None
    assert found.preparation.types["amount"] == "double"
    assert found.reasons["amount"] == "label: numbers, mean 3, standard deviation 2"
    assert inspect(table(), OPTIONS).label_scale is None
    for label, kind in (("mobile", "bool"), ("price", "double")):
        options = ColumnOptions(label=label, predict_numbers=True)
        assert inspect(rows, options).preparation.types[label] == kind


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([7] * ROWS, r"holds only the value 7 in 2,000 rows: there is nothing to predict"),
        (["a"] * ROWS, "label column 'y' holds string"),
        ([1.0, None] * (ROWS // 2), "label column 'y' holds 1000 nulls"),
        ([1.0, np.nan] * (ROWS // 2), "label column 'y', row 1: nan is not a finite"),
    ],
)
def test_labels_that_are_no_numbers_or_all_the_same_are_refused(
    values: list[object], told: str
) -> None:
    with pytest.raises(DataError, match=told):
        inspect(table(y=pa.array(values)), ColumnOptions(label="y", predict_numbers=True))
