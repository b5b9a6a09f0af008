"""Conditions written as lists of tuples, and the rows of Parquet files that they keep."""

from __future__ import annotations

import pathlib
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataservice import Dataset, col
from dataservice.dataset.filter_tuples import condition_of
from dataservice.errors import InvalidArgumentError


@pytest.mark.parametrize(
    "filters",
    [
        [("x", ">", 6)],
        [("x", ">=", 2), ("x", "<=", 7), ("s", "!=", "b")],
        [[("x", "<", 2)], [("x", "=", 5), ("s", "==", "c")]],
        [("x", "in", [1, 8]), ("s", "not in", ("a", "b"))],
    ],
)
def test_rows_are_those_that_pyarrow_keeps(tmp_path: pathlib.Path, filters: Any) -> None:
    path = str(tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": range(9), "s": list("abcabcabc")}), path, row_group_size=3)
    expected = pq.read_table(path, filters=filters)
    assert expected.num_rows
    assert Dataset.from_parquet(path, filter=filters).to_table().equals(expected)


def test_tuples_become_an_expression() -> None:
    condition = condition_of([[("x", ">", 1), ("y", "in", [2])], [("z", "==", "a")]])
    assert repr(condition) == repr(((col("x") > 1) & col("y").is_in([2])) | (col("z") == "a"))


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ([], "empty list; leave it out"),
        (("x", ">", 1), "list of tuples .*got 'x' in it"),
        ([("x", ">")], r"got \('x', '>'\)"),
        ([[("x", ">", 1)], ("x", ">", 1)], "got .* in it"),
        ([("x", "like", "a")], r"operator 'like' .*use one of '==', '='"),
        ([("x", "in", "abc")], "list of values for 'in'"),
    ],
)
def test_other_forms_are_refused(filters: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        Dataset.from_parquet("a.parquet", filter=filters)
