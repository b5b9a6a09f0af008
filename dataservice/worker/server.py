"""A data worker as one object: starts and stops its listeners, service and membership together.

Knows no streams, leases or pipelines. Invariant: `stop` is bounded and idempotent, frees the port,
and leaves no thread at work.
"""

from __future__ import annotations

import logging
import socket
import threading
from typing import Final, NoReturn

from dataservice.config import OF_WORKER_CONFIG, PORT_PLACEHOLDER, WorkerConfig
from dataservice.errors import CancelledError, FailedPreconditionError, InvalidTypeError
from dataservice.runtime.addresses import format_address
from dataservice.runtime.arguments import check_true_or_false, limit_s
from dataservice.runtime.auth import TlsConfig, client_tls, resolve_token
from dataservice.runtime.checksum import load_kernel
from dataservice.runtime.exchanges.flight import FlightServer
from dataservice.runtime.exchanges.in_process import InProcessServer
from dataservice.runtime.exchanges.local_address import NotLocalError
from dataservice.runtime.exchanges.local_server import LocalServer
from dataservice.runtime.listening import is_loopback
from dataservice.runtime.process.ending import end_with_program
from dataservice.runtime.process.forking import Origin
from dataservice.runtime.refused_arguments import refuse_arguments
from dataservice.runtime.refused_timeouts import refuse_timeout
from dataservice.runtime.threads import wait_until
from dataservice.vocabulary import PROTOCOL, SHARED_MEMORY
from dataservice.wire.elements import EXCHANGE
from dataservice.worker.dispatcher_link import DispatcherLink
from dataservice.worker.membership import Membership
from dataservice.worker.service import WorkerService
from dataservice.worker.snapshots import SnapshotWriters

logger = logging.getLogger(__name__)

# Bound to one of them, a server can be reached at every address of its host, but not at this one.
_ANY_HOST: Final = frozenset({"0.0.0.0", "::"})


