"""Bookmarks: positions from which a worker can continue a task without making the earlier rows.

A worker sends a bookmark now and then with its rows. A reader keeps it and, when reading continues
later or elsewhere, hands it to the worker that makes the remaining rows. Knows nothing of streams,
only that their positions are JSON. Invariant: a bookmark that does not parse is reported as damage,
never replaced by a default.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from dataservice.errors import DataLossError


class Bookmark(NamedTuple):
    """The position of a task's stream before its row `row`.

    `stream` is the position as JSON, which only workers parse. `plan` identifies the plan that the
    worker runs: only a stream of the same plan can continue from there.
    """

    row: int
    plan: str
    stream: str

    @classmethod
    def from_json(cls, encoded: Sequence[Any]) -> Bookmark:
        """Parses a bookmark from its JSON array; ValueError or TypeError for anything else."""
        row, plan, stream = encoded
        if int(row) < 0 or not isinstance(plan, str) or not isinstance(stream, str):
            raise ValueError(f"a bookmark at row {row!r} with a position {stream!r:.200}")
        return cls(int(row), plan, stream)


def encode_bookmark(task: int, bookmark: Bookmark) -> bytes:
    """Returns a task's bookmark as bytes to be sent."""
    return json.dumps([task, *bookmark]).encode()


def decode_bookmark(encoded: bytes) -> tuple[int, Bookmark]:
    """Returns what `encode_bookmark` was given: the task and its bookmark."""
    try:
        task, *bookmark = json.loads(encoded)
        return int(task), Bookmark.from_json(bookmark)
    except (ValueError, TypeError) as error:
        raise DataLossError(f"damaged bookmark of {len(encoded)} bytes: {error}") from error
