"""Checkpoints of a simulated training cluster, which are restored when a server is lost.

Real: the recovery and its restorers, the scheduler's barrier, which closures it runs again or gives
up, the servers' sessions, the resumption of a fit.
Modelled: the content of a checkpoint (what was applied according to the checker's books, the rows
that this used up, and the servers' values), its write, which takes a while, and the strategy's new
sessions.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from pstrain.coordinator.per_worker import IteratorsInUse
from pstrain.coordinator.server_recovery import ServerRecovery
from pstrain.errors import (
    DataServiceError,
    DeadlineExceededError,
    ServerRestartedError,
    UnavailableError,
)
from tests.simulation.fibers import Fiber, Lock, wait
from tests.simulation.shadow import Violation
from tests.simulation.training_nodes import FIRST_SESSION
from tests.simulation.training_values import put_back, values_of

_HOLD_TIMEOUT_S = 60.0
_REWIND_S = 0.02


class Checkpoints:
    """Stands for a checkpoint manager and its checkpoint in one; only the latest is restored."""

    def __init__(self, node: Any, *, gives_up: bool) -> None:
        self.checkpoint = self
        self.followers: list[Any] = []
        self.attached: list[Progress] = []
        self._node, self._gives_up = node, gives_up
        self._lock = Lock()
        self._writer: Fiber | None = None
        self._saved: list[tuple[dict[str, Any], set[int], list[list[float]]]] = []

    @property
    def latest_checkpoint(self) -> str | None:
        return f"ckpt-{len(self._saved)}" if self._saved else None

    def follow(self, follower: Any) -> None:
        self.followers.append(follower)

    def unfollow(self, follower: Any) -> None:
        self.followers.remove(follower)

    def holds(self) -> frozenset[str]:
        return frozenset()

    def alone(self) -> AbstractContextManager[Any]:
        return self._lock

    def wait(self, timeout: float | None = None) -> None:
        """Waits for the checkpoint that is being written, whether it succeeds or not."""
        if self._writer is not None:
            self._writer.join(timeout)

    def save(self) -> None:
        """Captures a checkpoint and begins to write it; raises an error if a server is lost."""
        self.wait()
        node, world = self._node, self._node.world
        with self._lock, node.scheduler.barrier.held(_HOLD_TIMEOUT_S):
            node.parameters.check_current()
            world.checker.saved()
            marks = [(follower, follower.mark_moment()) for follower in self.followers]
            books, session = world.checker.books(), node.parameters.session
            values = [values_of(server.store) for server in world.servers]
            saved = copy.deepcopy(books), world.checker.rows_used(), values
        self._begin_writing(saved, session, marks)

    def _begin_writing(self, *saved: Any) -> None:
        self._writer = self._node.spawn(self._write, *saved)

    def _write(self, saved: Any, session: str, marks: list[tuple[Any, Any]]) -> None:
        wait(self._node.world.dice.random() * 0.3)
        if session != self._node.parameters.session:
            return
        try:
            self._node.parameters.check_current()
        except DataServiceError:
            return
        self._commit(saved, marks)

    def _commit(self, saved: Any, marks: list[tuple[Any, Any]]) -> None:
        self._saved.append(saved)
        for follower, mark in marks:
            follower.committed(mark, f"ckpt-{len(self._saved)}")

    def restore(self, path: str, *, with_attached: bool, keeps_rates: bool) -> None:
        assert with_attached
        assert keeps_rates != self._gives_up
        books, used, values = self._saved[int(path.removeprefix("ckpt-")) - 1]
        for server, mine in zip(self._node.world.servers, values, strict=True):
            put_back(server.store, mine)
        self._node.world.checker.go_back(copy.deepcopy(books), is_told=self._gives_up)
        self._node.world.data.load(used)
        for follower in self.attached:
            follower.is_behind = True


class Strategy:
    """Stands for `pstrain.strategy.ParameterServerStrategy`, which owns the servers' sessions."""

    variables = ()

    def __init__(self, node: Any) -> None:
        self._node = node
        self._number = 0

    @property
    def parameters(self) -> Any:
        return self._node.parameters

    @property
    def session(self) -> str:
        return str(self.parameters.session)

    def begin_anew(self) -> None:
        self._number += 1
        old = self.session
        self.parameters.change_session(f"{FIRST_SESSION}-{self._number:04d}")
        for ps, server in enumerate(self._node.world.servers):
            while True:
                try:
                    # As in a status: a request that is late begins nothing on a restarted server.
                    self.parameters.begin_session(ps, old, server.incarnation)
                    break
                except (UnavailableError, DeadlineExceededError, ServerRestartedError):
                    wait(0.1)


class Iterators(IteratorsInUse):
    """Stands for the program's iterators: one, in every checkpoint; rewinding takes a while."""

    def made_count(self) -> int:
        return 1

    def rewind_since(self, made: int) -> None:
        assert made == 1
        wait(_REWIND_S)


class Progress:
    """Stands for `pstrain.execution.progress.Progress`, which notes that everything went back."""

    def __init__(self, node: Any) -> None:
        self._node = node
        self.is_behind = False

    def go_back(self) -> None:
        """Goes back; not allowed during a restore, which would move the data's position again."""
        if self._node.recovery.is_restoring:
            raise Violation("I11: the program goes back before everything else is back")
        self.is_behind = False


class PreemptedRecovery(ServerRecovery):
    """The recovery of a program that takes a while to hear that its values are intact."""

    def __init__(self, node: Any, leave: Callable[[], None]) -> None:
        self.node = node
        self._kept = strategy = Strategy(node)
        super().__init__(strategy, node.scheduler, Iterators(), leave)  # type: ignore[arg-type]

    def check_intact(self) -> None:
        super().check_intact()
        # A real thread may be preempted anywhere; at this place a loss meanwhile matters.
        wait(self.node.world.dice.choice((0.0, 0.01, 1.0)))
