"""Which plans a worker keeps prepared, and when it asks the dispatcher for them again."""

from __future__ import annotations

import dataservice as ds
from dataservice.dataset.node import freeze_schemas
from dataservice.dataset.plan import encode_plan
from dataservice.sharding import Split
from dataservice.wire import dispatcher_pb2 as pb
from dataservice.worker.leases import Lease
from dataservice.worker.pipelines import Pipelines
from dataservice.worker.service import WorkerService
from dataservice.worker.task import Pipeline

FIVE_ROWS = Lease(0, 0, 0, 0, 0, (Split(start=0, stop=5, rows=5),))


class Dispatcher:
    """A dispatcher that has one dataset under every id; `asked` counts the calls."""

    def __init__(self, dataset: ds.Dataset) -> None:
        self.asked = 0
        self.register(dataset)

    def register(self, dataset: ds.Dataset) -> None:
        self._plan = encode_plan(freeze_schemas(dataset.node))

    def get_dataset(self, _dataset_id: str) -> pb.GetDatasetReply:
        self.asked += 1
        return pb.GetDatasetReply(plan=self._plan, compression="AUTO")


def pipelines_of(dispatcher: Dispatcher) -> Pipelines:
    return Pipelines(dispatcher, allow_functions=True)  # type: ignore[arg-type]


def ids_of(pipeline: Pipeline) -> list[int]:
    batches = pipeline.run_window(FIVE_ROWS, lambda: False)
    return [number for batch, _ in batches for number in batch["id"].to_pylist()]


def test_plan_is_requested_from_dispatcher_once() -> None:
    dispatcher = Dispatcher(ds.Dataset.range(5))
    pipelines = pipelines_of(dispatcher)
    assert pipelines.get("1000") is pipelines.get("1000")
    assert dispatcher.asked == 1


def test_doubtful_plan_that_is_unchanged_stays_prepared() -> None:
    dispatcher = Dispatcher(ds.Dataset.range(5))
    pipelines = pipelines_of(dispatcher)
    known = pipelines.get("1000")
    pipelines.mark_doubtful()
    assert pipelines.get("1000") is known
    assert pipelines.get("1000") is known
    assert dispatcher.asked == 2


def test_worker_registered_again_reads_current_plan_of_dataset_id() -> None:
    dispatcher = Dispatcher(ds.Dataset.range(5))
    config = ds.WorkerConfig("127.0.0.1:5050")
    worker = WorkerService(config, dispatcher, "127.0.0.1:6060")  # type: ignore[arg-type]
    worker.rejoin("w1")
    assert ids_of(worker.pipelines.get("1000")) == [0, 1, 2, 3, 4]
    # A dispatcher without a journal was restarted: its ids begin anew.
    dispatcher.register(ds.Dataset.range(100, 105))
    worker.rejoin("w2")
    assert ids_of(worker.pipelines.get("1000")) == [100, 101, 102, 103, 104]
