"""A dispatcher as an object: takes a configuration, has an address, can be started and stopped.

Responsible for wiring service, endpoint, journal and RPC server together, for their lifetimes and
for the housekeeping thread. Knows no requests. Invariant: `stop` is bounded and idempotent, frees
the port, and leaves no thread at work; any number of dispatchers may live in one process.
"""

from __future__ import annotations

import logging
import threading
from functools import partial
from pathlib import Path
from typing import Any, Final

from dataservice.config import OF_DISPATCHER_CONFIG, DispatcherConfig
from dataservice.dispatcher.endpoint import DispatcherEndpoint
from dataservice.dispatcher.planning import preload
from dataservice.dispatcher.scaling_command import ScalingCommand
from dataservice.dispatcher.service import DispatcherService
from dataservice.dispatcher.snapshot_handlers import DEFAULT_SNAPSHOTS_PER_WORKER
from dataservice.errors import (
    DataServiceError,
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
)
from dataservice.runtime.addresses import format_address
from dataservice.runtime.arguments import check_true_or_false, limit_s
from dataservice.runtime.auth import TlsConfig, resolve_token
from dataservice.runtime.journal import Journal, SqliteJournal
from dataservice.runtime.pickling.stand_in import StandIn
from dataservice.runtime.process.ending import end_with_program
from dataservice.runtime.process.forking import Origin
from dataservice.runtime.refused_arguments import refuse_arguments
from dataservice.runtime.refused_timeouts import refuse_timeout
from dataservice.runtime.rpc import RpcServer
from dataservice.runtime.threads import StoppableThread, wait_until
from dataservice.vocabulary import PROTOCOL
from dataservice.wire import dispatcher_pb2 as pb

logger = logging.getLogger(__name__)

