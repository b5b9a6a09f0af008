"""What a worker has of the datasets that are being saved: a writer for each that it works on.

The dispatcher says in its heartbeats what to work on; a writer that found no more windows is made
anew should some come back. Invariant: there is at most one writer of a snapshot, and stopping is
bounded.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from dataservice.worker.control import DispatcherLink
from dataservice.worker.snapshot_writer import SnapshotWriter
from dataservice.worker.task import Pipeline

STOP_TIMEOUT_S: Final = 2.0


class SnapshotWriters:
    """All that one worker writes. Thread safe."""

    def __init__(
        self,
        link: DispatcherLink,
        pipeline_of: Callable[[str], Pipeline],
        *,
        threads: int,
        address: str,
    ) -> None:
        self._link = link
        self._pipeline_of = pipeline_of
        self._threads = threads
        self._address = address
        self._lock = threading.Lock()
        self._writers: dict[str, SnapshotWriter] = {}
        self._stopped = False

    def active(self) -> list[str]:
        """The snapshots that there are writers for."""
        with self._lock:
            ended = [key for key, writer in self._writers.items() if not writer.is_alive()]
            for key in ended:
                del self._writers[key]
            return list(self._writers)

    def work_on(self, worker_id: str, snapshot_ids: Iterable[str]) -> None:
        """Begins to write these under the worker's present id."""
        for snapshot_id in snapshot_ids:
            with self._lock:
                if self._stopped or snapshot_id in self._writers:
                    continue
                writer = SnapshotWriter(
                    self._link,
                    self._pipeline_of,
                    worker_id,
                    snapshot_id,
                    threads=self._threads,
                    address=self._address,
                )
                self._writers[snapshot_id] = writer
                writer.start()

    def give_up(self) -> None:
        """Ends all without waiting: the worker has another id now, and others its windows."""
        with self._lock:
            writers = list(self._writers.values())
            self._writers.clear()
        for writer in writers:
            writer.request_stop()

    def stop(self) -> None:
        """Ends all and begins no more. Idempotent, bounded."""
        with self._lock:
            self._stopped = True
            writers = list(self._writers.values())
        for writer in writers:
            writer.request_stop()
        deadline_s = time.monotonic() + STOP_TIMEOUT_S
        for writer in writers:
            writer.join(deadline_s)
