"""Snapshots of values on parameter servers, which the servers write while the values change.

Knows nothing of checkpoints' names or manifests. Invariant: all servers take their part before
any writes it, keys are at least as new as their rows, no snapshot is taken in the midst of an
eviction, and no server keeps anything for a snapshot that was closed.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from dataservice.runtime.identity import new_id
from pstrain.config import ParameterConfig
from pstrain.errors import DataServiceError
from pstrain.features.key_map import KeyMaps
from pstrain.paramserver.increments import Base
from pstrain.paramserver.saved import Saved, Tracking
from pstrain.vocabulary import VariableSpec

logger = logging.getLogger(__name__)

_DROP_TIMEOUT_S: Final = 5.0
# A server that misses the ends of more snapshots than this is lost, and starts anew anyway.
_UNDROPPED_MAX: Final = 64


class Servers(Protocol):
    """What snapshots need of the parameter servers of a session."""

    session: str
    key_maps: KeyMaps
    undropped_snapshots: list[str]
    """Ids of snapshots whose end may not have reached every server."""

    @property
    def addresses(self) -> tuple[str, ...]: ...

    @property
    def config(self) -> ParameterConfig: ...

    def ask_all(
        self, headers: Mapping[int, dict[str, Any]], *, timeout_s: float, repeat: bool = True
    ) -> dict[int, dict[str, Any]]: ...


class RemoteSnapshot:
    """A snapshot, taken by its constructor. Any thread may call its methods, one at a time."""

    def __init__(
        self, servers: Servers, specs: Mapping[str, VariableSpec], tracking: Tracking | None
    ) -> None:
        self._servers = servers
        self._session = servers.session
        self.moment = new_id("snapshot")
        header: dict[str, Any] = {"kind": "snapshot"}
        if tracking is not None:
            header["since"] = tracking.since
        # Claims and steps may go on meanwhile, so rows are taken before keys: a trained row whose
        # key is missing would be given to another key; a key whose row is older loses no more than
        # other rows do.
        keys = [name for name, spec in specs.items() if servers.key_maps.any_holds_keys([spec.id])]
        rows = [name for name in specs if name not in keys]
        try:
            with servers.key_maps.moving:
                self._taken = last = self._take(header, specs, rows or keys)
                if rows and keys:
                    last = self._take(header, specs, keys)
        except BaseException:
            self.close()
            raise
        self.size_bytes = sum(int(reply["size_bytes"]) for reply in last.values())

    def _take(
        self, header: dict[str, Any], specs: Mapping[str, VariableSpec], names: Sequence[str]
    ) -> dict[int, dict[str, Any]]:
        undropped_snapshots = self._servers.undropped_snapshots[:]
        variables = [[name, specs[name].id] for name in names]
        replies = self._ask(
            {**header, "variables": variables, "ended": undropped_snapshots},
            self._servers.config.request_timeout_s,
        )
        for each in undropped_snapshots:
            with contextlib.suppress(ValueError):
                self._servers.undropped_snapshots.remove(each)
        return replies

    def write(self, directory: str, base: Base | None = None) -> Saved:
        """Has each server write its part; not repeated if a reply is lost: rows are read once."""
        replies = self._ask(
            {"kind": "write", "directory": os.path.abspath(directory)},
            self._servers.config.transfer_timeout_s,
            repeat=False,
            base=base,
        )
        parts = [Saved.from_json(reply["saved"]) for reply in replies.values()]
        return Saved(
            shards=tuple(shard for part in parts for shard in part.shards),
            session=self._session,
            ledgers={str(ps): reply["ledger"] for ps, reply in self._taken.items()},
        )

    def close(self) -> None:
        """Has servers drop the snapshot; one that misses this is told with the next, or is lost."""
        try:
            self._ask({"kind": "drop"}, _DROP_TIMEOUT_S)
        except DataServiceError as error:
            logger.debug("snapshot %s could not be dropped: %s", self.moment, error)
            self._servers.undropped_snapshots.append(self.moment)
            del self._servers.undropped_snapshots[:-_UNDROPPED_MAX]

    def _ask(
        self,
        header: dict[str, Any],
        timeout_s: float,
        *,
        repeat: bool = True,
        base: Base | None = None,
    ) -> dict[int, dict[str, Any]]:
        # In the session in which the snapshot was taken, even if another has begun.
        request = {**header, "snapshot": self.moment, "session": self._session}
        headers = {
            ps: {**request, "writer": f"ps{ps}"} for ps in range(len(self._servers.addresses))
        }
        if base is not None:
            for each in headers.values():
                each["base"] = base.written_by(each["writer"]).to_json()
        return self._servers.ask_all(headers, timeout_s=timeout_s, repeat=repeat)
