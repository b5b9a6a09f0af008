"""ParameterServerStrategy: which server holds what, and the scope that sends variables there.

Connects to the parameter servers, begins the session and hands out places; trainers are the
coordinator's business. Invariant: placement depends on the order of creation alone, so the same
program places its variables alike on every run.
"""

from __future__ import annotations

import functools
import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np

from dataservice.runtime.identity import new_id
from pstrain.cluster import ClusterResolver, check_training_cluster
from pstrain.config import ParameterConfig
from pstrain.consistency import Consistency, consistency_of
from pstrain.departure import tell_at_end
from pstrain.errors import (
    DeadlineExceededError,
    InvalidTypeError,
    ServerRestartedError,
    UnavailableError,
)
from pstrain.paramserver.transport import FLOAT32
from pstrain.partition import PartitionFunction, shard_count, split_rows
from pstrain.replica import Replica
from pstrain.security import client_tls
from pstrain.strategy_extended import Extended
from pstrain.strategy_scope import Scope
from pstrain.trainer.client import RemoteParameters
from pstrain.variables.base import BaseVariable
from pstrain.variables.placement import Colocated, ShardPlacer, placer

__all__ = ["ParameterServerStrategy", "Replica"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

_RETRY_S = 0.1
_RETRY_MAX_S = 2.0
_REPORT_EVERY_S = 5.0


class ParameterServerStrategy(Replica):
    """Variables on the parameter servers of a cluster, training on its workers.

    Blocks until every parameter server answers, at most ``config.start_timeout_s``, saying what
    it waits for; then takes the servers over: what another coordinator, or an earlier strategy of
    this program, had there is dropped, and its calls raise AbortedError.
    ``variable_partitioner``: a function ``(shape=, dtype=)`` of shards per axis, of which only the
    first may exceed 1. ``placement``: "round_robin" puts one shard after the other on the next
    server, "bytes" each on the server with the fewest bytes. ``consistency``: "async", "sync",
    ``pstrain.consistency.ssp(staleness=...)`` or ``pstrain.consistency.sync(backup_workers=...)``
    (see :mod:`pstrain.consistency`). In rounds (sync) a step is made of the mean of the gradients
    of ``num_replicas_in_sync`` closures: a loss that is the mean over its own batch is right as it
    is, not to be divided by the number of replicas, and a step learns from so many batches.
    ``transport_dtype``: "float32", or "bfloat16" for half the bytes: float32 rows and variables
    that layers and models pull, and gradients, are rounded on their way, also on one host, so that
    results do not depend on where processes run. Servers keep and add float32; what a program
    reads or assigns, checkpoints and all other dtypes are exact.
    ``tls_ca_path``: the PEM file that vouches for trainers and servers which have TLS; without it
    the one in PSTRAIN_TLS_CA, without that no TLS is spoken. A cluster without parameter servers
    or workers, with other jobs, or a task that is not in it raises InvalidArgumentError (a
    ValueError).
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
        spec = cluster_resolver.cluster_spec()
        check_training_cluster(spec, cluster_resolver.task_type, cluster_resolver.task_id)
        self._consistency = consistency_of(consistency, spec.num_tasks("worker"))
        shard_placer = placer(placement, spec.num_tasks("ps"))
        self._resolver = cluster_resolver
        self._partitioner = variable_partitioner
        self._config = config or ParameterConfig()
        # Named by when it began, so that trainers can tell an older session from a newer one.
        self.session = _new_session()
        self.tls = client_tls(tls_ca_path)
        self.parameters = RemoteParameters(
            [spec.task_address("ps", index) for index in spec.task_indices("ps")],
            token=getattr(cluster_resolver, "token", None),
            tls=self.tls,
            session=self.session,
            config=self._config,
            transport_dtype=transport_dtype,
        )
        self.parameters.consistency = self._consistency
        self.extended = Extended(self)
        # The ClusterCoordinator lives as long as its strategy. Servers apply a closure's changes
        # once per session, so closures of one session never share a number, nor do the times that
        # one of its trainers was taken on.
        self.coordinator: Any = None
        self.closure_ids = itertools.count()
        self.incarnations = itertools.count(1)
        self._placement = _ServerPlacement(self, shard_placer)
        self._begin(None)
        if isinstance(cluster_resolver, ClusterResolver):
            cluster_resolver.note_strategy(self)

    @property
    def cluster_resolver(self) -> ClusterResolver:
        return self._resolver

    @property
    def consistency(self) -> Consistency:
        """How far trainers may be apart."""
        return self._consistency

    @property
    def transport_dtype(self) -> str:
        """Of pulled float32 values and gradients, on their way."""
        return self.parameters.transport_dtype

    @property
    def num_replicas_in_sync(self) -> int:
        """Closures whose gradients make one step: 1, but in rounds (sync) one per trainer,
        without ``backup_workers``."""
        return self._consistency.replicas_in_sync(self.num_input_pipelines)

    @property
    def num_input_pipelines(self) -> int:
        """Trainers that read datasets side by side."""
        return self._resolver.cluster_spec().num_tasks("worker")

    def __repr__(self) -> str:
        spec = self._resolver.cluster_spec()
        size = f"{spec.num_tasks('worker')} workers, {spec.num_tasks('ps')} ps"
        return f"<ParameterServerStrategy {size}, {self._consistency}>"

    @property
    def variables(self) -> tuple[BaseVariable, ...]:
        """All variables created in the scope, in order of creation."""
        return tuple(self._placement.variables)

    @property
    def variable_partitioner(self) -> PartitionFunction | None:
        return self._partitioner

    def scope(self) -> Scope[ParameterServerStrategy]:
        """Variables made inside, in this thread, live on the parameter servers, round robin.

        They stay there until another strategy takes the servers, whether the program still has them
        or not: one that tries one model after the other makes a strategy for each.

        What it returns may be entered again, also inside itself; inside another strategy's scope:
        FailedPreconditionError (a RuntimeError).
        """
        return Scope(self, self._placement)

    def run(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...] | list[Any] = (),
        kwargs: dict[str, Any] | None = None,
        options: Any = None,
    ) -> Any:
        """Calls ``fn`` in this process, which warns: functions given to ``schedule`` call run."""
        logger.warning(
            "strategy.run() outside of a scheduled function: it runs in this program, and pulls "
            "all that it reads; call it in a function that is given to coordinator.schedule()"
        )
        return super().run(fn, args, kwargs, options)

    def begin(self) -> None:
        """Brings this session back, for when a server was restarted: waits for every one.

        Variables start anew on that server, by their initializers or at 0, and must be restored
        from a checkpoint; those of other servers stay. AbortedError where another coordinator has
        taken a server over meanwhile.
        """
        self._begin(self.session)

    def _begin(self, replaced: str | None) -> None:
        deadline_s = time.monotonic() + self._config.start_timeout_s
        if replaced is None:
            self._take_over(deadline_s)
        else:
            while not self._replace(replaced, deadline_s):
                pass
        self.parameters.forget_values()
        for variable in self._placement.variables:
            self.parameters.create(variable.spec)

    def _take_over(self, deadline_s: float) -> None:
        """Takes every server, whoever has it, and then those that others have taken back.

        Who is replaced may bring back a server that is started anew while another is still its own;
        once every server was taken, one of them tells it that it is not to.
        """
        for ps in 2 * tuple(range(len(self.parameters.addresses))):
            self._begin_at(ps, deadline_s)

    def begin_anew(self) -> None:
        """As :meth:`begin`, in a new session: what others still do in the old one is refused.

        All variables begin anew, those that were made of at most 64 KiB of values with these.
        AbortedError where another coordinator has taken a server over meanwhile.
        """
        old, self.session = self.session, _new_session()
        self.parameters.change_session(self.session)
        self._begin(old)
        for variable in self._placement.variables:
            self.parameters.reset_initial_values(variable.spec)

    def place(self, shape: tuple[int, ...], dtype: str) -> int:
        """How many shards a variable is cut into."""
        return shard_count(self._partitioner, shape, dtype)

    def placement_beside(self, server: int) -> Any:
        """Of variables that go to one server, whole."""
        return _ServerPlacement(self, Colocated(server), self._placement)

    def _replace(self, replaced: str, deadline_s: float) -> bool:
        """Takes no server of another coordinator, also where it was started anew since.

        Those that have a session tell whether there is one. False: to be done again, for a server
        was started anew since it was looked at.
        """
        looked = [
            (ps, self._once_there(ps, deadline_s, functools.partial(self.parameters.status, ps)))
            for ps in range(len(self.parameters.addresses))
        ]
        try:
            for ps, status in sorted(looked, key=lambda each: each[1]["session"] is None):
                self._begin_at(ps, deadline_s, replaced, status["incarnation"])
        except ServerRestartedError:
            if time.monotonic() > deadline_s:
                raise
            return False
        return True

    def _begin_at(self, ps: int, deadline_s: float, *conditions: str) -> None:
        begin = functools.partial(self.parameters.begin_session, ps, *conditions)
        if self._once_there(ps, deadline_s, begin):
            tell_at_end(self._resolver, self.session, self.tls)

    def _once_there(self, ps: int, deadline_s: float, call: Callable[[], T]) -> T:
        """What a server answers, which is waited for."""
        address = self.parameters.addresses[ps]
        pause_s, report_at_s = _RETRY_S, time.monotonic() + _REPORT_EVERY_S
        while True:
            try:
                return call()
            except (UnavailableError, DeadlineExceededError) as error:
                now_s = time.monotonic()
                if now_s + pause_s > deadline_s:
                    raise UnavailableError(
                        f"parameter server {ps} at {address} did not answer within "
                        f"{self._config.start_timeout_s:.0f} s; start the cluster's 'ps' tasks "
                        f"({error})"
                    ) from error
                if now_s >= report_at_s:
                    logger.warning("waiting for parameter server %d at %s", ps, address)
                    report_at_s = now_s + _REPORT_EVERY_S
            threading.Event().wait(pause_s)
            pause_s = min(2 * pause_s, _RETRY_MAX_S)


def _new_session() -> str:
    return new_id(f"session-{time.time_ns():020d}")


class _ServerPlacement:
    """Variables go to parameter servers, cut by the strategy's partitioner.

    ``beside``: a placement of the same strategy, whose ids and list of variables it shares.
    """

    def __init__(
        self,
        strategy: ParameterServerStrategy,
        shard_placer: ShardPlacer,
        beside: _ServerPlacement | None = None,
    ) -> None:
        self.parameters = strategy.parameters
        self.num_workers = strategy.num_input_pipelines
        self.variables: list[BaseVariable] = [] if beside is None else beside.variables
        self._ids: Iterator[int] = itertools.count() if beside is None else beside._ids
        self._lock: threading.Lock = threading.Lock() if beside is None else beside._lock
        self._count_shards = strategy.place if beside is None else _uncut
        self._placer = shard_placer

    def next_id(self) -> int:
        return next(self._ids)

    def place(self, shape: tuple[int, ...], dtype: str) -> list[int]:
        shards = self._count_shards(shape, dtype)
        row_bytes = math.prod(shape[1:]) * np.dtype(dtype).itemsize
        rows = split_rows(shape[0] if shape else 1, shards)
        return self._placer.place([(stop - start) * row_bytes for start, stop in rows])

    def created(self, variable: BaseVariable) -> None:
        with self._lock:
            self.variables.append(variable)


def _uncut(shape: tuple[int, ...], dtype: str) -> int:  # noqa: ARG001
    return 1
