"""Datasets and iterators of which every trainer has its own.

Knows how they are named and pickled, not how they reach a trainer. Invariant: an iterator that
nobody holds any more is dropped on the trainers; one that is held is made anew on a trainer that
comes back.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable
from typing import Any

from dataservice.runtime.identity import new_id
from pstrain.errors import FailedPreconditionError


class PerWorkerIterator:
    """One iterator per trainer; as an argument of ``schedule`` it becomes the trainer's own."""

    def __init__(self, resource_id: str, drop: Callable[[str], None]) -> None:
        self.resource_id = resource_id
        self._finalizer = weakref.finalize(self, drop, resource_id)
        self._finalizer.atexit = False

    def __iter__(self) -> PerWorkerIterator:
        return self

    def __next__(self) -> Any:
        raise FailedPreconditionError(
            "this iterator has its data on the trainers: pass it to a scheduled function and "
            "call next() there"
        )

    def close(self) -> None:
        """Drops the trainers' iterators now rather than when this object is collected."""
        self._finalizer()


class PerWorkerDataset:
    """One dataset per trainer. Each ``iter`` is the next epoch of every trainer's dataset."""

    def __init__(
        self,
        source: object,
        define: Callable[[str, tuple[object, int]], None],
        drop: Callable[[str], None],
    ) -> None:
        self._source = source
        self._define = define
        self._drop = drop
        self._epochs = itertools.count()
        self._lock = threading.Lock()

    def __iter__(self) -> PerWorkerIterator:
        with self._lock:
            epoch = next(self._epochs)
        resource_id = new_id("iterator")
        self._define(resource_id, (self._source, epoch))
        return PerWorkerIterator(resource_id, self._drop)
