"""The dispatcher's process: the real service and endpoint over a disk that may lose its tail.

Group commit is modelled: frames become durable together, some time after they were decided, and
no answer leaves before the frames that preceded it. Of the frames that are not yet durable, a crash
keeps a prefix of whole frames, since the journal recognises a torn one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from dataservice.dataset.node import UNKNOWN_CARDINALITY
from dataservice.dispatcher.decide import check_worker
from dataservice.dispatcher.endpoint import DispatcherEndpoint
from dataservice.dispatcher.plans import WindowPlan
from dataservice.dispatcher.requests import RegisterDataset
from dataservice.dispatcher.service import DispatcherService
from dataservice.dispatcher.snapshot_handlers import SnapshotPlanner
from dataservice.errors import DataServiceError, UnavailableError
from dataservice.wire import dispatcher_pb2 as pb
from tests.simulation.world import Blocked, Call, Node, World

WORKER_TIMEOUT_S = 2.5
CLIENT_TIMEOUT_S = 5.0
# Sums with a clock's offset are not exact to the last bit.
_TIMER_SLACK_S = 1e-6


class Commits:
    """Stands for `GroupCommit`; frames wait here until the node's disk has them."""

    def __init__(self, node: DispatcherNode, frames_kept: int) -> None:
        self.frames_kept = frames_kept
        self.pending: list[bytes] = []
        self.enqueued = 0
        self._node = node

    def enqueue(self, frame: bytes) -> None:
        self.pending.append(frame)
        self.enqueued += 1
        if len(self.pending) == 1:
            self._node.plan_flush()

    def ticket(self) -> int:
        return self.enqueued

    def wait_durable(self, ticket: int) -> None:
        """Does nothing, as the node holds the answer back."""

    def check(self) -> None:
        """Does nothing, as this disk never fails."""

    def retry(self) -> None:
        """Does nothing, as this disk never fails."""

    def begin_replacing(self) -> None:
        """Does nothing, as no decision is made before `replace` here."""

    def replace(self, frames: list[bytes]) -> None:
        self._node.flush()
        self._node.disk = list(frames)
        self.frames_kept = len(frames)
        self._node.world.checker.compacted(frames)


