"""Defaults of training's connections, with the reasons for their values.

Knows nothing of connections. Invariant: a configuration is checked when it is made.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from dataservice.runtime.arguments import integer_at_least, positive

# How long a server that ends with its coordinator waits for a coordinator to return.
COORDINATOR_GRACE_S: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterConfig:
    """How long to wait for parameter servers, and how much to send at a time.

    ``request_timeout_s``: pulls and pushes take milliseconds, so this long means a frozen host.
    ``start_timeout_s``: clusters start their tasks in any order and pull images first.
    ``transfer_timeout_s``: for a server that writes or reads its part of a checkpoint.
    ``chunk_bytes``: large variables travel in pieces, so that neither side holds two copies.
    ``share_memory``: uses shared memory with servers of the same host and user; False: TCP.
    """

    request_timeout_s: float = 30.0
    start_timeout_s: float = 180.0
    transfer_timeout_s: float = 600.0
    chunk_bytes: int = 32 << 20
    share_memory: bool = True

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name == "chunk_bytes":
                integer_at_least(value, 1, item.name)
            elif item.name != "share_memory":
                positive(value, item.name)
