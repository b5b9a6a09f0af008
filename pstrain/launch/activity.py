"""Reports, in words for people, what every process of a local cluster has done so far.

Asks each role for its own status, and the kernel for its memory. Knows nothing of models.
Invariant: a role that does not answer is listed with its error, never left out.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dataservice.errors import DataServiceError, UnavailableError
from dataservice.runtime.auth import resolve_token
from dataservice.runtime.rpc import RpcClient
from pstrain.launch.local import LocalCluster
from pstrain.trainer.client import RemoteParameters
from pstrain.wire import trainer_pb2 as pb

_TIMEOUT_S = 10.0
_NAMES = {"worker": "trainer", "ps": "parameter server", "data_worker": "data worker"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """What one process has done. ``memory_bytes``: its peak resident memory; 0 if unknown."""

    role: str
    pid: int
    memory_bytes: int
    did: str


def activities(cluster: LocalCluster, parameters: RemoteParameters) -> list[Activity]:
    """Returns one entry for the calling program, then one for each process of the cluster."""
    service: Mapping[str, Any] | DataServiceError
    try:
        service = _service_status(cluster)
    except DataServiceError as error:
        service = error
    found = [Activity(role="coordinator", pid=os.getpid(), memory_bytes=peak_memory_bytes("self"),
                      did="scheduled the steps")]  # fmt: skip
    for task in cluster.status():
        role, index = task["role"], task["index"]
        try:
            did = _did(task, service, parameters) if task["alive"] else "ended"
        except DataServiceError as error:
            did = f"does not answer: {error}"
        name = _NAMES.get(role, role) + ("" if role == "dispatcher" else f" {index}")
        memory = peak_memory_bytes(task["pid"])
        found.append(Activity(role=name, pid=task["pid"], memory_bytes=memory, did=did))
    return found


def peak_memory_bytes(pid: int | str) -> int:
    """Returns the peak resident memory of a process; 0 if Linux's /proc does not tell it."""
    try:
        lines = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    found = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return int(found[0]) * 1024 if found else 0


def _did(
    task: Mapping[str, Any],
    service: Mapping[str, Any] | DataServiceError,
    parameters: RemoteParameters,
) -> str:
    match task["role"]:
        case "ps":
            status = parameters.status(task["index"], timeout_s=_TIMEOUT_S)
            requests = status["requests"]
            held = f"{status['shards']} shards of {status['size_bytes'] / 1e6:,.1f} MB"
            # Changes outside closures, of closures decided here, and of those decided elsewhere.
            pulls = requests.get("pull", 0)
            pushes = sum(requests.get(kind, 0) for kind in ("push", "decide", "commit"))
            return f"{pulls:,} pulls, {pushes:,} pushes, {held}"
        case "worker":
            return f"{_trainer_status(task['address'])['closures_run']:,} closures run"
    if isinstance(service, DataServiceError):
        raise service
    if task["role"] == "data_worker":
        rows = {w["pid"]: w["rows_sent"] for w in service.get("workers", ())}
        return f"{rows.get(task['pid'], 0):,} rows streamed"
    jobs = service.get("jobs", ())
    windows = sum(i.get("windows", {}).get("done", 0) for job in jobs for i in job["iterations"])
    return (
        f"{service.get('datasets', 0)} datasets, {len(jobs)} jobs, {windows:,} windows handed out"
    )


def _trainer_status(address: str) -> dict[str, Any]:
    service = pb.DESCRIPTOR.services_by_name["Trainer"]
    with RpcClient(address, service, token=resolve_token()) as client:
        reply = client.call("GetStatus", pb.GetStatusRequest(), timeout_s=_TIMEOUT_S)
    return dict(json.loads(reply.json))


def _service_status(cluster: LocalCluster) -> dict[str, Any]:
    """Returns what ``dataservice status`` prints; empty if there is no data service."""
    if not any(task["role"] == "dispatcher" for task in cluster.status()):
        return {}
    command = [sys.executable, "-m", "dataservice", "status", "--json", cluster.service]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=2 * _TIMEOUT_S, check=True
        )
    except (subprocess.SubprocessError, OSError) as error:
        raise UnavailableError(f"the dispatcher gave no status: {error}") from error
    return dict(json.loads(done.stdout))