class DispatcherNode(Node):
    """The dispatcher's node: serves calls, and is the service's clock and journal."""

    def __init__(
        self,
        world: World,
        plan: WindowPlan,
        *,
        fsync_s: float,
        shorten_at: int | None,
        cardinality: int = UNKNOWN_CARDINALITY,
        snapshot_planner: SnapshotPlanner = lambda _plan: None,
    ) -> None:
        super().__init__(world, "dispatcher")
        self.disk: list[bytes] = []
        self.fsync_s = fsync_s
        self._plan = plan
        self._snapshot_planner = snapshot_planner
        self._shorten_at = shorten_at
        self._boot()
        request = RegisterDataset(
            plan=b"p", schema=b"s", cardinality=cardinality, compression="NONE"
        )
        self.dataset_id = self.service.register_dataset(request)
        self.flush()

    def _boot(self) -> None:
        self._open: dict[tuple[int, int], tuple[Call, int]] = {}
        self._waiting: list[tuple[int, Call, int, Any]] = []
        self._is_poked = self._is_retrying = False
        self._parked: list[tuple[Call, int, pb.LeaseWindowsRequest, float]] = []
        self._yet_to_retry = 0
        self.service = DispatcherService(
            clock=self.now_s,
            planner=lambda _plan, _repetition, _options: self._plan,
            snapshot_planner=self._snapshot_planner,
            snapshots_per_worker=2,
            journal=self,
            worker_timeout_s=WORKER_TIMEOUT_S,
            client_timeout_s=CLIENT_TIMEOUT_S,
            heartbeats_per_s=self.world.heartbeats_per_s,
            max_polls=self.world.max_polls,
            wall_clock=lambda: self.world.now_s,
        )
        self.commits = Commits(self, len(self.disk))
        store = self.service._store
        store._commits = self.commits
        if self._shorten_at is not None:
            store._shorten_at = self._shorten_at
        renew = self.service._renew_worker
        self.service._renew_worker = lambda worker_id: self._renew(renew, worker_id)
        self._endpoint = DispatcherEndpoint(self.service)
        condition = store._condition
        store._condition = lambda iteration: self._listening(condition(iteration))
        self.world.at(self.service.presence.tick_s, self, self._tick)

    def _renew(self, renew: Any, worker_id: Any) -> None:
        """Records a sign of life, except when a parked handler is retried, which is none."""
        if self._is_retrying:
            check_worker(self.service._state, worker_id)
        else:
            renew(worker_id)

    def _listening(self, condition: Any) -> Any:
        condition.listener = self._wake
        return condition

    def replay(self) -> Iterator[bytes]:
        return iter(self.disk)

    # Calls

    def receive(self, call: Call, number: int, life: int) -> None:
        """Serves a request, perhaps not for the first time; refuses one to an earlier process."""
        if not self.alive or life != self.life:
            self._send(call, number, UnavailableError("connection refused"))
            return
        self._open[(id(call), number)] = (call, number)
        deadline_s = self.world.now_s + getattr(call.request, "wait_s", 0.0)
        self._serve(call, number, call.request, deadline_s)

    def _serve(self, call: Call, number: int, request: Any, deadline_s: float) -> None:
        value: Any
        # Parked requests keep their seats, although their handlers have returned.
        self.service._polls.taken = len(self._parked) + self._yet_to_retry
        try:
            value = getattr(self._endpoint, _snake(call.method))(request)
        except Blocked:
            if request is call.request:
                request = pb.LeaseWindowsRequest()
                request.CopyFrom(call.request)
                self.world.at(request.wait_s, self, self._retry_parked)
            self._parked.append((call, number, request, deadline_s))
            return
        except DataServiceError as error:
            value = error
        if self.world.verbose:
            print("   ", _shown(request), "->", _shown(value))
        self.reply(call, number, value)

    def reply(self, call: Call, number: int, value: Any) -> None:
        """Sends an answer once everything decided so far is durable."""
        if self.commits.pending:
            self._waiting.append((self.commits.enqueued, call, number, value))
        else:
            self._send(call, number, value)

    def _send(self, call: Call, number: int, value: Any) -> None:
        self._open.pop((id(call), number), None)
        self.world.send(self, call.node, call.answer, number, value)

    def _wake(self) -> None:
        if self._parked and not self._is_poked:
            self._is_poked = True
            self.world.at(0.0, self, self._retry_parked)

    def _retry_parked(self) -> None:
        """Runs the parked handlers again, after a notification or when a wait is over."""
        self._is_poked = False
        parked, self._parked = self._parked, []
        for number_before, (call, number, request, deadline_s) in enumerate(parked):
            self._yet_to_retry = len(parked) - number_before - 1
            left_s = deadline_s - self.world.now_s
            request.wait_s = left_s if left_s > _TIMER_SLACK_S else 0.0
            self._is_retrying = True
            self._serve(call, number, request, deadline_s)
            self._is_retrying = False

    def _tick(self) -> None:
        self.service.tick()
        self.world.at(self.service.presence.tick_s, self, self._tick)

    # Disk

    def plan_flush(self) -> None:
        self.world.at(self.fsync_s * self.world.dice.uniform(0.5, 2.0), self, self.flush)

    def flush(self) -> None:
        """Makes all frames durable and sends the answers that waited for them."""
        frames, self.commits.pending = self.commits.pending, []
        self._persist(frames)
        waiting, self._waiting = self._waiting, []
        for _, call, number, value in waiting:
            self._send(call, number, value)
        self.world.checker.flushed(self.service._state)

    def _persist(self, frames: list[bytes]) -> None:
        self.disk.extend(frames)
        self.commits.frames_kept += len(frames)
        for frame in frames:
            self.world.checker.durable(frame)

    # Faults

    def crash(self) -> None:
        """Kills the process, as by SIGKILL or power loss; a random prefix of frames is kept."""
        pending = self.commits.pending
        self._persist(pending[: self.world.dice.randint(0, len(pending))])
        for call, number in list(self._open.values()):
            self._send(call, number, UnavailableError("connection reset"))
        self.die()

    def restart(self) -> None:
        """Starts a new process with the same journal and another clock."""
        if self.alive:
            return
        self.alive = True
        self.offset_s = self.world.dice.uniform(-3600.0, 3600.0)
        self._boot()
        self.world.checker.replayed(self.service._state)


def _shown(message: object) -> str:
    return " ".join(str(message).split())


@cache
def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
