"""Writes those windows of a snapshot that are leased to this worker.

Responsible for asking for windows until there are none for this worker, for writing them and for
reporting them. Knows pipelines and folders, nothing of gRPC, nor when a writer is needed.
Invariants: a window is reported only once its files are complete under their final names; a
permanent failure is reported, so that nobody waits for the snapshot.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from dataservice.dataset.snapshots.folder import SnapshotFolder
from dataservice.dataset.snapshots.format import DONE, Chunk, Metadata
from dataservice.errors import (
    CancelledError,
    DataLossError,
    DataServiceError,
    NotFoundError,
    UnavailableError,
    UserFunctionError,
    error_to_dict,
)
from dataservice.runtime.frames import decode_schema
from dataservice.runtime.threads import StoppableThread
from dataservice.wire import dispatcher_pb2 as pb
from dataservice.worker.dispatcher_link import DispatcherLink, lease_of
from dataservice.worker.failures import reportable
from dataservice.worker.leases import Lease
from dataservice.worker.task import Pipeline
from dataservice.worker.window_files import WindowFiles

logger = logging.getLogger(__name__)

_ATTEMPTS: Final = 3
_PAUSE_S: Final = 1.0
_PROGRESS_S: Final = 1.0


class SnapshotWriter:
    """A writer of one snapshot: one thread talks to the dispatcher, the others write windows."""

    def __init__(
        self,
        link: DispatcherLink,
        pipeline_of: Callable[[str], Pipeline],
        worker_id: str,
        snapshot_id: str,
        *,
        threads: int,
        address: str,
    ) -> None:
        self._link = link
        self._pipeline_of = pipeline_of
        self._worker_id = worker_id
        self._snapshot_id = snapshot_id
        self._address = address
        self._changed = threading.Condition()
        self._held: dict[int, Lease] = {}
        self._queue: deque[Lease] = deque()
        self._written: dict[int, tuple[Chunk, ...]] = {}
        self._failure: Exception | None = None
        self._rows_under_way: dict[int, int] = {}
        self._stopping = False
        self._folder: SnapshotFolder | None = None
        owner = f"snapshot {snapshot_id}"
        self._reporter = StoppableThread(self._run, owner=owner, name="talk")
        self._writers = [
            StoppableThread(self._write_windows, owner=owner, name=f"write-{index}")
            for index in range(threads)
        ]

    def start(self) -> None:
        """Starts asking for windows and writing them."""
        self._reporter.start()

    def is_alive(self) -> bool:
        """True if the writer still asks for windows or reports them."""
        return self._reporter.is_alive()

    def request_stop(self) -> None:
        """Stops without waiting. Idempotent."""
        self._reporter.request_stop()
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def join(self, deadline_s: float) -> None:
        """After `request_stop`: waits for the threads until this time of the monotonic clock."""
        for thread in (self._reporter, *self._writers):
            thread.stop(max(0.0, deadline_s - time.monotonic()))

    def _is_stopping(self) -> bool:
        return self._stopping

    # Talking to the dispatcher

    def _run(self, _stop: threading.Event) -> None:
        try:
            self._open()
            self._work()
        except (CancelledError, NotFoundError) as error:
            logger.debug("no more work on snapshot %s: %s", self._snapshot_id, error)
        except DataServiceError as error:
            logger.warning("work on snapshot %s pauses: %s", self._snapshot_id, error)
        finally:
            self.request_stop()

    def _open(self) -> None:
        task = self._link.get_snapshot(self._snapshot_id)
        self._task = task
        try:
            options = json.loads(task.storage_options)
            folder = SnapshotFolder(task.path, options, writes=self._snapshot_id)
            self._folder = folder
            if task.error:
                return
            registered = self._link.get_dataset(task.dataset_id)
            self._pipeline = self._pipeline_of(task.dataset_id)
            self._schema = decode_schema(registered.schema)
            folder.write_metadata(self._metadata(task, registered.cardinality))
            self._files = WindowFiles(
                folder,
                task,
                self._pipeline,
                self._schema,
                is_stopping=self._is_stopping,
                record_rows=self._record_rows,
            )
        except (NotFoundError, UnavailableError, CancelledError):
            raise
        except Exception as error:
            self._failure = reportable(error)
            return
        for writer in self._writers:
            writer.start()

    def _metadata(self, task: pb.GetSnapshotReply, cardinality: int) -> Metadata:
        pipeline = self._pipeline
        return Metadata(
            snapshot_id=self._snapshot_id,
            schema=self._schema,
            fingerprint=pipeline.fingerprint,
            cardinality=cardinality,
            is_batched=task.whole and pipeline.is_batched,
            batch_size=None if task.whole else pipeline.batch_size,
            drop_remainder=not task.whole and pipeline.drop_remainder,
            compression=task.compression,
            windows=None if task.windows < 0 else task.windows,
        )

    def _work(self) -> None:
        while not self._stopping:
            reply = self._report()
            if reply.marker and not self._mark(reply.marker, reply.content):
                continue
            if reply.over:
                return
            with self._changed:
                for message in reply.windows:
                    lease = lease_of(message)
                    self._held[lease.window] = lease
                    self._queue.append(lease)
                self._changed.notify_all()
                if not self._held:
                    # Other workers have the rest; a heartbeat's reply tells if some comes back.
                    return
                self._changed.wait_for(self._must_report, _PROGRESS_S)

    def _must_report(self) -> bool:
        return bool(self._written) or self._failure is not None or self._stopping

    def _report(self) -> pb.WorkOnSnapshotReply:
        with self._changed:
            written, failure = dict(self._written), self._failure
            holding = [window for window in self._held if window not in written]
            count = 0 if failure else max(0, len(self._writers) + 1 - len(holding))
            rows = sum(self._rows_under_way.values())
        request = pb.WorkOnSnapshotRequest(
            worker_id=self._worker_id,
            snapshot_id=self._snapshot_id,
            count=count,
            holding=holding,
            written=[_written_message(window, chunks) for window, chunks in written.items()],
            error="" if failure is None else json.dumps(error_to_dict(failure)),
            rows_under_way=rows,
        )
        reply = self._link.work_on_snapshot(request, self._is_stopping)
        with self._changed:
            for window in written:
                del self._written[window], self._held[window]
        return reply

    def _mark(self, name: str, content: str) -> bool:
        """Writes the last file of the snapshot, DONE or ERROR, and reports it.

        Returns False if DONE cannot be written, which becomes the error of the snapshot. ERROR is
        reported even if it cannot be written, as the error itself may be the reason for that.
        """
        try:
            if self._folder is not None:
                self._write_marker(self._folder, name, content)
        except UnavailableError:
            raise
        except Exception as error:
            logger.error("could not write %s of %s: %r", name, self._task.path, error)
            if name == DONE:
                self._failure = reportable(error)
                return False
        request = pb.WorkOnSnapshotRequest(
            worker_id=self._worker_id, snapshot_id=self._snapshot_id, marked=True
        )
        self._link.work_on_snapshot(request, self._is_stopping)
        return True

    def _write_marker(self, folder: SnapshotFolder, name: str, content: str) -> None:
        found = folder.metadata()
        is_there = found is not None and found.snapshot_id == self._snapshot_id
        if name == DONE and not is_there:
            raise DataLossError(
                f"{self._task.path} was deleted while snapshot {self._snapshot_id} was written"
                + (f", and holds {found.snapshot_id} now" if found else "")
            )
        if found is None or is_there:
            folder.write_marker(name, json.loads(content))

    # Writing

    def _write_windows(self, _stop: threading.Event) -> None:
        while (lease := self._next_lease()) is not None:
            try:
                chunks = self._write_window(lease)
            except BaseException as error:
                self._fail(error)
                return
            with self._changed:
                self._written[lease.window] = chunks
                self._rows_under_way.pop(lease.window, None)
                self._changed.notify_all()

    def _next_lease(self) -> Lease | None:
        with self._changed:
            while not self._stopping:
                if self._queue:
                    return self._queue.popleft()
                self._changed.wait(_PROGRESS_S)
        return None

    def _fail(self, error: BaseException) -> None:
        failure = reportable(error)
        if isinstance(failure, UserFunctionError):
            failure.worker = failure.worker or self._address
        with self._changed:
            if not self._stopping:
                self._failure = self._failure or failure
            self._changed.notify_all()

    def _write_window(self, lease: Lease) -> tuple[Chunk, ...]:
        """Writes the files of a window; up to `_ATTEMPTS` times while storage is unavailable."""
        for _ in range(1, _ATTEMPTS):
            try:
                return self._files.write(lease)
            except UnavailableError as error:
                logger.warning("window %d is written again: %s", lease.window, error)
                self._reporter.stop_event.wait(_PAUSE_S)
        return self._files.write(lease)

    def _record_rows(self, window: int, rows: int) -> None:
        with self._changed:
            self._rows_under_way[window] = rows


def _written_message(window: int, chunks: Sequence[Chunk]) -> pb.WrittenWindow:
    messages = [
        pb.SnapshotChunk(
            number=chunk.number,
            rows=chunk.rows,
            size_bytes=chunk.size_bytes,
            batches=chunk.batches,
            tag=chunk.tag,
        )
        for chunk in chunks
    ]
    return pb.WrittenWindow(window=window, chunks=messages)
