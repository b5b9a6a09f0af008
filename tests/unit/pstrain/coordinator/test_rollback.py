"""When restores begin and end, and what a program gets that reads or waits during a restore."""

from __future__ import annotations

import threading
import weakref
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from pstrain.coordinator.lost_trainers import Settlement
from pstrain.coordinator.orders import Outbox, RunResult, StartRun
from pstrain.coordinator.restoring import Restorer
from pstrain.coordinator.scheduler import Scheduler
from pstrain.coordinator.server_recovery import ServerRecovery
from pstrain.errors import (
    AbortedError,
    DeadlineExceededError,
    RolledBackError,
    ServerLostError,
)
from pstrain.trainer.consistent_reads import consistent_read
from pstrain.variables.names import key_of
from tests.unit.pstrain.coordinator.scheduling_cases import scheduler


class RestoringUntilWaitedFor:
    """A restorer that is restoring until somebody waits for it."""

    is_restoring = True

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def wait_while_restoring(self) -> None:
        self.is_restoring = False

    def wait_restored(self, _error: Exception) -> bool:
        return False


class Cluster:
    """A strategy without servers, the program's iterators, and a scheduler, all in one."""

    def __init__(self) -> None:
        self.parameters = self.rollback = self
        self.times_gone_on = 0

    def forget_given_up(self) -> None:
        self.times_gone_on += 1


def _parts() -> Any:
    """Returns a checkpoint manager and a strategy without servers, in one."""
    servers = SimpleNamespace(addresses=(), open_identity_stream=None)
    return SimpleNamespace(checkpoint=SimpleNamespace(followers=[]), parameters=servers)


def test_wait_rolled_back_waits_for_the_whole_restore() -> None:
    cluster: Any = Cluster()
    recovery = ServerRecovery(cluster, cluster, cluster, lambda: None)
    restorer = RestoringUntilWaitedFor()
    recovery._use(restorer)  # type: ignore[arg-type]
    assert recovery.wait_rolled_back(RolledBackError("back"))
    assert not restorer.is_restoring
    assert cluster.times_gone_on == 1
    assert not recovery.wait_rolled_back(AbortedError("another coordinator"))
    assert cluster.times_gone_on == 1


def test_wait_restoring_returns_false_after_restorer_was_stopped() -> None:
    """A caller that waited for the restorer must not take lost values for restored ones."""
    parts = _parts()
    restorer = Restorer(parts, parts, parts, parts, leave=lambda: None)
    restorer.stop()
    assert not restorer.wait_restoring(60.0)


def test_no_restore_starts_after_restoring_has_ended() -> None:
    parts = _parts()
    restorer = Restorer(parts, parts, parts, parts, leave=lambda: None)
    assert not restorer.end_restoring(lambda: True), "all went back since it was looked at"
    assert restorer.end_restoring(lambda: False)
    # A restore would call methods that `parts` does not have.
    restorer._restore("a server was lost after the last look")
    assert not restorer.is_restoring


def test_restoring_without_checkpoint_ends_at_once() -> None:
    cluster: Any = Cluster()
    recovery = ServerRecovery(cluster, cluster, cluster, lambda: None)
    assert recovery.end_restoring(lambda: False)
    assert not recovery.end_restoring(lambda: True)


def test_recovery_without_checkpoint_keeps_no_strategy_alive() -> None:
    """Otherwise a strategy and a coordinator that the program has dropped would never be closed."""
    strategy: Any = Cluster()
    strategy.parameters = strategy.rollback = None
    reference = weakref.ref(strategy)
    recovery = ServerRecovery(strategy, strategy.rollback, strategy.rollback, lambda: None)
    del strategy
    assert reference() is None
    assert not recovery.is_restoring


def test_variables_left_out_of_checkpoint_are_logged_once_and_abbreviated(
    caplog: pytest.LogCaptureFixture,
) -> None:
    held, *others = [
        SimpleNamespace(name=f"v{number}", parameters=None, spec=SimpleNamespace(id=number))
        for number in range(-1, 12)
    ]
    parts = _parts()
    parts.checkpoint.holds = lambda: {key_of(held)}  # type: ignore[arg-type]
    parts.forget = lambda _mark: None
    parts.variables = (held, *others)
    restorer = Restorer(parts, parts, parts, parts, leave=lambda: None)
    mark: Any = SimpleNamespace(closures=0, parts={}, iterators=0)
    for _ in range(2):
        restorer.committed(mark, "ckpt-1")
    assert caplog.text.count("'v9' and others are not in the checkpoint") == 1
    assert held.name not in caplog.text


def test_end_restoring_is_refused_during_restore() -> None:
    begun, may_end = threading.Event(), threading.Event()

    def leave() -> None:
        begun.set()
        may_end.wait(30)
        raise RuntimeError("the end of this test")

    work: Any = SimpleNamespace(hold=lambda: None, resume=lambda: None)
    parts = _parts()
    restorer = Restorer(parts, parts, work, parts, leave)

    def restore() -> None:
        with pytest.raises(RuntimeError, match="the end of this test"):
            restorer._restore("a server was lost")

    thread = threading.Thread(target=restore)
    thread.start()
    assert begun.wait(30)
    assert not restorer.end_restoring(lambda: False)
    with pytest.raises(DeadlineExceededError, match="values can be read when that is over"):
        restorer.wait_caught_up(0.01)
    may_end.set()
    thread.join(30)


