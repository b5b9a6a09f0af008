"""Settings of the servers, with their defaults and the reasons for the defaults.

Responsible for checking the values, not for using them. Knows nothing of servers, sockets or files.
Invariant: a configuration that exists is valid; where the user left a setting as None, the property
whose name ends in the unit returns its default.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from dataservice.errors import InvalidArgumentError
from dataservice.runtime.addresses import LAST_PORT, split_address
from dataservice.runtime.arguments import check_choice, check_true_or_false, path_of
from dataservice.runtime.listening import check_listener
from dataservice.runtime.machine.cores import available_cores
from dataservice.runtime.machine.memory import available_memory_bytes
from dataservice.vocabulary import DATA_TRANSFER_PROTOCOLS, PROTOCOL, parse_target

# Well above gRPC's default of 4 MiB, since plans may embed tables; small enough that a malicious
# peer cannot fill the memory with a few calls.
CONTROL_MESSAGE_MAX_BYTES: Final = 64 << 20
# A remote traceback travels in the trailing metadata, for which gRPC allows 8 KiB by default.
CONTROL_METADATA_MAX_BYTES: Final = 1 << 20
CONTROL_CALL_TIMEOUT_S: Final = 30.0
# A call occupies a thread while it runs. The server completes this many calls within a second.
CONTROL_MAX_THREADS: Final = 1_024
# Calls that have arrived but are not dispatched yet. By default gRPC cancels pending calls at
# random from 1,000 on, and 1,000 arrive within a tenth of a second. A call that is dispatched while
# all threads are busy is refused with an error that says so.
CONTROL_MAX_UNREAD_CALLS: Final = 1 << 14
# The threads that long polls may occupy: each pair of a reader and a worker has one long poll while
# nothing is left to lease. Requests beyond this limit are told when to come again, spread so that
# POLLS_REFUSED_PER_S of them return each second, beside the heartbeats.
CONTROL_MAX_POLLS: Final = 512
POLLS_REFUSED_PER_S: Final = 400
# The threads that clients may occupy who join a job while the sources of its dataset are listed.
CONTROL_MAX_PLANNERS: Final = 256
# Shorter than one attempt of a client, which retries: so no client waits in the queue twice.
PLAN_WAIT_S: Final = 8.0
# A frozen peer is noticed after KEEPALIVE_TIME_MS + KEEPALIVE_TIMEOUT_MS. gRPC waits a minute for
# the answer to a ping unless grpc.http2.ping_timeout_ms is set as well.
KEEPALIVE_TIME_MS: Final = 3_000
KEEPALIVE_TIMEOUT_MS: Final = 2_000
KEEPALIVE_MIN_RECEIVE_INTERVAL_MS: Final = 1_000
RECONNECT_BACKOFF_MIN_MS: Final = 100
RECONNECT_BACKOFF_MAX_MS: Final = 1_000

# Ten missed heartbeats, so that a busy worker is not taken for lost. Readers report a killed worker
# at once, so this time-out only matters for a frozen one.
DEFAULT_WORKER_TIMEOUT_MS: Final = 10_000
# A reader whose trainer is in a long training step still sends Syncs, from a thread of its own.
DEFAULT_CLIENT_TIMEOUT_MS: Final = 60_000
# A coordinator reports within seconds which rows a lost trainer used; this time-out matters only
# when the coordinator is lost too.
DEFAULT_OWNER_TIMEOUT_MS: Final = 60_000
DEFAULT_JOB_GC_CHECK_INTERVAL_MS: Final = 600_000
DEFAULT_JOB_GC_TIMEOUT_MS: Final = 300_000
DEFAULT_HEARTBEAT_INTERVAL_MS: Final = 1_000
# Heartbeats of all workers and readers together. If there are more clients than this, each is told
# a longer heartbeat interval, and its time-out grows with it: Python's gRPC server answers about
# 1,600 calls a second, and most of these must be left for leases and acknowledgements.
HEARTBEATS_PER_S: Final = 500
# How long a worker or reader waits for a dispatcher that is being restarted.
DEFAULT_DISPATCHER_TIMEOUT_MS: Final = 3_600_000
DEFAULT_BUFFER_BYTES: Final = 64 << 20
# The default of tf.data service. The cache fills up in time whatever the trainers do, so
# `cache_bytes` also bounds it by a part of the available memory.
DEFAULT_CROSS_TRAINER_CACHE_SIZE_BYTES: Final = 10 << 30
# A single slow step, or a checkpoint, should neither start nor stop a worker.
DEFAULT_WORKERS_ENOUGH_STAY_MS: Final = 30_000
DEFAULT_WORKERS_ENOUGH_TIMEOUT_MS: Final = 60_000
NEVER_COLLECT: Final = -1
# The placeholder in an address for the port that a worker has bound.
PORT_PLACEHOLDER: Final = re.compile(r"%(?:dts_)?port(?:_\w+)?%")
_NAMED_PORT: Final = re.compile(r":[^\W\d]\w*$")

Checked = TypeVar("Checked")


@dataclass(frozen=True, slots=True)
class DispatcherConfig:
    """Settings of a dispatcher; ``port=0`` binds any free port.

    ``worker_addresses`` is the fixed list of workers, in order, by which static sharding divides;
    with such a list no other worker may register. An entry is an address, or a host without a port
    or with ``%port%`` or ``%port_name%`` as its port: the first worker from that host takes the
    entry for good. ``localhost``, ``127.0.0.1`` and ``::1`` count as the same host.
    ``job_gc_timeout_ms=-1`` keeps idle jobs for ever. ``on_workers_enough`` is a shell command that
    runs when the number of workers that would be enough has changed and stayed changed for
    ``workers_enough_stay_ms``. It gets the numbers and the reason in the environment variables
    DATASERVICE_WORKERS_NOW, DATASERVICE_WORKERS_ENOUGH and DATASERVICE_WORKERS_REASON, and is
    killed after ``workers_enough_timeout_ms``. ``owner_timeout_ms`` is how long the rows of a lost
    trainer's reader wait for its coordinator to report which of them were used. With
    ``fault_tolerant_mode`` the state survives a restart, in ``work_dir``.

    ``worker_timeout_ms`` (10 s) and ``client_timeout_ms`` (60 s) are the shortest silence after
    which a worker or a reader counts as lost. If a cluster has more than 500 workers and readers,
    they are told longer heartbeat intervals (a second for every 500 of them), and count as lost
    after three intervals at the earliest. While the dispatcher hears from nobody, as when its host
    is cut off, and for a moment after that, no reader counts as lost.
    """

    port: int = 0
    protocol: str | None = None
    work_dir: str | os.PathLike[str] | None = None
    fault_tolerant_mode: bool = False
    worker_addresses: Sequence[str] | None = None
    job_gc_check_interval_ms: int | None = None
    job_gc_timeout_ms: int | None = None
    worker_timeout_ms: int | None = None
    client_timeout_ms: int | None = None
    owner_timeout_ms: int | None = None
    worker_max_concurrent_snapshots: int = 0
    host: str = "127.0.0.1"
    token: str | None = field(default=None, repr=False)
    tls_cert_path: str | None = None
    tls_key_path: str | None = None
    tls_ca_path: str | None = None
    insecure_network: bool = False
    on_workers_enough: str | None = None
    workers_enough_stay_ms: int | None = None
    workers_enough_timeout_ms: int | None = None

    def __post_init__(self) -> None:
        _check_listener(self)
        _check_optional_text("on_workers_enough", self.on_workers_enough)
        _check_optional_int("workers_enough_stay_ms", self.workers_enough_stay_ms, 0)
        _check_optional_int("workers_enough_timeout_ms", self.workers_enough_timeout_ms, 1)
        check_true_or_false(fault_tolerant_mode=self.fault_tolerant_mode)
        if self.fault_tolerant_mode and self.work_dir in (None, ""):
            raise InvalidArgumentError(
                f"fault_tolerant_mode=True needs a work_dir to keep the journal in, "
                f"got work_dir={self.work_dir!r}"
            )
        if self.work_dir not in (None, ""):
            path_of(self.work_dir, "work_dir")
        # Zero is allowed for both garbage-collection settings: idle jobs are collected at once.
        _check_optional_int("job_gc_check_interval_ms", self.job_gc_check_interval_ms, 0)
        _check_optional_int("job_gc_timeout_ms", self.job_gc_timeout_ms, NEVER_COLLECT)
        _check_optional_int("worker_timeout_ms", self.worker_timeout_ms, 1)
        _check_optional_int("client_timeout_ms", self.client_timeout_ms, 1)
        _check_optional_int("owner_timeout_ms", self.owner_timeout_ms, 1)
        _check_int("worker_max_concurrent_snapshots", self.worker_max_concurrent_snapshots, 0)
        if self.worker_addresses is not None:
            object.__setattr__(self, "worker_addresses", _addresses(self.worker_addresses))

    @property
    def job_gc_check_interval_s(self) -> float:
        chosen = _or_default(self.job_gc_check_interval_ms, DEFAULT_JOB_GC_CHECK_INTERVAL_MS)
        return max(chosen, 1) / 1_000

    @property
    def job_gc_timeout_s(self) -> float | None:
        """The idle time after which a job is collected; None if idle jobs are kept for ever."""
        chosen = _or_default(self.job_gc_timeout_ms, DEFAULT_JOB_GC_TIMEOUT_MS)
        return None if chosen == NEVER_COLLECT else max(chosen, 1) / 1_000

    @property
    def workers_enough_stay_s(self) -> float:
        return _or_default(self.workers_enough_stay_ms, DEFAULT_WORKERS_ENOUGH_STAY_MS) / 1_000

    @property
    def workers_enough_timeout_s(self) -> float:
        chosen = _or_default(self.workers_enough_timeout_ms, DEFAULT_WORKERS_ENOUGH_TIMEOUT_MS)
        return chosen / 1_000

    @property
    def worker_timeout_s(self) -> float:
        return _or_default(self.worker_timeout_ms, DEFAULT_WORKER_TIMEOUT_MS) / 1_000

    @property
    def owner_timeout_s(self) -> float:
        return _or_default(self.owner_timeout_ms, DEFAULT_OWNER_TIMEOUT_MS) / 1_000

    @property
    def client_timeout_s(self) -> float:
        return _or_default(self.client_timeout_ms, DEFAULT_CLIENT_TIMEOUT_MS) / 1_000


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """Settings of a data worker.

    ``worker_address`` is the address that readers are told to connect to; None means the bound host
    and port, with the name of this host in place of ``0.0.0.0`` and ``::``. In it, ``%port%`` and
    ``%port_name%`` stand for the bound port. If the dispatcher has a
    fixed list of workers, this address decides the worker's position on the list. ``threads`` is
    the number of threads per pipeline; None means the cores that this process may use.
    ``buffer_bytes`` bounds the elements waiting for readers.
    ``cross_trainer_cache_size_bytes`` bounds the elements that a job with a cross-trainer cache
    keeps for slower trainers; None means 10 GiB, or a quarter of the memory if that is less.
    ``allow_functions=False`` refuses datasets that carry pickled functions.
    ``heartbeat_interval_ms`` is the shortest pause between heartbeats, 1 s by default; a dispatcher
    of many clients asks for longer pauses.
    ``data_transfer_protocol`` says how elements travel. With None, readers in this process get
    elements by reference, and readers on this host through shared memory where that is possible.
    With "shared_memory" the worker refuses to start where shared memory is impossible. With
    "flight" or "grpc" readers on this host get elements through Flight, as remote readers do.
    """

    dispatcher_address: str
    worker_address: str | None = None
    port: int = 0
    protocol: str | None = None
    heartbeat_interval_ms: int | None = None
    dispatcher_timeout_ms: int | None = None
    data_transfer_protocol: str | None = None
    data_transfer_address: str | None = None
    host: str = "127.0.0.1"
    token: str | None = field(default=None, repr=False)
    tls_cert_path: str | None = None
    tls_key_path: str | None = None
    tls_ca_path: str | None = None
    insecure_network: bool = False
    threads: int | None = None
    buffer_bytes: int = DEFAULT_BUFFER_BYTES
    allow_functions: bool = True
    cross_trainer_cache_size_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.dispatcher_address is None:
            raise InvalidArgumentError(
                "dispatcher_address must be set; give the dispatcher's `target` or HOST:PORT"
            )
        parse_target(self.dispatcher_address, "dispatcher_address")
        _check_listener(self)
        _check_announced("worker_address", self.worker_address)
        _check_announced("data_transfer_address", self.data_transfer_address)
        _check_optional_int("heartbeat_interval_ms", self.heartbeat_interval_ms, 1)
        _check_optional_int("dispatcher_timeout_ms", self.dispatcher_timeout_ms, 1)
        _check_optional_int("threads", self.threads, 1)
        _check_int("buffer_bytes", self.buffer_bytes, 1)
        _check_optional_int(
            "cross_trainer_cache_size_bytes", self.cross_trainer_cache_size_bytes, 1
        )
        check_true_or_false(allow_functions=self.allow_functions)
        choices = (*DATA_TRANSFER_PROTOCOLS, None)
        check_choice("data_transfer_protocol", self.data_transfer_protocol, choices)

    @property
    def dispatcher_target(self) -> str:
        """``host:port`` of the dispatcher."""
        return parse_target(self.dispatcher_address)

    @property
    def heartbeat_interval_s(self) -> float:
        return _or_default(self.heartbeat_interval_ms, DEFAULT_HEARTBEAT_INTERVAL_MS) / 1_000

    @property
    def dispatcher_timeout_s(self) -> float:
        return _or_default(self.dispatcher_timeout_ms, DEFAULT_DISPATCHER_TIMEOUT_MS) / 1_000

    @property
    def cache_bytes(self) -> int:
        """The most bytes of elements that the window of a cross-trainer cache holds."""
        default = min(DEFAULT_CROSS_TRAINER_CACHE_SIZE_BYTES, available_memory_bytes() // 4)
        return _or_default(self.cross_trainer_cache_size_bytes, default)

    @property
    def pipeline_threads(self) -> int:
        """The value of ``threads``, or the number of cores that this process may use."""
        return _or_default(self.threads, available_cores())


def _check_listener(config: DispatcherConfig | WorkerConfig) -> None:
    """Checks the fields that both configurations have."""
    check_choice("protocol", config.protocol, (PROTOCOL, None))
    if config.tls_ca_path is not None:
        path_of(config.tls_ca_path, "tls_ca_path")
    check_listener(
        config.host,
        config.port,
        token=config.token,
        tls_cert_path=config.tls_cert_path,
        tls_key_path=config.tls_key_path,
        insecure_network=config.insecure_network,
    )


def _addresses(addresses: Sequence[str]) -> tuple[str, ...]:
    listed = isinstance(addresses, Sequence) and not isinstance(addresses, str)
    if not listed or not all(isinstance(a, str) and a for a in addresses):
        raise InvalidArgumentError(
            f"worker_addresses must be a sequence of non-empty strings, got {addresses!r}"
        )
    return tuple(addresses)


def _or_default(value: Checked | None, default: Checked) -> Checked:
    return default if value is None else value


def _check_int(name: str, value: object, minimum: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise InvalidArgumentError(f"{name} must be an integer >= {minimum}, got {value!r}")


def _check_optional_int(name: str, value: object, minimum: int) -> None:
    if value is not None:
        _check_int(name, value, minimum)


def _check_optional_text(name: str, value: object) -> None:
    if value is not None and (not isinstance(value, str) or not value):
        raise InvalidArgumentError(f"{name} must be None or a non-empty string, got {value!r}")


def _check_announced(name: str, value: object) -> None:
    """Checks an address that readers are told to connect to; it may have a placeholder as port."""
    _check_optional_text(name, value)
    if isinstance(value, str):
        try:
            with_port = PORT_PLACEHOLDER.sub(str(LAST_PORT), value)
            split_address(_NAMED_PORT.sub(f":{LAST_PORT}", with_port))
        except InvalidArgumentError as error:
            raise InvalidArgumentError(
                f"{name} must be HOST:PORT, where %port% stands for the port that is bound, got "
                f"{value!r} ({error})"
            ) from error


# What a server is told that is given a setting itself, as in early versions of tf.data service.
OF_DISPATCHER_CONFIG: Final = dict.fromkeys(
    DispatcherConfig.__dataclass_fields__, "write DispatchServer(DispatcherConfig(port=..., ...))"
)
OF_WORKER_CONFIG: Final = dict.fromkeys(
    WorkerConfig.__dataclass_fields__,
    "write WorkerServer(WorkerConfig(dispatcher_address=..., ...))",
)
