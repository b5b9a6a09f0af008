"""Lost trainers' links take turns in asking the parameter servers what the trainers left."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from pstrain.coordinator import settling
from pstrain.coordinator.lost_trainers import Settlement
from pstrain.coordinator.settling import AT_ONCE, SettlingTurns
from pstrain.errors import ServerLostError

NOTHING = Settlement({}, {}, {})
DEADLINE_S = 30.0


class Servers:
    """Parameter servers that answer once they are told to; notes who asks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.session = "s1"
        self.asked: list[str] = []
        self.error: Exception | None = None
        self.answers = threading.Semaphore(0)
        self.arrived = threading.Semaphore(0)
        monkeypatch.setattr(settling, "settle_servers", self._settle)

    def _settle(self, _servers: Any, trainer: str) -> Settlement:
        self.asked.append(trainer)
        self.arrived.release()
        if self.error is not None:
            raise self.error
        assert self.answers.acquire(timeout=DEADLINE_S)
        return Settlement({}, {}, {trainer: {}})


def test_only_some_ask_at_a_time_and_all_are_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    servers, turns, lost = Servers(monkeypatch), SettlingTurns(), 3 * AT_ONCE
    monkeypatch.setattr(settling, "_RECHECK_S", 2 * DEADLINE_S)
    settled: list[Settlement] = []

    def lose(number: int) -> None:
        settled.append(turns.settle(servers, f"trainer {number}", lambda: True))  # type: ignore[arg-type]

    threads = [threading.Thread(target=lose, args=(number,), daemon=True) for number in range(lost)]
    for thread in threads:
        thread.start()
    for number in range(lost):
        assert servers.arrived.acquire(timeout=DEADLINE_S)
        assert len(servers.asked) <= number + AT_ONCE
        if number >= AT_ONCE - 1:
            assert len(servers.asked) == number + 1, "one begins when one has ended"
            servers.answers.release()
    for _ in range(AT_ONCE):
        servers.answers.release()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert len(settled) == lost
    assert sorted(servers.asked) == sorted(f"trainer {number}" for number in range(lost))


def test_server_that_failed_is_not_asked_again_in_its_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    servers, turns = Servers(monkeypatch), SettlingTurns()
    servers.error = ServerLostError("gone")
    for trainer in ("a", "b"):
        with pytest.raises(ServerLostError, match="gone"):
            turns.settle(servers, trainer, lambda: True)  # type: ignore[arg-type]
    assert servers.asked == ["a"]
    servers.session, servers.error = "s2", None
    servers.answers.release()
    assert turns.settle(servers, "c", lambda: True).marks == {"c": {}}  # type: ignore[arg-type]


def test_nothing_is_asked_if_it_is_not_needed_by_then(monkeypatch: pytest.MonkeyPatch) -> None:
    servers, turns = Servers(monkeypatch), SettlingTurns()
    for _ in range(AT_ONCE + 1):
        assert turns.settle(servers, "a", lambda: False) == NOTHING  # type: ignore[arg-type]
    assert not servers.asked


def test_link_that_waits_for_its_turn_ends_once_it_needs_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    servers, turns = Servers(monkeypatch), SettlingTurns()
    monkeypatch.setattr(settling, "_RECHECK_S", 0.01)
    is_stopping, settled = threading.Event(), []

    def lose(number: int) -> None:
        settled.append(
            turns.settle(servers, f"trainer {number}", lambda: not is_stopping.is_set())  # type: ignore[arg-type]
        )

    threads = [threading.Thread(target=lose, args=(n,), daemon=True) for n in range(AT_ONCE + 1)]
    for thread in threads[:AT_ONCE]:
        thread.start()
        assert servers.arrived.acquire(timeout=DEADLINE_S)
    threads[AT_ONCE].start()
    is_stopping.set()
    threads[AT_ONCE].join(DEADLINE_S)
    assert settled == [NOTHING]
    answers = iter((False, True))  # it needed no turn, and needs one again as soon as it has none
    assert turns.settle(servers, "late", lambda: next(answers)) == NOTHING  # type: ignore[arg-type]
    assert len(servers.asked) == AT_ONCE
    for _ in range(AT_ONCE):
        servers.answers.release()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert turns.settle(servers, "last", lambda: False) == NOTHING  # type: ignore[arg-type]
