"""Names, ids and addresses that every part of the data service shares.

Knows nothing of sockets, threads, clocks or Arrow. Invariant: a target is always ``host:port``
without a scheme; schemes exist only in what users type and read.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NewType

from dataservice.errors import InvalidArgumentError, InvalidTypeError
from dataservice.runtime.addresses import format_address, split_address
from dataservice.runtime.arguments import HintingEnumType

DatasetId = NewType("DatasetId", str)
JobId = NewType("JobId", str)
IterationId = NewType("IterationId", str)
ReaderId = NewType("ReaderId", str)
WorkerId = NewType("WorkerId", str)
SnapshotId = NewType("SnapshotId", str)

SHARD_HINT: Final = -1
AUTOTUNE: Final = -1
INFINITE_CARDINALITY: Final = -1
UNKNOWN_CARDINALITY: Final = -2
# What a DYNAMIC job does with the rows that a lost worker had in flight: replays or drops them.
EXACTLY_ONCE: Final = "exactly_once"
AT_MOST_ONCE: Final = "at_most_once"
ANY_DIVISION: Final = "*"
"""The division recorded in a position at the beginning, which is valid for any windows."""
ALL_WINDOWS: Final = -1
"""Stands, as a returned window, for all that a worker was leased for a reader: a stream begins."""
PROTOCOL: Final = "grpc"
# Raised when messages change so that ends of different versions would misunderstand each other.
PROTOCOL_VERSION: Final = 2
SHARED_MEMORY: Final = "shared_memory"
# The protocols without a network: by reference in a process, or shared memory on one host.
LOCAL: Final = "local"
# How elements travel. "grpc" is tf.data's name for its default; here it means Flight, over gRPC.
DATA_TRANSFER_PROTOCOLS: Final = (SHARED_MEMORY, "flight", "grpc")


class ShardingPolicy(IntEnum, metaclass=HintingEnumType):
    """How the rows of a dataset are divided among the data workers.

    OFF: every worker runs the whole dataset. DYNAMIC: the dispatcher hands splits of the sources to
    whichever worker is free. The other policies are static: they need `worker_addresses` in the
    dispatcher's configuration, a list of N workers with worker i at position i. FILE: worker i
    reads files i, i + N, ... of each file source. DATA: each worker runs the whole dataset and
    keeps elements i, i + N, ... FILE_OR_DATA: FILE, or DATA if a source has no files. HINT:
    `shard(SHARD_HINT, ...)` becomes `shard(N, i)`.
    """

    OFF = 0
    DYNAMIC = 1
    FILE = 2
    DATA = 3
    FILE_OR_DATA = 4
    HINT = 5

    @property
    def is_static(self) -> bool:
        """True if each worker of a fixed list has a share of its own."""
        return self not in (ShardingPolicy.OFF, ShardingPolicy.DYNAMIC)


def parse_target(service: str | tuple[str, str], what: str = "service") -> str:
    """Returns ``host:port`` for ``"host:port"``, ``"grpc://host:port"``, ``("grpc", "host:port")``.

    An IPv6 host is written in brackets. Raises InvalidArgumentError, which names the argument
    ``what``, for anything else.
    """
    protocol, address = _split_protocol(service, what)
    if protocol != PROTOCOL:
        raise InvalidArgumentError(
            f"{what} protocol {protocol!r} is not supported; use {PROTOCOL}://HOST:PORT"
        )
    return format_address(*split_address(address))


def _target_of(server: object) -> str:
    """Returns "; give its target, ..." for a server, "" for what is none."""
    target = getattr(server, "target", None)
    return f"; give its target, {target!r}" if isinstance(target, str) else ""


def _split_protocol(service: object, what: str) -> tuple[str, str]:
    if isinstance(service, tuple) and len(service) == 2:
        protocol, address = service
    else:
        protocol, address = None, service
    if not isinstance(address, str) or not isinstance(protocol, str | None):
        raise InvalidTypeError(
            f"{what} must be a string or a (protocol, address) tuple of strings, "
            f"got {service!r} of type {type(service).__name__}{_target_of(service)}"
        )
    if not address:
        raise InvalidArgumentError(f"{what} must not be empty; give it as HOST:PORT")
    if protocol is not None:
        return protocol, address
    parts = address.split("://")
    if len(parts) > 2:
        raise InvalidArgumentError(
            f"Malformed {what} {address!r}: more than one '://'; use {PROTOCOL}://HOST:PORT"
        )
    return (parts[0], parts[1]) if len(parts) == 2 else (PROTOCOL, address)
