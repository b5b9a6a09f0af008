"""The members of a training cluster: jobs, tasks, addresses, and which task this process is.

Knows nothing of connections or processes. Names and forms are those of TF_CONFIG, so that
launchers which set TF_CONFIG work unchanged: jobs ``chief`` (the coordinator), ``worker`` (a
trainer), ``ps`` and ``evaluator``. Invariant: a ClusterSpec never changes once made.
"""

from __future__ import annotations

import json
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

from dataservice.runtime.addresses import split_address
from pstrain.errors import InvalidArgumentError, InvalidTypeError

JOBS = ("chief", "worker", "ps", "evaluator")

Tasks = Mapping[int, str] | Sequence[str]


class ClusterSpec:
    """The jobs of a cluster and the addresses of their tasks.

    Made from ``{"worker": ["host:port", ...], "ps": {0: "host:port", 3: ...}}`` or another
    ClusterSpec. A job given as a dict may skip task indices. Wrong types raise TypeError, an
    unknown job or task ValueError.
    """

    def __init__(self, cluster: Mapping[str, Tasks] | ClusterSpec) -> None:
        self._jobs: dict[str, dict[int, str]]
        if isinstance(cluster, ClusterSpec):
            self._jobs = {job: dict(tasks) for job, tasks in cluster._jobs.items()}
            return
        if not isinstance(cluster, Mapping):
            raise InvalidTypeError(
                f"a cluster is a dict of job name to addresses, got {type(cluster).__name__}"
            )
        self._jobs = {_job_name(job): _tasks(job, tasks) for job, tasks in cluster.items()}

    @property
    def jobs(self) -> list[str]:
        """The names of the jobs, sorted."""
        return sorted(self._jobs)

    def as_dict(self) -> dict[str, list[str] | dict[int, str]]:
        """Returns addresses by job: a dict by task index if a job skips indices, else a list."""
        return {
            job: list(tasks.values()) if list(tasks) == list(range(len(tasks))) else dict(tasks)
            for job, tasks in self._jobs.items()
        }

    def as_cluster_def(self) -> ClusterSpec:
        """Returns the spec itself, which ``Server`` takes: there is no protocol message for it."""
        return self

    def num_tasks(self, job_name: str) -> int:
        """Returns how many tasks a job has; raises ValueError if there is no such job."""
        return len(self._job(job_name))

    def task_indices(self, job_name: str) -> list[int]:
        """Returns the indices of a job's tasks, of which some may be skipped."""
        return list(self._job(job_name))

    def task_address(self, job_name: str, task_index: int) -> str:
        """Returns the ``host:port`` of a task; raises ValueError if there is no such task."""
        tasks = self._job(job_name)
        if task_index not in tasks:
            raise InvalidArgumentError(
                f"no task {task_index} in job {job_name!r}; it has {list(tasks)}"
            )
        return tasks[task_index]

    def job_tasks(self, job_name: str) -> list[str | None]:
        """Returns the addresses in order of task index, with None for each skipped index."""
        tasks = self._job(job_name)
        return [tasks.get(index) for index in range(max(tasks, default=-1) + 1)]

    def _job(self, job_name: str) -> dict[int, str]:
        if job_name not in self._jobs:
            raise InvalidArgumentError(f"no job {job_name!r} in the cluster; it has {self.jobs}")
        return self._jobs[job_name]

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClusterSpec) and self._jobs == other._jobs

    def __hash__(self) -> int:
        return hash(json.dumps(self._jobs, sort_keys=True))

    def __repr__(self) -> str:
        return f"ClusterSpec({self.as_dict()!r})"


def _job_name(job: object) -> str:
    if not isinstance(job, str):
        raise InvalidTypeError(f"a job name is a string, got {job!r}")
    return job


