"""Checks that a position of a stream can be saved and restored anywhere, exactly.

Not a test itself: the tests of every operator call it.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from dataservice.dataset.dataset import Dataset
from dataservice.dataset.node import Node
from dataservice.dataset.stream import BatchStream, RunContext


def chunked(table: pa.Table, sizes: list[int]) -> pa.Table:
    """Cuts a table into chunks of these sizes, which sources keep; the rest is one chunk."""
    parts, first = [], 0
    for size in sizes:
        parts.append(table.slice(first, size))
        first += size
    return pa.concat_tables([*parts, table.slice(first)])


def numbers(count: int, sizes: list[int] | None = None) -> Dataset:
    """Returns rows 0, 1, ... in column `x`, by default in chunks of 3, 1, 4, 1, 5 and the rest."""
    table = pa.table({"x": pa.array(range(count), pa.int64())})
    return Dataset.from_table(chunked(table, [3, 1, 4, 1, 5] if sizes is None else sizes))


def values(batches: list[pa.RecordBatch], column: str = "x") -> list[Any]:
    """Returns all values of a column."""
    return [value for batch in batches for value in batch.column(column).to_pylist()]


def run(dataset: Dataset | Node, epoch: int = 0, **context: Any) -> list[pa.RecordBatch]:
    """Returns the record batches of one pass."""
    with open_stream(dataset, epoch, **context) as stream:
        return list(stream)


def open_stream(dataset: Dataset | Node, epoch: int = 0, **context: Any) -> BatchStream:
    """Opens a new stream."""
    node = dataset.node if isinstance(dataset, Dataset) else dataset
    return node.open(RunContext(epoch=epoch, **context))


def check_positions(dataset: Dataset | Node, epoch: int = 0, limit: int = 200) -> None:
    """Saves before every batch, restores each position in a new stream, and compares the tails.

    Also saves again right after a restore, and one batch later. Checks at most `limit` batches.
    """
    expected: list[pa.RecordBatch] = []
    states: list[dict[str, Any]] = []
    held: list[dict[str, Any]] = []
    with open_stream(dataset, epoch) as stream:
        for _ in range(limit):
            held.append(stream.state())
            states.append(_through_json(held[-1]))
            batch = next(stream, None)
            if batch is None:
                break
            assert batch.num_rows > 0
            expected.append(batch)
    assert held == states, "a position has changed since it was taken"
    for position, state in enumerate(states):
        _check_tail(dataset, epoch, state, expected[position:])
        again = _check_tail(dataset, epoch, state, [])
        _check_tail(dataset, epoch, again, expected[position:])
        if position < len(expected):
            after = _check_tail(dataset, epoch, state, expected[position : position + 1])
            _check_tail(dataset, epoch, after, expected[position + 1 :])


def _check_tail(
    dataset: Dataset | Node, epoch: int, state: dict[str, Any], tail: list[pa.RecordBatch]
) -> dict[str, Any]:
    """Restores `state`, compares the batches that follow with `tail`; returns the position then."""
    with open_stream(dataset, epoch) as stream:
        stream.restore(state)
        for number, wanted in enumerate(tail):
            batch = next(stream, None)
            assert batch is not None, f"ends after {number} of {len(tail)} batches from {state}"
            assert batch.equals(wanted), f"batch {number} from {state}: {batch} is not {wanted}"
        return _through_json(stream.state())


def _through_json(state: dict[str, Any]) -> dict[str, Any]:
    decoded = json.loads(json.dumps(state))
    assert decoded == state
    return decoded