class WorkerServer:
    """A data worker, which runs pipelines for readers. Also a context manager.

    `start` waits for the dispatcher, at most `dispatcher_timeout_ms`, and fails with
    FailedPreconditionError if the dispatcher's list of workers has no place for the worker's
    address. A worker that the dispatcher has forgotten registers again. A worker that cannot reach
    its dispatcher for `dispatcher_timeout_ms` stops, and `join` raises the reason.
    """

    @refuse_arguments("WorkerServer", OF_WORKER_CONFIG)
    def __init__(self, config: WorkerConfig, start: bool = True) -> None:
        if not isinstance(config, WorkerConfig):
            raise InvalidTypeError(
                f"config must be a WorkerConfig, got {config!r}; give "
                "WorkerConfig(dispatcher_address=dispatcher.target)"
            )
        check_true_or_false(start=start)
        self._config = config
        self._origin = Origin()
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._failure: BaseException | None = None
        self._flight: FlightServer | None = None
        self._local: LocalServer | None = None
        self._in_process: InProcessServer | None = None
        self._service: WorkerService | None = None
        self._link: DispatcherLink | None = None
        self._snapshots: SnapshotWriters | None = None
        self._membership: Membership | None = None
        if start:
            self.start()

    @property
    def address(self) -> str:
        """The address that readers are told; only once started."""
        if self._service is None:
            raise FailedPreconditionError("the worker has no address before start()")
        return self._service.address

    @property
    def target(self) -> str:
        """`address` as a URL, like ``grpc://127.0.0.1:5051``; only once started."""
        return f"{PROTOCOL}://{self.address}"

    @property
    def worker_id(self) -> str:
        """The id that the dispatcher gave the worker; a new one each time that it registers.

        Only once started.
        """
        if self._service is None:
            raise FailedPreconditionError("the worker has no id before start()")
        return self._service.worker_id

    def start(self) -> None:
        """Binds the port and registers. Starting twice does nothing."""
        if self._stopped.is_set():
            raise FailedPreconditionError(
                "a stopped worker cannot be started again; make a new one"
            )
        if self._flight is not None:
            return
        try:
            self._start()
        except BaseException:
            with self._lock:
                self._release()
                self._stopped.set()
            raise

    def _start(self) -> None:
        config = self._config
        token = resolve_token(config.token)
        serving_tls = TlsConfig.of(config.tls_cert_path, config.tls_key_path, None)
        self._flight = FlightServer(
            config.host,
            config.port,
            token=token,
            tls=serving_tls,
            exchanges={EXCHANGE: lambda command, channel: service.stream(command, channel)},
        )
        # With a certificate of its own and no CA, it trusts the CAs of the system.
        tls = client_tls(config.tls_ca_path) or serving_tls
        self._link = DispatcherLink(config, token=token, tls=tls)
        # Bound before the service exists, because the service announces an address with the port.
        self._flight.start()
        service = WorkerService(config, self._link, _announced(config, self._flight.port))
        self._service = service
        self._snapshots = SnapshotWriters(
            self._link,
            service.pipelines.get,
            threads=config.pipeline_threads,
            address=service.address,
        )
        self._local = self._serve_shared_memory(service, token)
        self._in_process = self._serve_in_process(service, token)
        if self._local is None or not is_loopback(config.host):
            # Some readers will use Flight; loading the kernel here saves the first one the wait.
            load_kernel()
        self._membership = Membership(
            self._link,
            service,
            self._snapshots,
            interval_s=config.heartbeat_interval_s,
            on_lost=self._give_up,
        )
        if self._stopped.is_set():
            raise CancelledError("the worker was stopped while it started")
        end_with_program(self, WorkerServer.stop)
        self._membership.start()

    def _serve_shared_memory(self, service: WorkerService, token: str) -> LocalServer | None:
        """Serves readers on this host through shared memory; None if ruled out or impossible.

        FailedPreconditionError if it is impossible although the configuration asks for it.
        """
        wanted = self._config.data_transfer_protocol
        if wanted not in (None, SHARED_MEMORY):
            return None
        server = LocalServer(service.address, token=token, exchanges={EXCHANGE: service.stream})
        try:
            return server.start()
        except NotLocalError as reason:
            if wanted is not None:
                raise FailedPreconditionError(
                    f"data_transfer_protocol={wanted!r} cannot be used: {reason}"
                ) from reason
            logger.info("readers on this host get elements through Flight: %s", reason)
            return None

    def _serve_in_process(self, service: WorkerService, token: str) -> InProcessServer | None:
        """Hands readers in this process elements unencoded; None if ruled out or impossible."""
        if self._config.data_transfer_protocol is not None:
            return None
        own = InProcessServer(service.address, token=token, exchanges={EXCHANGE: service.stream})
        try:
            return own.start()
        except FailedPreconditionError as reason:
            logger.info("readers in this process get elements like readers elsewhere: %s", reason)
            return None

    def _give_up(self, error: BaseException) -> None:
        self._failure = error
        logger.error("the worker stops: %s", error)
        # Not on this thread, because stop() waits for it.
        threading.Thread(target=self.stop, name="worker-stop", daemon=True).start()

    @refuse_timeout("join")
    def join(self, timeout_s: float | None = None) -> None:
        """Waits until the worker stops; raises the error that stopped it, if there was one."""
        if self._flight is None and not self._stopped.is_set():
            raise FailedPreconditionError("there is nothing to wait for before start()")
        wait_until(self._stopped.wait, limit_s(timeout_s, "timeout_s"))
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Ends all streams and frees the port. Idempotent; may be called from any thread."""
        if not self._origin.is_here:
            return  # in a forked child: the worker belongs to the parent process
        with self._lock:
            if self._stopped.is_set():
                return
            self._release()
            self._stopped.set()

    def _release(self) -> None:
        if self._membership is not None:
            self._membership.stop()
        if self._snapshots is not None:
            self._snapshots.stop()
        if self._service is not None:
            self._service.stop()
        if self._membership is not None:
            self._membership.leave()
        if self._link is not None:
            self._link.close()
        for listener in (self._in_process, self._local, self._flight):
            if listener is not None:
                listener.stop()
        if self._membership is not None:
            self._membership.join(1.0)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a server stays in its process; give away its address, worker.target")

    def __repr__(self) -> str:
        if self._stopped.is_set():
            return "<WorkerServer, stopped>"
        where = "not started" if self._service is None else f"at {self.target}"
        return f"<WorkerServer {where}>"

    def __enter__(self) -> WorkerServer:
        self.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()


def _announced(config: WorkerConfig, port: int) -> str:
    """Returns the address that readers are told to connect to."""
    given = config.data_transfer_address or config.worker_address
    if given is None:
        return format_address(_host_name() if config.host in _ANY_HOST else config.host, port)
    return PORT_PLACEHOLDER.sub(str(port), given)


def _host_name() -> str:
    """Returns the name under which other hosts find this one, with its domain if it is known."""
    name, full_name = socket.gethostname(), socket.getfqdn()
    return full_name if full_name.startswith(f"{name}.") else name