def _tasks(job: str, tasks: object) -> dict[int, str]:
    if isinstance(tasks, Mapping):
        indexed = dict(tasks)
    elif isinstance(tasks, list | tuple):
        indexed = dict(enumerate(tasks))
    else:
        raise InvalidTypeError(
            f"the tasks of job {job!r} are a list or a dict, got {type(tasks).__name__}"
        )
    for index, address in indexed.items():
        if not isinstance(index, int) or isinstance(index, bool):
            raise InvalidTypeError(f"a task index of job {job!r} is an int, got {index!r}")
        if not isinstance(address, str):
            raise InvalidTypeError(f"the address of {job}:{index} is a string, got {address!r}")
    return dict(sorted(indexed.items()))


class ClusterResolver:
    """The source from which a program learns its cluster and which task of it this process is."""

    def __init__(
        self, spec: ClusterSpec, task_type: str | None, task_id: int | None, rpc_layer: str | None
    ) -> None:
        if task_type is not None and not isinstance(task_type, str):
            raise InvalidTypeError(f"task_type is a string, got {task_type!r}")
        if isinstance(task_id, bool) or not isinstance(task_id, numbers.Integral | None):
            raise InvalidTypeError(f"task_id is an int, got {task_id!r}")
        if task_id is not None and task_id < 0:
            raise InvalidArgumentError(f"task_id must not be negative, got {task_id}")
        if rpc_layer is not None and not isinstance(rpc_layer, str):
            raise InvalidTypeError(f"rpc_layer is a string, got {rpc_layer!r}")
        self._spec = spec
        self.task_type = task_type
        self.task_id: int | None = None if task_id is None else int(task_id)
        self.rpc_layer = rpc_layer
        self._accelerators: dict[str, int] = {}

    def note_strategy(self, strategy: Any) -> None:
        """Called with each strategy of this process that uses the cluster; does nothing here."""

    def check_open(self) -> None:
        """Raises FailedPreconditionError if the cluster has ended for good."""

    def cluster_spec(self) -> ClusterSpec:
        return self._spec

    def master(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
    ) -> str:
        """Returns the address of a task, by default this one, or "" if no task is known.

        ``rpc_layer``, or else the resolver's own, is put before the address: ``grpc://host:port``.
        """
        spec = self.cluster_spec()
        task_type = task_type if task_type is not None else self.task_type
        task_id = task_id if task_id is not None else self.task_id
        if task_type is None or task_id is None or task_type not in spec.jobs:
            return ""
        return self._url(spec.task_address(task_type, task_id), rpc_layer)

    def num_accelerators(
        self,
        task_type: str | None = None,  # noqa: ARG002
        task_id: int | None = None,  # noqa: ARG002
        config_proto: Any = None,  # noqa: ARG002
    ) -> dict[str, int]:
        """Returns the number of accelerators of a task by kind; the same for all tasks.

        Empty unless the resolver was given numbers.
        """
        return dict(self._accelerators)

    def __repr__(self) -> str:
        task = "" if self.task_type is None else f"{self.task_type}:{self.task_id} of "
        return f"<{type(self).__name__} {task}{self._spec!r}>"

    def _url(self, address: str, rpc_layer: str | None) -> str:
        layer = rpc_layer or self.rpc_layer
        return f"{layer}://{address}" if layer and address else address


