"""Converts rows of CSV that were read as bytes, and leaves out those that lack the types.

Rows are written as CSV again, so that Arrow converts values here exactly as in a whole file. Knows
nothing of files. Invariant: each row is converted or refused, in order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.csv as pacsv

from dataservice.dataset.sources.bisection import read_in_parts

BAD_VALUE: Final = re.compile(r"In CSV column #(\d+): (?:Row #\d+: )?CSV conversion error to")
_CONVERSION: Final = re.compile(r"CSV conversion error to.*", re.DOTALL)
_TEXT_CHARS: Final = 200


class Unfit(NamedTuple):
    """A row that was left out: its beginning, the column at fault, and what Arrow says of it."""

    text: str
    column: pa.Field
    message: str


def as_bytes(schema: pa.Schema) -> pa.Schema:
    """Returns the columns with the type with which any file's values are read as they are."""
    return pa.schema([(name, pa.binary()) for name in schema.names])


def fitting_rows(
    rows: pa.RecordBatch,
    schema: pa.Schema,
    options: pacsv.ConvertOptions,
    refuse: Callable[[Unfit], None],
) -> Iterator[pa.RecordBatch]:
    """Yields the rows with the types of `schema`; calls `refuse` for each that has others.

    `rows` has the columns of `schema`, as bytes. Raises Arrow's error if there are too many.
    """

    def read(part: pa.RecordBatch) -> pa.RecordBatch:
        return _converted(part, schema, options)

    def refuse_row(row: pa.RecordBatch, error: pa.ArrowInvalid) -> None:
        text = _written(row)[:_TEXT_CHARS].decode(errors="replace")
        refuse(Unfit(text, bad_column(error, schema), _message(error)))

    for _, batch in read_in_parts(rows, read, _halves, refuse_row):
        yield batch


def bad_column(error: pa.ArrowInvalid, schema: pa.Schema) -> pa.Field:
    """Returns the column of `schema` in which Arrow found the value; the error if it names none."""
    found = BAD_VALUE.search(str(error))
    if found is None:
        raise error
    return schema.field(int(found[1]))


def _message(error: pa.ArrowInvalid) -> str:
    found = _CONVERSION.search(str(error))
    return (str(error) if found is None else found[0])[:_TEXT_CHARS]


def _converted(
    rows: pa.RecordBatch, schema: pa.Schema, options: pacsv.ConvertOptions
) -> pa.RecordBatch:
    if not rows.num_rows:
        return pa.RecordBatch.from_pylist([], schema=schema)
    text = _written(rows)
    # One block, whatever its size: Arrow allows no row to reach over several.
    read = pacsv.ReadOptions(column_names=schema.names, block_size=len(text) + 1, use_threads=False)
    parse = pacsv.ParseOptions(newlines_in_values=True)
    table = pacsv.read_csv(pa.py_buffer(text), read, parse, options)
    (batch,) = table.combine_chunks().to_batches()
    return batch


def _written(rows: pa.RecordBatch) -> bytes:
    """Returns the rows as CSV, with each value in quotes, which Arrow treats as those without."""
    # Imported here, since few files need it.
    from pyarrow import compute

    quote, nothing = pa.scalar(b'"'), pa.scalar(b"")
    values = [
        compute.binary_join_element_wise(
            quote, compute.replace_substring(column, b'"', b'""'), quote, nothing
        )
        for column in rows.columns
    ]
    lines = compute.binary_join_element_wise(*values, pa.scalar(b","))
    every = pa.ListArray.from_arrays([0, len(lines)], lines)
    (text,) = compute.binary_join(every, pa.scalar(b"\n")).to_pylist()
    return text  # type: ignore[no-any-return]


def _halves(rows: pa.RecordBatch) -> list[pa.RecordBatch]:
    middle = rows.num_rows // 2
    return [rows.slice(0, middle), rows.slice(middle)] if middle else [rows]
