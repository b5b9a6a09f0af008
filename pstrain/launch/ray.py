"""``pstrain launch --engine ray``: an actor per task, spread over the nodes of a Ray cluster.

Each actor finds a free port on its node. Once all actors have one, each starts its task as a
process. Ray is imported only when a run begins. Invariant: when a run returns or raises, its actors
are killed, and the kernel ends their tasks with them.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import socket
import sys
import threading
from dataclasses import dataclass
from typing import Any, Final

from dataservice.runtime.auth import TOKEN_ENV, resolve_token
from pstrain.errors import FailedPreconditionError, InvalidArgumentError, UnavailableError
from pstrain.launch.layout import Addresses, Layout
from pstrain.launch.tasks import Output, TaskProcess, stop_all

logger = logging.getLogger(__name__)

_CALL_TIMEOUT_S: Final = 60.0
_STOP_TIMEOUT_S: Final = 10.0
_LOOK_S: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class RayOptions:
    """The settings of a run on Ray.

    ``address``: the cluster's, such as ``auto`` or ``ray://HOST:10001``; None: the one in
    RAY_ADDRESS, else a new cluster on this machine. ``working_dir``: the folder with the program,
    which is copied to the nodes. ``timeout_s``: how long to wait for room for all tasks.
    """

    address: str | None = None
    cpus_per_task: int = 1
    working_dir: str | None = None
    timeout_s: float = 600.0

    def __post_init__(self) -> None:
        if self.cpus_per_task < 1:
            raise InvalidArgumentError(
                f"--cpus-per-task must be at least 1, got {self.cpus_per_task}"
            )


class _Task:
    """The actor that runs one task, on the node where Ray has placed it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._stopping = threading.Event()

    def place(self) -> str:
        """Returns ``host:port`` of this node, with a free port."""
        import ray

        host = str(ray.util.get_node_ip_address())
        with socket.socket() as listener:
            listener.bind((host, 0))
            return f"{host}:{listener.getsockname()[1]}"

    def run(
        self, layout_json: str, job: str, index: int, addresses: Addresses, token: str
    ) -> tuple[int, str]:
        """Runs the task until it ends or `stop` is called; returns its status and how it ended."""
        layout = Layout.from_json(layout_json)
        command = layout.command(job, index, addresses, sys.executable)
        environment = {TOKEN_ENV: token, **layout.environment(job, index, addresses)}
        # Started by this thread, which waits for it: the kernel ends a task with its thread.
        task = TaskProcess(self._name, command, environment, Output())
        try:
            while task.returncode is None and not self._stopping.wait(_LOOK_S / 5):
                pass
        finally:
            stop_all([task])
        return int(task.returncode or 0), task.how_it_ended()

    def stop(self) -> None:
        self._stopping.set()


def run_on_ray(layout: Layout, options: RayOptions) -> int:
    """Runs all tasks until the chief ends; returns its exit code, or 1 if another failed first.

    Ray forwards the tasks' output, each line after the name of its task.
    """
    layout.exposure.require("ray")
    ray = _ray()
    was_there = ray.is_initialized()
    if not was_there:
        _connect(ray, layout, options)
    try:
        return _run(ray, layout, options)
    finally:
        if not was_there:
            ray.shutdown()


def _connect(ray: Any, layout: Layout, options: RayOptions) -> None:
    address = options.address or os.environ.get("RAY_ADDRESS") or "local"
    settings: dict[str, Any] = {"address": address, "logging_level": logging.WARNING}
    if address == "local":
        # The cluster is made for these tasks alone; they share the CPUs that there are.
        settings["num_cpus"] = options.cpus_per_task * len(layout.tasks())
        settings["include_dashboard"] = False
    if options.working_dir:
        settings["runtime_env"] = {"working_dir": options.working_dir}
    try:
        ray.init(**settings)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UnavailableError(f"no Ray cluster at {address}: {error}") from error


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise FailedPreconditionError(
            "Ray is not installed: pip install 'pstrain[ray]', here and on the nodes"
        ) from error
    return ray


