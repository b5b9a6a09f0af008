"""What a command says while it works: one line per thing it does, with the time since its start.

Knows nothing of what is done. Invariant: standard output carries results only; with ``--json``
that is one line.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any


class Narrator:
    """Tells on standard output, or on standard error where the result is JSON."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json
        self._stream = sys.stderr if as_json else sys.stdout
        self._started_s = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started_s

    def say(self, text: str) -> None:
        """One line, stamped."""
        print(f"[{self.elapsed_s:6.1f} s] {text}", file=self._stream, flush=True)

    def show(self, text: str = "") -> None:
        """Text as it is."""
        print(text, file=self._stream, flush=True)

    def table(self, title: str, rows: Sequence[Sequence[str]]) -> None:
        """Columns side by side, as wide as they need to be."""
        widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
        self.show(f"\n{title}")
        for row in rows:
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            self.show(("  " + "  ".join(cells)).rstrip())

    def finish(self, result: Mapping[str, Any]) -> None:
        """The closing line of JSON, on standard output, where it was asked for.

        Numbers that JSON does not have, as an AUC over one class, are null.
        """
        if self.as_json:
            print(json.dumps({name: _in_json(value) for name, value in result.items()}), flush=True)


def _in_json(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
