"""ParameterServerStrategy of the V1 form: each worker trains by itself on shared variables.

Gives variables their places, and this worker its share of the input. Invariant: variables made in
the same order have the same ids and places on all workers, so workers with one script share them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from pstrain.cluster import ClusterResolver, ClusterSpec, check_jobs
from pstrain.config import ParameterConfig
from pstrain.errors import DataLossError, InvalidArgumentError, InvalidTypeError
from pstrain.paramserver.transport import FLOAT32, check_transport_dtype
from pstrain.resolvers.tf_config import TFConfigClusterResolver
from pstrain.security import client_tls
from pstrain.strategy.input_sharding import DistributedDatasetFunction, own_share
from pstrain.strategy.replica import Replica
from pstrain.strategy.scope import Scope
from pstrain.trainer.client import RemoteParameters
from pstrain.trainer.context import InputContext, trainer_scope
from pstrain.v1.extended import Extended
from pstrain.v1.membership import Membership
from pstrain.v1.placement import WorkerParameters, WorkerPlacement
from pstrain.v1.training import TrainingSession
from pstrain.variables.base import BaseVariable
from pstrain.variables.scope import LocalPlacement, Placement

T = TypeVar("T")


class ParameterServerStrategy(Replica):
    """The strategy that every worker makes in the same script; servers run ``pstrain.Server``.

    ``cluster_resolver`` None: the cluster in TF_CONFIG. The chief (task ``chief``, else worker 0)
    begins a session on the servers, which drops what they held, initialises the variables and
    saves checkpoints. The other workers wait for the chief, and all wait for the servers, at most
    ``config.start_timeout_s``; then DeadlineExceededError is raised. Train inside :meth:`session`.
    The workers' updates are not ordered among each other; a step that runs again after a lost
    connection may be applied twice. ``tls_ca_path``: the PEM file of the authority that signs the
    servers' TLS certificates, if it is not the one in PSTRAIN_TLS_CA. ``transport_dtype``: as in
    the form with a coordinator, for what this worker pulls and pushes. Without a cluster
    everything is in this process. InvalidArgumentError (a ValueError) if the cluster has no 'ps'
    task, or this process's task is unknown or not in the cluster.
    """

    def __init__(
        self,
        cluster_resolver: ClusterResolver | None = None,
        *,
        config: ParameterConfig | None = None,
        tls_ca_path: str | None = None,
        transport_dtype: str = FLOAT32,
    ) -> None:
        if not isinstance(cluster_resolver, ClusterResolver | None):
            raise InvalidTypeError(
                f"cluster_resolver is a ClusterResolver, got {type(cluster_resolver).__name__}; "
                "wrap a cluster: SimpleClusterResolver(ClusterSpec({...}), task_type=, task_id=)"
            )
        self._tls = client_tls(tls_ca_path)
        self._resolver = cluster_resolver or TFConfigClusterResolver()
        self._config = config or ParameterConfig()
        self._transport_dtype = check_transport_dtype(transport_dtype)
        self._session: TrainingSession | None = None
        self._lost_values: list[str] = []
        spec = self._resolver.cluster_spec()
        self.worker_index, self.num_workers = _worker_index_and_count(self._resolver, spec)
        self.is_chief = self.worker_index == 0
        self.parameters: RemoteParameters | None = None
        self.membership: Membership | None = None
        self.placement: Placement = LocalPlacement()
        if spec:
            self._join(spec)
        self.extended = Extended(self)

    def __repr__(self) -> str:
        return f"<v1.ParameterServerStrategy by {self._resolver!r}>"

    @property
    def cluster_resolver(self) -> ClusterResolver:
        return self._resolver

    @property
    def num_input_pipelines(self) -> int:
        """The number of workers, the chief included."""
        return self.num_workers

    @property
    def variables(self) -> tuple[BaseVariable, ...]:
        """All variables made in the scope, in order of creation."""
        return tuple(getattr(self.placement, "variables", ()))

    def scope(self) -> Scope[ParameterServerStrategy]:
        """Returns a scope whose variables live on the parameter servers, round robin.

        It holds for this thread. Every worker must make the same variables in the same order;
        AlreadyExistsError if they differ. A scope may be entered again; FailedPreconditionError
        inside another strategy's scope.
        """
        return Scope(self, self.placement)

    def session(
        self,
        checkpoint_manager: Any = None,
        *,
        init_fn: Callable[[], Any] | None = None,
        save_every_s: float | None = 600.0,
        save_every_steps: int | None = None,
        worker_timeout_s: float = 300.0,
    ) -> TrainingSession:
        """A context manager inside of which this worker trains; see :class:`TrainingSession`."""
        return TrainingSession(
            self,
            checkpoint_manager,
            init_fn=init_fn,
            save_every_s=save_every_s,
            save_every_steps=save_every_steps,
            worker_timeout_s=worker_timeout_s,
        )

    def run(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...] | list[Any] = (),
        kwargs: dict[str, Any] | None = None,
        options: Any = None,
    ) -> Any:
        """Calls ``fn`` for this worker's only replica.

        Inside :meth:`session`, calls it again once a server or the chief was lost and is back.
        """
        call = super().run
        return self.guarded(lambda: call(fn, args, kwargs, options))

    def guarded(self, call: Callable[[], T]) -> T:
        """Returns ``call()``, run as a step of this worker and run again as in :meth:`run`."""
        with trainer_scope(self.worker_index):
            return call() if self._session is None else self._session.guarded(call)

    def begin_steps(self) -> None:
        """Makes the call that :meth:`call_at_session_end` has postponed, before training steps."""
        if self._session is not None:
            self._session.run_postponed_restore()

    def advance(self, steps: int) -> None:
        """Counts steps that the session did not run itself; the session saves if it is time."""
        if self._session is not None:
            self._session.advance(steps)

    def call_at_session_end(self, call: Callable[[], Any]) -> None:
        """Calls ``call`` at the session's end, once no worker trains.

        Without a session, or without other workers, calls it at once.
        """
        if self._session is None or self.num_workers == 1:
            call()
        else:
            self._session.postpone_restore(call)

    def call_for_each_replica(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...] | list[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Does the same as :meth:`run`."""
        return self.run(fn, args, kwargs)

    @property
    def input_context(self) -> InputContext:
        """This worker's place among the input pipelines of all workers."""
        return InputContext(self.num_workers, self.worker_index)

    def experimental_distribute_dataset(self, dataset: Any, options: Any = None) -> Any:
        """Returns this worker's share of the dataset, ready to be iterated.

        ``options``: an ``AutoShardPolicy``, or ``InputOptions`` with one; None: AUTO. If elements
        are divided (DATA), a shuffle without a seed has the same order on each run, because all
        workers need the same order. Workers share a data service's dataset through the job that
        its ``job_name`` names: InvalidArgumentError without one.
        """
        return own_share(dataset, options, self.input_context)

    def distribute_datasets_from_function(
        self,
        dataset_fn: Callable[..., Any],
        options: Any = None,  # noqa: ARG002
    ) -> Any:
        """Returns what ``dataset_fn(InputContext)`` makes for this worker."""
        dataset = DistributedDatasetFunction(dataset_fn)(self.input_context)
        if not isinstance(dataset, Iterable):
            raise InvalidTypeError(
                f"a dataset function must return a Dataset, got {type(dataset).__name__}: end "
                "it with `return dataset`"
            )
        return dataset

    def rejoin(self) -> None:
        """Enters the current session and makes all variables again, in it.

        To be called after a server was started anew or another session has begun. The variables
        get the values of their initializers; the chief also gives back the values that variables
        were made of, if these are at most 64 KiB. For larger ones see :meth:`confirm_values`.
        """
        if self.membership is None or self.parameters is None:
            return
        self.membership.enter()
        self._lost_values = []
        for variable in self.variables:
            self.parameters.create(variable.spec)
            if self.is_chief and not self.parameters.reset_initial_values(variable.spec):
                self._lost_values.append(variable.name)

    def confirm_values(self, *, are_restored: bool) -> None:
        """Raises DataLossError if first values of variables are lost and were not restored."""
        if are_restored:
            self._lost_values = []
        if self._lost_values:
            raise DataLossError(
                "a parameter server was lost before training began, and with it values of more "
                f"than 64 KiB that variables were made of ({', '.join(self._lost_values[:10])}): "
                "start the chief again, or make such variables with an initializer"
            )

    @property
    def start_timeout_s(self) -> float:
        """How long to wait for servers, and for the chief."""
        return self._config.start_timeout_s

    @property
    def is_in_session(self) -> bool:
        """True if a session is under way on this worker."""
        return self._session is not None

    def bind(self, session: TrainingSession | None) -> None:
        """Sets the session that guards :meth:`run`; None at its end."""
        self._session = session

    def close(self) -> None:
        """Closes the connections; the servers keep what they hold. Idempotent."""
        if self.parameters is not None:
            self.parameters.close()

    def _may_move_keys(self) -> bool:
        is_heard = self.membership is None or not self.membership.others_train
        return self.num_workers == 1 or (self.is_chief and is_heard)

    def _join(self, spec: ClusterSpec) -> None:
        addresses = [spec.task_address("ps", index) for index in spec.task_indices("ps")]
        self.parameters = WorkerParameters(
            addresses,
            token=getattr(self._resolver, "token", None),
            tls=self._tls,
            session="",
            config=self._config,
            is_chief=self.is_chief,
            rejoin=self.rejoin,
            may_move_keys=self._may_move_keys,
            transport_dtype=self._transport_dtype,
        )
        self.membership = Membership(
            self.parameters,
            is_chief=self.is_chief,
            workers=self.num_workers,
            config=self._config,
        )
        self.membership.enter()
        self.placement = WorkerPlacement(self.parameters, self.num_workers)


def _worker_index_and_count(resolver: ClusterResolver, spec: ClusterSpec) -> tuple[int, int]:
    """Returns the number of this worker (the chief is 0) and the number of workers."""
    if not spec:
        return 0, 1
    check_jobs(spec, needed=("ps",), single=("chief",))
    job, index = resolver.task_type, resolver.task_id
    if job is None or index is None:
        raise InvalidArgumentError(
            "which task is this? set TF_CONFIG's task, or give the resolver task_type and task_id"
        )
    counts = {j: spec.num_tasks(j) if j in spec.jobs else 0 for j in ("chief", "worker")}
    if job not in counts:
        raise InvalidArgumentError(
            f"a {job!r} task does not train: 'ps' tasks run pstrain.Server, an evaluator "
            "SidecarEvaluator"
        )
    if index not in (spec.task_indices(job) if job in spec.jobs else ()):
        raise InvalidArgumentError(f"task {job}:{index} is not in the cluster {spec}")
    place = spec.task_indices(job).index(index)
    return place + (counts["chief"] if job == "worker" else 0), sum(counts.values())
