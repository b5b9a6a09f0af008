"""Resolves the cluster of a Slurm job step from the variables that ``srun`` sets.

Reads SLURM_PROCID always, and SLURM_STEP_NUM_TASKS, SLURM_STEP_NODELIST and
SLURM_STEP_TASKS_PER_NODE if the arguments leave them open; runs no command. Invariant: all tasks of
a step that pass the same arguments resolve the same cluster, and each resolves itself as the task
that has its host and port.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from dataservice.runtime.addresses import LAST_PORT
from pstrain.cluster import ClusterResolver, ClusterSpec
from pstrain.errors import FailedPreconditionError, InvalidArgumentError, InvalidTypeError


class SlurmClusterResolver(ClusterResolver):
    """A resolver of this job step's tasks, which use port ``port_base`` and up on each node.

    ``jobs``: the number of tasks of each job, such as ``{"chief": 1, "ps": 2, "worker": 4}``; the
    jobs take the step's tasks in the jobs' alphabetical order. None: all tasks are workers. Tasks
    are expected node by node, as ``srun --distribution=block`` (the default) places them.
    ``tasks_per_node``: one number, or a dict of numbers by host. With ``gpus_per_node`` the GPUs of
    a node are divided among its tasks, ``gpus_per_task`` each: ``auto_set_gpu`` sets
    CUDA_VISIBLE_DEVICES in this process. Raises FailedPreconditionError (a RuntimeError) if a
    variable is not set or the numbers do not add up.
    """

    def __init__(
        self,
        jobs: Mapping[str, int] | None = None,
        port_base: int = 8888,
        gpus_per_node: int | None = None,
        gpus_per_task: int | None = None,
        tasks_per_node: int | Mapping[str, int] | None = None,
        auto_set_gpu: bool = True,
        rpc_layer: str = "grpc",
    ) -> None:
        rank = _number("PROCID")
        jobs = {"worker": _number("STEP_NUM_TASKS")} if jobs is None else _counts("jobs", jobs)
        nodes = _nodes(tasks_per_node)
        if sum(jobs.values()) != sum(nodes.values()):
            raise FailedPreconditionError(
                f"the jobs have {sum(jobs.values())} tasks {jobs}, but the step has "
                f"{sum(nodes.values())} on {nodes}: make srun --ntasks fit"
            )
        if not 0 <= rank < sum(jobs.values()):
            raise FailedPreconditionError(
                f"SLURM_PROCID is {rank}, but the jobs have {sum(jobs.values())} tasks {jobs}"
            )
        if not isinstance(port_base, int):
            raise InvalidTypeError(f"port_base is an int, got {port_base!r}")
        if not 0 < port_base <= LAST_PORT - max(nodes.values()):
            raise InvalidArgumentError(f"port_base {port_base} leaves no ports for the tasks")
        addresses = [
            f"{host}:{port_base + offset}"
            for host, tasks in nodes.items()
            for offset in range(tasks)
        ]
        spec, own = _dealt(jobs, addresses, rank)
        super().__init__(ClusterSpec(spec), *own, rpc_layer)
        self.environment = ""
        per_task = _gpus_per_task(nodes, gpus_per_node or 0, gpus_per_task)
        if per_task:
            self._accelerators = {"GPU": per_task}
        if auto_set_gpu and per_task:
            offset = _offset(nodes, rank) * per_task
            gpus = ",".join(map(str, range(offset, offset + per_task)))
            os.environ["CUDA_VISIBLE_DEVICES"] = gpus

    def get_task_info(self) -> tuple[str | None, int | None]:
        """Returns the job and index of this task."""
        return self.task_type, self.task_id


def expand_hostlist(hostlist: str) -> list[str]:
    """Expands hosts in Slurm's notation: ``n[1-3,7],m2`` gives n1, n2, n3, n7, m2."""
    parts = re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", hostlist)
    if not parts or ",".join(parts) != hostlist:
        raise _malformed("host list", hostlist)
    return [host for part in parts for host in _expanded(part, hostlist)]


