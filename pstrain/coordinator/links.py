"""The links of a coordinator: one to each trainer of its cluster, told what it needs to know.

Connects to nobody. Invariant: all links of a coordinator configure their trainers alike.
"""

from __future__ import annotations

from dataclasses import asdict

from dataservice.runtime.auth import resolve_token
from pstrain.consistency import Ssp, Sync
from pstrain.coordinator.functions import PickledFunctions
from pstrain.coordinator.link import Recovery, TrainerLink
from pstrain.coordinator.scheduler import Scheduler
from pstrain.strategy import ParameterServerStrategy
from pstrain.wire import trainer_pb2 as pb

# So many closures of a trainer wait for one that runs to end, that results travel together, where
# the rule looks at each: where none does, those that are short wait there (see assigning).
_SLOTS_PER_RUNNER = 3


def make_links(
    strategy: ParameterServerStrategy,
    scheduler: Scheduler,
    functions: PickledFunctions,
    recovery: Recovery,
    *,
    closures_in_flight: int,
) -> list[TrainerLink]:
    """One for each trainer in the cluster spec, not started; in rounds with one closure each."""
    spec = strategy.cluster_resolver.cluster_spec()
    trainers = [(i, spec.task_address("worker", i)) for i in spec.task_indices("worker")]
    servers = [spec.task_address("ps", i) for i in spec.task_indices("ps")]
    token = resolve_token(getattr(strategy.cluster_resolver, "token", None))
    rule = strategy.consistency
    in_rounds = isinstance(rule, Sync)
    if in_rounds:
        closures_in_flight = 1
    return [
        TrainerLink(
            index,
            address,
            configuration=pb.ConfigureRequest(
                session=strategy.session,
                trainer_index=index,
                trainer_count=len(trainers),
                input_pipeline_id=pipeline,
                ps_addresses=servers,
                closures_in_flight=closures_in_flight,
                in_rounds=in_rounds,
                num_replicas_in_sync=strategy.num_replicas_in_sync,
                keeps_elements=isinstance(rule, Sync) and rule.backup_workers > 0,
                transport_dtype=strategy.transport_dtype,
                parameters=pb.ParameterConfig(**asdict(strategy.parameters.config)),
            ),
            scheduler=scheduler,
            functions=functions,
            servers=strategy.parameters,
            incarnations=strategy.incarnations,
            slots=closures_in_flight * (_SLOTS_PER_RUNNER if isinstance(rule, Ssp) else 1),
            token=token,
            tls=strategy.tls,
            recovery=recovery,
        )
        for pipeline, (index, address) in enumerate(trainers)
    ]
