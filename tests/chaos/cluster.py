"""A data service of real processes behind fault proxies, and the actions that disturb it.

Knows how to carry out an action of a schedule, not when. Invariant: every process has a name and
ends with the cluster. Restarted servers keep their ports.
"""

from __future__ import annotations

import pathlib
import threading
import time
from typing import Any

from dataservice.client.connection import DispatcherConnection
from dataservice.errors import DataServiceError, UnavailableError
from dataservice.runtime.process.children import ChildProcess, spawn_module
from tests.chaos.history import Written
from tests.chaos.proxy import FaultProxy, Link
from tests.chaos.schedule import (
    CONTROL,
    READERS,
    WORKER_TIMEOUT_MS,
    Action,
    Schedule,
    data_link,
    worker_name,
)
from tests.ports import free_port

READY_TIMEOUT_S = 60.0
_HEARTBEAT_MS = 200
_POLL_S = 0.02
_TRACEBACK = "Traceback (most recent call last)"


class ChaosCluster:
    """The processes and links of one schedule. Also a context manager."""

    def __init__(self, schedule: Schedule, folder: pathlib.Path) -> None:
        self.schedule = schedule
        self.folder = folder
        self.recoveries_s: list[float] = []
        self._killed: set[str] = set()
        self._proxy = FaultProxy()
        self._children: dict[str, ChildProcess] = {}
        self._crashes: list[str] = []
        self._args: dict[str, tuple[str, list[str]]] = {}
        self._links: dict[str, Link] = {}
        self._probes: list[threading.Thread] = []
        self._closing = threading.Event()
        self._describe()

    def _describe(self) -> None:
        self._port = free_port()
        self._links[CONTROL] = self._proxy.link(self._port)
        self._links[READERS] = self._proxy.link(self._port)
        self._args["dispatcher"] = (
            "dataservice",
            [
                *("dispatcher", "--ready-json", "--port", str(self._port), "--fault-tolerant"),
                *("--work-dir", str(self.folder / "journal")),
                *("--worker-timeout-ms", str(WORKER_TIMEOUT_MS)),
                *("--client-timeout-ms", str(self.schedule.client_timeout_ms)),
            ],
        )
        for worker in range(self.schedule.workers):
            port = free_port()
            link = self._links[data_link(worker)] = self._proxy.link(port)
            self._args[worker_name(worker)] = (
                "dataservice",
                [
                    *("worker", "--ready-json", "--dispatcher", self._links[CONTROL].address),
                    *("--port", str(port), "--worker-address", link.address, "--threads", "2"),
                    *("--heartbeat-interval-ms", str(_HEARTBEAT_MS)),
                ],
            )

    @property
    def target(self) -> str:
        """The dispatcher's address for readers, through the proxy."""
        return "grpc://" + self._links[READERS].address

    @property
    def direct_target(self) -> str:
        """The dispatcher's own address, which bypasses the proxy."""
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        """Starts dispatcher and workers and waits for them."""
        for name in self._args:
            self._start(name)
        for name in self._args:
            self._children[name].wait_ready(READY_TIMEOUT_S)

    def start_doomed(self, dataset_id: str, job_name: str) -> None:
        """Starts the reader that will be killed; it begins to read at `release_doomed`."""
        protocol = self.schedule.protocol or ""
        on_error = self.schedule.on_error
        args = [self.target, dataset_id, job_name, protocol, on_error, str(self._doomed_path)]
        self._args["doomed"] = ("tests.chaos.doomed_reader", args)
        self._start("doomed")
        self._children["doomed"].wait_ready(READY_TIMEOUT_S)

    def release_doomed(self) -> None:
        """Lets the doomed reader begin together with the others: alone it might read every row."""
        if "doomed" in self._args:
            self._doomed_path.touch()

    @property
    def _doomed_path(self) -> pathlib.Path:
        return self.folder / "doomed.rows"

    def written_by_doomed(self) -> list[Written]:
        """Returns what the killed reader wrote down; a torn last line was not acknowledged."""
        if not self._doomed_path.exists():
            return []
        lines = self._doomed_path.read_text().split("\n")[:-1]
        fields = [line.split(" ") for line in lines]
        return [Written(int(first), tuple(map(int, rows))) for first, *rows in fields]

    # Actions

    def act(self, action: Action) -> None:
        """Carries out one action of a schedule."""
        if action.target in self._links:
            self._disturb(self._links[action.target], action.verb, action.amount)
        elif action.verb == "kill":
            self._kill(action.target)
        elif action.verb == "start":
            self._start(action.target)
        elif action.verb == "freeze":
            self._signal(action.target, freeze=True)
        elif action.verb == "thaw":
            self._signal(action.target, freeze=False)
        else:
            raise ValueError(f"unknown action {action}")

    def _disturb(self, link: Link, verb: str, amount: float) -> None:
        match verb:
            case "cut":
                link.cut()
            case "cut-after":
                link.cut_after(int(amount))
            case "hold":
                link.hold()
            case "hold-up":
                link.hold(("up",))
            case "hold-down":
                link.hold(("down",))
            case "refuse":
                link.refuse()
            case "delay":
                link.delay(amount)
            case "slice":
                link.slice(int(amount))
            case "heal":
                link.heal()
            case _:
                raise ValueError(f"unknown fault {verb!r} of a link")

    def _kill(self, name: str) -> None:
        self._check_alive(name)
        self._children[name].kill()
        self._killed.add(name)

    def _signal(self, name: str, *, freeze: bool) -> None:
        child = self._children[name]
        try:
            child.suspend() if freeze else child.resume()
        except UnavailableError:
            self._check_alive(name)

    def _start(self, name: str) -> None:
        module, args = self._args[name]
        log_path = self.folder / f"{name}.log"
        self._children[name] = spawn_module(module, args, log_path=log_path)
        if name == "dispatcher" and name in self._killed:
            probe = threading.Thread(target=self._await_progress, args=(time.monotonic(),))
            self._probes.append(probe)
            probe.start()

    # Outcome

    def status(self) -> dict[str, Any]:
        """Returns the dispatcher's status report."""
        with DispatcherConnection(self.direct_target) as connection:
            return connection.status()

    def _await_progress(self, began_s: float) -> None:
        """Records how long a restarted dispatcher takes until the work goes on."""
        before, dispatcher = None, self._children["dispatcher"]
        while not self._closing.wait(_POLL_S):
            try:
                dispatcher.wait_ready(READY_TIMEOUT_S)
                jobs = self.status()["jobs"]
            except DataServiceError:
                if dispatcher.returncode is not None:
                    return
                continue
            iterations = [i for job in jobs for i in job["iterations"]]
            now = [(i["windows"], i["rows_consumed"]) for i in iterations]
            if (before is not None and now != before) or all(i["finished"] for i in iterations):
                self.recoveries_s.append(time.monotonic() - began_s)
                return
            before = now

    def _check_alive(self, name: str) -> None:
        status = self._children[name].returncode
        if status is not None:
            self._crashes.append(f"{name} ended by itself with status {status}")

    def crashes(self) -> list[str]:
        """Names the processes that ended although nobody killed them, and logs with a traceback."""
        for name in self._children:
            if name != "doomed":
                self._check_alive(name)
        found = list(dict.fromkeys(self._crashes))
        logs = sorted(self.folder.glob("*.log"))
        sick = [log for log in logs if _TRACEBACK in log.read_text(errors="replace")]
        return found + [f"a traceback in {log}" for log in sick]

    def close(self) -> None:
        """Ends all processes and links. Idempotent."""
        self._closing.set()
        for child in self._children.values():
            child.kill()
        for probe in self._probes:
            probe.join(READY_TIMEOUT_S)
        self._proxy.close()

    def __enter__(self) -> ChaosCluster:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()
