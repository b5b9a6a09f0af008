"""Converts rows of CSV that were read as bytes, and leaves out those that lack the types.

Columns are written as CSV again, so that Arrow converts values here exactly as in a whole file.
Knows nothing of files. Invariant: each row is converted or refused, in order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv

from dataservice.dataset.sources.bisection import REFUSED_MAX
from dataservice.errors import InvalidArgumentError
from dataservice.runtime.number_arrays import from_numbers, to_numbers

BAD_VALUE: Final = re.compile(r"In CSV column #(\d+): (?:Row #(\d+): )?")
_TEXT_CHARS: Final = 200


class Unfit(NamedTuple):
    """A row that was left out: its beginning, the column at fault, and what Arrow says of it."""

    text: str
    column: pa.Field
    message: str


def as_bytes(schema: pa.Schema) -> pa.Schema:
    """Returns the columns with the type with which any file's values are read as they are."""
    return pa.schema([(name, pa.binary()) for name in schema.names])


def has_lines(row: pa.RecordBatch) -> bool:
    """True if a text of the row has an end of a line, as that has whose quote is left open."""
    texts = (column.cast(pa.binary())[0].as_py() for column in row.columns if _is_text(column.type))
    return any(text is not None and (b"\n" in text or b"\r" in text) for text in texts)


def _is_text(kind: pa.DataType) -> bool:
    is_any = (pa.types.is_string, pa.types.is_binary, pa.types.is_large_string)
    return any(is_kind(kind) for is_kind in (*is_any, pa.types.is_large_binary))


def require_convertible(schema: pa.Schema) -> None:
    """Raises InvalidArgumentError for a column of a type to which Arrow converts no text."""
    for field in schema:
        try:
            _converted(pa.nulls(1, pa.binary()), field, pacsv.ConvertOptions(column_types=[field]))
        except pa.ArrowNotImplementedError as error:
            raise InvalidArgumentError(
                f"the schema given to from_csv has the column {field.name!r} of type {field.type}, "
                f"which values of CSV do not get ({error}); read the column as a string, and make "
                "the values of it with map or with_column"
            ) from error


def fitting_rows(
    rows: pa.RecordBatch,
    schema: pa.Schema,
    options: pacsv.ConvertOptions,
    refuse: Callable[[Unfit], None],
) -> Iterator[pa.RecordBatch]:
    """Yields the rows with the types of `schema`; calls `refuse` for each that has others.

    `rows` has the columns of `schema`, as bytes. Raises Arrow's error for the first row that is one
    too many to be left out, after the rows before it.
    """
    columns = [
        _Column(values, field, options) for values, field in zip(rows.columns, schema, strict=True)
    ]
    is_bad = np.logical_or.reduce([column.is_bad for column in columns])
    bad = np.flatnonzero(is_bad).tolist()
    for row in bad[:REFUSED_MAX]:
        column = columns[_column_at_fault(columns, row)]
        refuse(Unfit(_beginning(rows.slice(row, 1)), column.field, column.message(row)))
    end = rows.num_rows if len(bad) <= REFUSED_MAX else bad[REFUSED_MAX]
    fitting = from_numbers(~is_bad[:end])
    yield pa.RecordBatch.from_arrays([column.kept(fitting) for column in columns], schema=schema)
    if end < rows.num_rows:
        index = _column_at_fault(columns, end)
        raise pa.ArrowInvalid(f"In CSV column #{index}: {columns[index].message(end)}")


def bad_column(error: pa.ArrowInvalid, schema: pa.Schema) -> pa.Field:
    """Returns the column of `schema` in which Arrow found the value; the error if it names none."""
    found = BAD_VALUE.search(str(error))
    if found is None:
        raise error
    return schema.field(int(found[1]))


class _Column:
    """The values of a column as they convert; `is_bad` tells those that do not, by row.

    It tells them up to the row that is one too many to be left out.
    """

    def __init__(self, values: pa.Array, field: pa.Field, options: pacsv.ConvertOptions) -> None:
        self.field = field
        self.is_bad = np.zeros(len(values), bool)
        self._values = values
        self._options = options
        try:
            self._converted = _converted(values, field, options)
        except pa.ArrowInvalid:
            self._converted = None
            self._find_bad(values.dictionary_encode())

    def _find_bad(self, values: pa.DictionaryArray) -> None:
        # By the index of each different value in the dictionary.
        self._messages = _bad_values(values.dictionary, self.field, self._options)
        self._in_dictionary = to_numbers(values.indices)
        self.is_bad = np.isin(self._in_dictionary, list(self._messages))

    def message(self, row: int) -> str:
        """Returns what Arrow says of a bad value."""
        return self._messages[self._in_dictionary[row]]

    def kept(self, fitting: pa.BooleanArray) -> pa.Array:
        """Returns the converted values of the first rows, of those that `fitting` tells."""
        if self._converted is not None:
            return self._converted.slice(0, len(fitting)).filter(fitting)
        values = self._values.slice(0, len(fitting)).filter(fitting)
        return _converted(values, self.field, self._options)


def _beginning(row: pa.RecordBatch) -> str:
    text = _written(row)
    without_end = text.slice(0, min(text.size - 1, _TEXT_CHARS))
    return without_end.to_pybytes().decode(errors="replace")


def _column_at_fault(columns: list[_Column], row: int) -> int:
    return next(index for index, column in enumerate(columns) if column.is_bad[row])


def _bad_values(values: pa.Array, field: pa.Field, options: pacsv.ConvertOptions) -> dict[int, str]:
    """Returns what Arrow says of the first values that do not convert, by their indices.

    Of those there are no more than tell that too many rows are bad.
    """
    messages: dict[int, str] = {}
    parts = [(0, len(values))]
    while parts and len(messages) <= REFUSED_MAX:
        begin, end = parts.pop()
        try:
            _converted(values.slice(begin, end - begin), field, options)
        except pa.ArrowInvalid as error:
            bad, message = _first_bad(error)
            messages[begin + bad] = message
            rest = begin + bad + 1
            # Halves, since Arrow parses a part to its end whatever comes first.
            middle = (rest + end) // 2
            parts += [(middle, end), (rest, middle)]
    return messages


def _first_bad(error: pa.ArrowInvalid) -> tuple[int, str]:
    """Returns the index of the first value that did not convert, and what Arrow says of it."""
    found = BAD_VALUE.search(str(error))
    if found is None or found[2] is None:
        raise error
    return int(found[2]) - 1, str(error)[found.end() :][:_TEXT_CHARS]


def _converted(values: pa.Array, field: pa.Field, options: pacsv.ConvertOptions) -> pa.Array:
    if not len(values):
        return pa.nulls(0, field.type)
    text = _written(pa.RecordBatch.from_arrays([values], [field.name]))
    # One block, whatever its size: Arrow allows no row to reach over several.
    read = pacsv.ReadOptions(column_names=[field.name], block_size=text.size + 1, use_threads=False)
    parse = pacsv.ParseOptions(newlines_in_values=True)
    (converted,) = pacsv.read_csv(text, read, parse, options).column(0).chunks
    return converted


def _written(rows: pa.RecordBatch) -> pa.Buffer:
    """Returns the rows as CSV, with each value in quotes, which Arrow treats as those without."""
    # As text, although it may be none: bytes are checked to be UTF-8.
    texts = [column.view(pa.string()) for column in rows.columns]
    to = pa.BufferOutputStream()
    options = pacsv.WriteOptions(include_header=False, quoting_style="all_valid")
    pacsv.write_csv(pa.RecordBatch.from_arrays(texts, rows.schema.names), to, options)
    return to.getvalue()
