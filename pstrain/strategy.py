"""ParameterServerStrategy: which server holds what, and the scope that sends variables there.

Connects to the parameter servers, begins the session and hands out places; trainers are the
coordinator's business. Invariant: placement depends on the order of creation alone, so the same
program places its variables alike on every run.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from dataservice.runtime.identity import new_id
from pstrain.cluster import ClusterResolver, check_training_cluster
from pstrain.config import ParameterConfig
from pstrain.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    UnavailableError,
)
from pstrain.partition import PartitionFunction, shard_count
from pstrain.trainer.client import RemoteParameters
from pstrain.variable import BaseVariable, placement_scope

logger = logging.getLogger(__name__)

_RETRY_S = 0.1
_RETRY_MAX_S = 2.0
_REPORT_EVERY_S = 5.0

_entered: ContextVar[ParameterServerStrategy | None] = ContextVar("strategy", default=None)


def has_strategy() -> bool:
    """Whether this thread is inside a strategy's scope."""
    return _entered.get() is not None


def get_strategy() -> ParameterServerStrategy:
    """The strategy whose scope this thread is in; FailedPreconditionError outside of any."""
    strategy = _entered.get()
    if strategy is None:
        raise FailedPreconditionError("no strategy: enter one with `with strategy.scope():`")
    return strategy


class Replica:
    """What a strategy offers where there is one replica: in the program and on trainers."""

    @property
    def num_replicas_in_sync(self) -> int:
        """1: trainers work asynchronously, each on batches of its own."""
        return 1

    def run(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...] | list[Any] = (),
        kwargs: dict[str, Any] | None = None,
        options: Any = None,  # noqa: ARG002
    ) -> Any:
        """Calls ``fn`` once, for the only replica; meant for functions given to ``schedule``."""
        if not isinstance(args, tuple | list):
            raise InvalidArgumentError(f"args must be a tuple or list, got {type(args).__name__}")
        return fn(*args, **(kwargs or {}))

    def reduce(self, reduce_op: str, value: Any, axis: int | None = None) -> Any:
        """``SUM`` or ``MEAN`` over the only replica, and over ``axis`` where one is given."""
        name = str(getattr(reduce_op, "name", reduce_op)).rpartition(".")[2].upper()
        if name not in ("SUM", "MEAN"):
            raise InvalidArgumentError(f"reduce_op must be SUM or MEAN, got {reduce_op!r}")
        if axis is None:
            return value
        return value.sum(axis=axis) if name == "SUM" else value.mean(axis=axis)

    def gather(self, value: Any, axis: int) -> Any:  # noqa: ARG002
        """The value of the only replica."""
        return value

    def experimental_local_results(self, value: Any) -> tuple[Any, ...]:
        """The values of the only replica, as a tuple."""
        return (value,)

    def experimental_distribute_dataset(self, dataset: Any, options: Any = None) -> Any:  # noqa: ARG002
        """The dataset itself: read it through ``coordinator.create_per_worker_dataset``."""
        return dataset

    def distribute_datasets_from_function(
        self,
        dataset_fn: Callable[..., Any],
        options: Any = None,  # noqa: ARG002
    ) -> Callable[..., Any]:
        """The function itself: give it to ``coordinator.create_per_worker_dataset``."""
        return dataset_fn


