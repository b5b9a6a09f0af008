"""Rows held out for validation: each on one side, by its values alone."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from pstrain.errors import InvalidArgumentError
from pstrain.tabular.holdout import HoldOut, _hash_rows

ROWS = 20_000


def batch(rows: int = ROWS) -> pa.RecordBatch:
    rng = np.random.default_rng(0)
    price = rng.normal(size=rows)
    return pa.RecordBatch.from_pydict(
        {
            "id": np.arange(rows),
            "price": pa.array(price, mask=price > 2),
            "site": [f"s{value}" for value in rng.integers(0, 30, rows)],
            "seen": pa.array(np.arange(rows), pa.timestamp("ms")),
        }
    )


def test_training_and_validation_parts_contain_each_row_once() -> None:
    rows = batch()
    parts = [HoldOut(0.2, part)(rows) for part in ("training", "validation")]
    ids = np.concatenate([part["id"].to_numpy() for part in parts])
    assert sorted(ids) == list(range(ROWS))
    assert parts[1].num_rows / ROWS == pytest.approx(0.2, abs=0.01)


def test_part_of_row_does_not_depend_on_batch() -> None:
    rows, part = batch(), HoldOut(0.3, "validation")
    whole = part(rows)["id"].to_pylist()
    pieces = [part(rows.slice(at, 333))["id"].to_pylist() for at in range(0, ROWS, 333)]
    assert [value for piece in pieces for value in piece] == whole


def test_different_seed_holds_out_different_rows() -> None:
    rows = batch()
    first, second = (set(HoldOut(0.2, "validation", s)(rows)["id"].to_pylist()) for s in (0, 1))
    assert len(first & second) / len(first) == pytest.approx(0.2, abs=0.05)


def test_equal_rows_are_in_same_part() -> None:
    rows = pa.RecordBatch.from_pydict({"a": [1, 2] * 500, "b": ["x", None] * 500})
    assert HoldOut(0.5, "training")(rows).num_rows in (0, 500, 1000)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 2.0])
def test_share_outside_zero_to_one_is_refused(share: float) -> None:
    with pytest.raises(InvalidArgumentError, match="between 0 and 1"):
        HoldOut(share, "training")


def test_row_hash_depends_on_values_and_order_of_lists() -> None:
    rows = [["a", "b"], ["b", "a"], ["a"], [], None, ["a", "b"], ["b"], ["a", "a"]]
    hashes = _hash_rows(pa.RecordBatch.from_pydict({"tags": rows}), 0).tolist()
    assert hashes[0] == hashes[5]
    assert hashes[3] == hashes[4]
    assert len(set(hashes)) == 6
    sliced = pa.RecordBatch.from_pydict({"tags": rows}).slice(5)
    assert _hash_rows(sliced, 0).tolist() == hashes[5:]
    empty = pa.RecordBatch.from_pydict({"tags": pa.array([[], []], pa.list_(pa.int64()))})
    assert len(set(_hash_rows(empty, 0).tolist())) == 1


def test_row_hash_ignores_columns_without_text_form() -> None:
    plain = {"x": list(range(100)), "digest": pa.array([b"\xff\xfe"] * 100, pa.binary(2))}
    nested = {
        "place": [{"lat": 1.5}] * 100,
        "visits": [[{"day": 1}]] * 100,
        "tags": pa.array([[("a", 1)]] * 100, pa.map_(pa.string(), pa.int64())),
    }
    found = _hash_rows(pa.RecordBatch.from_pydict(plain), 0)
    assert len(set(found.tolist())) == 100
    assert (found == _hash_rows(pa.RecordBatch.from_pydict({**plain, **nested}), 0)).all()