class SimpleClusterResolver(ClusterResolver):
    """A resolver whose values are given by the program itself."""

    def __init__(
        self,
        cluster_spec: ClusterSpec,
        master: str = "",
        task_type: str | None = None,
        task_id: int | None = None,
        environment: str = "",
        num_accelerators: Mapping[str, int] | None = None,
        rpc_layer: str | None = None,
    ) -> None:
        if not isinstance(cluster_spec, ClusterSpec):
            raise InvalidTypeError(
                f"cluster_spec is a ClusterSpec, got {type(cluster_spec).__name__}; "
                "wrap the dict: ClusterSpec({...})"
            )
        if not isinstance(master, str):
            raise InvalidTypeError(f"master is a string, got {master!r}")
        if not isinstance(environment, str):
            raise InvalidTypeError(f"environment is a string, got {environment!r}")
        if not isinstance(num_accelerators, Mapping | None):
            raise InvalidTypeError(
                f"num_accelerators is a dict of number by kind, got {num_accelerators!r}"
            )
        super().__init__(cluster_spec, task_type, task_id, rpc_layer)
        self.environment = environment
        self._master = master
        self._accelerators = dict(num_accelerators or {})

    def master(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
    ) -> str:
        """Returns the address of the task that both arguments name, or else the ``master``."""
        if task_type is not None and task_id is not None:
            return self._url(self.cluster_spec().task_address(task_type, task_id), rpc_layer)
        return self._url(self._master, rpc_layer)


def check_training_cluster(spec: ClusterSpec, task_type: str | None, task_id: int | None) -> None:
    """Raises ValueError unless a coordinator can train on this cluster.

    The spec may contain an evaluator, which is not part of the training cluster: nothing waits
    for it.
    """
    if not spec:
        raise InvalidArgumentError(
            "the cluster spec is empty: set TF_CONFIG, or pass "
            'SimpleClusterResolver(ClusterSpec({"worker": [...], "ps": [...]}))'
        )
    check_jobs(spec, needed=("worker", "ps"), single=("chief", "evaluator"))
    _check_own_task(spec, task_type, task_id)


def check_jobs(spec: ClusterSpec, *, needed: Sequence[str], single: Sequence[str]) -> None:
    """Raises ValueError for an unknown job, a missing or superfluous task, or a wrong address.

    Jobs in ``needed`` have at least one task, those in ``single`` at most one.
    """
    unknown = [job for job in spec.jobs if job not in JOBS]
    if unknown:
        raise InvalidArgumentError(f"unknown jobs {unknown} in the cluster; known: {list(JOBS)}")
    for job in single:
        if job in spec.jobs and spec.num_tasks(job) > 1:
            raise InvalidArgumentError(f"at most one {job}, got {spec.num_tasks(job)}")
    for job in needed:
        if job not in spec.jobs or spec.num_tasks(job) == 0:
            raise InvalidArgumentError(f"the cluster needs at least one {job!r} task: {spec}")
    _check_addresses(spec)


def _check_addresses(spec: ClusterSpec) -> None:
    """Raises ValueError unless trainers and parameter servers have distinct HOST:PORT addresses."""
    tasks: dict[str, str] = {}
    for job in ("worker", "ps"):
        for index in spec.task_indices(job) if job in spec.jobs else ():
            address = spec.task_address(job, index)
            if split_address(address, any_port=True)[1] == 0:
                raise InvalidArgumentError(f"{job}:{index} has no port: {address!r}")
            other = tasks.setdefault(address, f"{job}:{index}")
            if other != f"{job}:{index}":
                raise InvalidArgumentError(
                    f"{other} and {job}:{index} are both at {address!r}: each task needs an "
                    "address of its own"
                )


def _check_own_task(spec: ClusterSpec, task_type: str | None, task_id: int | None) -> None:
    if task_type is None:
        return
    if task_type not in JOBS:
        raise InvalidArgumentError(f"unknown task_type {task_type!r}; known: {list(JOBS)}")
    if task_type not in spec.jobs:
        if task_type == "evaluator":
            return
        raise InvalidArgumentError(
            f"task_type {task_type!r} is not in the cluster {spec}: add the job, or leave out "
            "task_type in a program that is no task of the cluster"
        )
    if task_id is not None and task_id < 0:
        raise InvalidArgumentError(f"task_id must not be negative, got {task_id}")
    if task_id is not None and task_id not in spec.task_indices(task_type):
        raise InvalidArgumentError(
            f"there is no task_id {task_id}: job {task_type!r} has tasks "
            f"{spec.task_indices(task_type)}"
        )
