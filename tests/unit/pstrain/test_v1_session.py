"""When a worker of the V1 form saves, what it does after a loss, and how its training ends."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pstrain.errors import (
    AbortedError,
    FailedPreconditionError,
    NotFoundError,
    ServerRestartedError,
    UnavailableError,
)
from pstrain.v1.membership import Membership
from pstrain.v1.training import SessionStrategy, TrainingSession


class Told:
    """Stands for a strategy, its membership and its checkpoint manager; notes what they are told.

    ``saved`` is the newest checkpoint; ``is_intact``: whether all servers are in the session.
    """

    start_timeout_s = 5.0

    def __init__(self, *, worker: int = 0, has_cluster: bool = True, saved: str | None = None):
        self.calls: list[str] = []
        self.worker_index, self.is_chief = worker, worker == 0
        self.membership = cast("Membership", self) if has_cluster else None
        self.latest_checkpoint = saved
        self.others_train = has_cluster
        self.missing_workers: list[int] = []
        self.is_replaced = False
        self.servers_are_lost = False
        self.restarts = 0
        self.is_in_session = False

    # The strategy

    def run(self, fn: Any, args: Any, kwargs: Any) -> Any:
        return fn(*args, **(kwargs or {}))

    def bind(self, session: TrainingSession | None) -> None:
        self.is_in_session = session is not None

    def rejoin(self) -> None:
        self.calls.append("rejoin")
        self.servers_are_lost = False

    def confirm_values(self, *, are_restored: bool) -> None:
        self.calls.append(f"confirm {are_restored}")
        if self.restarts:
            self.restarts -= 1
            raise ServerRestartedError("a server was started again")

    # The membership

    def is_intact(self) -> bool:
        return not self.servers_are_lost

    def was_replaced(self) -> bool:
        return self.is_replaced

    def publish_ready(self) -> None:
        self.calls.append("ready")

    def publish_end(self) -> None:
        self.calls.append("end")

    def await_next(self, worker: int) -> None:
        self.calls.append(f"await next of {worker}")

    def await_ready(self) -> None:
        self.calls.append("await ready")

    def report_done(self, worker: int) -> None:
        self.calls.append(f"done {worker}")

    def missing(self) -> list[int]:
        return self.missing_workers

    def has_ended(self) -> bool:
        return True

    # The manager

    def save(self, *, check_interval: bool) -> str:
        assert not check_interval
        self.calls.append("save" if self.others_train else "last save")
        self.latest_checkpoint = "ckpt"
        return "ckpt"

    def wait(self) -> None:
        self.calls.append("wait")

    def restore_or_initialize(self, *, keeps_rates: bool) -> str:
        self.calls.append("restore" if keeps_rates else "restore with rates")
        return "ckpt"

    # The tests

    def session(self, *, is_saving: bool = True, **options: Any) -> TrainingSession:
        manager = self if is_saving else None
        options = {"save_every_s": None, **options}
        return TrainingSession(cast("SessionStrategy", self), manager, **options)

    def take_calls(self) -> list[str]:
        calls, self.calls = self.calls, []
        return calls


def lose_once(told: Told, error: Exception) -> Any:
    """A step that fails once, with the servers lost, and then returns "again"."""
    errors = [error]

    def step() -> str:
        if errors:
            told.servers_are_lost = True
            raise errors.pop()
        return "again"

    return step


def test_chief_saves_after_steps_and_after_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr("pstrain.v1.training.time", clock)
    told = Told()
    session = told.session(save_every_s=10.0, save_every_steps=5)
    saved = []
    for now[0], steps in ((109.0, 4), (109.0, 1), (118.0, 4), (119.0, 0), (128.0, 4), (130.0, 1)):
        session.advance(steps)
        saved.append(len(told.take_calls()))
    assert saved == [0, 1, 0, 1, 0, 1]
    assert session.steps == 14
    never = told.session()
    now[0] = 1e9
    never.advance(10**9)
    assert told.take_calls() == []


def test_only_the_chief_saves() -> None:
    told = Told(worker=1)
    session = told.session(save_every_steps=1)
    session.advance(3)
    assert told.take_calls() == []
    with pytest.raises(FailedPreconditionError, match="by the chief, worker 0, alone"):
        session.save()
    assert Told().session(is_saving=False).save() is None
    assert Told().session().save() == "ckpt"


@pytest.mark.parametrize("has_cluster", [True, False])
@pytest.mark.parametrize("saved", ["ckpt", None])
def test_chief_restores_or_initialises_before_others_begin(
    saved: str | None, has_cluster: bool
) -> None:
    told = Told(saved=saved, has_cluster=has_cluster)
    with told.session(init_fn=lambda: told.calls.append("init")) as session:
        assert told.is_in_session
        ready = ["ready"] if has_cluster else []
        if saved:
            restore = "restore" if has_cluster else "restore with rates"
            assert told.take_calls() == [restore, "confirm True", *ready]
        else:
            assert told.take_calls() == ["confirm False", "init", *ready]
        assert session.restored_from == saved
    done, end = (["done 0"], ["end"]) if has_cluster else ([], [])
    assert told.take_calls() == [*done, "last save", "wait", *end]
    assert not told.is_in_session


def test_chief_gives_values_again_to_servers_that_restart_meanwhile() -> None:
    told = Told()
    told.restarts = 1
    with told.session():
        assert told.take_calls() == ["confirm False", "rejoin", "confirm False", "ready"]


def test_worker_waits_for_the_chief_at_both_ends() -> None:
    told = Told(worker=2)
    with told.session():
        assert told.take_calls() == ["await next of 2"]
    assert told.take_calls() == ["done 2"]


def test_failed_training_waits_for_nobody() -> None:
    told = Told()
    with pytest.raises(ZeroDivisionError), told.session():
        told.calls.append(str(1 / 0))
    assert told.take_calls() == ["confirm False", "ready"]
    assert not told.is_in_session


def test_chief_goes_on_without_workers_that_are_not_done(caplog: pytest.LogCaptureFixture) -> None:
    told = Told()
    told.missing_workers = [1]
    with caplog.at_level(logging.WARNING), told.session(worker_timeout_s=0):
        told.take_calls()
    assert told.take_calls() == ["done 0", "last save", "wait", "end"]
    assert "worker 0 stops waiting and ends" in caplog.text
    assert "the other workers to be done" in caplog.text


def test_chief_recovers_servers_that_are_lost_after_its_steps() -> None:
    told = Told(saved="ckpt")
    with told.session():
        told.take_calls()
        told.servers_are_lost = True
    recovery = ["wait", "rejoin", "restore", "confirm True", "ready"]
    assert told.take_calls() == [*recovery, "done 0", "last save", "wait", "end"]


@pytest.mark.parametrize("error", [UnavailableError, NotFoundError, AbortedError])
def test_step_runs_again_after_a_recovery(error: type[Exception]) -> None:
    chief = Told(saved="ckpt")
    session = chief.session(init_fn=lambda: chief.calls.append("init"))
    assert session.guarded(lose_once(chief, error("lost"))) == "again"
    assert chief.take_calls() == ["wait", "rejoin", "restore", "confirm True", "ready"]
    worker = Told(worker=1)
    assert worker.session().guarded(lose_once(worker, error("lost"))) == "again"
    assert worker.take_calls() == ["rejoin", "await ready"]


@pytest.mark.parametrize("is_saving", [True, False])
def test_servers_that_are_lost_before_the_first_checkpoint_end_training(is_saving: bool) -> None:
    told = Told()
    with pytest.raises(UnavailableError, match="no checkpoint to resume from"):
        told.session(is_saving=is_saving).guarded(lose_once(told, NotFoundError("lost")))
    assert told.take_calls() == []


def test_chief_that_was_replaced_recovers_nothing() -> None:
    told = Told(saved="ckpt")
    told.is_replaced = True
    with pytest.raises(AbortedError, match="in another session"):
        told.session().guarded(lose_once(told, AbortedError("in another session")))
    assert told.take_calls() == []


def test_call_is_repeated_only_while_a_server_does_not_answer() -> None:
    calls = []

    def fail(error: Exception) -> None:
        calls.append(error)
        raise error

    session = Told().session()
    with pytest.raises(UnavailableError, match="silent"):
        session.guarded(lambda: fail(UnavailableError("silent")))
    assert len(calls) == 10
    calls.clear()
    for alone, error in ((session, NotFoundError), (Told(has_cluster=False).session(), OSError)):
        with pytest.raises(error):
            alone.guarded(lambda error=error: fail(error("wrong")))
    with pytest.raises(UnavailableError):
        Told(has_cluster=False).session().guarded(lambda: fail(UnavailableError("silent")))
    assert len(calls) == 3


def test_values_are_taken_back_before_the_next_step_or_the_last_save() -> None:
    told = Told()
    with told.session() as session:
        session.postpone_restore(lambda: told.calls.append("take back"))
        told.take_calls()
        session.run(lambda: told.calls.append("step"))
        session.run(lambda: told.calls.append("step"))
        assert told.take_calls() == ["take back", "step", "step"]
        session.postpone_restore(lambda: told.calls.append("take back"))
    assert told.take_calls() == ["done 0", "take back", "last save", "wait", "end"]
