"""The gate of a server: many changes at a time, or one checkpoint."""

from __future__ import annotations

import threading

import pytest

from pstrain.errors import DeadlineExceededError
from pstrain.paramserver.gate import Gate

NO_TIME = "pstrain.paramserver.gate._TIMEOUT_S", 0.0


def test_checkpoint_excludes_changes_and_other_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*NO_TIME)
    gate = Gate()
    with gate.exclusive():
        with pytest.raises(DeadlineExceededError, match="is its disk stuck"), gate:
            pass
        with pytest.raises(DeadlineExceededError), gate.exclusive():
            pass
        with pytest.raises(DeadlineExceededError), gate:
            pass
    with gate:
        pass


def test_changes_go_side_by_side_and_exclude_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*NO_TIME)
    gate = Gate()
    with gate:
        with gate:
            pass
        with pytest.raises(DeadlineExceededError), gate.exclusive():
            pass
        with gate:
            pass
    with gate.exclusive():
        pass


def test_waiting_changes_and_checkpoints_are_all_admitted_in_the_end() -> None:
    gate, pause = Gate(), threading.Event()
    inside: list[str] = []
    met: list[str] = []

    def change() -> None:
        for _ in range(40):
            with gate:
                inside.append("change")
                pause.wait(0.0002)
                inside.remove("change")

    def checkpoint() -> None:
        for _ in range(20):
            with gate.exclusive():
                met.extend(inside)
                inside.append("checkpoint")
                pause.wait(0.0002)
                inside.remove("checkpoint")
                met.extend(inside)

    threads = [threading.Thread(target=each, daemon=True) for each in [change, checkpoint] * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10.0)
    assert not any(thread.is_alive() for thread in threads)
    assert not met
