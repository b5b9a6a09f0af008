"""Finds the rows because of which Arrow refuses many: reads halves, and halves of halves.

It does not matter why Arrow refuses a row. Knows no format: rows are lines of text, or batches of
values. Invariant: each row is read or refused, in order, or is in a whole whose error is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, TypeVar

import pyarrow as pa

REFUSED_MAX: Final = 1_000
"""So many rows of a block may be left out by themselves; with more, the file is of another kind.

Finding each takes Arrow some dozen calls."""

Rows = TypeVar("Rows")
Read = TypeVar("Read")


def read_in_parts(
    rows: Rows,
    read: Callable[[Rows], Read],
    halves: Callable[[Rows], list[Rows]],
    refuse: Callable[[Rows, pa.ArrowInvalid], None],
) -> Iterator[tuple[Rows, Read]]:
    """Yields parts of `rows` with what `read` returns; calls `refuse` for each row it refuses.

    `halves` returns the row itself for a single row. Raises Arrow's error once more than
    `REFUSED_MAX` rows would be left out.
    """
    refused = 0
    parts = [rows]
    while parts:
        part = parts.pop()
        try:
            result = read(part)
        except pa.ArrowInvalid as error:
            smaller = halves(part)
            if len(smaller) > 1:
                parts += reversed(smaller)
                continue
            refused += 1
            if refused > REFUSED_MAX:
                raise
            refuse(part, error)
        else:
            yield part, result
