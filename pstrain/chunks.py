"""A dataset in numbered chunks, so that whoever runs a chunk, and how often, reads the same rows.

Knows nothing of trainers. Invariant: chunk ``n`` of size ``k`` is the elements ``[n*k, (n+1)*k)``
of a pass over the dataset, on whatever process it is read.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from pstrain.trainer.context import InputContext
from pstrain.trainer.resources import open_dataset

# Threads ask for neighbouring chunks in any order.
_CHUNKS_KEPT = 4


class ChunkReader:
    """Reads chunks of one pass, best in ascending order. Thread-safe.

    Goes through the data once; elements of chunks that nobody asks for are passed over. A chunk
    that lies further back than the few that are kept makes it start again.
    """

    def __init__(self, dataset: Any, size: int) -> None:
        self._dataset, self._size = dataset, size
        self._lock = threading.Lock()
        self._iterator: Iterator[Any] | None = None
        self._next = 0
        self._kept: OrderedDict[int, list[Any]] = OrderedDict()

    def read(self, chunk: int) -> list[Any]:
        """The elements of ``chunk``; fewer than its size at the end of the data, then none."""
        with self._lock:
            if chunk in self._kept:
                return self._kept[chunk]
            if self._iterator is None or chunk < self._next:
                self._open()
            while self._next <= chunk:
                assert self._iterator is not None
                self._kept[self._next] = list(itertools.islice(self._iterator, self._size))
                self._next += 1
                if len(self._kept) > _CHUNKS_KEPT:
                    self._kept.popitem(last=False)
            return self._kept[chunk]

    def close(self) -> None:
        """Ends reading. Idempotent."""
        iterator, self._iterator = self._iterator, None
        if iterator is not None and hasattr(iterator, "close"):
            iterator.close()

    def _open(self) -> None:
        self.close()
        self._kept.clear()
        self._next = 0
        self._iterator = open_dataset(self._dataset, 0, InputContext())


class ChunkSource:
    """A dataset function: its iterator gives, again and again, this process's ChunkReader."""

    def __init__(self, dataset: Any, size: int) -> None:
        self._dataset, self._size = dataset, size

    def __call__(self) -> _Readers:
        return _Readers(ChunkReader(self._dataset, self._size))


class _Readers:
    def __init__(self, reader: ChunkReader) -> None:
        self._reader = reader

    def __iter__(self) -> _Readers:
        return self

    def __next__(self) -> ChunkReader:
        return self._reader

    def close(self) -> None:
        self._reader.close()
