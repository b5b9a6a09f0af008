"""Training whose saves end while a restore begins, and that loses servers during the restore.

If the program itself waits for a save, no other thread can wait for it, and the restorer learns of
the checkpoint when it becomes visible, or later. This module models only that; all else is as in
`training_scenario`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from pstrain.errors import ServerLostError
from tests.simulation.base_scenario import REPLAY, Outcome
from tests.simulation.fibers import Fiber, wait
from tests.simulation.training_restores import Checkpoints
from tests.simulation.training_scenario import RESTORING, Scenario

_LOOK_EVERY_S = 0.02
_LOSSES_MAX = 2


class LateCheckpoints(Checkpoints):
    """Checkpoints that take a while to commit, and to restore server by server."""

    _under_way: Fiber | None = None

    @contextmanager
    def alone(self) -> Iterator[None]:
        with self._lock:
            if self._under_way is not None:
                self._under_way.join(None)
            yield

    def _begin_writing(self, *saved: Any) -> None:
        self._under_way = self._node.spawn(self._write, *saved)
        if self._node.world.dice.random() < 0.5:
            self._writer = self._under_way
        else:
            self._under_way.join(None)

    def _commit(self, saved: Any, marks: list[tuple[Any, Any]]) -> None:
        wait(self._node.world.dice.choice((0.0, 0.1, 2.0)))
        self._saved.append(saved)
        path = f"ckpt-{len(self._saved)}"
        wait(self._node.world.dice.choice((0.0, 0.1)))
        for follower, mark in marks:
            follower.committed(mark, path)

    def restore(self, path: str, *, with_attached: bool, keeps_rates: bool) -> None:
        for server in self._node.world.servers:
            wait(self._node.world.dice.choice((0.0, 0.1, 0.5)))
            if server.session != self._node.parameters.session or not server.alive:
                raise ServerLostError(f"{server.name} was lost once more")
        super().restore(path, with_attached=with_attached, keeps_rates=keeps_rates)


class HardRestore(Scenario):
    """Loses servers in restores; lost nodes come back soon, so all losses precede the healing."""

    pauses_s: ClassVar[tuple[float, ...]] = (0.05, 0.5)
    checkpoints = LateCheckpoints

    def __init__(self, seed: int, *, verbose: bool = False) -> None:
        self._losses = 0
        rules = ("", "sync", "ssp")[seed % 3]
        super().__init__(seed, verbose=verbose, after_a_loss=RESTORING, rules=rules)
        self.command = f"{REPLAY} --hard-restores"

    def _plan_faults(self) -> None:
        super()._plan_faults()
        self.world.at(self.dice.random() * 3.0, None, self.kill_server)
        self.world.at(_LOOK_EVERY_S, None, self._look)

    def _look(self) -> None:
        if self._losses == _LOSSES_MAX or self.coordinator.is_done or not self.until_heal_s():
            return
        self.world.at(_LOOK_EVERY_S, None, self._look)
        if self.coordinator.recovery.is_restoring and self.dice.random() < 0.1:
            self._losses += 1
            self.kill_server()


def play_hard_restores(seed: int, *, verbose: bool = False) -> Outcome:
    """Runs one seed; to be called inside `training_scenario.staged`."""
    return HardRestore(seed, verbose=verbose).play()
