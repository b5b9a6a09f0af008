"""Converts what users pass as a batch of rows to one Arrow record batch.

Knows nothing of what a model reads. Invariant: values keep their types, and all columns of a batch
have the same number of rows.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from dataservice.runtime.number_arrays import from_numbers
from pstrain.errors import InvalidArgumentError, InvalidTypeError


def is_data_frame(data: Any) -> bool:
    """True if ``data`` is a pandas DataFrame.

    Pandas is not a dependency: a program that has a DataFrame has imported it.
    """
    return isinstance(data, getattr(sys.modules.get("pandas"), "DataFrame", ()))


def flat_column(values: Any) -> pa.Array:
    """Returns the values of a list or an array of any shape as one column, of type null if none.

    What pandas has for missing values becomes null. InvalidArgumentError for values of several
    types, or integers beyond 64 bits.
    """
    if isinstance(values, getattr(sys.modules.get("pandas"), "Series", ())):
        # NumPy would make floats of its integers if some are missing.
        column = pa.array(values, from_pandas=True)
        return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    flat = np.asarray(values).reshape(-1)
    if len(flat) and flat.dtype.kind not in "OUST":
        return from_numbers(np.ascontiguousarray(flat))
    try:
        return pa.array(flat.tolist(), from_pandas=True)
    except (pa.ArrowException, OverflowError) as error:
        raise InvalidArgumentError(
            "values are all strings or all integers of 64 bits, got larger ones or several types: "
            f"{error}"
        ) from error


def as_table(data: Any) -> Any:
    """Returns a DataFrame or a record batch as a table; returns anything else as it is.

    InvalidArgumentError for a column of a DataFrame that holds values of several types.
    """
    if not is_data_frame(data):
        return pa.Table.from_batches([data]) if isinstance(data, pa.RecordBatch) else data
    try:
        return pa.Table.from_pandas(data, preserve_index=False)
    except pa.ArrowException as error:
        why = ": ".join(map(str, reversed(error.args)))
        raise InvalidArgumentError(
            f"{why}; a column holds values of one type: convert it by astype(str), or leave it out"
        ) from error


def as_batch(given: Any, names: Collection[str] | None = None) -> pa.RecordBatch:
    """Returns a record batch, table, DataFrame or mapping of arrays as one batch.

    Of a mapping only the columns in ``names`` are used, if present (None: all).
    InvalidArgumentError for anything else, and for columns that are not arrays or differ in length.
    """
    if isinstance(given, pa.RecordBatch):
        return given
    given = as_table(given)
    if isinstance(given, pa.Table):
        merged = given.combine_chunks().to_batches()
        return merged[0] if merged else pa.RecordBatch.from_pylist([], given.schema)
    if isinstance(given, Mapping):
        wanted = given if names is None else [name for name in given if name in names]
        return _joined({name: _as_array(name, given[name]) for name in wanted})
    raise InvalidArgumentError(
        "a model reads Arrow record batches, tables, pandas DataFrames or mappings of arrays, got "
        f"{type(given).__name__}"
    )


def batches_of(data: Any, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yields the record batches of users' data; InvalidArgumentError if one lacks a column."""
    if isinstance(data, pa.Table):
        data = data.to_batches()
    elif isinstance(data, pa.RecordBatch | Mapping) or is_data_frame(data):
        data = [as_batch(data)]
    elif not isinstance(data, Iterable):
        given = type(data).__name__
        if callable(data):
            given = f"the function {getattr(data, '__name__', data)!r}: give what it makes"
        raise InvalidTypeError(
            f"the data is a table, record batches, a Dataset or a dict of arrays, got {given}"
        )
    for batch in data:
        missing = [name for name in names if name not in batch.schema.names]
        if missing:
            raise InvalidArgumentError(
                f"the data lacks {', '.join(missing)}; it has {', '.join(batch.schema.names)}"
            )
        yield batch


def _joined(columns: Mapping[str, pa.Array]) -> pa.RecordBatch:
    first = next(iter(columns), "")
    for name, column in columns.items():
        if len(column) != len(columns[first]):
            raise InvalidArgumentError(
                f"column {name!r} has {len(column)} rows and column {first!r} "
                f"{len(columns[first])}: a batch has a value of each column in each row"
            )
    return pa.RecordBatch.from_pydict(dict(columns))


def _as_array(name: str, values: Any) -> pa.Array:
    if isinstance(values, pa.Array):
        return values
    if isinstance(values, pa.ChunkedArray):
        return values.combine_chunks()
    try:
        return _converted(values)
    except (pa.ArrowException, TypeError, ValueError) as error:
        remedy = "; for one row give [value]" if np.ndim(values) == 0 else ""
        raise InvalidArgumentError(f"column {name!r} is not an array: {error}{remedy}") from error


def _converted(values: Any) -> pa.Array:
    if isinstance(values, list | tuple) and (not values or _holds_lists(values)):
        # NumPy would make an empty list one of floats, and does not take lists of several lengths.
        return pa.array(values)
    array = np.asarray(values)
    if array.ndim == 2 and array.shape[1]:
        flat = from_numbers(np.ascontiguousarray(array).reshape(-1))
        return pa.FixedSizeListArray.from_arrays(flat, array.shape[1])
    return from_numbers(array)


def _holds_lists(values: Sequence[Any]) -> bool:
    return any(isinstance(value, list | tuple) for value in values)
