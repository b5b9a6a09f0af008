"""A worker's snapshot writers: one for each snapshot that the worker works on.

The dispatcher names the snapshots to work on in its replies to heartbeats. A writer that found no
more windows ends; a new one starts if some of them come back. Knows nothing of how windows are
written. Invariant: there is at most one writer of a snapshot, and stopping is bounded.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from dataservice.worker.dispatcher_link import DispatcherLink
from dataservice.worker.snapshot_writer import SnapshotWriter
from dataservice.worker.task import Pipeline

STOP_TIMEOUT_S: Final = 2.0


class SnapshotWriters:
    """The snapshot writers of one worker. Thread-safe."""

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
        """Returns the ids of the snapshots that have a live writer."""
        with self._lock:
            ended = [key for key, writer in self._writers.items() if not writer.is_alive()]
            for key in ended:
                del self._writers[key]
            return list(self._writers)

    def work_on(self, worker_id: str, snapshot_ids: Iterable[str]) -> None:
        """Starts a writer, under the worker's current id, for each snapshot that has none."""
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
        """Ends all writers without waiting; their windows were leased to the worker's former id."""
        with self._lock:
            writers = list(self._writers.values())
            self._writers.clear()
        for writer in writers:
            writer.request_stop()

    def stop(self) -> None:
        """Ends all writers and starts no more. Idempotent; waits at most `STOP_TIMEOUT_S`."""
        with self._lock:
            self._stopped = True
            writers = list(self._writers.values())
        for writer in writers:
            writer.request_stop()
        deadline_s = time.monotonic() + STOP_TIMEOUT_S
        for writer in writers:
            writer.join(deadline_s)
