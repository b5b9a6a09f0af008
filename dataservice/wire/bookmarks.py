"""Bookmarks: positions from which a worker can resume a task without producing the rows before.

A worker sends a bookmark now and then with its rows. A reader keeps it and, when reading resumes
later or elsewhere, hands it to the worker that produces the rest. Knows nothing of streams, except
that their positions are JSON. Invariant: a bookmark that does not parse is damage, never a default.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from dataservice.errors import DataLossError


class Bookmark(NamedTuple):
    """The position of a task's stream before its row `row`, as JSON, which only workers parse.

    `plan` identifies the plan that the worker runs; only the same plan can resume from `stream`.
    """

    row: int
    plan: str
    stream: str

    @classmethod
    def from_json(cls, encoded: Sequence[Any]) -> Bookmark:
        """Decodes the JSON form of a bookmark; ValueError or TypeError for anything else."""
        row, plan, stream = encoded
        if int(row) < 0 or not isinstance(plan, str) or not isinstance(stream, str):
            raise ValueError(f"a bookmark at row {row!r} with a position {stream!r:.200}")
        return cls(int(row), plan, stream)


def encode_bookmark(task: int, bookmark: Bookmark) -> bytes:
    """Encodes a bookmark of a task, to be sent."""
    return json.dumps([task, *bookmark]).encode()


def decode_bookmark(encoded: bytes) -> tuple[int, Bookmark]:
    """Decodes the task and the bookmark of `encode_bookmark`; DataLossError if damaged."""
    try:
        task, *bookmark = json.loads(encoded)
        return int(task), Bookmark.from_json(bookmark)
    except (ValueError, TypeError) as error:
        raise DataLossError(f"damaged bookmark of {len(encoded)} bytes: {error}") from error
