"""Whatever value an argument of a Dataset's method is given, errors are of the tree of errors."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import pathlib
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pytest

from dataservice import DataServiceError, Dataset, col

ROWS: Final = Dataset.range(5)
ODD: Final = (
    *(None, True, -1, 0, 1.5, 1 << 70, "", "x", b"x", "operator:neg", "no.such:thing"),
    *([], [1], ["nope"], ["id", "id"], (), {}, {"a": 1}, {"id": None}, {"id": "id"}, {1: 2}),
    *(set(), np.int64(2), np.array([1]), object(), type, len, dict, col("id"), ROWS),
    *(pa.int64(), pa.schema({"id": pa.int64()})),
)
# What the other arguments get that a method needs.
NEEDED: Final = {
    "batch_size": 2,
    "bucket_batch_sizes": [2, 2],
    "bucket_boundaries": [2],
    "buffer_size": 3,
    "choice_dataset": ROWS,
    "columns": ["id"],
    "count": 2,
    "datasets": [ROWS, ROWS],
    "element_length_func": "id",
    "expression_or_fn": dict,
    "fn": dict,
    "index": 0,
    "key_func": "id",
    "mapping": {"id": "x"},
    "name": "y",
    "num_shards": 2,
    "other": ROWS,
    "paths": "/no/such/file",
    "pattern": "/no/such/file*",
    "schema": pa.schema({"a": pa.int64()}),
    "table": pa.table({"a": [1]}),
    "tensors": {"a": [1]},
}
# Those that call what they are given as it is, those that wait, and those that pstrain calls.
OTHERS: Final = {
    *("apply", "distribute", "load"),
    *("identified", "iterator", "list_shares", "share", "shared"),
}


def is_method(name: str) -> bool:
    return not name.startswith("_") and callable(inspect.getattr_static(Dataset, name, None))


CLASS_METHODS: Final = [
    name
    for name in dir(Dataset)
    if isinstance(inspect.getattr_static(Dataset, name), classmethod | staticmethod)
]
METHODS: Final = sorted({*filter(is_method, dir(Dataset)), *CLASS_METHODS} - OTHERS)
CASES: Final = [
    (name, parameter.name)
    for name in METHODS
    for parameter in inspect.signature(getattr(ROWS, name)).parameters.values()
    if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
]


def needed_by(method: Callable[..., Any]) -> dict[str, Any]:
    parameters = inspect.signature(method).parameters.values()
    return {p.name: NEEDED[p.name] for p in parameters if p.default is p.empty and p.name in NEEDED}


def test_all_methods_that_take_arguments_are_tried() -> None:
    assert len(CASES) > 100
    assert {"range", "from_csv", "map", "zip", "batch"} <= set(METHODS)


@pytest.mark.parametrize(("name", "parameter"), CASES)
def test_odd_argument_works_or_is_refused_by_an_error_of_the_tree(
    name: str, parameter: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # cache writes to paths such as "x"
    method = getattr(ROWS, name)
    window = {"window_size": 2} if name == "group_by_window" else {}
    for value in ODD:
        arguments = needed_by(method) | window | {parameter: value}
        with contextlib.suppress(DataServiceError):
            made = method(**arguments)
            if isinstance(made, Dataset):
                assert made.cardinality() >= -2
                assert isinstance(made.schema, pa.Schema)
                list(itertools.islice(made, 5))