def test_wait_caught_up_waits_until_requeued_closures_have_run_again() -> None:
    work, items = scheduler()
    work.rollback.keep_ended()
    restorer = _restorer_of(work)
    work.submit("f", b"", None)
    _end(work, items)
    restorer.wait_caught_up(0)
    work.rollback.hold()
    assert work.trainers.silence(0)
    work.trainers.lost(0, Settlement({}, {}, {}))
    assert work.rollback.requeue({}) == 1
    work.rollback.resume()
    with pytest.raises(DeadlineExceededError, match="closures to run again after a restore"):
        restorer.wait_caught_up(0)
    outbox = Outbox()
    work.trainers.joined(0, 1, outbox)
    _end(work, outbox)
    restorer.wait_caught_up(0)
    work.stop()


def _restorer_of(work: Scheduler) -> Restorer:
    parts = _parts()
    return Restorer(parts, parts, work.rollback, parts, leave=lambda: None)


def _end(work: Scheduler, items: Any) -> None:
    run = items.get_nowait()
    assert isinstance(run, StartRun)
    work.trainers.results(0, [RunResult(run.closure.id, run.attempt, "done", None)])


class ValuesRolledBackOnRead:
    """Parameters that go back to a checkpoint once, while they are read."""

    def __init__(self, error: Exception | None, *, is_restored: bool = True) -> None:
        self.session, self.waits = "s1", 0
        self._error, self._is_restored = error, is_restored

    def wait_restored(self, error: Exception | None) -> bool:
        self.waits += 1
        if error is None or not self._is_restored:
            return False
        self.session = "s2"
        return True

    @consistent_read
    def read(self, row: int) -> str:
        if self.session == "s2":
            return f"row {row} of the checkpoint"
        if self._error is not None:
            raise self._error
        self.session = "s2"
        return "half of this and half of that"


@pytest.mark.parametrize("error", [None, ServerLostError("gone")])
def test_read_overtaken_by_restore_is_repeated(error: Exception | None) -> None:
    assert ValuesRolledBackOnRead(error).read(3) == "row 3 of the checkpoint"


def test_read_fails_when_nothing_is_restored() -> None:
    values = ValuesRolledBackOnRead(ServerLostError("gone"), is_restored=False)
    with pytest.raises(ServerLostError):
        values.read(3)
    assert values.waits == 3


class ParametersReadDuringRestore:
    """Parameters whose first read fails during a restore that has already been noticed.

    The restore ends as soon as a caller waits for it.
    """

    def __init__(self) -> None:
        self.session, self.followers, self.variables = "s1", list[Any](), ()
        self.checkpoint, self.parameters = self, self
        self.addresses, self.open_identity_stream = (), None
        self.config: Any = SimpleNamespace(transfer_timeout_s=30.0)
        self._begun, self._may_end = threading.Event(), threading.Event()
        work: Any = SimpleNamespace(
            **dict.fromkeys(("hold", "resume", "undo_round"), lambda: None),
            **dict.fromkeys(("wait_disconnected", "wait_rerun"), lambda _timeout_s: None),
            requeue=lambda _parts: 0,
        )
        iterators: Any = SimpleNamespace(rewind_since=lambda _made: None)
        self.restorer = Restorer(self, self, work, iterators, self._leave, newest="ckpt-1")
        self.thread = threading.Thread(target=self.restorer._restore, args=("a server is gone",))
        scheduler: Any = SimpleNamespace(barrier=SimpleNamespace(is_held_here=lambda: False))
        itself: Any = self
        self._recovery = ServerRecovery(itself, scheduler, iterators, self._leave)
        self._recovery._restorer = self.restorer

    def _leave(self) -> None:
        self._begun.set()
        assert self._may_end.wait(30)

    def wait(self, timeout: float | None = None) -> None: ...

    def alone(self) -> Any:
        return nullcontext()

    def holds(self) -> frozenset[Any]:
        return frozenset()

    def restore(self, path: str, *, with_attached: bool, keeps_rates: bool) -> None: ...

    def begin_anew(self) -> None:
        self.session = "s2"

    def wait_restored(self, error: Exception | None) -> bool:
        if self._begun.is_set():
            self._may_end.set()
        return self._recovery.wait_restored(error)

    @consistent_read
    def read(self) -> str:
        if self.session == "s1":
            self.thread.start()
            assert self._begun.wait(30)
            raise ServerLostError("gone")
        return self.session


def test_read_that_fails_during_restore_does_not_start_another_restore() -> None:
    values = ParametersReadDuringRestore()
    assert values.read() == "s2"
    values.thread.join(30)
    assert values.restorer.restores == 1
    assert not values.restorer._noticed.is_set()


@pytest.mark.parametrize(
    ("ask", "answer"),
    [
        (lambda recovery: recovery.notice(ServerLostError("lost")), True),
        (lambda recovery: recovery.is_restoring, True),
        (lambda recovery: recovery.wait_restoring(1.0), True),
        (lambda recovery: recovery.wait_while_restoring(), None),
        (lambda recovery: recovery.restores, 2),
    ],
)
def test_links_may_ask_while_the_program_ends_the_restorer(ask: Any, answer: Any) -> None:
    restorer = SimpleNamespace(
        notice=lambda _error: True,
        is_restoring=True,
        wait_restoring=lambda _timeout_s: True,
        wait_while_restoring=lambda: None,
        restores=2,
    )

    class EndingRecovery(ServerRecovery):
        """The program's thread always comes in between two looks at the restorer."""

        looks: Any = iter(())

        @property
        def _restorer(self) -> Any:  # type: ignore[override]
            return next(self.looks, None)

        @_restorer.setter
        def _restorer(self, _restorer: Any) -> None: ...

    cluster: Any = Cluster()
    recovery = EndingRecovery(cluster, cluster, cluster, lambda: None)
    recovery.looks = iter([restorer])
    assert ask(recovery) == answer
