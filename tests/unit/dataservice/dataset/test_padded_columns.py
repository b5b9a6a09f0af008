"""Padded columns: functions over padded batches keep them padded; rows of them are ragged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dataservice.dataset.dataset import Dataset
from dataservice.dataset.node import freeze_schemas
from dataservice.dataset.plan import decode_plan, encode_plan
from tests.unit.dataservice.dataset.checkpoint_checker import check_positions, run

LENGTHS = [1, 3, 0, 0, 2, 4, 1]
TABLE = pa.table(
    {
        "n": LENGTHS,
        "tokens": pa.array([list(range(n)) for n in LENGTHS], pa.list_(pa.int32())),
        "words": [["w"] * n for n in LENGTHS],
        "scores": pa.array([[None] * n for n in LENGTHS], pa.large_list(pa.float64())),
        "pair": pa.array([[n, n] for n in LENGTHS], pa.list_(pa.int8(), 2)),
    }
)
ROWS = Dataset.from_table(TABLE)
PADDED = ROWS.padded_batch(2)
WIDTHS = [3, 0, 4, 1]


def add_columns(columns: dict[str, Any]) -> dict[str, Any]:
    tokens = columns["tokens"]
    return {
        **columns,
        "mask": tokens != 0,
        "next": tokens[:, 1:],
        "hot": np.repeat(tokens[:, :, None], 5, axis=2),
    }


def shapes(dataset: Dataset, name: str) -> list[tuple[int, ...]]:
    return [columns[name].shape[1:] for columns in dataset.numpy()]


def test_columns_passed_on_by_function_stay_padded() -> None:
    for dataset in (PADDED.map(lambda c: {**c, "n": c["n"] + 1}), PADDED.flat_map(dict)):
        assert dataset.schema.equals(PADDED.schema, check_metadata=True)
        for made, padded in zip(run(dataset), run(PADDED), strict=True):
            assert made.schema.equals(padded.schema, check_metadata=True)
            assert made.drop_columns("n").equals(padded.drop_columns("n"))


def test_columns_computed_from_padded_columns_are_padded() -> None:
    dataset = PADDED.map(add_columns)
    assert dataset.schema.field("mask").type == pa.list_(pa.bool_())
    assert shapes(dataset, "mask") == [(width,) for width in WIDTHS]
    assert shapes(dataset, "next") == [(max(0, width - 1),) for width in WIDTHS]
    assert shapes(dataset.map(dict), "hot") == [(width, 5) for width in WIDTHS]
    check_positions(dataset)


def test_with_column_over_padded_batch_yields_padded_column() -> None:
    dataset = PADDED.with_column("tokens", lambda c: c["tokens"] * 0.5)
    assert dataset.schema.field("tokens").type == pa.list_(pa.float64())
    assert shapes(dataset, "tokens") == [(width,) for width in WIDTHS]


def test_registered_plan_yields_same_padded_columns() -> None:
    for dataset in (
        PADDED.map(add_columns),
        PADDED.with_column("mask", lambda c: c["tokens"] != 0),
    ):
        registered = Dataset(decode_plan(encode_plan(freeze_schemas(dataset.node))))
        assert registered.schema.equals(dataset.schema, check_metadata=True)
        assert shapes(registered, "mask") == shapes(dataset, "mask")


@pytest.mark.parametrize(
    "build",
    [
        lambda: PADDED.map(lambda b: b.drop_columns("n"), format="arrow"),
        lambda: PADDED.map(lambda row: {**row, "n": 0}, format="rows"),
        lambda: PADDED.map(dict, schema=PADDED.schema),
    ],
)
def test_functions_of_all_formats_leave_columns_padded(build: Callable[[], Dataset]) -> None:
    assert shapes(build(), "tokens") == [(width,) for width in WIDTHS]


@pytest.mark.parametrize(
    "build",
    [
        lambda: PADDED.unbatch().batch(3),
        lambda: PADDED.batch(3),
        lambda: ROWS.bucket_by_sequence_length("tokens", [2], [2, 2]).unbatch().shuffle(9, 1),
    ],
)
def test_rows_of_padded_batches_are_ragged(build: Callable[[], Dataset]) -> None:
    dataset = build()
    assert not any(field.metadata for field in dataset.schema)
    lists = [values for columns in dataset.numpy() for values in columns["tokens"]]
    assert sorted(len(values) for values in lists) == sorted(
        len(values) for batch in run(dataset) for values in batch.column("tokens").to_pylist()
    )


def test_unpadded_batches_stay_unpadded_beside_padded_ones() -> None:
    wide = pa.table({"tokens": pa.array([[1], [1, 2]], pa.list_(pa.int64()))})
    joined = PADDED.select("tokens").concatenate(Dataset.from_table(wide).batch(2))
    (*_, last) = joined.numpy()
    assert [list(values) for values in last["tokens"]] == [[1], [1, 2]]