class ParameterServerStrategy(Replica):
    """Variables on the parameter servers of a cluster, training on its workers.

    Blocks until every parameter server answers, at most ``config.start_timeout_s``, saying what
    it waits for; then takes the servers over: what another coordinator had there is dropped.
    ``variable_partitioner``: a function ``(shape=, dtype=)`` of shards per axis, of which only the
    first may exceed 1. A cluster without parameter servers or workers, with other jobs, or a task
    that is not in it raises InvalidArgumentError (a ValueError).
    """

    def __init__(
        self,
        cluster_resolver: ClusterResolver,
        variable_partitioner: PartitionFunction | None = None,
        *,
        config: ParameterConfig | None = None,
    ) -> None:
        spec = cluster_resolver.cluster_spec()
        check_training_cluster(spec, cluster_resolver.task_type, cluster_resolver.task_id)
        self._resolver = cluster_resolver
        self._partitioner = variable_partitioner
        self._config = config or ParameterConfig()
        # Named by when it began, so that trainers can tell an older session from a newer one.
        self.session = new_id(f"session-{time.time_ns():020d}")
        self.parameters = RemoteParameters(
            [spec.task_address("ps", index) for index in spec.task_indices("ps")],
            token=getattr(cluster_resolver, "token", None),
            session=self.session,
            config=self._config,
        )
        self.extended = Extended(self)
        # The ClusterCoordinator lives as long as its strategy. Servers apply a closure's changes
        # once per session, so closures of one session never share a number.
        self.coordinator: Any = None
        self.closure_ids = itertools.count()
        self._placement = _RoundRobin(self)
        self.begin()

    @property
    def cluster_resolver(self) -> ClusterResolver:
        return self._resolver

    @property
    def variables(self) -> tuple[BaseVariable, ...]:
        """All variables created in the scope, in order of creation."""
        return tuple(self._placement.variables)

    @property
    def variable_partitioner(self) -> PartitionFunction | None:
        return self._partitioner

    @contextmanager
    def scope(self) -> Iterator[ParameterServerStrategy]:
        """Variables made inside, in this thread, live on the parameter servers, round robin.

        May be entered again inside itself; inside another strategy's scope: FailedPreconditionError
        (a RuntimeError).
        """
        if _entered.get() not in (None, self):
            raise FailedPreconditionError(
                "another strategy's scope is entered; leave it before entering this one"
            )
        reset = _entered.set(self)
        try:
            with placement_scope(self._placement):
                yield self
        finally:
            _entered.reset(reset)

    def begin(self) -> None:
        """Waits for every parameter server, makes this session its current one, makes variables.

        Again after a server was restarted: its variables start anew there, by their initializers
        or at 0, and must be restored from a checkpoint; those of other servers stay.
        """
        deadline_s = time.monotonic() + self._config.start_timeout_s
        for ps, address in enumerate(self.parameters.addresses):
            self._begin_at(ps, address, deadline_s)
        for variable in self._placement.variables:
            self.parameters.create(variable.spec)

    def place(self, shape: tuple[int, ...], dtype: str) -> int:
        """How many shards a variable is cut into."""
        return shard_count(self._partitioner, shape, dtype)

    def _begin_at(self, ps: int, address: str, deadline_s: float) -> None:
        pause_s, report_at_s = _RETRY_S, time.monotonic() + _REPORT_EVERY_S
        while True:
            try:
                self.parameters.begin_session(ps)
                return
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


class Extended:
    """Names of places, for programs that ask the strategy's ``extended`` for them."""

    def __init__(self, strategy: ParameterServerStrategy) -> None:
        spec = strategy.cluster_resolver.cluster_spec()
        self.worker_devices = _devices("worker", spec.num_tasks("worker"))
        self.parameter_devices = _devices("ps", spec.num_tasks("ps"))
        self.should_checkpoint = True


class _RoundRobin:
    """One slot per shard: shard n of all shards ever made goes to server n mod servers."""

    def __init__(self, strategy: ParameterServerStrategy) -> None:
        self.parameters = strategy.parameters
        self.variables: list[BaseVariable] = []
        self._servers = len(strategy.parameters.addresses)
        self._count_shards = strategy.place
        self._slots = itertools.count()
        self._ids = itertools.count()
        self._lock = threading.Lock()

    def next_id(self) -> int:
        return next(self._ids)

    def place(self, shape: tuple[int, ...], dtype: str) -> list[int]:
        shards = self._count_shards(shape, dtype)
        with self._lock:
            return [next(self._slots) % self._servers for _ in range(shards)]

    def created(self, variable: BaseVariable) -> None:
        with self._lock:
            self.variables.append(variable)


def _devices(job: str, tasks: int) -> tuple[str, ...]:
    return tuple(f"/job:{job}/task:{index}" for index in range(tasks))
