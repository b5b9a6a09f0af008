"""The standard server of a task: a trainer for job ``worker``, a parameter server for job ``ps``.

Knows which server a task runs and where it listens, not what it serves. Invariant: a server
listens on an address that other hosts can reach only if it has TLS or the user allowed it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import NoReturn, Protocol

from dataservice.runtime.addresses import split_address
from dataservice.runtime.listening import is_loopback
from dataservice.runtime.machine.open_files import allow_most_files
from dataservice.runtime.process.ending import end_with_program
from pstrain.cluster import ClusterResolver, ClusterSpec, SimpleClusterResolver
from pstrain.config import COORDINATOR_GRACE_S
from pstrain.errors import FailedPreconditionError, InvalidArgumentError
from pstrain.security import check_one_way, may_expose, server_tls
from pstrain.sessions.presence import Presence

logger = logging.getLogger(__name__)

# Keeps servers alive: some programs start a cluster's servers themselves and keep only addresses.
_serving: set[Server] = set()

_POLL_S = 0.2


class _Role(Protocol):
    presence: Presence

    @property
    def address(self) -> str: ...
    def start(self) -> None: ...
    def join(self) -> None: ...
    def stop(self) -> None: ...


class Server:
    """The server of one task of a cluster, driven by the coordinator, until it is stopped.

    It listens on the task's address in the cluster spec, unless ``host`` or ``port`` override it.
    An address that other hosts can reach needs TLS, or ``insecure_network=True`` if its traffic may
    travel unencrypted. ``tls_cert_path`` and ``tls_key_path``: the certificate that it presents to
    clients; ``tls_ca_path``: the CA file by which a trainer verifies parameter servers, by default
    the file in PSTRAIN_TLS_CA. Either all servers of a cluster have TLS or none. `pstrain launch`
    passes its own options for these in the environment. ``token`` None: the user's own token.

    A server whose coordinator has left stays idle for the next one. With ``exit_with_coordinator``
    it stops, and :meth:`join` returns, when the coordinator's program has ended without an uncaught
    exception or by ``sys.exit(0)``. After any other end it stops once no client has been connected
    for 30 s, or for the number of seconds given, which leaves time to start the program again.
    Parameter servers count trainers as clients, so set it on all of a cluster's servers.
    ``protocol`` may only be "grpc" and ``config`` only None; both exist for programs written for
    TensorFlow. Like TensorFlow's, the server goes on if the program keeps no reference to it.
    """

    def __init__(
        self,
        server_or_cluster_def: ClusterResolver | ClusterSpec | dict[str, list[str]],
        job_name: str | None = None,
        task_index: int | None = None,
        protocol: str | None = None,
        config: None = None,
        start: bool = True,
        *,
        host: str | None = None,
        port: int | None = None,
        token: str | None = None,
        insecure_network: bool = False,
        tls_cert_path: str | None = None,
        tls_key_path: str | None = None,
        tls_ca_path: str | None = None,
        exit_with_coordinator: bool | float = False,
    ) -> None:
        _check_session(protocol, config)
        resolver = _resolver(server_or_cluster_def)
        job, index = _task(resolver, job_name, task_index)
        self.job_name, self.task_index = job, index
        spec_host, spec_port = split_address(
            resolver.cluster_spec().task_address(job, index), any_port=True
        )
        host = host if host is not None else _bind_host(spec_host)
        paths = {"--tls-cert": tls_cert_path, "--tls-key": tls_key_path, "--tls-ca": tls_ca_path}
        check_one_way(insecure_network, paths)
        tls = server_tls(tls_cert_path, tls_key_path, tls_ca_path)
        if tls is None and not is_loopback(host) and not may_expose(insecure_network):
            raise InvalidArgumentError(
                f"{job}:{index} would listen on {host}, which other hosts can reach, without "
                "encryption: set tls_cert_path and tls_key_path (--tls-cert, --tls-key), or accept "
                "that with insecure_network=True (--insecure-network)"
            )
        role = _role_of(job)
        self._role = role(host, spec_port if port is None else port, token=token, tls=tls)
        self._grace_s = _grace(exit_with_coordinator)
        self._role.presence.decides_end = self._grace_s is not None
        self._stopping = threading.Event()
        self._watch: threading.Thread | None = None
        if start:
            self.start()

    @staticmethod
    def create_local_server(config: None = None, start: bool = True) -> Server:
        """Makes a trainer on a free port of this host, the only task of its cluster."""
        return Server({"worker": ["127.0.0.1:0"]}, "worker", 0, config=config, start=start)

    @property
    def address(self) -> str:
        """The ``host:port`` that the server listens on."""
        return self._role.address

    @property
    def target(self) -> str:
        """The server's address as a URL, ``grpc://host:port``."""
        return f"grpc://{self.address}"

    def start(self) -> None:
        """Listens and serves; does nothing if the server has started.

        AddressInUseError if the port is taken, FailedPreconditionError after :meth:`stop`.
        """
        if self.has_stopped:
            raise FailedPreconditionError("a stopped server cannot start again: make a new Server")
        if self in _serving:
            return
        allow_most_files()
        self._role.start()
        end_with_program(self, Server.stop)
        _serving.add(self)
        logger.info("%s:%d serves at %s", self.job_name, self.task_index, self.address)
        if self._grace_s is not None and self._watch is None:
            self._watch = threading.Thread(
                target=self._stop_when_unused,
                args=(self._grace_s,),
                name="coordinator-watch",
                daemon=True,
            )
            self._watch.start()

    @property
    def has_stopped(self) -> bool:
        """True once :meth:`stop` was called, or the server stopped because its coordinator left."""
        return self._stopping.is_set()

    def join(self) -> None:
        """Blocks until the server has stopped.

        FailedPreconditionError before :meth:`start`: nothing would ever end the wait.
        """
        if not (self in _serving or self.has_stopped):
            raise FailedPreconditionError("there is nothing to wait for before start()")
        self._role.join()

    def stop(self) -> None:
        """Stops the server and frees its port. Idempotent."""
        self._stopping.set()
        _serving.discard(self)
        self._role.stop()
        if self._watch is not None and self._watch is not threading.current_thread():
            self._watch.join()

    def _stop_when_unused(self, grace_s: float) -> None:
        while not self._stopping.wait(_POLL_S):
            if self._role.presence.is_over(grace_s):
                logger.info("%s:%d stops: its coordinator left", self.job_name, self.task_index)
                self.stop()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a server stays in its process; give away its resolver")

    def __repr__(self) -> str:
        if self in _serving:
            state = f"at {self.address}"
        else:
            state = "stopped" if self.has_stopped else "not started"
        return f"<Server {self.job_name}:{self.task_index} {state}>"

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _role_of(job: str) -> Callable[..., _Role]:
    # Imported here, so that a process loads the modules of its own role only.
    if job == "worker":
        from pstrain.trainer.server import TrainerServer

        return TrainerServer
    from pstrain.paramserver.server import ParameterServer

    return ParameterServer


