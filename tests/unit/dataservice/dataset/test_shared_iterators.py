"""One iterator from which several threads take batches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from dataservice.dataset.dataset import Dataset

# Long enough for a second thread to interfere, if it does not wait.
IN_THE_WAY_S = 0.2
ROWS = 40


class Meeting:
    """Holds a thread before the first row for a while, in which another one asks for a batch."""

    def __init__(self) -> None:
        self._inside = threading.Event()
        self._came = threading.Event()

    def rows(self) -> Iterator[dict[str, int]]:
        self._inside.set()
        self._came.wait(IN_THE_WAY_S)
        yield from ({"id": row} for row in range(ROWS))

    def come(self, take: Callable[[], list[int]]) -> list[int]:
        assert self._inside.wait(10.0)
        try:
            return take()
        finally:
            self._came.set()


@pytest.mark.parametrize("prefetched", [False, True])
def test_threads_sharing_iterator_get_each_row_once(prefetched: bool) -> None:
    meeting = Meeting()
    dataset = Dataset.from_generator(meeting.rows, pa.schema([("id", pa.int64())])).batch(2)
    iterator = iter(dataset.prefetch(2) if prefetched else dataset)

    def take() -> list[int]:
        return [row for batch in iterator for row in batch["id"].to_pylist()]

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.submit(take), threads.submit(meeting.come, take)
        rows = first.result(60.0) + second.result(60.0)
    assert sorted(rows) == list(range(ROWS))
