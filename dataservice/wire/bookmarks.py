"""Bookmarks: from where a worker can go on with a task, without making the rows before it.

A worker sends one now and then with its rows; a reader keeps it and, when reading goes on later or
elsewhere, hands it to the worker that makes the rest. Knows nothing of streams, only that their
positions are JSON. Invariant: a bookmark that does not parse is damage, never a default.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from dataservice.errors import DataLossError


class Bookmark(NamedTuple):
    """The position of a task's stream before its row `row`, as JSON, which only workers parse.

    `plan` stands for what the worker runs: only that can go on from `stream`.
    """

    row: int
    plan: str
    stream: str

    @classmethod
    def from_json(cls, encoded: Sequence[Any]) -> Bookmark:
        """What a bookmark is in JSON; ValueError or TypeError for anything else."""
        row, plan, stream = encoded
        if int(row) < 0 or not isinstance(plan, str) or not isinstance(stream, str):
            raise ValueError(f"a bookmark at row {row!r} with a position {stream!r:.200}")
        return cls(int(row), plan, stream)


def encode_bookmark(task: int, bookmark: Bookmark) -> bytes:
    """A bookmark of a task, to be sent."""
    return json.dumps([task, *bookmark]).encode()


def decode_bookmark(encoded: bytes) -> tuple[int, Bookmark]:
    """What `encode_bookmark` was given: the task and its bookmark."""
    try:
        task, *bookmark = json.loads(encoded)
        return int(task), Bookmark.from_json(bookmark)
    except (ValueError, TypeError) as error:
        raise DataLossError(f"damaged bookmark of {len(encoded)} bytes: {error}") from error