def _run(ray: Any, layout: Layout, options: RayOptions) -> int:
    group = _reserved(ray, layout, options)
    actors: dict[tuple[str, int], Any] = {}
    running: dict[Any, tuple[str, int]] = {}
    try:
        for place, task in enumerate(layout.tasks()):
            actors[task] = _actor(ray, group, place, f"{task[0]}:{task[1]}", options)
        running.update(_started(ray, layout, actors))
        return _watched(ray, running)
    finally:
        _end(ray, list(actors.values()), list(running))
        ray.util.remove_placement_group(group)


def _reserved(ray: Any, layout: Layout, options: RayOptions) -> Any:
    """Reserves CPUs for all tasks, on different nodes if there are enough; returns the group."""
    bundles = [{"CPU": options.cpus_per_task} for _ in layout.tasks()]
    group = ray.util.placement_group(bundles, strategy="SPREAD")
    if not group.wait(timeout_seconds=options.timeout_s):
        ray.util.remove_placement_group(group)
        raise UnavailableError(
            f"Ray had no room for {len(bundles)} tasks of {options.cpus_per_task} CPUs within "
            f"{options.timeout_s:g} s; it has {ray.cluster_resources().get('CPU', 0):g} CPUs: "
            "ask for fewer tasks, or wait longer with --timeout"
        )
    return group


def _actor(ray: Any, group: Any, place: int, name: str, options: RayOptions) -> Any:
    strategies = importlib.import_module("ray.util.scheduling_strategies")
    chosen = strategies.PlacementGroupSchedulingStrategy(
        placement_group=group, placement_group_bundle_index=place
    )
    # One thread runs the task, another one takes the call of `stop`.
    made = ray.remote(num_cpus=options.cpus_per_task, max_concurrency=2)(_Task)
    return made.options(scheduling_strategy=chosen).remote(name)


def _started(
    ray: Any, layout: Layout, actors: dict[tuple[str, int], Any]
) -> dict[Any, tuple[str, int]]:
    """Starts the tasks once all addresses are known; returns job and index by pending result."""
    placed = ray.get([actor.place.remote() for actor in actors.values()], timeout=_CALL_TIMEOUT_S)
    addresses: dict[str, list[str]] = {job: [] for job in layout.jobs}
    for (job, _), address in zip(actors, placed, strict=True):
        addresses[job].append(address)
    text, token = layout.to_json(), resolve_token()
    return {
        actor.run.remote(text, job, index, addresses, token): (job, index)
        for (job, index), actor in actors.items()
    }


def _watched(ray: Any, running: dict[Any, tuple[str, int]]) -> int:
    """Waits until the chief or the data service ends or a task fails; returns the exit code."""
    while True:
        ended, _ = ray.wait(list(running), num_returns=1, timeout=_LOOK_S)
        for reference in ended:
            job, index = running.pop(reference)
            code, how = _outcome(ray, reference, f"{job}:{index}")
            over = code != 0 or job in ("dispatcher", "data_worker")
            if over:
                print(f"pstrain launch: {how}", file=sys.stderr)
            if job == "chief":
                return code if code >= 0 else 128 - code
            if over:
                return 1


def _outcome(ray: Any, reference: Any, name: str) -> tuple[int, str]:
    try:
        code, how = ray.get(reference, timeout=_CALL_TIMEOUT_S)
    except ray.exceptions.RayActorError as error:
        return 1, f"{name} was lost with its node or actor: {error}"
    return int(code), str(how)


def _end(ray: Any, actors: list[Any], running: list[Any]) -> None:
    """Asks the tasks to end, then kills the actors and, with them, the tasks that remain."""
    with contextlib.suppress(ray.exceptions.RayError):
        for actor in actors:
            actor.stop.remote()
        if running:
            ray.wait(running, num_returns=len(running), timeout=_STOP_TIMEOUT_S)
    for actor in actors:
        ray.kill(actor)
