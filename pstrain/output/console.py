"""The progress lines of a command: one per thing it does, with the time since its start.

Knows nothing of what the command does. Invariant: with ``--json``, standard output carries only
the result, which is one line.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any


class Console:
    """A writer of progress, to standard output, or to standard error if the result is JSON."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json
        self._stream = sys.stderr if as_json else sys.stdout
        self._started_s = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started_s

    def log(self, text: str) -> None:
        """Prints one line with a time stamp."""
        print(f"[{self.elapsed_s:6.1f} s] {text}", file=self._stream, flush=True)

    def print(self, text: str = "") -> None:
        """Prints text as it is."""
        print(text, file=self._stream, flush=True)

    def table(self, title: str, rows: Sequence[Sequence[str]]) -> None:
        """Prints ``title`` and ``rows`` in aligned columns."""
        widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
        self.print(f"\n{title}")
        for row in rows:
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            self.print(("  " + "  ".join(cells)).rstrip())

    def print_result(self, result: Mapping[str, Any]) -> None:
        """Prints the result as one line of JSON to standard output, if JSON was asked for.

        Numbers that JSON cannot express, such as the AUC over one class (NaN), become null.
        """
        if self.as_json:
            print(json.dumps({name: _in_json(value) for name, value in result.items()}), flush=True)


def _in_json(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
