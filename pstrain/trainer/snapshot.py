"""Values on parameter servers at one moment, written by the servers while they change.

Knows nothing of checkpoints' names or manifests. Invariant: all servers take their part before
any writes it, keys are as new as the rows that are theirs, and none keeps anything for a snapshot
that was closed.
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
# Servers that hear of nothing for so long are lost, and begin anew.
_UNTOLD_MAX: Final = 64


class Servers(Protocol):
    """The parameter servers of a session."""

    session: str
    key_maps: KeyMaps
    untold: list[str]
    """Snapshots whose end some server may not have heard of."""

    @property
    def addresses(self) -> tuple[str, ...]: ...

    @property
    def config(self) -> ParameterConfig: ...

    def ask_all(
        self, headers: Mapping[int, dict[str, Any]], *, timeout_s: float, repeat: bool = True
    ) -> dict[int, dict[str, Any]]: ...


class RemoteSnapshot:
    """Taken when it is made. Its methods may be called by any thread, one at a time."""

    def __init__(
        self, servers: Servers, specs: Mapping[str, VariableSpec], tracking: Tracking | None
    ) -> None:
        self._servers = servers
        self._session = servers.session
        self.moment = new_id("snapshot")
        header: dict[str, Any] = {"kind": "snapshot"}
        if tracking is not None:
            header["since"] = tracking.since
        # Where claims and steps go on, rows come first: a row whose key is not saved would be given
        # to another key, a key whose row was not trained yet has lost no more than other rows.
        keys = [name for name, spec in specs.items() if servers.key_maps.are_in([spec.id])]
        rows = [name for name in specs if name not in keys]
        try:
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
        untold = self._servers.untold[:]
        variables = [[name, specs[name].id] for name in names]
        replies = self._ask(
            {**header, "variables": variables, "ended": untold},
            self._servers.config.request_timeout_s,
        )
        for each in untold:
            with contextlib.suppress(ValueError):
                self._servers.untold.remove(each)
        return replies

    def write(self, directory: str, base: Base | None = None) -> Saved:
        """Each server its part; not repeated where a reply is lost, for rows are read once."""
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
        """A server that cannot be told hears of it with the next one, or ends the session."""
        try:
            self._ask({"kind": "drop"}, _DROP_TIMEOUT_S)
        except DataServiceError as error:
            logger.debug("snapshot %s could not be dropped: %s", self.moment, error)
            self._servers.untold.append(self.moment)
            del self._servers.untold[:-_UNTOLD_MAX]

    def _ask(
        self,
        header: dict[str, Any],
        timeout_s: float,
        *,
        repeat: bool = True,
        base: Base | None = None,
    ) -> dict[int, dict[str, Any]]:
        # Of the session that it was taken in, also once another has begun.
        request = {**header, "snapshot": self.moment, "session": self._session}
        headers = {
            ps: {**request, "writer": f"ps{ps}"} for ps in range(len(self._servers.addresses))
        }
        if base is not None:
            for each in headers.values():
                each["base"] = base.written_by(each["writer"]).to_json()
        return self._servers.ask_all(headers, timeout_s=timeout_s, repeat=repeat)
