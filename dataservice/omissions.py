"""What on_error="skip" left out: counts of rows and splits, with some of the files and messages.

Pure. The value is made where the rows are made, travels to the reader, and is shown to the user.
Invariant: a sum adds up all counts, and keeps the first few of the files and messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

MESSAGES_KEPT: Final = 5
FILES_KEPT: Final = 100
_MESSAGE_CHARS: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Omitted:
    """Counts of the rows that a function failed on, and of what sources could not read.

    A split is left out from its first unreadable row on. `source_rows` counts the rows left out of
    those splits whose number of rows is known without reading, and rows left out by themselves.
    `files` holds each path once.
    """

    function_rows: int = 0
    source_rows: int = 0
    splits: int = 0
    files: tuple[str, ...] = ()
    messages: tuple[str, ...] = ()

    @classmethod
    def of_function(cls, rows: int, message: str) -> Omitted:
        """Returns the value for `rows` rows that a function failed on."""
        return cls(function_rows=rows, messages=(message[:_MESSAGE_CHARS],))

    @classmethod
    def of_split(cls, path: str | None, rows: int | None, message: str) -> Omitted:
        """Returns the value for a split that is unreadable from some row on.

        `rows` is the number of rows left out, or None if it is not known.
        """
        return cls(
            source_rows=rows or 0,
            splits=1,
            files=() if path is None else (path,),
            messages=(message[:_MESSAGE_CHARS],),
        )

    @classmethod
    def of_rows(cls, path: str, rows: int, message: str) -> Omitted:
        """Returns the value for `rows` rows of a file that are left out, but not what follows."""
        return cls(source_rows=rows, files=(path,), messages=(message[:_MESSAGE_CHARS],))

    def __bool__(self) -> bool:
        return bool(self.function_rows or self.source_rows or self.splits)

    def __add__(self, other: Omitted) -> Omitted:
        return Omitted(
            function_rows=self.function_rows + other.function_rows,
            source_rows=self.source_rows + other.source_rows,
            splits=self.splits + other.splits,
            files=tuple(dict.fromkeys((*self.files, *other.files)))[:FILES_KEPT],
            messages=tuple(dict.fromkeys((*self.messages, *other.messages)))[:MESSAGES_KEPT],
        )

    def exchanged(self, before: Omitted, now: Omitted) -> Omitted | None:
        """Returns this sum with `now` in place of its summand `before`.

        None if a file or message of `before` is missing in `now`: other summands may have it too,
        so the sum has to be made anew.
        """
        if set(before.files) - set(now.files) or set(before.messages) - set(now.messages):
            return None
        total = self + now
        return replace(
            total,
            function_rows=total.function_rows - before.function_rows,
            source_rows=total.source_rows - before.source_rows,
            splits=total.splits - before.splits,
        )

    def __str__(self) -> str:
        parts = []
        if self.function_rows:
            parts.append(f"{self.function_rows:,} rows that a function failed on")
        unread = [f"{self.source_rows:,} rows"] if self.source_rows else []
        unread += [f"{self.splits:,} parts"] if self.splits else []
        if unread:
            parts.append(f"{' and '.join(unread)} of sources that could not be read")
        return " and ".join(parts) or "nothing"

    def to_json(self) -> dict[str, Any]:
        """Returns the JSON-able form."""
        return {
            "function_rows": self.function_rows,
            "source_rows": self.source_rows,
            "splits": self.splits,
            "files": list(self.files),
            "messages": list(self.messages),
        }

    @classmethod
    def from_json(cls, encoded: Mapping[str, Any]) -> Omitted:
        """Decodes the result of `to_json`."""
        return cls(
            function_rows=int(encoded["function_rows"]),
            source_rows=int(encoded["source_rows"]),
            splits=int(encoded["splits"]),
            files=tuple(map(str, encoded["files"])),
            messages=tuple(map(str, encoded["messages"])),
        )


NOTHING: Final = Omitted()