def expand_tasks_per_node(tasks_per_node: str) -> list[int]:
    """Expands numbers in Slurm's notation: ``3(x2),1`` gives 3, 3, 1."""
    numbers: list[int] = []
    for part in tasks_per_node.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if match is None:
            raise _malformed("list of tasks per node", tasks_per_node)
        numbers += [int(match[1])] * int(match[2] or 1)
    return numbers


def _expanded(part: str, whole: str) -> Iterator[str]:
    """Yields the hosts of one part, which may have several ranges: ``r[1-2]n[1-2]``."""
    match = re.fullmatch(r"([^\[\]]*)\[([^\[\]]+)\](.*)", part)
    if match is None:
        if "[" in part or "]" in part:
            raise _malformed("host list", whole)
        yield part
        return
    for item in match[2].split(","):
        first, _, last = item.partition("-")
        if not (first.isdigit() and (last or first).isdigit()):
            raise _malformed("host list", whole)
        for number in range(int(first), int(last or first) + 1):
            for rest in _expanded(match[3], whole) if match[3] else ("",):
                yield f"{match[1]}{number:0{len(first)}d}{rest}"


def _malformed(what: str, text: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"not a {what} as Slurm writes it: {text!r}")


def _variable(name: str) -> str:
    value = os.environ.get(f"SLURM_{name}")
    if value is None:
        raise FailedPreconditionError(
            f"SLURM_{name} is not set: this process runs in no Slurm job step; start it with srun"
        )
    return value


def _number(name: str) -> int:
    value = _variable(name)
    try:
        return int(value)
    except ValueError:
        raise InvalidArgumentError(f"SLURM_{name} is not a number: {value!r}") from None


def _counts(what: str, counts: Any) -> dict[str, int]:
    """Checks and returns the number of tasks by job or by node."""
    if not isinstance(counts, Mapping):
        raise InvalidTypeError(f"{what} is a dict of number by name, got {counts!r}")
    wrong = {name: count for name, count in counts.items() if not isinstance(count, int)}
    if wrong:
        raise InvalidTypeError(f"{what}: numbers of tasks are integers, got {wrong}")
    if not counts or min(counts.values()) < 0:
        raise InvalidArgumentError(f"{what}: numbers of tasks are 0 or more, got {dict(counts)}")
    return dict(counts)


def _nodes(tasks_per_node: int | Mapping[str, int] | None) -> dict[str, int]:
    if isinstance(tasks_per_node, Mapping):
        return _counts("tasks_per_node", tasks_per_node)
    hosts = expand_hostlist(_variable("STEP_NODELIST"))
    if tasks_per_node is not None:
        return _counts("tasks_per_node", dict.fromkeys(hosts, tasks_per_node))
    counts = expand_tasks_per_node(_variable("STEP_TASKS_PER_NODE"))
    if len(counts) != len(hosts):
        raise FailedPreconditionError(
            f"SLURM_STEP_NODELIST names {len(hosts)} hosts, SLURM_STEP_TASKS_PER_NODE {len(counts)}"
        )
    return dict(zip(hosts, counts, strict=True))


def _dealt(
    jobs: Mapping[str, int], addresses: list[str], rank: int
) -> tuple[dict[str, list[str]], tuple[str | None, int | None]]:
    spec: dict[str, list[str]] = {}
    own: tuple[str | None, int | None] = (None, None)
    start = 0
    for job, tasks in sorted(jobs.items()):
        spec[job] = addresses[start : start + tasks]
        if start <= rank < start + tasks:
            own = job, rank - start
        start += tasks
    return spec, own


def _gpus_per_task(nodes: Mapping[str, int], per_node: int, per_task: int | None) -> int:
    if per_node < 0 or (per_task or 0) < 0:
        raise InvalidArgumentError(
            f"numbers of GPUs must not be negative, got {per_node} per node and {per_task} per task"
        )
    most = max(nodes.values())
    per_task = per_node // most if per_task is None else per_task
    if per_task * most > per_node:
        raise FailedPreconditionError(
            f"{most} tasks of {per_task} GPUs do not fit a node with {per_node}"
        )
    return per_task


def _offset(nodes: Mapping[str, int], rank: int) -> int:
    """Returns the position of task ``rank`` among the tasks of its node."""
    for tasks in nodes.values():
        if rank < tasks:
            break
        rank -= tasks
    return rank
