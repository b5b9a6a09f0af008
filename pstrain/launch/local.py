"""LocalCluster: every role of a training cluster as a process of its own on this machine.

Knows how processes are started and ended, not what they do. Invariant: when the cluster is
closed, or the process that made it dies in whatever way, no process and no port of it is left.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import threading
import weakref
from dataclasses import dataclass
from typing import Any

from dataservice.runtime import auth
from dataservice.runtime.arguments import check_true_or_false, integer_at_least, path_of
from dataservice.runtime.pickling.stand_in import StandIn
from dataservice.runtime.process.children import ChildProcess, spawn_module
from pstrain.cluster import ClusterSpec, SimpleClusterResolver
from pstrain.errors import (
    DataServiceError,
    FailedPreconditionError,
    NotFoundError,
)
from pstrain.security import TLS_CA_ENV, TLS_CERT_ENV, TLS_KEY_ENV

logger = logging.getLogger(__name__)

ROLES = ("dispatcher", "data_worker", "ps", "worker")
_READY_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 5.0
_POLL_S = 0.2

# Every process computes on one core; more threads than cores would only get in each other's way.
ONE_CORE = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
}


def _check_same_tls(*, has_service: bool) -> None:
    """Raises FailedPreconditionError if this program's clients use TLS and their servers do not.

    The variables are not set aside for them: they may be clients of other servers too.
    """
    trains_by_tls = TLS_CERT_ENV in os.environ or TLS_KEY_ENV in os.environ
    names = [] if trains_by_tls else [TLS_CA_ENV]
    names += [auth.TLS_CA_ENV] if has_service else []
    found = [name for name in names if name in os.environ]
    if found:
        raise FailedPreconditionError(
            f"the servers of this LocalCluster use no TLS, on the loopback interface alone, and "
            f"{' and '.join(found)} tells their clients to: start this program by "
            f"`env -u {' -u '.join(found)} ...`"
        )


@dataclass(slots=True)
class _Task:
    role: str
    index: int
    child: ChildProcess
    address: str = ""


class _Resolver(SimpleClusterResolver):
    """The resolver of a LocalCluster, which remembers the strategies that use the cluster."""

    def __init__(
        self, spec: ClusterSpec, strategies: weakref.WeakSet[Any], closing: threading.Event
    ) -> None:
        super().__init__(spec)
        self._strategies, self._closing = strategies, closing

    def note_strategy(self, strategy: Any) -> None:
        self._strategies.add(strategy)

    def check_open(self) -> None:
        if self._closing.is_set():
            raise FailedPreconditionError(
                "the LocalCluster of this strategy is closed: make another one, and a strategy and "
                "models on it"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return SimpleClusterResolver, (self.cluster_spec(),)


class LocalCluster:
    """``workers`` trainers, ``ps`` parameter servers, a dispatcher and ``data_workers``.

    The cluster is ready when the constructor returns, and is a context manager.
    ``data_workers=0`` leaves out the data service. ``log_dir``: the folder for each process's log;
    None: a temporary folder that is removed with the cluster. ``supervise``: trainers and parameter
    servers that end by themselves or are killed are started again at their old addresses. A role is
    named "worker" (a trainer), "ps", "data_worker" or "dispatcher". Not thread-safe. The processes
    communicate on the loopback interface, without TLS; those that train use it if PSTRAIN_TLS_CERT
    and PSTRAIN_TLS_KEY name a certificate. FailedPreconditionError if the environment tells clients
    to use TLS and their servers do not.
    """

    def __init__(
        self,
        workers: int = 2,
        ps: int = 2,
        data_workers: int = 1,
        *,
        log_dir: str | os.PathLike[str] | None = None,
        supervise: bool = False,
    ) -> None:
        integer_at_least(workers, 1, "workers")
        integer_at_least(ps, 1, "ps")
        integer_at_least(data_workers, 0, "data_workers")
        check_true_or_false(supervise=supervise)
        _check_same_tls(has_service=data_workers > 0)
        self._own_log_dir = log_dir is None
        given = tempfile.mkdtemp(prefix="pstrain-") if log_dir is None else log_dir
        self.log_dir = path_of(given, "log_dir")
        os.makedirs(self.log_dir, exist_ok=True)
        self._tasks: dict[tuple[str, int], _Task] = {}
        self._strategies: weakref.WeakSet[Any] = weakref.WeakSet()
        self._resolver: _Resolver | None = None
        self._changing = threading.Lock()
        self._closing = threading.Event()
        self._supervisor = threading.Thread(target=self._supervise, name="supervisor", daemon=True)
        try:
            self._start(workers, ps, data_workers)
        except BaseException:
            self.close()
            raise
        if supervise:
            self._supervisor.start()

    def _supervise(self) -> None:
        while not self._closing.wait(_POLL_S):
            with self._changing:
                for task in list(self._tasks.values()):
                    if task.role in ("ps", "worker") and task.child.returncode is not None:
                        logger.warning("%s:%d has ended; restarting it", task.role, task.index)
                        try:
                            self._restart(task)
                        except DataServiceError as error:
                            logger.warning("the restart failed and is tried again: %s", error)

    def _start(self, workers: int, ps: int, data_workers: int) -> None:
        if data_workers:
            self._spawn("dispatcher", 0)
        # Importing Numba takes as long as the dispatcher's start, so both happen at the same time.
        from pstrain.compiling import compile_kernels

        # Compiled once, into the cache, so that the servers do not all compile at the same time.
        compile_kernels()
        for role, count in (("ps", ps), ("worker", workers)):
            for index in range(count):
                self._spawn(role, index)
        if data_workers:
            self._wait("dispatcher", 0)
            for index in range(data_workers):
                self._spawn("data_worker", index)
        for task in list(self._tasks.values()):
            if not task.address:
                self._wait(task.role, task.index)

    @property
    def service(self) -> str:
        """The dispatcher's address, for ``register_dataset`` and ``distribute``."""
        if ("dispatcher", 0) not in self._tasks:
            self._check_open()
            raise NotFoundError("this cluster has no data service: it was made with data_workers=0")
        return f"grpc://{self._task('dispatcher', 0).address}"

    @property
    def resolver(self) -> SimpleClusterResolver:
        """The resolver for ``ParameterServerStrategy``; it makes this process the coordinator.

        It is the same object as long as the addresses are the same.
        """
        spec = self.cluster_spec
        if self._resolver is None or self._resolver.cluster_spec() != spec:
            self._resolver = _Resolver(spec, self._strategies, self._closing)
        return self._resolver

    @property
    def cluster_spec(self) -> ClusterSpec:
        """The addresses of the trainers and parameter servers, by job."""
        self._check_open()
        return ClusterSpec(
            {role: {t.index: t.address for t in self._of(role)} for role in ("worker", "ps")}
        )

    def kill(self, role: str, index: int = 0) -> None:
        """Kills the process by SIGKILL, as when a machine is lost."""
        self._task(role, index).child.kill()

    def suspend(self, role: str, index: int = 0) -> None:
        """Freezes the process by SIGSTOP; its connections stay open."""
        self._task(role, index).child.suspend()

    def resume(self, role: str, index: int = 0) -> None:
        """Lets a suspended process go on, by SIGCONT."""
        self._task(role, index).child.resume()

    def restart(self, role: str, index: int = 0) -> None:
        """Starts the task anew on its old address, killing it first if it still runs."""
        with self._changing:
            self._restart(self._task(role, index))

    def _restart(self, task: _Task) -> None:
        task.child.kill()
        self._spawn(task.role, task.index, task.address)
        self._wait(task.role, task.index)

    def status(self) -> list[dict[str, Any]]:
        """Returns one dict per process: role, index, address, pid, alive."""
        return [
            {
                "role": task.role,
                "index": task.index,
                "address": task.address,
                "pid": task.child.pid,
                "alive": task.child.returncode is None,
            }
            for task in self._tasks.values()
        ]

    def close(self) -> None:
        """Ends every process; kills those that do not end when asked. Idempotent.

        The coordinators of this process that use the cluster are closed first, because they would
        take the end of its trainers and servers for failures.
        """
        self._closing.set()
        for strategy in list(self._strategies):
            if strategy.coordinator is not None:
                strategy.coordinator.close()
        if self._supervisor.is_alive():
            self._supervisor.join(_READY_TIMEOUT_S)
        children = [task.child for task in reversed(self._tasks.values())]
        self._tasks.clear()
        for child in children:
            child.request_stop()
        for child in children:
            child.terminate(_STOP_TIMEOUT_S)
        if self._own_log_dir:
            shutil.rmtree(self.log_dir, ignore_errors=True)

    stop = close

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles as a stand-in that has the addresses, for functions that are sent elsewhere."""
        if not self._tasks:
            raise TypeError("a cluster that is closed has no addresses to give away")
        known: dict[str, Any] = {"resolver": self.resolver}
        if ("dispatcher", 0) in self._tasks:
            known["service"] = self.service
        return StandIn, ("the LocalCluster", known)

    def __repr__(self) -> str:
        roles = ", ".join(f"{len(self._of(role))} {role}" for role in ROLES if self._of(role))
        return f"<LocalCluster {roles or 'closed'}>"

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _spawn(self, role: str, index: int, address: str = "") -> None:
        """Starts a task's process at its previous ``address``, or at a free port if there is none.

        A task keeps its previous address while its process starts.
        """
        log = os.path.join(self.log_dir, f"{role}-{index}.log")
        if role in ("ps", "worker"):
            module = "pstrain"
            args = ["server", "--job", role, "--index", str(index)]
        else:
            module = "dataservice"
            args = [role.removeprefix("data_")]
            if role == "data_worker":
                args += ["--dispatcher", self._task("dispatcher", 0).address]
        args += ["--port", address.rpartition(":")[2] or "0", "--ready-json"]
        child = spawn_module(module, args, env=_environment(), log_path=log)
        self._tasks[role, index] = _Task(role, index, child, address)

    def _wait(self, role: str, index: int) -> None:
        task = self._tasks[role, index]
        address = task.child.wait_ready(_READY_TIMEOUT_S)["address"]
        task.address = address.rpartition("://")[2]
        logger.info("%s:%d serves at %s, pid %d", role, index, task.address, task.child.pid)

    def _of(self, role: str) -> list[_Task]:
        return [task for task in self._tasks.values() if task.role == role]

    def _task(self, role: str, index: int) -> _Task:
        if (role, index) not in self._tasks:
            self._check_open()
            present = [f"{r}:{i}" for r, i in self._tasks]
            raise NotFoundError(f"no {role}:{index!r} in this cluster; it has {', '.join(present)}")
        return self._tasks[role, index]

    def _check_open(self) -> None:
        if self._closing.is_set():
            raise FailedPreconditionError("this LocalCluster is closed: make another one")


def _environment() -> dict[str, str]:
    """Returns what servers get besides this program's environment.

    A TF_CONFIG of this program describes another cluster, whose addresses they would take. Steps
    that read it find an empty one.
    """
    return ONE_CORE | {"TF_CONFIG": "{}"} if "TF_CONFIG" in os.environ else ONE_CORE
