"""Training in rounds that loses a second parameter server while rounds are made again.

The first server is lost while a round is being made, at a time when an earlier round would have to
be made again with it; the second when the earlier round has been made again and the interrupted one
has not. This module only chooses the time of the losses; all else is as in `training_scenario`.
"""

from __future__ import annotations

from typing import ClassVar

from tests.simulation.base_scenario import FAULTS_UNTIL_S, REPLAY, Outcome
from tests.simulation.training_scenario import Scenario

_LOOK_EVERY_S = 0.002


class SecondLoss(Scenario):
    """Loses two servers; lost nodes come back soon, so that both losses come before the healing."""

    pauses_s: ClassVar[tuple[float, ...]] = (0.05, 0.5)

    def __init__(self, seed: int, *, verbose: bool = False) -> None:
        self._rounds_at_loss = 0
        super().__init__(
            seed, verbose=verbose, after_a_loss=("run again",), rules="sync", is_steady=True
        )
        self.command = f"{REPLAY} --second-losses"

    def _plan_faults(self) -> None:
        self.world.at(_LOOK_EVERY_S, None, self._look)
        self.world.at(FAULTS_UNTIL_S, None, self.heal)

    def _look(self) -> None:
        if len(self.faults) == 2 or self.coordinator.is_done or not self.until_heal_s():
            return
        self.world.at(_LOOK_EVERY_S, None, self._look)
        if not self.coordinator.is_losing_server and self._is_time():
            self._rounds_at_loss = self.coordinator.core.state.rounds_count
            self.kill_server()

    def _is_time(self) -> bool:
        core = self.coordinator.core
        this = core.state.round
        if not self.faults:
            return bool(this.decided and core.kept)
        return bool(this.old_rounds) and core.state.rounds_count > self._rounds_at_loss


def play_second_losses(seed: int, *, verbose: bool = False) -> Outcome:
    """Runs one seed; to be called inside `training_scenario.staged`."""
    return SecondLoss(seed, verbose=verbose).play()
