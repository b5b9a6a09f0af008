"""How a worker's membership in a cluster ends, tested without a dispatcher."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dataservice as ds
from dataservice.errors import CancelledError, NotFoundError
from dataservice.wire import dispatcher_pb2 as pb
from dataservice.worker.membership import Membership
from dataservice.worker.service import WorkerService
from dataservice.worker.snapshots import SnapshotWriters


class ForgetfulDispatcher:
    """A dispatcher that has forgotten a worker by its heartbeat, and then cannot be reached."""

    def __init__(self) -> None:
        self._registered = 0

    def register(self, _address: str, should_stop: Callable[[], bool], _formerly: str) -> Any:
        self._registered += 1
        if self._registered > 1:
            assert should_stop()
            raise CancelledError("stopped while waiting for the dispatcher")
        return pb.RegisterWorkerReply(worker_id="w1")

    def heartbeat(self, *_: Any) -> Any:
        self.membership.stop()
        raise NotFoundError("worker w1 is not registered")

    membership: Membership


def test_worker_stopped_while_registering_again_reports_no_loss() -> None:
    link: Any = ForgetfulDispatcher()
    service = WorkerService(ds.WorkerConfig("127.0.0.1:5050"), link, "127.0.0.1:6060")
    writers = SnapshotWriters(link, service.pipelines.get, threads=1, address="127.0.0.1:6060")
    lost: list[BaseException] = []
    membership = Membership(link, service, writers, interval_s=0.0, on_lost=lost.append)
    link.membership = membership
    membership.start()
    membership.join(10.0)
    assert not lost
