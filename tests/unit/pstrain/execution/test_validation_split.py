"""validation_split: the last rows of a table or of arrays, with their weights, are held out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dataservice as ds
import pstrain as ps
from pstrain.errors import InvalidArgumentError
from pstrain.execution.data import split_rows

ROWS: dict[str, Any] = {
    "d": np.array([1.0, -2.0, 0.5, 3.0, -1.0, 2.0, 4.0, 5.0]),
    "label": np.array([1, 0, 0, 1, 1, 0, 1, 0]),
}
WEIGHTS = np.array([2.0, 0.0, 1.0, 0.5, 3.0, 1.0, 4.0, 2.0])


def fitted(data: Any, **options: Any) -> dict[str, list[float]]:
    model = ps.models.LogisticRegression(ps.FeatureSchema(dense=["d"]))
    for variable in model.variables:
        variable.assign(np.zeros(variable.shape))
    model.compile(ps.optimizers.SGD(0.5), metrics="mse")
    history = model.fit(data, epochs=2, batch_size=3, verbose=0, **options).history
    return {name: history[name] for name in ("loss", "mse", "examples", "val_loss", "val_mse")}


def rows(start: int, stop: int, columns: dict[str, Any] = ROWS) -> dict[str, Any]:
    return {name: values[start:stop] for name, values in columns.items()}


@pytest.mark.parametrize(
    "data",
    [
        ROWS,
        {name: values.tolist() for name, values in ROWS.items()},
        pa.table(ROWS),
        pa.RecordBatch.from_pydict(ROWS),
        pd.DataFrame(ROWS),
    ],
)
def test_validation_split_holds_out_last_rows(data: Any) -> None:
    expected = fitted(rows(0, 5), validation_data=rows(5, 8))
    assert fitted(data, validation_split=0.3) == expected
    assert expected["examples"] == [5.0, 5.0]


@pytest.mark.parametrize(
    ("count", "share", "first"), [(10, 0.9, 1), (100, 0.07, 93), (8, 0.3, 5), (3, 0.01, 2)]
)
def test_split_share_is_taken_as_exact_decimal(count: int, share: float, first: int) -> None:
    table = pa.table({"x": range(count)})
    trained, held_out = split_rows(table, share)
    assert (len(trained), held_out["x"][0].as_py()) == (first, first)


def test_validation_data_take_precedence_over_validation_split() -> None:
    expected = fitted(ROWS, validation_data=rows(0, 3))
    assert fitted(ROWS, validation_data=rows(0, 3), validation_split=0.5) == expected


def test_sample_weights_are_split_with_their_rows() -> None:
    expected = fitted(
        rows(0, 6), sample_weight=WEIGHTS[:6],
        validation_data=rows(6, 8), validation_sample_weight=WEIGHTS[6:],
    )  # fmt: skip
    assert fitted(ROWS, sample_weight=WEIGHTS, validation_split=0.25) == expected
    weighted = pa.table(ROWS | {"w": WEIGHTS})
    assert fitted(weighted, sample_weight="w", validation_split=0.25) == expected


@pytest.mark.parametrize(
    ("data", "options", "words"),
    [
        (ROWS, {"validation_split": 1.0}, r"between 0 and 1, got 1\.0"),
        (ROWS, {"validation_split": -0.1}, r"between 0 and 1, got -0\.1"),
        (ROWS, {"validation_split": "0.1"}, "validation_split must be a number, got '0.1'"),
        (ROWS, {"validation_split": 0.9}, "of 8 rows leaves 0 to train on and 8 to validate"),
        (ds.Dataset.from_numpy(ROWS), {"validation_split": 0.5}, r"Dataset: .*skip\(n\), and give"),
        (lambda: ds.Dataset.from_numpy(ROWS), {"validation_split": 0.5}, "got function: "),
    ],
)
def test_data_or_share_that_cannot_be_split_is_refused(data: Any, options: Any, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        fitted(data, **options)
