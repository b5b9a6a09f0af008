"""Places the variables of the V1 form, and decides which worker gives them their values.

Knows servers by number, but not how sessions are agreed on. Invariant: only the chief gives a
variable its first value, and no row is given to another key while other workers may be training.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from pstrain.config import ParameterConfig
from pstrain.errors import (
    AbortedError,
    AlreadyExistsError,
    FailedPreconditionError,
    ServerRestartedError,
    UnimplementedError,
)
from pstrain.features.eviction import Eviction
from pstrain.trainer.client import RemoteParameters
from pstrain.v1.membership import wait_for
from pstrain.variables.base import BaseVariable
from pstrain.variables.placement import RoundRobin, ServerPlacement
from pstrain.vocabulary import VariableSpec

logger = logging.getLogger(__name__)


class WorkerParameters(RemoteParameters):
    """The parameters as one worker uses them; only the chief gives variables their first values.

    Other workers' assignments to a variable are ignored until its id is in ``made``. Creating a
    variable waits for servers that are away, at most ``config.start_timeout_s``.
    """

    remedy: ClassVar[str] = (
        "; what runs inside of strategy.session(checkpoint_manager) then goes on from the newest "
        "checkpoint, without one start the workers again too"
    )

    def __init__(
        self,
        *arguments: Any,
        is_chief: bool,
        config: ParameterConfig,
        rejoin: Callable[[], None],
        may_move_keys: Callable[[], bool],
        **options: Any,
    ) -> None:
        super().__init__(*arguments, config=config, **options)
        self.made: set[int] = set()
        self._rejoin = rejoin
        self._may_move_keys = may_move_keys
        self._is_chief = is_chief
        self._start_timeout_s = config.start_timeout_s

    def create(self, spec: VariableSpec, value: Any = None) -> None:
        create = super().create

        def attempt() -> bool:
            try:
                create(spec, value)
            except AlreadyExistsError as error:
                error.add_note(
                    "all workers must make the same variables in the same order; if the servers "
                    "ran an earlier program, start the chief (worker 0) first"
                )
                raise
            except (ServerRestartedError, AbortedError) as error:
                if spec.id < 0 or (self._is_chief and isinstance(error, AbortedError)):
                    raise  # another chief has begun a session
                logger.warning("making variable %r again in a new session: %s", spec.name, error)
                self._rejoin()
                return False
            return True

        servers = sorted({shard.ps for shard in spec.shards})
        addresses = ", ".join(self.addresses[ps] for ps in servers)
        wait_for(
            f"parameter servers {servers} at {addresses}, to make variable {spec.name!r} (start "
            "the cluster's 'ps' tasks)",
            self._start_timeout_s,
            attempt,
        )

    def drop_ended(self, within_s: float | None = None) -> None:
        """Does nothing: other workers may refer to variables to which this one does not."""

    def assign(self, spec: VariableSpec, op: str, value: Any, start: int = 0) -> None:
        if self._is_chief or spec.id < 0 or spec.id in self.made:
            super().assign(spec, op, value, start)

    def evict(self, eviction: Eviction) -> int:
        raise UnimplementedError(
            f"keys of {eviction.mapping.name!r} cannot be evicted in the V1 form, which has no "
            "coordinator to stop the other workers meanwhile: use ParameterServerStrategy of "
            "pstrain, or raise the capacity"
        )

    @contextmanager
    def reassigning_rows(self, variables: Sequence[int]) -> Iterator[None]:
        """Guards a change of ``variables`` that may give their rows to other keys.

        FailedPreconditionError if they hold keys whose rows other training workers remember.
        """
        if self.key_maps.any_holds_keys(variables) and not self._may_move_keys():
            raise FailedPreconditionError(
                "this would give rows of an online mapping to other keys, which workers that "
                "are training would not learn: let the chief (worker 0) assign or restore it "
                "before training, in strategy.session(checkpoint_manager, init_fn=...), or "
                "after training"
            )
        with super().reassigning_rows(variables):
            yield


class WorkerPlacement(ServerPlacement[WorkerParameters]):
    """A placement of whole variables, one server after the other (round robin)."""

    def __init__(self, parameters: WorkerParameters, num_workers: int) -> None:
        super().__init__(parameters, num_workers, RoundRobin(len(parameters.addresses)))
        self._kept: list[BaseVariable] = []

    def created(self, variable: BaseVariable) -> None:
        # To be made again when servers are lost, also if only other workers refer to it by then.
        self._kept.append(variable)
        self.parameters.made.add(variable.spec.id)
