"""Weights of rows in the loss: from a column of the data, from the label, or from both.

Knows nothing of loops, or of how a loss is computed. Invariant: a weight depends on the row alone,
so it is the same on every trainer and each time that the row is read again.
"""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pstrain.errors import DataError, InvalidArgumentError, InvalidTypeError
from pstrain.features.batches import as_table
from pstrain.features.columns import vector
from pstrain.features.side_columns import side_column

COLUMN: Final = "sample_weight"
"""The name of the column in which an array of weights is added to the data."""

Weights = NDArray[np.float32]

_LARGEST: Final = float(np.finfo(np.float32).max)


class Weighting:
    """The rule for weights of rows: values of ``column`` times the weights in ``by_label``."""

    def __init__(self, column: str | None = None, by_label: Any = None) -> None:
        self._column = column
        self._by_label = None if by_label is None else _of_labels(by_label)

    def of(self, batch: Any, labels: Weights) -> Weights | None:
        """Returns the weights of a batch, float32 [n]; None if every row counts alike.

        DataError for values that are no weights, and for class weights of labels in between.
        """
        weights = None if self._column is None else _read(batch, self._column)
        if self._by_label is None:
            return weights
        classes = labels.astype(np.intp)
        smoothed = classes != labels
        if smoothed.any():
            raise DataError(
                f"class_weight weighs labels 0 and 1, got {labels[smoothed][0]:g}: give "
                "sample_weight for labels in between"
            )
        by_label = self._by_label[classes]
        return by_label if weights is None else weights * by_label


def _read(batch: Any, column: str) -> Weights:
    values = side_column(batch, column, "weights", "sample_weight=")
    return finite_weights(f"weights of column {column!r}", values)


def with_weights(data: Any, sample_weight: Any) -> tuple[Any, str | None]:
    """Returns the data with the weights as a column, and that column's name.

    ``sample_weight``: the name of a column of the data; an array, if the data is a dict of arrays
    or a table; or None.
    """
    if sample_weight is None or isinstance(sample_weight, str):
        return data, sample_weight
    data = as_table(data)
    if not isinstance(data, pa.Table | dict):
        raise InvalidTypeError(
            f"sample_weight is the name of a column where the data is a {type(data).__name__}, got "
            f"{type(sample_weight).__name__}: add the weights by dataset.with_column(name, ...), "
            "and give sample_weight=name"
        )
    names = data.column_names if isinstance(data, pa.Table) else list(data)
    if COLUMN in names:
        raise InvalidArgumentError(
            f"the data has a column {COLUMN!r} already: give sample_weight={COLUMN!r} for its "
            "values, or rename it"
        )
    weights = finite_weights("sample_weight", sample_weight)
    rows = len(data[names[0]]) if names else 0
    if len(weights) != rows:
        raise InvalidArgumentError(
            f"sample_weight has {len(weights)} weights for {rows} rows: give one for each row"
        )
    if isinstance(data, dict):
        return {**data, COLUMN: weights}, COLUMN
    return data.append_column(COLUMN, pa.array(weights)), COLUMN


def finite_weights(what: str, values: Any) -> Weights:
    """Returns numbers of Arrow or NumPy as float32 [n]; DataError if one is not finite."""
    weights = vector(what, values)
    wrong = ~np.isfinite(weights)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise DataError(f"{what}, row {at}: {weights[at]} is not a weight: make it a finite number")
    return weights


def _of_labels(given: Any) -> Weights:
    """Returns the weights of labels 0 and 1; a weight that is not given is 1, as in Keras."""
    if not isinstance(given, Mapping):
        raise InvalidTypeError(
            f"class_weight is a dict of weights by label, as in {{0: 1.0, 1: 5.0}}, got {given!r}"
        )
    weights = np.ones(2, dtype=np.float32)
    for label, weight in given.items():
        if label not in (0, 1):
            raise InvalidArgumentError(f"class_weight has labels 0 and 1, got {label!r}")
        # Rows of a negative weight have a use beside others of their label, a whole label has none.
        if not isinstance(weight, numbers.Real) or weight < 0 or not weight <= _LARGEST:
            raise InvalidArgumentError(
                f"class_weight[{label!r}] must be a finite number (a float32), 0 or more, got "
                f"{weight!r}"
            )
        weights[int(label)] = weight
    return weights
