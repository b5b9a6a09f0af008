"""A pass over data that trainers read shares of, as of a cache, says whose nobody has read."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from dataservice import Dataset
from pstrain.execution.cluster import ClusterExecutor


class Coordinator:
    """Runs each closure on the next of the trainers that live; all are at their end at once."""

    num_trainers = 2
    recovery = SimpleNamespace(is_restoring=False)

    def __init__(self, *live: int) -> None:
        self.live = set(live)
        self.losses = 0
        self._runs = 0

    def create_per_worker_dataset(self, data: Any) -> Any:
        return data

    def live_trainers(self) -> set[int]:
        return set(self.live)

    def stats(self) -> dict[str, int]:
        return {"losses": self.losses}

    def schedule(self, _function: Any, args: Any) -> Any:  # noqa: ARG002
        self._runs += 1
        trainer = sorted(self.live)[self._runs % len(self.live)]
        report = {"steps": 0, "ended": True, "trainer": trainer}
        return SimpleNamespace(fetch=lambda: report)

    def lose(self, trainer: int) -> None:
        self.live.discard(trainer)
        self.losses += 1


def run(coordinator: Coordinator, after_first: Callable[[int], None]) -> None:
    executor = ClusterExecutor(coordinator)  # type: ignore[arg-type]
    shares = executor.dataset(Dataset.range(8).batch(2).cache())
    for number, report in enumerate(executor.run(lambda *_: 0.0, shares, None, 8)):
        if not number:
            after_first(report["trainer"])


def test_the_share_of_a_trainer_that_never_came(caplog: pytest.LogCaptureFixture) -> None:
    run(Coordinator(1), lambda _trainer: None)
    assert "only trainers [1] of 2 read their share" in caplog.text


def test_the_share_of_one_that_was_lost_after_its_end(caplog: pytest.LogCaptureFixture) -> None:
    coordinator = Coordinator(0, 1)
    run(coordinator, coordinator.lose)
    assert "a trainer was lost while it read the data: rows that it had taken" in caplog.text
    assert "read their share" not in caplog.text


def test_all_shares(caplog: pytest.LogCaptureFixture) -> None:
    run(Coordinator(0, 1), lambda _trainer: None)
    assert not caplog.records
