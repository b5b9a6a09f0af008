"""Joins several clusters, each described by its own resolver, into one.

Knows nothing of where the parts come from. Invariant: a task of any part is a task of the whole,
and no task silently replaces another one with the same name.
"""

from __future__ import annotations

from typing import Any

from pstrain.cluster import ClusterResolver, ClusterSpec
from pstrain.errors import AlreadyExistsError, InvalidArgumentError, InvalidTypeError


class DuplicateTaskError(AlreadyExistsError, KeyError):
    """Two clusters name the same task of a job whose tasks are numbered."""

    code = "DUPLICATE_TASK"


class UnionResolver(ClusterResolver):
    """The union of ``resolvers``; the first of them supplies what the keywords leave open.

    The tasks of a job that all parts give as lists are appended in order. If a part gives the job
    as a dict of numbered tasks, all parts are merged by number, and a number that occurs twice
    raises KeyError. Keywords: ``task_type``, ``task_id`` (0 included), ``rpc_layer``.
    """

    def __init__(self, *resolvers: ClusterResolver, **keywords: Any) -> None:
        task_type = keywords.pop("task_type", None)
        task_id = keywords.pop("task_id", None)
        rpc_layer = keywords.pop("rpc_layer", None)
        if keywords:
            raise InvalidArgumentError(
                f"unexpected keywords {sorted(keywords)}: UnionResolver takes task_type, task_id "
                "and rpc_layer"
            )
        if not resolvers:
            raise InvalidArgumentError("UnionResolver needs at least one ClusterResolver")
        for resolver in resolvers:
            if not isinstance(resolver, ClusterResolver):
                raise InvalidTypeError(
                    f"UnionResolver joins ClusterResolvers, got {type(resolver).__name__}"
                )
        first = resolvers[0]
        super().__init__(
            ClusterSpec({}),
            task_type if task_type is not None else first.task_type,
            task_id if task_id is not None else first.task_id,
            rpc_layer or first.rpc_layer,
        )
        self._resolvers = resolvers
        self.environment = getattr(first, "environment", "")
        self.token = getattr(first, "token", None)

    def cluster_spec(self) -> ClusterSpec:
        """Returns the union of the clusters that the resolvers give at this moment."""
        clusters = [resolver.cluster_spec().as_dict() for resolver in self._resolvers]
        jobs = dict.fromkeys(job for cluster in clusters for job in cluster)
        return ClusterSpec(
            {job: _joined(job, [c[job] for c in clusters if job in c]) for job in jobs}
        )

    def master(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
    ) -> str:
        """Returns the address of the task that both arguments name, else the first's master."""
        if task_type is not None and task_id is not None:
            return self._url(self.cluster_spec().task_address(task_type, task_id), rpc_layer)
        return self._resolvers[0].master(rpc_layer=rpc_layer or self.rpc_layer)

    def num_accelerators(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        config_proto: Any = None,
    ) -> dict[str, int]:
        return self._resolvers[0].num_accelerators(task_type, task_id, config_proto)


def _joined(job: str, parts: list[list[str] | dict[int, str]]) -> list[str] | dict[int, str]:
    if all(isinstance(part, list) for part in parts):
        return [address for part in parts for address in part if isinstance(address, str)]
    tasks: dict[int, str] = {}
    for part in parts:
        numbered = part if isinstance(part, dict) else dict(enumerate(part))
        twice = sorted(tasks.keys() & numbered.keys())
        if twice:
            raise DuplicateTaskError(
                f"two clusters have tasks {twice} of job {job!r}: number them differently"
            )
        tasks.update(numbered)
    return tasks
