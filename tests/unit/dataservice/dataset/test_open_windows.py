"""group_by_window over many keys: order of the windows, positions, and rows held in memory."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from dataservice.dataset.dataset import Dataset
from dataservice.dataset.operators.open_windows import OpenRows
from dataservice.dataset.stream import RunContext
from tests.unit.dataservice.dataset.checkpoint_checker import check_positions, chunked, run

ROWS = 4_000


def rows_of_many_keys(chunk: int = 50) -> Dataset:
    """Returns rows of many keys, in chunks with few of each; one key is in the first chunk only."""
    keys = np.random.default_rng(3).integers(0, 300, ROWS)
    keys[:5] = -1
    texts = [[str(i)] * (i % 3) for i in range(ROWS)]
    table = pa.table({"k": keys, "i": np.arange(ROWS), "t": texts})
    return Dataset.from_table(chunked(table, [chunk] * (ROWS // chunk - 1)))


def expected_windows(size: int) -> list[list[int]]:
    """Computes the windows row by row."""
    waiting: dict[int, list[int]] = {}
    windows = []
    for row in rows_of_many_keys().rows():
        waiting.setdefault(row["k"], []).append(row["i"])
        if len(waiting[row["k"]]) == size:
            windows.append(waiting.pop(row["k"]))
    return windows + [waiting[key] for key in sorted(waiting)]


@pytest.mark.parametrize("size", [1, 7, 1_000])
def test_windows_leave_as_their_last_rows_arrive(size: int) -> None:
    batches = run(rows_of_many_keys().group_by_window("k", window_size=size))
    assert [batch.column("i").to_pylist() for batch in batches] == expected_windows(size)
    for batch in batches:
        wanted = [[str(i)] * (i % 3) for i in batch.column("i").to_pylist()]
        assert batch.column("t").to_pylist() == wanted


def test_open_windows_of_many_keys_resume_from_positions() -> None:
    check_positions(rows_of_many_keys().group_by_window("k", window_size=13), limit=15)


def test_older_position_without_windows_to_skip_is_restored() -> None:
    dataset = rows_of_many_keys().group_by_window("k", window_size=7)
    tail = [batch.column("i").to_pylist() for batch in run(dataset)][3:]
    with dataset.node.open(RunContext()) as stream:
        gone: dict[int, int] = {}
        for _ in range(3):
            batch = next(stream)
            key = batch.column("k")[0].as_py()
            gone[key] = gone.get(key, 0) + batch.num_rows
    old = {"input": {"split": 0, "row": 0}, "drop": [[k, n] for k, n in sorted(gone.items())]}
    with dataset.node.open(RunContext()) as stream:
        stream.restore({"input": old, "window": 3, "inner": None})
        assert [batch.column("i").to_pylist() for batch in stream] == tail


def test_held_rows_are_bounded_by_waiting_rows() -> None:
    rows = OpenRows(lambda _key: 64)
    batches = run(rows_of_many_keys(chunk=10).repeat(8))
    waiting = 0
    for chunk, batch in enumerate(batches, 1):
        keys = batch.column("k").to_numpy() % 100
        ready = rows.add(batch, keys, np.arange(len(keys)), chunk)
        waiting += len(keys) - int(ready.elements.sum())
        assert sum(batch.num_rows for batch in rows._runs.values()) <= 2 * waiting + len(keys)
        assert len(rows._runs) <= 33
    assert rows.oldest is not None
    rest = rows.rest()
    assert int(rest.elements.sum()) == waiting
    assert rows.oldest is None
