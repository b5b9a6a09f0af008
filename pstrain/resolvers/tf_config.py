"""Resolves the cluster that the environment variable TF_CONFIG describes; launchers set it.

Knows the variable's form, but no launcher. Invariant: every error names the variable.
"""

from __future__ import annotations

import json
import os
from typing import Any

from pstrain.cluster import ClusterResolver, ClusterSpec
from pstrain.errors import InvalidArgumentError, InvalidTypeError


class TFConfigClusterResolver(ClusterResolver):
    """Reads ``TF_CONFIG``: ``{"cluster": {...}, "task": {"type": ..., "index": ...}}``.

    Explicit arguments override the variable. A job with gaps in its task numbers is an object of
    addresses by number: ``{"worker": {"0": "host:port", "3": "host:port"}}``. A missing variable
    means an empty cluster; a variable that is not JSON raises ValueError. ``master()`` returns the
    variable's ``session_master``; without one, "" for a cluster of at most one task, else the
    address of this task.
    """

    def __init__(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
        environment: str | None = None,
    ) -> None:
        config = _read_tf_config()
        task = config.get("task", {})
        if not isinstance(task, dict):
            raise InvalidTypeError(
                'TF_CONFIG: task is an object such as {"type": "worker", "index": 0}, got '
                f"{task!r}"
            )
        if task_type is None and "type" in task:
            task_type = str(task["type"])
        if task_id is None and "index" in task:
            task_id = _task_index(task["index"])
        super().__init__(
            ClusterSpec(_numbered(config.get("cluster", {}))),
            task_type,
            task_id,
            rpc_layer if rpc_layer is not None else config.get("rpc_layer"),
        )
        self.environment = environment if environment is not None else config.get("environment", "")
        self._session_master: str | None = config.get("session_master")

    def master(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
    ) -> str:
        if self._session_master is not None:
            return self._session_master
        spec = self.cluster_spec()
        if sum(spec.num_tasks(job) for job in spec.jobs) <= 1:
            return ""
        return super().master(task_type, task_id, rpc_layer)


def _numbered(cluster: Any) -> Any:
    """Returns the cluster with integer task numbers; keys of JSON objects are always strings."""
    if not isinstance(cluster, dict):
        return cluster
    return {
        job: {_task_index(index): address for index, address in tasks.items()}
        if isinstance(tasks, dict)
        else tasks
        for job, tasks in cluster.items()
    }


def _task_index(value: object) -> int:
    try:
        index = int(str(value))
    except ValueError:
        raise InvalidArgumentError(f"TF_CONFIG: task index is not an integer: {value!r}") from None
    if index < 0:
        raise InvalidArgumentError(f"TF_CONFIG: task index must not be negative, got {index}")
    return index


def _read_tf_config() -> dict[str, Any]:
    text = os.environ.get("TF_CONFIG", "")
    if not text.strip():
        return {}
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidArgumentError(f"TF_CONFIG is not JSON ({error}): {text[:200]!r}") from None
    if not isinstance(config, dict):
        raise InvalidArgumentError(f"TF_CONFIG must be a JSON object, got {text[:200]!r}")
    return config
