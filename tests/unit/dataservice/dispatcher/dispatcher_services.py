"""Dispatcher services over journals that are lists, and requests to them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from dataservice.dispatcher.plans import WindowPlan
from dataservice.dispatcher.reports import ReaderReport
from dataservice.dispatcher.requests import (
    LeaseWindows,
    OpenIteration,
    RegisterDataset,
    RegisterWorker,
    Sync,
)
from dataservice.dispatcher.service import DispatcherService
from dataservice.job_options import JobOptions
from dataservice.sharding import Split
from dataservice.vocabulary import ShardingPolicy
from tests.unit.manual_clock import ManualClock

WAIT_S = 10.0


def eventually(condition: Callable[[], object]) -> None:
    """Waits until other threads have made the condition true; fails the test if they never do."""
    pause = threading.Event()
    for _ in range(10_000):
        if condition():
            return
        pause.wait(0.001)
    pytest.fail("the condition never came true")


class ListJournal:
    """A journal in memory, which can hold appends back and can fail."""

    def __init__(self, frames: Sequence[bytes] = ()) -> None:
        self.frames = list(frames)
        self.writes: list[int] = []
        self.may_write = threading.Event()
        self.may_write.set()
        self.writing = threading.Event()
        self.failure: Exception | None = None

    def hold(self) -> None:
        """Holds the next append back until `may_write` is set; `writing` tells that it waits."""
        self.may_write.clear()
        self.writing.clear()

    def append(self, frames: Sequence[bytes]) -> None:
        self.writing.set()
        assert self.may_write.wait(WAIT_S)
        if self.failure is not None:
            raise self.failure
        self.frames.extend(frames)
        self.writes.append(len(frames))

    def replay(self) -> Iterator[bytes]:
        return iter(self.frames)

    def replace(self, frames: Sequence[bytes]) -> None:
        self.frames = list(frames)

    def close(self) -> None:
        pass


def plan_windows(plan: bytes, repetition: int, _options: JobOptions) -> WindowPlan:
    """Returns as many windows of one row as the plan has bytes."""
    splits = tuple(Split(start=i, stop=i + 1, rows=1) for i in range(len(plan)))
    return WindowPlan(splits=splits, target_rows=1, repetition=repetition)


def service_of(
    journal: ListJournal | None = None, clock: ManualClock | None = None, **more: object
) -> DispatcherService:
    return DispatcherService(
        clock=clock or ManualClock(),
        planner=plan_windows,
        lister=lambda *_: "",
        snapshot_planner=lambda _plan: None,
        journal=journal,
        wall_clock=lambda: 1_000.0,
        **more,
    )


def register(service: DispatcherService, windows: int = 4, cardinality: int = -2) -> str:
    request = RegisterDataset(
        plan=b"p" * windows, schema=b"s", cardinality=cardinality, compression="AUTO"
    )
    return service.register_dataset(request)


def add_worker(service: DispatcherService, name: str = "w1") -> None:
    service.register_worker(RegisterWorker(worker_id=name, address=f"{name}:1"))


def open_request(name: str = "r1", **more: object) -> OpenIteration:
    fields: dict[str, object] = {
        "dataset_id": "1000",
        "policy": ShardingPolicy.DYNAMIC,
        "job_name": "train",
        "repetition": 0,
        "delivery": "exactly_once",
        "reader_id": name,
        "job_id": f"job-{name}",
        "iteration_id": "i1",
    }
    return OpenIteration(**{**fields, **more})


def open_reader(service: DispatcherService, name: str = "r1", **more: object) -> str:
    answer, _, _ = service.openings.open(open_request(name, **more))
    return answer.iteration_id


def read_service(
    journal: ListJournal | None = None,
    clock: ManualClock | None = None,
    *,
    windows: int = 4,
    readers: Sequence[str] = ("r1",),
    **more: object,
) -> DispatcherService:
    """Returns a service with a worker, w1, and readers of one dataset."""
    service = service_of(journal, clock, **more)
    register(service, windows)
    add_worker(service)
    for reader in readers:
        open_reader(service, reader)
    return service


def lease_request(reader: str = "r1", worker: str = "w1", count: int = 1) -> LeaseWindows:
    return LeaseWindows(worker_id=worker, iteration_id="i1", reader_id=reader, count=count)


def sync(service: DispatcherService, reader: str = "r1", **more: object) -> tuple[object, ...]:
    request = Sync(reader_id=reader, iteration_id="i1", **more)
    return tuple(service.sync(request, ReaderReport())[0])
