"""Passes in which each trainer reads its own share, and some trainers are late, lost or absent."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from dataservice import Dataset
from pstrain.consistency import ASYNC
from pstrain.coordinator.remote_value import RemoteValue
from pstrain.execution.cluster import ClusterExecutor
from pstrain.execution.executor import Steps


class Owner:
    def awaited(self, closure: int, *, blocks: bool) -> None: ...

    def cancel(self, closure: int, timeout_s: float | None) -> None: ...

    def describe(self, closure: int) -> str:
        return str(closure)


class Coordinator:
    """A coordinator that runs closures on its live trainers in turn; no trainer has any data."""

    num_trainers = 2
    strategy = SimpleNamespace(consistency=ASYNC)
    recovery = SimpleNamespace(is_restoring=False)

    def __init__(self, *live: int) -> None:
        self.changed = threading.Condition()
        self.live = set(live)
        self.losses = 0
        self._runs = 0

    def create_per_worker_dataset(self, data: Any, **_options: Any) -> Any:
        return data

    def live_trainers(self) -> set[int]:
        return set(self.live)

    def stats(self) -> dict[str, int]:
        return {"losses": self.losses}

    def has_ready_trainer(self) -> bool:
        return False

    def schedule(self, _function: Any, args: Any) -> RemoteValue:
        self._runs += 1
        trainer = sorted(self.live)[self._runs % len(self.live)]
        value = RemoteValue(self._runs, self.changed, Owner())
        self.run(value, trainer, args[1])
        return value

    def run(self, value: RemoteValue, trainer: int, steps: int) -> None:  # noqa: ARG002
        value._set({"steps": 0, "ended": True, "trainer": trainer}, None)

    def lose(self, trainer: int) -> None:
        self.live.discard(trainer)
        self.losses += 1


def run(coordinator: Coordinator, after_first: Callable[[int], None]) -> None:
    executor = ClusterExecutor(coordinator)  # type: ignore[arg-type]
    shares = executor.dataset(Dataset.range(8).batch(2).cache())
    for number, report in enumerate(executor.run(lambda *_: 0.0, shares, Steps(None, 8))):
        if not number:
            after_first(report["trainer"])


def test_unread_share_of_trainer_that_never_connected_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run(Coordinator(1), lambda _trainer: None)
    assert "only trainers [1] of 2 read their share" in caplog.text


def test_loss_of_trainer_that_had_read_its_share_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    coordinator = Coordinator(0, 1)
    run(coordinator, coordinator.lose)
    assert "a trainer was lost while it read the data: the rows that it had taken" in caplog.text
    assert "read their share" not in caplog.text


def test_pass_in_which_all_trainers_read_their_share_logs_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run(Coordinator(0, 1), lambda _trainer: None)
    assert not caplog.records


class CoordinatorWithLateTrainer(Coordinator):
    """A coordinator whose trainer 1 ends nothing until trainer 0, after 30 runs, is at its end."""

    def __init__(self) -> None:
        super().__init__(0, 1)
        self._late: list[RemoteValue] = []
        self._left = 30

    def has_ready_trainer(self) -> bool:
        return True

    def run(self, value: RemoteValue, trainer: int, steps: int) -> None:
        if trainer and len(self._late) < 3:
            self._late.append(value)
            return
        has_more = self._left > 0
        self._left -= 1
        value._set({"steps": steps * has_more, "ended": not has_more, "trainer": 0}, None)
        if self._left == -1:
            threading.Timer(0.05, self._end_late).start()

    def _end_late(self) -> None:
        with self.changed:
            for value in self._late:
                value._set({"steps": 0, "ended": True, "trainer": 1}, None)
            self.changed.notify_all()


def test_late_trainer_does_not_delay_reports_of_other_trainers() -> None:
    coordinator: Any = CoordinatorWithLateTrainer()
    executor = ClusterExecutor(coordinator)
    shares = executor.dataset(Dataset.range(8).batch(2).cache())
    told = [report["trainer"] for report in executor.run(lambda *_: 0.0, shares, Steps(None, 8))]
    assert told[:30] == [0] * 30
    # A trainer at the end of its data is not asked again and again while another may have more.
    assert len(told) < 30 + 3 + 2 * 8


class CoordinatorWithUnevenShares(Coordinator):
    """A coordinator whose trainers have two and twelve elements left."""

    def __init__(self) -> None:
        super().__init__(0, 1)
        self._left = [2, 12]

    def run(self, value: RemoteValue, trainer: int, steps: int) -> None:
        took = min(steps, self._left[trainer])
        self._left[trainer] -= took
        value._set({"steps": took, "ended": took < steps, "trainer": trainer}, None)


def test_pass_continues_until_every_trainer_has_exhausted_its_data() -> None:
    executor = ClusterExecutor(CoordinatorWithUnevenShares())  # type: ignore[arg-type]
    shares = executor.dataset(Dataset.range(8).batch(2).cache())
    first = list(executor.run(lambda *_: 0.0, shares, Steps(10, 4)))
    assert sum(report["steps"] for report in first) == 10
    assert [report["ended"] for report in first if report["trainer"] == 0] != []
    assert not executor.is_at_end
    rest = list(executor.run(lambda *_: 0.0, shares, Steps(10, 4)))
    assert sum(report["steps"] for report in rest) == 4
    assert executor.is_at_end
