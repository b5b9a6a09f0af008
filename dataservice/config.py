"""Settings of the servers, with their defaults and the reasons for them.

Knows nothing of servers, sockets or files: it checks values, it does not use them. Invariant: a
configuration that exists is valid; what a user left as None has its default in a property whose
name ends in its unit.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from dataservice.errors import InvalidArgumentError, InvalidTypeError
from dataservice.runtime.addresses import LAST_PORT, split_address
from dataservice.runtime.arguments import check_choice, path_of
from dataservice.runtime.cores import available_cores
from dataservice.runtime.exposure import check_exposure
from dataservice.runtime.memory import available_memory_bytes
from dataservice.vocabulary import DATA_TRANSFER_PROTOCOLS, PROTOCOL, parse_target

# Plans may embed tables, so well above gRPC's 4 MiB; small enough that a bad peer cannot fill
# the memory with a few calls.
CONTROL_MESSAGE_MAX_BYTES: Final = 64 << 20
# A remote traceback travels in the trailing metadata, for which gRPC allows 8 KiB by default.
CONTROL_METADATA_MAX_BYTES: Final = 1 << 20
CONTROL_CALL_TIMEOUT_S: Final = 30.0
# A call holds a thread while it runs; so many at once are a burst that is over in a second.
CONTROL_MAX_THREADS: Final = 1_024
# Calls that came and nobody looked at yet. From 1,000 on gRPC cancels some of them by chance, and a
# tenth of a second is enough for so many; those that are looked at are refused by name.
CONTROL_MAX_UNREAD_CALLS: Final = 1 << 14
# Of these, for long polls: each pair of a reader and a worker has one where nothing is left to
# lease. Those beyond are told to come again, so many in a second beside the heartbeats.
CONTROL_MAX_POLLS: Final = 512
POLLS_REFUSED_PER_S: Final = 400
# And for those who join while the sources of their dataset are being listed.
CONTROL_MAX_PLANNERS: Final = 256
# Less than an attempt of a client takes, which asks again: none stands in line twice.
PLAN_WAIT_S: Final = 8.0
# A frozen peer is noticed after time + timeout. gRPC waits a minute for the answer to a ping
# unless ping_timeout is set as well.
KEEPALIVE_TIME_MS: Final = 3_000
KEEPALIVE_TIMEOUT_MS: Final = 2_000
KEEPALIVE_MIN_RECEIVE_INTERVAL_MS: Final = 1_000
RECONNECT_BACKOFF_MIN_MS: Final = 100
RECONNECT_BACKOFF_MAX_MS: Final = 1_000

# Ten missed heartbeats: a busy worker is not taken for dead. A killed one is reported at once by
# its readers, so this only bounds a freeze.
DEFAULT_WORKER_TIMEOUT_MS: Final = 10_000
# Readers that stall in a long training step still send Syncs from their own thread.
DEFAULT_CLIENT_TIMEOUT_MS: Final = 60_000
# A coordinator speaks for the readers of a lost trainer within seconds; this bounds its own loss.
DEFAULT_OWNER_TIMEOUT_MS: Final = 60_000
DEFAULT_JOB_GC_CHECK_INTERVAL_MS: Final = 600_000
DEFAULT_JOB_GC_TIMEOUT_MS: Final = 300_000
DEFAULT_HEARTBEAT_INTERVAL_MS: Final = 1_000
# Of all workers and readers together. Beyond that number each of them is told to speak less often,
# and is waited for accordingly longer: Python's gRPC server answers about 1,600 calls in a second,
# and the greater part of them is for leases and for rows that were consumed.
HEARTBEATS_PER_S: Final = 500
# How long a worker or reader outlives a dispatcher that is being restarted.
DEFAULT_DISPATCHER_TIMEOUT_MS: Final = 3_600_000
DEFAULT_BUFFER_BYTES: Final = 64 << 20
# tf.data service's own. It fills up in time whatever the trainers do, so it is also bounded by a
# part of the memory there is.
DEFAULT_CROSS_TRAINER_CACHE_SIZE_BYTES: Final = 10 << 30
# A step that is slow once, or a checkpoint, should start or stop no worker.
DEFAULT_WORKERS_ENOUGH_STAY_MS: Final = 30_000
DEFAULT_WORKERS_ENOUGH_TIMEOUT_MS: Final = 60_000
NEVER_COLLECT: Final = -1
# Stands in an address for the port that a worker has bound.
PORT_PLACEHOLDER: Final = re.compile(r"%(?:dts_)?port(?:_\w+)?%")
_NAMED_PORT: Final = re.compile(r":[^\W\d]\w*$")

Checked = TypeVar("Checked")


@dataclass(frozen=True, slots=True)
class DispatcherConfig:
    """Settings of a dispatcher; ``port=0`` takes a free one.

    ``worker_addresses`` is the fixed list of workers that static sharding divides by, in order;
    others may not register then. An entry is an address, or a host whose port is left out or
    stands as ``%port%`` or ``%port_name%``, which the first worker from there takes for good;
    ``localhost``, ``127.0.0.1`` and ``::1`` are one host.
    ``job_gc_timeout_ms=-1`` keeps idle jobs for ever. ``on_workers_enough`` is a shell command that
    is run when the number of workers that would be enough has changed for
    ``workers_enough_stay_ms``, with the numbers in DATASERVICE_WORKERS_NOW,
    DATASERVICE_WORKERS_ENOUGH and DATASERVICE_WORKERS_REASON; it is killed after
    ``workers_enough_timeout_ms``. ``owner_timeout_ms``: how long the rows of a lost trainer's
    reader wait for its coordinator to say which were used. With ``fault_tolerant_mode`` the state
    survives a restart in ``work_dir``.

    ``worker_timeout_ms`` (10 s) and ``client_timeout_ms`` (60 s) are the shortest silence after
    which a worker or a reader is taken for lost. Clusters of more than 500 workers and readers are
    told longer intervals between heartbeats (a second for each 500), and are lost after three of
    them at the earliest.
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
        _check_bool("fault_tolerant_mode", self.fault_tolerant_mode)
        if self.fault_tolerant_mode and not self.work_dir:
            raise InvalidArgumentError(
                f"fault_tolerant_mode=True needs a work_dir to keep the journal in, "
                f"got work_dir={self.work_dir!r}"
            )
        if self.work_dir:
            path_of(self.work_dir, "work_dir")
        # Zero is allowed for the two collector settings: it asks for collection at once.
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
        """None: idle jobs are never collected."""
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

    ``worker_address`` is what readers are told to connect to; None means the host and port that
    were bound, ``%port%`` and ``%port_name%`` stand for the bound port. With a fixed list of
    workers it decides the worker's place on the list. ``threads`` is per pipeline, None for the
    cores of this process. ``buffer_bytes`` bounds the elements waiting for readers.
    ``cross_trainer_cache_size_bytes`` bounds the elements that a job with a cross-trainer cache
    keeps for slower trainers; None: 10 GiB, or a quarter of the memory if that is less.
    ``allow_functions=False`` refuses datasets that carry pickled functions.
    ``heartbeat_interval_ms`` is the shortest pause between heartbeats, 1 s unless given; a
    dispatcher of many clients asks for longer ones.
    ``data_transfer_protocol``: readers in this process get elements as they are, and those on this
    host through shared memory where that is possible (None), or the worker does not start without
    shared memory ("shared_memory"), or they get them through Flight as all others do ("flight",
    "grpc").
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
        parse_target(self.dispatcher_address)
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
        _check_bool("allow_functions", self.allow_functions)
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
        """Bytes of elements that the window of a cross-trainer cache holds at most."""
        default = min(DEFAULT_CROSS_TRAINER_CACHE_SIZE_BYTES, available_memory_bytes() // 4)
        return _or_default(self.cross_trainer_cache_size_bytes, default)

    @property
    def pipeline_threads(self) -> int:
        """``threads``, or the number of cores this process may use."""
        return _or_default(self.threads, available_cores())


def _check_listener(config: DispatcherConfig | WorkerConfig) -> None:
    """Check the fields that both servers have."""
    _check_int("port", config.port, 0)
    if config.port > 65_535:
        raise InvalidArgumentError(f"port must be at most 65535, got {config.port}")
    check_choice("protocol", config.protocol, (PROTOCOL, None))
    if not isinstance(config.host, str) or not config.host:
        raise InvalidArgumentError(
            f"host must be a non-empty string such as '127.0.0.1', got {config.host!r}"
        )
    _check_bool("insecure_network", config.insecure_network)
    # The value stays out of the message: it may be the token in some other type.
    if config.token is not None and not isinstance(config.token, str):
        raise InvalidTypeError(f"token must be None or text, got {type(config.token).__name__}")
    for name in ("tls_cert_path", "tls_key_path", "tls_ca_path"):
        if getattr(config, name) is not None:
            path_of(getattr(config, name), name)
    if (config.tls_cert_path is None) != (config.tls_key_path is None):
        raise InvalidArgumentError(
            "tls_cert_path and tls_key_path go together, got "
            f"tls_cert_path={config.tls_cert_path!r} and tls_key_path={config.tls_key_path!r}"
        )
    check_exposure(
        config.host,
        has_tls=config.tls_cert_path is not None,
        insecure_network=config.insecure_network,
    )


def _addresses(addresses: Sequence[str]) -> tuple[str, ...]:
    if isinstance(addresses, str) or not all(isinstance(a, str) and a for a in addresses):
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
    """Check what readers are to connect to, with any port in the place of a placeholder."""
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


def _check_bool(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise InvalidArgumentError(f"{name} must be True or False, got {value!r}")