JOURNAL_FILE: Final = "journal.sqlite"
_ANY_HOST: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class DispatchServer:
    """A dispatcher that serves in the background until it is stopped.

    A second `start()` does nothing; after `stop()`, `start()` raises FailedPreconditionError. All
    methods are thread-safe.
    """

    @refuse_arguments("DispatchServer", OF_DISPATCHER_CONFIG)
    def __init__(self, config: DispatcherConfig | None = None, start: bool = True) -> None:
        if config is not None and not isinstance(config, DispatcherConfig):
            raise InvalidTypeError(
                f"config must be a DispatcherConfig or None, got {config!r:.200}"
            )
        check_true_or_false(start=start)
        self._config = config or DispatcherConfig()
        self._lock = threading.Lock()
        self._origin = Origin()
        self._stopped = threading.Event()
        self._journal: Journal | None = None
        self._service: DispatcherService | None = None
        self._rpc: RpcServer | None = None
        self._housekeeping: StoppableThread | None = None
        self._scaling: ScalingCommand | None = None
        if start:
            self.start()

    @property
    def target(self) -> str:
        """The address at which clients and workers reach it, like ``grpc://127.0.0.1:5050``."""
        if self._rpc is None:
            raise FailedPreconditionError("the dispatcher has no address before start()")
        host = _ANY_HOST.get(self._config.host, self._config.host)
        return f"{PROTOCOL}://{format_address(host, self._rpc.port)}"

    def start(self) -> None:
        """Restores the state from the journal, if there is one, and starts serving.

        AddressInUseError if the port is taken, DataLossError if the journal is damaged.
        """
        with self._lock:
            if self._stopped.is_set():
                raise FailedPreconditionError(
                    "a stopped dispatcher cannot start again; make a new DispatchServer"
                )
            if self._rpc is not None:
                return
            try:
                self._serve()
            except BaseException:
                self._release()
                raise
            end_with_program(self, DispatchServer.stop)
            logger.info("dispatcher serves at %s", self.target)

    def _serve(self) -> None:
        config = self._config
        token = resolve_token(config.token)
        if config.fault_tolerant_mode:
            self._journal = _open_journal(config)
        self._service = DispatcherService(
            snapshots_per_worker=(
                config.worker_max_concurrent_snapshots or DEFAULT_SNAPSHOTS_PER_WORKER
            ),
            worker_addresses=config.worker_addresses or (),
            journal=self._journal,
            worker_timeout_s=config.worker_timeout_s,
            client_timeout_s=config.client_timeout_s,
            owner_timeout_s=config.owner_timeout_s,
            job_gc_timeout_s=config.job_gc_timeout_s,
            job_gc_check_interval_s=config.job_gc_check_interval_s,
        )
        tls = TlsConfig.of(config.tls_cert_path, config.tls_key_path, None)
        rpc = RpcServer(config.host, config.port, token=token, tls=tls)
        rpc.add_service(
            pb.DESCRIPTOR.services_by_name["Dispatcher"], DispatcherEndpoint(self._service)
        )
        rpc.start()
        self._rpc = rpc
        self._housekeeping = StoppableThread(
            partial(_run_housekeeping, self._service), owner="dispatcher", name="housekeeping"
        ).start()
        if config.on_workers_enough is not None:
            self._scaling = ScalingCommand(
                config.on_workers_enough,
                self._service.overview.workers_enough,
                target=self.target,
                stay_s=config.workers_enough_stay_s,
                timeout_s=config.workers_enough_timeout_s,
            ).start()

    @refuse_timeout("join")
    def join(self, timeout_s: float | None = None) -> None:
        """Blocks until the dispatcher is stopped, or until `timeout_s` has passed."""
        if self._rpc is None and not self._stopped.is_set():
            raise FailedPreconditionError("there is nothing to wait for before start()")
        wait_until(self._stopped.wait, limit_s(timeout_s, "timeout_s"))

    def stop(self) -> None:
        """Stops serving and frees the port in bounded time; idempotent, also before `start()`."""
        if not self._origin.is_here:
            return  # a forked child leaves stopping to its parent
        with self._lock:
            if self._stopped.is_set():
                return
            self._stopped.set()
            self._release()

    def _release(self) -> None:
        if self._scaling is not None:
            self._scaling.stop()
        if self._housekeeping is not None:
            self._housekeeping.stop()
        if self._service is not None:
            self._service.close()
        if self._rpc is not None:
            self._rpc.stop()
        if self._journal is not None:
            self._journal.close()
        self._service = self._journal = self._housekeeping = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles as a stand-in with the address, for functions that are sent to workers."""
        if self._rpc is None:
            raise TypeError("a dispatcher has no address to give away before start()")
        return StandIn, ("the DispatchServer", {"target": self.target})

    def __repr__(self) -> str:
        if self._stopped.is_set():
            return "<DispatchServer, stopped>"
        where = "not started" if self._rpc is None else f"at {self.target}"
        return f"<DispatchServer {where}>"

    def __enter__(self) -> DispatchServer:
        self.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    def __del__(self) -> None:
        # If the constructor raised, the attributes may be missing.
        if getattr(self, "_stopped", None) is not None and not self._stopped.is_set():
            self.stop()


def _run_housekeeping(service: DispatcherService, stop: threading.Event) -> None:
    """Ticks the service until `stop` is set.

    Holds a reference to the service only, so that an unreferenced server is collected and stopped.
    """
    preload()
    told = ""
    while not stop.wait(service.tick_s):
        try:
            service.tick()
            told = ""
        except DataServiceError as error:
            # The journal fails, perhaps temporarily; the service reports that to its callers.
            if told != str(error):
                logger.error("housekeeping failed: %s", error)
            told = str(error)


def _open_journal(config: DispatcherConfig) -> Journal:
    assert config.work_dir is not None, "the configuration checked it"
    folder = Path(config.work_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidArgumentError(
            f"work_dir {folder} cannot be created: {error.strerror or error}"
        ) from error
    return SqliteJournal(folder / JOURNAL_FILE)
