"""Assembles a coordinator: a scheduler, a link to each trainer, a thread that applies rounds.

Knows how the parts fit together, and nothing of what users ask for. Invariant: all links configure
their trainers alike. Parts are stopped in an order in which none waits for one that has ended, and
without the coordinator object, which may be gone.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Final, NamedTuple

from dataservice.runtime.auth import resolve_token
from dataservice.runtime.machine.open_files import allow_files
from pstrain.consistency import Ssp, Sync
from pstrain.coordinator.applying import RoundApplier
from pstrain.coordinator.core import Core
from pstrain.coordinator.functions import PickledFunctions
from pstrain.coordinator.link import TrainerLink
from pstrain.coordinator.options import CoordinatorOptions
from pstrain.coordinator.per_worker import IteratorsInUse
from pstrain.coordinator.scheduler import Scheduler
from pstrain.coordinator.server_recovery import ServerRecovery
from pstrain.coordinator.settling import SettlingTurns
from pstrain.strategy.parameter_server import ParameterServerStrategy
from pstrain.wire import trainer_pb2 as pb

ATTEMPTS_MAX: Final = 10
_STOP_TIMEOUT_S: Final = 2.0
# Under ssp, a trainer has so many slots for each closure that it runs, so that results travel
# together. Under async short closures are sent ahead instead (see assigning).
_SLOTS_PER_RUNNER: Final = 3


class Assembly(NamedTuple):
    """The parts of one coordinator."""

    scheduler: Scheduler
    links: list[TrainerLink]
    recovery: ServerRecovery
    applier: RoundApplier

    def stop(self) -> None:
        self.scheduler.stop()
        self.scheduler.join(_STOP_TIMEOUT_S)
        self.applier.stop()
        self.recovery.stop()
        for link in self.links:
            link.stop()


def assemble(
    strategy: ParameterServerStrategy,
    options: CoordinatorOptions,
    functions: PickledFunctions,
    iterators: IteratorsInUse,
) -> Assembly:
    """Makes all parts, and starts none."""
    trainers = strategy.cluster_resolver.cluster_spec().task_indices("worker")
    allow_files(len(trainers), f"a coordinator of {len(trainers):,} trainers")
    scheduler = Scheduler(
        Core(
            attempts_max=ATTEMPTS_MAX,
            consistency=strategy.consistency,
            trainer_indices=trainers,
            closures_in_flight=options.closures_in_flight,
        ),
        ids=strategy.closure_ids,
        capacity=options.queue_capacity,
        trainer_timeout_s=options.trainer_timeout_s,
    )
    links: list[TrainerLink] = []

    def leave() -> None:
        for link in links:
            link.leave()

    recovery = ServerRecovery(strategy, scheduler, iterators, leave)
    links += _make_links(strategy, scheduler, functions, recovery, options.closures_in_flight)
    return Assembly(
        scheduler, links, recovery, RoundApplier(scheduler, strategy.parameters, recovery)
    )


def _make_links(
    strategy: ParameterServerStrategy,
    scheduler: Scheduler,
    functions: PickledFunctions,
    recovery: ServerRecovery,
    closures_in_flight: int,
) -> list[TrainerLink]:
    """Makes a link for each trainer in the cluster spec; in rounds, each runs one closure."""
    rule, resolver = strategy.consistency, strategy.cluster_resolver
    if isinstance(rule, Sync):
        closures_in_flight = 1
    settling = SettlingTurns()
    spec, token = resolver.cluster_spec(), resolve_token(getattr(resolver, "token", None))
    return [
        TrainerLink(
            index,
            spec.task_address("worker", index),
            configuration=_configuration(strategy, index, pipeline, closures_in_flight),
            scheduler=scheduler,
            functions=functions,
            servers=strategy.parameters,
            incarnations=strategy.incarnations,
            slots=closures_in_flight * (_SLOTS_PER_RUNNER if isinstance(rule, Ssp) else 1),
            token=token,
            tls=strategy.tls,
            recovery=recovery,
            settling=settling,
        )
        for pipeline, index in enumerate(spec.task_indices("worker"))
    ]


def _configuration(
    strategy: ParameterServerStrategy, index: int, pipeline: int, closures_in_flight: int
) -> pb.ConfigureRequest:
    rule = strategy.consistency
    return pb.ConfigureRequest(
        session=strategy.session,
        trainer_index=index,
        trainer_count=strategy.num_input_pipelines,
        input_pipeline_id=pipeline,
        ps_addresses=strategy.parameters.addresses,
        closures_in_flight=closures_in_flight,
        in_rounds=isinstance(rule, Sync),
        num_replicas_in_sync=strategy.num_replicas_in_sync,
        keeps_elements=isinstance(rule, Sync) and rule.backup_workers > 0,
        transport_dtype=strategy.transport_dtype,
        parameters=pb.ParameterConfig(**asdict(strategy.parameters.config)),
    )
