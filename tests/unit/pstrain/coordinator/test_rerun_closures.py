"""Closures that ended since a checkpoint run again after a restore, or all end if none succeeds."""

from __future__ import annotations

import pytest

from pstrain.coordinator import core, rollback
from pstrain.coordinator.lost_trainers import Settlement
from pstrain.coordinator.orders import Outbox
from pstrain.errors import DeadlineExceededError, UnavailableError
from tests.unit.pstrain.coordinator.scheduling_cases import Cluster


def run_some(cluster: Cluster, count: int) -> list[int]:
    for _ in range(count):
        cluster.submit()
    return [cluster.run() for _ in range(count)]


def test_only_closures_that_ended_after_the_save_run_again() -> None:
    cluster = Cluster()
    restores = cluster.scheduler.rollback
    run_some(cluster, 1)
    restores.keep_ended()
    run_some(cluster, 1)
    count = restores.finished_count()
    later = run_some(cluster, 2)
    restores.forget(count)
    restores.hold()
    cluster.submit()
    assert restores.requeue({}) == 2
    assert cluster.outbox.empty()
    restores.resume()
    assert cluster.run() == later[0]
    with pytest.raises(DeadlineExceededError, match="closures to run again after a restore"):
        restores.wait_rerun(0)
    assert cluster.run() == later[1]
    restores.wait_rerun(0)


def test_no_closure_runs_again_once_none_is_kept() -> None:
    cluster = Cluster()
    restores = cluster.scheduler.rollback
    restores.keep_ended()
    run_some(cluster, 1)
    restores.keep_none()
    run_some(cluster, 1)
    restores.forget(0)
    assert restores.requeue({}) == 0


def test_restore_is_refused_if_more_closures_ended_than_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (core, rollback):
        monkeypatch.setattr(module, "KEPT_MAX", 2)
    cluster = Cluster()
    restores = cluster.scheduler.rollback
    restores.keep_ended()
    run_some(cluster, 3)
    with pytest.raises(UnavailableError, match="more than 2 closures have ended since"):
        restores.requeue({})
    run_some(cluster, 1)
    assert restores.requeue({}) == 1


def test_given_up_work_ends_and_program_goes_on_once_it_knows() -> None:
    cluster = Cluster()
    restores = cluster.scheduler.rollback
    restores.check_goes_on()
    values = [cluster.submit() for _ in range(2)]
    cluster.outbox.get_nowait()
    assert restores.give_up(UnavailableError("gone")) == 2
    for ask in (*(value.fetch for value in values), restores.check_goes_on):
        with pytest.raises(UnavailableError, match="gone"):
            ask()
    restores.forget_given_up()
    restores.check_goes_on()
    value = cluster.submit()
    assert cluster.run() == value.fetch(0) == 2


def test_trainers_are_gone_once_they_have_disconnected_and_are_settled() -> None:
    cluster = Cluster()
    restores = cluster.scheduler.rollback
    restores.hold()
    for leave in (lambda: None, lambda: cluster.scheduler.trainers.silence(0)):
        leave()
        with pytest.raises(DeadlineExceededError, match="trainers to let go"):
            restores.wait_disconnected(0)
    cluster.scheduler.trainers.lost(0, Settlement({}, {}, {}))
    restores.wait_disconnected(0)


def test_loss_of_a_trainer_is_told_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster()
    cluster.scheduler.trainers.joined(1, 3, Outbox())
    for _ in range(4):
        cluster.submit()
    lost = 1
    assert len(cluster.core.state.trainers[lost].running) == 3
    cluster.scheduler.trainers.silence(lost)
    cluster.scheduler.trainers.lost(lost, Settlement({}, {}, {}))
    (line,) = caplog.messages
    assert line == (
        "trainer 1 is lost; closures of it that run again: 3, the first is step (closure 1)"
    )
