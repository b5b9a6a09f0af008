"""Features of flights: ranks learnt from training rows, bins, crosses, one encoding for all."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import dataservice as ds
from pstrain.demo import features
from pstrain.demo.flights import CATEGORICAL, LABEL, NUMERIC, WEATHER

ROWS = 200


def flights(rows: int = ROWS, seed: int = 0) -> pa.Table:
    rng = np.random.default_rng(seed)
    columns: dict[str, pa.Array] = {LABEL: pa.array(rng.integers(0, 2, rows).astype(np.int8))}
    for name in NUMERIC:
        columns[name] = pa.array(rng.normal(size=rows).astype(np.float32))
    for name, high in (("month", 13), ("weekday", 7), ("hour", 24), ("minute", 60)):
        columns[name] = pa.array(rng.integers(name == "month", high, rows))
    columns["flight"] = pa.array(rng.integers(1, 9000, rows))
    for name in ("carrier", "origin", "dest", "tailnum"):
        columns[name] = pa.array([f"{name}{value}" for value in rng.integers(0, 9, rows)])
    assert set(columns) == {LABEL, *NUMERIC, *CATEGORICAL}
    return pa.table(columns)


@pytest.fixture(scope="module")
def ranks() -> features.Ranks:
    return features.Ranks.of(flights())


def prepared(table: pa.Table, ranks: features.Ranks) -> pa.Table:
    return features.operators(ds.Dataset.from_table(table), ranks).to_table()


def test_operators_produce_exactly_the_columns_of_schema(ranks: features.Ranks) -> None:
    schema = features.schema()
    table = prepared(flights(), ranks)
    assert table.column_names == [LABEL, *schema.dense, *schema.categorical]
    encoded = schema.encode(table.combine_chunks().to_batches()[0])
    assert encoded.dense.shape == (ROWS, len(schema.dense))
    assert np.isfinite(encoded.dense).all()


def test_ranks_keep_order_and_standardize_values(ranks: features.Ranks) -> None:
    table = flights()
    before, after = table["temp"].to_numpy(), prepared(table, ranks)["temp"].to_numpy()
    assert (np.diff(after[np.argsort(before)]) >= 0).all()
    assert after.min() >= -1.7
    assert after.max() <= 1.7
    assert abs(after.std() - 1.0) < 0.05


def test_values_beyond_training_range_get_outermost_rank(ranks: features.Ranks) -> None:
    table = flights()
    far = table.set_column(
        table.column_names.index("temp"), "temp", pa.array([1e6] * ROWS, pa.float32())
    )
    assert prepared(far, ranks)["temp"].to_numpy().max() == pytest.approx(1.7, abs=0.02)


def test_ranks_do_not_depend_on_rows_they_are_applied_to(ranks: features.Ranks) -> None:
    table = flights()
    assert prepared(table.slice(7, 20), ranks).equals(prepared(table, ranks).slice(7, 20))


def test_missing_weather_gets_middle_rank_and_no_bin(ranks: features.Ranks) -> None:
    table = flights()
    unknown = table.set_column(
        table.column_names.index("humid"), "humid", pa.nulls(ROWS, pa.float32())
    )
    after = prepared(unknown, ranks)
    assert set(after["humid"].to_pylist()) == {0.0}
    assert after["humid_bin"].null_count == ROWS
    assert features.schema().encode(after.combine_chunks().to_batches()[0]).dense.any()


def test_bins_hold_equal_shares_of_training_rows(ranks: features.Ranks) -> None:
    table = prepared(flights(), ranks)
    for name in WEATHER:
        counts = np.bincount(table[f"{name}_bin"].to_numpy())
        assert len(counts) == 8
        assert abs(counts - ROWS / 8).max() <= 3


def test_crossed_column_has_one_value_per_pair(
    ranks: features.Ranks,
) -> None:
    table = flights()
    crossed = prepared(table, ranks)["origin_hour"].to_pylist()
    pairs = list(zip(table["origin"].to_pylist(), table["hour"].to_pylist(), strict=True))
    by_pair = dict(zip(pairs, crossed, strict=True))
    assert [by_pair[pair] for pair in pairs] == crossed
    assert len(set(crossed)) == len(set(pairs))


def test_cyclic_month_encoding_places_december_next_to_january(ranks: features.Ranks) -> None:
    table = flights(3)
    months = table.set_column(
        table.column_names.index("month"), "month", pa.array([1, 12, 7], pa.int64())
    )
    after = prepared(months, ranks)
    sine, cosine = after["month_sin"].to_numpy(), after["month_cos"].to_numpy()
    place = np.stack([sine, cosine], axis=1)
    assert np.linalg.norm(place[0] - place[1]) < np.linalg.norm(place[0] - place[2])
