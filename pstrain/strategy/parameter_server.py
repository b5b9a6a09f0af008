"""ParameterServerStrategy: places variables on the parameter servers, within a scope.

Connects to the parameter servers, begins the session and assigns variables to servers. Knows no
trainer: the coordinator drives those. Invariant: the placement of variables depends only on the
order in which they are created, so a program places its variables alike on every run.
"""

from __future__ import annotations

import functools
import itertools
import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from dataservice.runtime.retry import retry_until
from pstrain.cluster import ClusterResolver, check_training_cluster
from pstrain.config import ParameterConfig
from pstrain.consistency import Consistency, consistency_of
from pstrain.errors import (
    DeadlineExceededError,
    InvalidTypeError,
    ServerLostError,
    ServerRestartedError,
    UnavailableError,
)
from pstrain.paramserver.transport import FLOAT32
from pstrain.partition import PartitionFunction
from pstrain.security import client_tls
from pstrain.sessions.exit_notice import notify_at_exit
from pstrain.sessions.ids import new_session, renewed
from pstrain.sessions.start import renew, take_over
from pstrain.strategy.extended import Extended
from pstrain.strategy.replica import Replica
from pstrain.strategy.scope import Scope
from pstrain.trainer.client import RemoteParameters
from pstrain.variables.base import BaseVariable
from pstrain.variables.placement import ServerPlacement, placer

__all__ = ["ParameterServerStrategy", "Replica"]

logger = logging.getLogger(__name__)

# Short, so that the program soon says which server it waits for, also if the network drops all that
# is sent to a wrong address.
_STATUS_S: Final = 5.0
_LEAST_STATUS_S: Final = 1.0

T = TypeVar("T")


