"""The processes of saving: workers that write windows, and programs that save and wait.

Real: the worker's `SnapshotWriters` with their threads, its membership and its link; the folder's
`SnapshotFolder`; a program's handle `Snapshot` and its look into the folder; the dispatcher.
Modelled: the pipeline, the storage and the calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from dataservice.client import snapshots as client
from dataservice.dispatcher.plans import WindowPlan
from dataservice.errors import (
    AlreadyExistsError,
    CancelledError,
    DataServiceError,
    UserFunctionError,
)
from dataservice.runtime.identity import new_id
from dataservice.wire import dispatcher_pb2 as pb
from dataservice.worker.leases import Lease
from tests.simulation import coordinated_nodes, stage
from tests.simulation.fibers import Fiber, Process, running, wait
from tests.simulation.stage import HASTE
from tests.simulation.worker_node import WorkerNode, rows_of
from tests.simulation.world import STAGE, World

SCHEMA = pa.schema({"id": pa.int64(), "maker": pa.string()})
PATH = "/saved"
TIMEOUT_S = 60.0
_AGAIN_S = 0.05
# The number of elements, of two rows each, of an undivided plan.
WHOLE_ELEMENTS = 9


class Rpc(stage.Rpc):
    """The calls of writers' threads, which wait for the answers, and those of other tasks."""

    def call_retrying(self, method: str, request: Any, **limits: Any) -> Any:
        if Fiber.current is None:
            return super().call_retrying(method, request, **limits)
        return _call(method, request, **limits)


class Connection:
    """Stands for the client's `DispatcherConnection`, as far as saving uses it."""

    def __init__(self, *_args: object) -> None:
        pass

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_exc: object) -> None:
        pass

    def start_snapshot(self, request: Any, *, timeout_s: float) -> Any:
        return _call("StartSnapshot", request, timeout_s=timeout_s)

    def get_snapshot(self, snapshot_id: str, *, timeout_s: float) -> Any:
        request = pb.GetSnapshotRequest(snapshot_id=snapshot_id)
        return _call("GetSnapshot", request, timeout_s=timeout_s)

    def cancel_snapshot(self, snapshot_id: str, *, timeout_s: float) -> None:
        request = pb.CancelSnapshotRequest(snapshot_id=snapshot_id)
        _call("CancelSnapshot", request, timeout_s=timeout_s)


def _call(
    method: str,
    request: Any,
    *,
    timeout_s: float,
    attempt_timeout_s: float = 10.0,
    should_stop: Callable[[], bool] | None = None,
) -> Any:
    connection = coordinated_nodes.Connection()
    return connection.ask(method, request, timeout_s, attempt_timeout_s / HASTE, should_stop)


class Rows:
    """Stands for a plan: its rows have ids that splits and epoch determine, and name their maker.

    A plan that `repeats_itself` gives equal rows in each attempt; others give only equal ids.
    """

    compression = None
    is_divisible = True
    is_batched = True
    batch_size = None
    drop_remainder = False

    def __init__(self, plan: WindowPlan | None, first_id: int, *, repeats_itself: bool) -> None:
        self.plan = plan
        self.fingerprint = f"f{first_id}"
        self.failing: int | None = None
        self._first_id = first_id
        self._repeats_itself = repeats_itself

    def expected(self) -> list[int]:
        """Returns the ids of the dataset, in the order of its windows."""
        if self.plan is None:
            return [self._first_id + number for number in range(2 * WHOLE_ELEMENTS)]
        assert self.plan.rounds is not None
        return [
            self._first_id + row
            for number in range(self.plan.rounds)
            for window in self.plan.windows_of(number)
            for row in rows_of(self.plan.epoch_of(number), window.splits)
        ]

    def run_window(
        self, lease: Lease, cancelled: Callable[[], bool], _omissions: object
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        ids = [self._first_id + row for row in rows_of(lease.epoch, lease.splits)]
        half = (len(ids) + 1) // 2
        first = 0
        for batch in self._batches([ids[:half], ids[half:]], cancelled):
            if batch.num_rows:
                yield batch, first
            first += batch.num_rows

    def run_whole(
        self, _epoch: int, cancelled: Callable[[], bool], *, omitted: object
    ) -> Iterator[pa.RecordBatch]:
        assert omitted is not None
        ids = self.expected()
        yield from self._batches([ids[i : i + 2] for i in range(0, len(ids), 2)], cancelled)

    def _batches(
        self, parts: list[list[int]], cancelled: Callable[[], bool]
    ) -> Iterator[pa.RecordBatch]:
        node: Any = running().node
        STAGE.ids += 1
        maker = "all" if self._repeats_itself else f"{node.name}/{STAGE.ids}"
        for ids in parts:
            wait(node.compute_s * node.world.dice.uniform(0.2, 2.0))
            if cancelled():
                raise CancelledError("closed while rows were made")
            if self.failing in ids:
                raise UserFunctionError("the user's function fails")
            yield pa.record_batch({"id": ids, "maker": [maker] * len(ids)}, schema=SCHEMA)


class WritingNode(WorkerNode, Process):
    """A worker that writes snapshots; a `trap` is sprung at one of its storage operations."""

    trap: tuple[int, Callable[[], None]] | None = None

    def __init__(self, world: World, number: int, plans: dict[str, Rows]) -> None:
        any_plan: Any = next(iter(plans.values()))
        super().__init__(world, number, any_plan)
        self._plans = plans

    def plan_of(self, dataset_id: str, _on_error: str = "raise") -> Any:
        return self._plans[dataset_id]

    def crash(self) -> None:
        self.trap = None
        Process.crash(self)

    def writers(self) -> list[str]:
        """Returns the snapshots on which the worker still works."""
        return self._membership._snapshots.active()


class SavingNode(Process):
    """A program that saves a dataset and waits; with `gives_up_after_s` it cancels after that."""

    def __init__(self, world: World, number: int, dataset_id: str) -> None:
        super().__init__(world, f"saver{number}")
        self.dataset_id = dataset_id
        self.snapshot_id = ""
        self.outcome: str | None = None
        self.gives_up_after_s: float | None = None

    def boot(self) -> None:
        self.spawn(self._run)

    def _run(self) -> None:
        world: Any = self.world
        try:
            handle = self._save()
            if self.gives_up_after_s is not None:
                wait(self.gives_up_after_s)
                handle.cancel()
            handle.wait()
            self.outcome = "done"
        except AlreadyExistsError as error:
            self.outcome = "exists"
            world.checker.refused(self, error)
        except DataServiceError as error:
            self.outcome = "failed"
            world.checker.failed(self, error)

    def _save(self) -> client.Snapshot:
        """Starts a snapshot as `dataservice.save` does, and returns its handle."""
        request = pb.StartSnapshotRequest(
            dataset_id=self.dataset_id,
            path=PATH,
            compression="NONE",
            storage_options="{}",
            found_id=self._look(),
            snapshot_id=new_id("snapshot"),
        )
        reply = Connection().start_snapshot(request, timeout_s=TIMEOUT_S)
        self.snapshot_id = reply.snapshot_id
        return client.Snapshot(PATH, reply.snapshot_id, "dispatcher:1", TIMEOUT_S)

    def _look(self) -> str:
        while True:
            try:
                return client._snapshot_at(PATH, None)
            except AlreadyExistsError:
                raise
            except DataServiceError:
                wait(_AGAIN_S)
