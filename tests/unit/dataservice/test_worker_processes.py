"""The supervision of worker processes: pauses, and which exits are final. Starts no process."""

from __future__ import annotations

from typing import Any, cast

import pytest

from dataservice.__main__ import main
from dataservice.commands import processes
from dataservice.commands.processes import (
    EXIT_ERROR,
    FIRST_PAUSE_S,
    HEALTHY_S,
    MAX_PAUSE_S,
    Backoff,
    ProcessSlot,
    single_worker_arguments,
)
from dataservice.runtime.process.children import ChildProcess


def test_restart_pause_of_short_lived_process_grows_to_limit() -> None:
    backoff = Backoff()
    pauses = [backoff.pause_s(0.1) for _ in range(8)]
    assert pauses[:3] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert pauses[-1] == MAX_PAUSE_S
    assert backoff.pause_s(HEALTHY_S) == FIRST_PAUSE_S


class Child:
    pid = 7
    returncode: int | None = None
    was_killed = False

    def kill(self) -> int:
        self.was_killed = True
        return 0


@pytest.fixture
def time_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    clock = type("Clock", (), {"monotonic": staticmethod(lambda: now[0])})
    monkeypatch.setattr(processes, "time", clock)
    return now


def slot_of(children: list[Child]) -> ProcessSlot:
    def start() -> ChildProcess:
        children.append(Child())
        return cast(Any, children[-1])

    return ProcessSlot(start)


def test_died_process_is_replaced_after_pause(time_s: list[float]) -> None:
    children: list[Child] = []
    slot = slot_of(children)
    assert slot.restart_if_due()
    children[0].returncode = -9
    assert slot.restart_if_due()
    assert children[0].was_killed
    time_s[0] += FIRST_PAUSE_S / 2
    assert slot.restart_if_due()
    assert len(children) == 1
    time_s[0] += FIRST_PAUSE_S
    assert slot.restart_if_due()
    assert len(children) == 2
    assert slot.process is cast(Any, children[1])


@pytest.mark.parametrize("status", [0, 2])
def test_process_that_exited_on_purpose_is_not_replaced(time_s: list[float], status: int) -> None:
    children: list[Child] = []
    slot = slot_of(children)
    children[0].returncode = status
    time_s[0] += MAX_PAUSE_S
    assert not slot.restart_if_due()
    assert len(children) == 1


def test_single_worker_arguments_drop_process_options() -> None:
    line = ["worker", "--processes", "4", "--threads", "2", "--ready-json", "--port=0"]
    assert single_worker_arguments(line) == ["worker", "--threads", "2", "--port=0"]
    assert single_worker_arguments(["worker", "--processes=4"]) == ["worker"]
    line = ["worker", "--log-dir", "logs", "--processes=2", "--log-dir=logs", "--threads", "2"]
    assert single_worker_arguments(line) == ["worker", "--threads", "2"]


def test_log_dir_without_several_processes_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["worker", "--dispatcher", "localhost:1", "--log-dir", "logs"]) == EXIT_ERROR
    assert "--log-dir logs is for the logs of several workers" in capsys.readouterr().err
