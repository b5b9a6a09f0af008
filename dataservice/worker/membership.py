"""A worker's membership in the cluster: registering, heartbeats, and registering again.

Knows the dispatcher link, the service and the snapshot writers, nothing of streams. Invariant:
once registered anew, the worker holds nothing that was leased to it under its former id.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable

from dataservice.errors import CancelledError, DataServiceError, NotFoundError
from dataservice.runtime.threads import StoppableThread
from dataservice.wire import dispatcher_pb2 as pb
from dataservice.worker.dispatcher_link import DispatcherLink
from dataservice.worker.production import ProductionMeter
from dataservice.worker.service import WorkerService
from dataservice.worker.snapshots import SnapshotWriters

logger = logging.getLogger(__name__)


class Membership:
    """A thread that keeps one worker registered.

    Calls `on_lost` with the error if the dispatcher stays unreachable. `pause_s` is the time until
    the next heartbeat: `interval_s`, or what the dispatcher asks for if that is longer.
    """

    def __init__(
        self,
        link: DispatcherLink,
        service: WorkerService,
        snapshots: SnapshotWriters,
        *,
        interval_s: float,
        on_lost: Callable[[BaseException], None],
    ) -> None:
        self._link = link
        self._service = service
        self._snapshots = snapshots
        self._interval_s = self.pause_s = interval_s
        self._thread = StoppableThread(
            self._run, owner="worker", name="heartbeat", on_failure=on_lost
        )
        self._numbers = itertools.count(1)
        self._rows = 0
        self._measured_s = time.monotonic()
        self._production = ProductionMeter(self._measured_s)

    def start(self) -> None:
        """Registers, waiting for the dispatcher, and starts to send heartbeats."""
        self._register()
        self._thread.start()

    def stop(self) -> None:
        """Stops the heartbeats without waiting for one in flight. Idempotent."""
        self._thread.request_stop()

    def leave(self) -> None:
        """After `stop`: tells the dispatcher, if it can be reached, that the worker leaves."""
        if not self._service.worker_id:
            return
        try:
            self._link.leave(self._service.worker_id)
        except DataServiceError as error:
            logger.info("left without telling the dispatcher: %s", error)

    def join(self, timeout_s: float) -> None:
        """After `stop`: waits for the thread to end."""
        self._thread.stop(timeout_s)

    def _is_stopping(self) -> bool:
        return self._thread.stop_event.is_set()

    def _register(self) -> None:
        reply = self._link.register(
            self._service.address, self._is_stopping, self._service.worker_id
        )
        self._service.rejoin(reply.worker_id, (reply.place, reply.places))
        self._snapshots.give_up()
        self._record_interval(reply.heartbeat_interval_ms)
        logger.info("worker %s serves at %s", reply.worker_id, self._service.address)

    def _run(self, stop: threading.Event) -> None:
        try:
            while not stop.wait(self.pause_s):
                self._heartbeat_or_register()
        except CancelledError:
            return

    def _heartbeat_or_register(self) -> None:
        try:
            self._send_heartbeat()
        except NotFoundError as error:
            logger.warning("registering again: %s", error)
            self._register()

    def _send_heartbeat(self) -> None:
        iterations = self._service.iterations()
        rows, buffered_bytes = self._service.load()
        now_s = time.monotonic()
        request = pb.WorkerHeartbeatRequest(
            worker_id=self._service.worker_id,
            iteration_ids=iterations,
            rows_sent=rows,
            rate_rows_per_s=(rows - self._rows) / max(now_s - self._measured_s, 1e-3),
            buffered_bytes=buffered_bytes,
            production=[
                pb.Production(**part._asdict())
                for part in self._production.measure(self._service.counters(), now_s)
            ],
            snapshot_ids=self._snapshots.active(),
            number=next(self._numbers),
        )
        self._rows, self._measured_s = rows, now_s
        reply = self._link.heartbeat(request, self._is_stopping)
        if reply.ended_iteration_ids:
            self._service.end_iterations(set(reply.ended_iteration_ids))
        self._snapshots.work_on(request.worker_id, reply.snapshot_ids)
        self._record_interval(reply.heartbeat_interval_ms)

    def _record_interval(self, least_ms: int) -> None:
        self.pause_s = max(self._interval_s, least_ms / 1_000)
