"""What is wrong with a CSV file, told from Arrow's error: where it is, and the remedy.

Knows what Arrow says, and reads no file. Invariant: each error names the file, and of a value the
column with its type.
"""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa

from dataservice.dataset.sources.csv_text import BLOCK_BYTES
from dataservice.errors import DataServiceError, SchemaError, SourceError

_NO_LINE: Final = "Empty CSV file"
# Of a text that has lines, Arrow says that it is empty if none ends in the first block.
_TOO_LONG: Final = ("straddling object", _NO_LINE)
_NO_TEXT: Final = "invalid UTF8"
_MALFORMED: Final = "CSV parse error: Expected"
_ROW: Final = re.compile(r"Row #(\d+): ")
_BAD_ROW: Final = re.compile(rf"In CSV column #|{_MALFORMED}")
_SKIPPED: Final = "; from_csv(..., on_error='skip') leaves out such rows"
# Arrow also says so where it is told that there are no such values.
_HAS_LINES: Final = "out of sync with chunker"
_NO_LINES: Final = (
    ", or an end of a line inside of quotes, which newlines_in_values=False says that there is not"
)
_OTHER_ENCODING: Final = (
    "state its encoding, as in from_csv(..., encoding='latin-1'), or save the file as UTF-8, as "
    "`iconv -f LATIN1 -t UTF-8` does"
)


def says_empty(error: BaseException) -> bool:
    """True if Arrow found no line in the first block of the text."""
    return _NO_LINE in str(error)


def row_of(error: BaseException) -> int | None:
    """Returns the number of the row that Arrow names, counted from 1 with the header."""
    found = _ROW.search(str(error))
    return int(found[1]) if found else None


def lacks_row(error: BaseException) -> bool:
    """True if the error is of one row, but does not tell which."""
    return bool(_BAD_ROW.search(str(error))) and row_of(error) is None


def typed(column: pa.Field) -> str:
    """Returns the name and the type of a column, for a message."""
    return f"{column.name!r} of type {column.type}"


def require_text(path: str, inferred: pa.Schema) -> None:
    """Raises SourceError for a column of bytes, as which Arrow infers text that is not UTF-8."""
    for column in inferred:
        if pa.types.is_binary(column.type):
            raise SourceError(
                f"{path!r}: column {column.name!r} holds text that is not UTF-8; "
                f"{_OTHER_ENCODING}; or state pyarrow.binary() for it with schema="
            )


def explained(
    path: str, where: str, column: str, error: BaseException, *, skips: bool, cut: bool = False
) -> DataServiceError:
    """Returns the error to raise: for a value of another type in `column`, or a damaged file.

    `cut` tells that each end of a line was taken for that of a row.
    """
    # Cut, because the message may quote a value of any length.
    message = _ROW.sub("", f"{error!s:.500}")
    if any(told in message for told in _TOO_LONG):
        return SourceError(
            f"{path!r}, {where}: a row is longer than a block of {BLOCK_BYTES:,} bytes; write "
            "such values as Parquet or JSON lines, or close a quote that is left open"
        )
    if _HAS_LINES in message:
        return SourceError(
            f"{path!r}, {where}: a value has the end of a line inside of quotes; "
            "newlines_in_values=False is for files without such values, leave it out"
        )
    is_malformed = _MALFORMED in message
    # A malformed row can be left out only if it is text, as which Arrow hands it over.
    if _NO_TEXT in message or (is_malformed and skips):
        return SourceError(f"{path!r}, {where}: a text is not UTF-8 ({message}); {_OTHER_ENCODING}")
    if not column:
        return SourceError(
            f"{path!r} cannot be read as CSV, {where}: {message}; "
            "the file is damaged or cut short, or has another delimiter or number of columns"
            + (_NO_LINES if is_malformed and cut else "")
            + (_SKIPPED if is_malformed else "")
        )
    return SchemaError(
        f"{path!r}, {where}: column {column} has a value of another type ({message}); "
        "correct the file, parse the column as strings in map, or state the types with schema="
        + ("" if skips else _SKIPPED)
    )
