"""Finds the rows because of which Arrow refuses many: reads parts, and parts of parts.

It does not matter why Arrow refuses a row. Knows no format, and not how rows are cut. Invariant:
each row is read or refused, in order, or is in a whole whose error is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeVar

import pyarrow as pa

REFUSED_MAX: Final = 1_000
"""So many rows of a block may be left out by themselves; with more, the file is of another kind.

Finding each takes Arrow several calls."""

Rows = TypeVar("Rows")
Read = TypeVar("Read")


def read_in_parts(
    rows: Rows,
    read: Callable[[Rows], Read],
    cut: Callable[[Rows, pa.ArrowInvalid], list[Rows]],
    refuse: Callable[[Rows, pa.ArrowInvalid], None],
) -> Iterator[tuple[Rows, Read]]:
    """Yields parts of `rows` with what `read` returns; calls `refuse` for each row it refuses.

    `cut` returns parts of rows that Arrow refused, the row itself for a single one. Raises Arrow's
    error once more than `REFUSED_MAX` rows would be left out.
    """
    refused = 0
    parts = [rows]
    while parts:
        part = parts.pop()
        try:
            result = read(part)
        except pa.ArrowInvalid as error:
            smaller = cut(part, error)
            if len(smaller) > 1:
                parts += reversed(smaller)
                continue
            refused += 1
            if refused > REFUSED_MAX:
                raise
            refuse(part, error)
        else:
            yield part, result
