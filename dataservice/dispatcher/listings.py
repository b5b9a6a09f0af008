"""Who may list the sources of a dataset: one at a time, while few enough wait for that.

Knows datasets by their ids alone. Invariants: of one dataset nobody lists beside another; calls
that must not wait find threads, for those who wait for a plan are limited in number and in time.
Thread-safe.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from dataservice.config import PLAN_WAIT_S
from dataservice.errors import UnavailableError
from dataservice.vocabulary import DatasetId


class Listings:
    """`max_planners`: so many at once list, or wait for others who do."""

    def __init__(self, max_planners: int) -> None:
        self._planners = threading.BoundedSemaphore(max_planners)
        self._locks: dict[DatasetId, threading.Lock] = {}
        self._lock = threading.Lock()

    @contextmanager
    def alone(self, dataset_id: DatasetId) -> Iterator[None]:
        """Scope of the only one who lists this dataset; waits for the one before.

        UnavailableError where there is no room to wait, or that one takes long: whoever waits makes
        room before it asks again.
        """
        with self._lock:
            listing = self._locks.setdefault(dataset_id, threading.Lock())
        if self._planners.acquire(blocking=False):
            try:
                if listing.acquire(timeout=PLAN_WAIT_S):
                    try:
                        yield
                        return
                    finally:
                        listing.release()
            finally:
                self._planners.release()
        raise UnavailableError(
            f"the sources of dataset {dataset_id} are being listed, or others are, for as many "
            "clients as may wait for that at once; try again"
        )

    def forget(self, dataset_id: DatasetId) -> None:
        """The dataset is no more."""
        with self._lock:
            self._locks.pop(dataset_id, None)
