"""What runs behind a ClusterCoordinator: a scheduler, a link to each trainer, who applies rounds.

Knows how they are put together, and nothing of what users ask for. Invariant: they are stopped in
an order in which none waits for one that has ended, without the coordinator, which may be gone.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from pstrain.coordinator.applying import RoundApplier
from pstrain.coordinator.core import Core
from pstrain.coordinator.functions import PickledFunctions
from pstrain.coordinator.link import TrainerLink
from pstrain.coordinator.links import make_links
from pstrain.coordinator.options import CoordinatorOptions
from pstrain.coordinator.recovering import RecoverySwitch
from pstrain.coordinator.scheduler import Scheduler
from pstrain.strategy import ParameterServerStrategy

ATTEMPTS_MAX: Final = 10
_STOP_TIMEOUT_S: Final = 2.0


class Parts(NamedTuple):
    """Of one coordinator. ``recovery``: where the links ask about lost parameter servers."""

    scheduler: Scheduler
    links: list[TrainerLink]
    recovery: RecoverySwitch
    applier: RoundApplier

    def leave(self) -> None:
        """Has all trainers let go of their session."""
        for link in self.links:
            link.leave()

    def stop(self) -> None:
        self.scheduler.stop()
        self.scheduler.join(_STOP_TIMEOUT_S)
        self.applier.stop()
        self.recovery.stop()
        for link in self.links:
            link.stop()


def make_parts(
    strategy: ParameterServerStrategy, options: CoordinatorOptions, functions: PickledFunctions
) -> Parts:
    """All of them; none is started."""
    core = Core(
        attempts_max=ATTEMPTS_MAX,
        consistency=strategy.consistency,
        trainers_expected=strategy.num_input_pipelines,
        trainer_indices=strategy.cluster_resolver.cluster_spec().task_indices("worker"),
        closures_in_flight=options.closures_in_flight,
    )
    scheduler = Scheduler(
        core,
        ids=strategy.closure_ids,
        capacity=options.queue_capacity,
        trainer_timeout_s=options.trainer_timeout_s,
    )
    recovery = RecoverySwitch()
    links = make_links(
        strategy,
        scheduler,
        functions,
        recovery,
        closures_in_flight=options.closures_in_flight,
    )
    return Parts(scheduler, links, recovery, RoundApplier(scheduler, strategy.parameters, recovery))