def _check_session(protocol: str | None, config: object) -> None:
    if protocol not in (None, "grpc"):
        raise InvalidArgumentError(
            f"protocol must be 'grpc', got {protocol!r}; encryption is by tls_cert_path and "
            "tls_key_path"
        )
    if config is not None:
        raise InvalidArgumentError(
            f"config must be None, got {config!r}: a server has no TensorFlow session; threads of "
            "kernels are set by NUMBA_NUM_THREADS in its environment"
        )


def _grace(exit_with_coordinator: bool | float) -> float | None:
    if exit_with_coordinator is False:
        return None
    grace_s = COORDINATOR_GRACE_S if exit_with_coordinator is True else exit_with_coordinator
    if grace_s < 0:
        raise InvalidArgumentError(f"exit_with_coordinator is in seconds, got {grace_s}")
    return float(grace_s)


def _resolver(value: ClusterResolver | ClusterSpec | dict[str, list[str]]) -> ClusterResolver:
    if isinstance(value, ClusterResolver):
        return value
    return SimpleClusterResolver(ClusterSpec(value))


def _task(
    resolver: ClusterResolver, job_name: str | None, task_index: int | None
) -> tuple[str, int]:
    """Returns the task that the arguments or the resolver name, or else the cluster's only task."""
    spec = resolver.cluster_spec()
    job = job_name or resolver.task_type or (spec.jobs[0] if len(spec.jobs) == 1 else None)
    if job is None:
        raise InvalidArgumentError(f"which job is this? name job_name; the cluster has {spec.jobs}")
    if job not in ("worker", "ps"):
        raise InvalidArgumentError(
            f"job {job!r} runs no server: the coordinator and the evaluator are programs of "
            "their own; servers are for 'worker' and 'ps'"
        )
    index = task_index if task_index is not None else resolver.task_id
    if index is None:
        indices = spec.task_indices(job)
        if len(indices) != 1:
            raise InvalidArgumentError(f"which task of {job!r}? name task_index; it has {indices}")
        index = indices[0]
    return job, index


def _bind_host(spec_host: str) -> str:
    return "127.0.0.1" if spec_host == "localhost" else spec_host