class ParameterServerStrategy(Replica):
    """Keeps variables on the parameter servers of a cluster and trains on its workers.

    The constructor blocks until every parameter server answers, for at most
    ``config.start_timeout_s``, and logs which server it waits for. It then takes the servers over:
    the variables that another coordinator, or an earlier strategy of this program, had there are
    dropped, and the calls of that coordinator or strategy raise AbortedError. Of two programs that
    take the same servers over at once, one goes on; the other gets AbortedError, here or later.
    ``variable_partitioner``: a function ``(shape=, dtype=)`` that returns the number of shards per
    axis; only the first may exceed 1. ``placement``: "round_robin" puts each shard on the next
    server, "bytes" puts it on the server that holds the fewest bytes. ``consistency``: "async",
    "sync", ``pstrain.consistency.ssp(staleness=...)`` or
    ``pstrain.consistency.sync(backup_workers=...)`` (see :mod:`pstrain.consistency`). In rounds
    (sync) a step applies the mean of the gradients of ``num_replicas_in_sync`` closures. A loss
    that is the mean over its own batch therefore needs no division by the number of replicas, and
    a step learns from that many batches.
    ``transport_dtype``: "float32", or "bfloat16" for half the bytes. With "bfloat16", gradients
    and the float32 rows and variables that layers and models pull are rounded in transit, also
    within one host, so that results do not depend on where processes run. Servers store and add
    float32; what a program reads or assigns, checkpoints and all other dtypes are exact.
    ``tls_ca_path``: the PEM file of the authority that trainers' and servers' certificates are
    checked against; by default the file in PSTRAIN_TLS_CA, and without that no TLS is used. A
    cluster without parameter servers or workers, with other jobs, or a task that is not in the
    cluster raises InvalidArgumentError (a ValueError).
    """

    def __init__(
        self,
        cluster_resolver: ClusterResolver,
        variable_partitioner: PartitionFunction | None = None,
        *,
        placement: str = "round_robin",
        consistency: Consistency | str = "async",
        transport_dtype: str = FLOAT32,
        config: ParameterConfig | None = None,
        tls_ca_path: str | None = None,
    ) -> None:
        if not callable(getattr(cluster_resolver, "cluster_spec", None)):
            raise InvalidTypeError(
                "ParameterServerStrategy needs a ClusterResolver, got "
                f"{type(cluster_resolver).__name__}; wrap a cluster: "
                "SimpleClusterResolver(ClusterSpec({...}))"
            )
        if variable_partitioner is not None and not callable(variable_partitioner):
            raise InvalidTypeError(
                "variable_partitioner must be one of pstrain.partitioners or a function of shape "
                f"and dtype, got {variable_partitioner!r}"
            )
        self._resolver = cluster_resolver
        self.check_open()
        spec = cluster_resolver.cluster_spec()
        check_training_cluster(spec, cluster_resolver.task_type, cluster_resolver.task_id)
        rule = consistency_of(consistency, spec.num_tasks("worker"))
        shard_placer = placer(placement, spec.num_tasks("ps"))
        self._partitioner = variable_partitioner
        self.tls = client_tls(tls_ca_path)
        self.parameters = RemoteParameters(
            [spec.task_address("ps", index) for index in spec.task_indices("ps")],
            token=getattr(cluster_resolver, "token", None),
            tls=self.tls,
            session=new_session(),
            config=config or ParameterConfig(),
            transport_dtype=transport_dtype,
        )
        self.parameters.consistency = rule
        # The ClusterCoordinator lives as long as its strategy. Servers apply a closure's changes
        # once per session, so closure numbers are unique within a session, and so are the numbers
        # that count how often a trainer joined it.
        self.coordinator: Any = None
        self.closure_ids = itertools.count()
        self.incarnations = itertools.count(1)
        self._placement = ServerPlacement(
            self.parameters, self.num_input_pipelines, shard_placer, variable_partitioner
        )
        self.extended = Extended(self, self._placement)
        self._begin(None)
        if isinstance(cluster_resolver, ClusterResolver):
            cluster_resolver.note_strategy(self)

    @property
    def cluster_resolver(self) -> ClusterResolver:
        """The resolver with which the strategy was made."""
        return self._resolver

    def check_open(self) -> None:
        """Raises FailedPreconditionError if the cluster has ended for good."""
        if isinstance(self._resolver, ClusterResolver):
            self._resolver.check_open()

    @property
    def consistency(self) -> Consistency:
        """The consistency rule: how far trainers may run apart."""
        return self.parameters.consistency

    @property
    def session(self) -> str:
        """The id of the session on the parameter servers, which :meth:`begin_anew` changes."""
        return self.parameters.session

    @property
    def transport_dtype(self) -> str:
        """The dtype in which pulled float32 values and gradients travel."""
        return self.parameters.transport_dtype

    @property
    def num_replicas_in_sync(self) -> int:
        """The number of closures whose gradients make one step.

        1, except in rounds (sync): the number of trainers less ``backup_workers``.
        """
        return self.consistency.replicas_in_sync(self.num_input_pipelines)

    @property
    def num_input_pipelines(self) -> int:
        """The number of trainers, each of which reads datasets in parallel with the others."""
        return self._resolver.cluster_spec().num_tasks("worker")

    def __repr__(self) -> str:
        spec = self._resolver.cluster_spec()
        size = f"{spec.num_tasks('worker')} workers, {spec.num_tasks('ps')} ps"
        return f"<ParameterServerStrategy {size}, {self.consistency}>"

    @property
    def variables(self) -> tuple[BaseVariable, ...]:
        """The variables made in the scope that something refers to, in order of creation."""
        return tuple(self._placement.variables)

    @property
    def variable_partitioner(self) -> PartitionFunction | None:
        """The partitioner with which the strategy was made; None if variables are not sharded."""
        return self._partitioner

    def scope(self) -> Scope[ParameterServerStrategy]:
        """Returns a context manager: variables that this thread makes inside live on the servers.

        A variable stays there as long as the program, a scheduled function or a closure that may
        still run refers to it. What nothing refers to is dropped before the next variable is made
        and at the end of ``join``.

        The scope may be entered again, also inside itself. Entering it inside another strategy's
        scope raises FailedPreconditionError (a RuntimeError).
        """
        return Scope(self, self._placement)

    def run(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...] | list[Any] = (),
        kwargs: dict[str, Any] | None = None,
        options: Any = None,
    ) -> Any:
        """Calls ``fn`` in this process and logs a warning: ``run`` is for scheduled functions."""
        logger.warning(
            "strategy.run() outside of a scheduled function: it runs in this program, and pulls "
            "all that it reads; call it in a function that is given to coordinator.schedule()"
        )
        return super().run(fn, args, kwargs, options)

    def begin(self) -> None:
        """Restores this session on servers that were restarted; waits for every server to answer.

        Variables on a restarted server start from their initializers or at 0, and must be restored
        from a checkpoint; variables on the other servers keep their values. Raises AbortedError if
        another coordinator has taken a server over meanwhile.
        """
        self._begin(self.session)

    def _begin(self, replaced: str | None) -> None:
        """Begins the session in place of ``replaced``, an earlier one of this strategy, or of any.

        AbortedError if another coordinator takes the servers over at the same time, in a session
        that is newer.
        """
        deadline_s = time.monotonic() + self.parameters.config.start_timeout_s
        if replaced is None:
            sessions = [status["session"] for status in self._statuses(deadline_s)]
            self.parameters.change_session(new_session(sessions))
            take_over(len(sessions), functools.partial(self._begin_at, deadline_s))
        else:
            while not self._renew(replaced, deadline_s):
                pass
        self.parameters.forget_values()
        self._make_variables()

    # Loops in frames of their own: whoever keeps an error of the servers that were awaited before,
    # as a log may, keeps the frames that it passed, and would keep the loop's last variable.

    def _make_variables(self) -> None:
        for variable in self._placement.variables:
            self.parameters.create(variable.spec)

    def _reset_variables(self) -> None:
        for variable in self._placement.variables:
            self.parameters.reset_initial_values(variable.spec)

    def _statuses(self, deadline_s: float) -> list[dict[str, Any]]:
        """Returns the status of every server, once all have answered."""
        return [
            self._answer_of(ps, deadline_s, functools.partial(self._status, ps))
            for ps in range(len(self.parameters.addresses))
        ]

    def _status(self, ps: int, limit_s: float) -> dict[str, Any]:
        # A server that answers just before the deadline is not too late.
        return self.parameters.status(ps, timeout_s=max(limit_s, _LEAST_STATUS_S))

    def begin_anew(self) -> None:
        """Begins a new session, like :meth:`begin`; servers refuse requests of the old session.

        All variables start anew. Variables that were made from at most 64 KiB of given values start
        with those values. Raises AbortedError if another coordinator has taken a server over
        meanwhile.
        """
        old = self.session
        self.parameters.change_session(renewed(old))
        self._begin(old)
        self._reset_variables()

    def _renew(self, replaced: str, deadline_s: float) -> bool:
        """False if a server restarts meanwhile: the call then has to be repeated.

        Raises ServerRestartedError for this after the deadline.
        """
        statuses = self._statuses(deadline_s)
        try:
            renew(replaced, statuses, functools.partial(self._begin_at, deadline_s))
        except ServerRestartedError:
            if time.monotonic() > deadline_s:
                raise
            return False
        return True

    def _begin_at(self, deadline_s: float, ps: int, *conditions: str) -> None:
        def begin(_limit_s: float) -> bool:  # dropping old variables may take longer than a status
            return self.parameters.begin_session(ps, *conditions)

        if self._answer_of(ps, deadline_s, begin):
            notify_at_exit(self._resolver, self.session, self.tls)

    def _answer_of(self, ps: int, deadline_s: float, call: Callable[[float], T]) -> T:
        """Calls server ``ps`` until it answers; UnavailableError if it has not by the deadline.

        ``call`` gets the time that an attempt may take.
        """
        address = self.parameters.addresses[ps]
        tasks = "start the cluster's 'ps' tasks, which on a new machine compile kernels first"

        def attempt(limit_s: float) -> T:
            try:
                return call(limit_s)
            except ServerLostError as error:
                # What it advises is for a server that is lost in training.
                raise UnavailableError(str(error.__cause__ or error)) from error

        try:
            return retry_until(
                attempt,
                waiting_for=f"parameter server {ps} at {address} ({tasks})",
                timeout_s=max(0.0, deadline_s - time.monotonic()),
                attempt_timeout_s=min(_STATUS_S, self.parameters.config.request_timeout_s),
                wait=threading.Event().wait,
            )
        except (UnavailableError, DeadlineExceededError) as error:
            # Not a ServerLostError, for which a restore would start over and wait once more.
            raise UnavailableError(str(error)) from error
