"""Leaves out the rows of a CSV file that have too few or too many values, and counts them.

Arrow finds them, on any of its threads, ahead of the batches that it hands over. Invariant: each
such row is counted once in a reading of the file, also if the file is read again in between.
"""

from __future__ import annotations

import itertools
from collections import deque
from typing import Final

import pyarrow.csv as pacsv

from dataservice.dataset.omission_log import RunOmissions
from dataservice.dataset.sources.text_parts import TextPart

_TEXT_CHARS: Final = 200


class MalformedRows:
    """What Arrow calls with each such row of a part of a file; `header` if it has a header.

    `counted` is the number of these rows that have been recorded, and are not recorded again.
    `some_have_lines` tells whether one is of several lines, of which a quote made one row.
    """

    def __init__(self, part: TextPart, *, header: bool, counted: int = 0) -> None:
        self._part = part
        self._header = header
        self._known = counted
        self.counted = counted
        self.some_have_lines = False
        self._numbers = itertools.count()
        self._found: deque[pacsv.InvalidRow] = deque()

    def __call__(self, row: pacsv.InvalidRow) -> str:
        if "\n" in row.text or "\r" in row.text:
            self.some_have_lines = True
        if next(self._numbers) >= self._known:
            self._found.append(row)
        return "skip"

    def record(self, omitted: RunOmissions | None) -> None:
        """Counts the rows that were found since the last call."""
        found = [self._found.popleft() for _ in range(len(self._found))]
        self.counted += len(found)
        if found and omitted is not None:
            omitted.source_rows(self._part.path, len(found), self._described(found[0]))

    def _described(self, row: pacsv.InvalidRow) -> str:
        # Arrow numbers rows only when it reads on one thread.
        number = None if row.number is None else row.number - self._header
        where = "" if number is None else f", row {number}{self._part.suffix}"
        return (
            f"{self._part.path!r}{where}: {row.actual_columns} values for {row.expected_columns} "
            f"columns: {row.text!r:.{_TEXT_CHARS}}"
        )
