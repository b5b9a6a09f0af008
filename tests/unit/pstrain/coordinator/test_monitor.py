"""What the monitor of a training cluster asks, and for how long."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pstrain.coordinator import monitor as monitor_module
from pstrain.errors import DeadlineExceededError


class Frozen:
    """Parameter servers of which none answers; each takes all of the time that it is given."""

    addresses = ("h:1", "h:2", "h:3")

    def __init__(self) -> None:
        self.now_s = 100.0
        self.given_s: list[float] = []

    def monotonic(self) -> float:
        return self.now_s

    def status(self, ps: int, *, timeout_s: float) -> dict[str, Any]:
        self.given_s.append(timeout_s)
        self.now_s += timeout_s
        raise DeadlineExceededError(f"parameter server {ps} did not answer")


def test_servers_without_answer_share_the_time_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen = Frozen()
    monkeypatch.setattr(monitor_module, "time", frozen)
    monkeypatch.setattr(monitor_module, "_MAX_CALLS", 1)
    strategy: Any = SimpleNamespace(
        coordinator=None, parameters=frozen, session="s", consistency="async"
    )
    status = monitor_module._Cluster(strategy).status()
    assert frozen.given_s == [3.0, 0.1, 0.1]
    assert [each["ps"] for each in status["servers"]] == [0, 1, 2]
    assert status["servers"][2] == {
        "ps": 2,
        "address": "h:3",
        "holds": None,
        "error": "parameter server 2 did not answer",
    }
