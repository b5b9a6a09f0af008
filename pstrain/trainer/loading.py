"""Loads the values of a checkpoint: each parameter server reads those of its own shards.

Knows what a checkpoint says of its files, not how servers read them. Invariant: no server changes
anything before all have said that they can load, or those that did return to initial values.
"""

from __future__ import annotations

import bisect
import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence

from dataservice.runtime.identity import new_id
from pstrain.errors import DataServiceError
from pstrain.paramserver.saved import Saved, SavedShard
from pstrain.trainer.snapshot import Servers
from pstrain.vocabulary import ShardSpec, VariableSpec


def load(
    servers: Servers,
    directory: str,
    specs: Mapping[str, VariableSpec],
    saved: Saved,
    agree: Callable[[], None],
) -> None:
    """Overwrites ``specs``, by name in the checkpoint, on all servers.

    ``agree`` is called once all servers have verified the files; if it raises, nothing changes.
    """
    load_id = new_id("load")
    timeout_s = servers.config.transfer_timeout_s
    headers = {
        ps: {
            "kind": "verify",
            "directory": os.path.abspath(directory),
            "variables": [[name, spec.id] for name, spec in specs.items()],
            "saved": Saved(tuple(parts_for(ps, specs, saved.shards))).to_json(),
            "load": load_id,
        }
        for ps in range(len(servers.addresses))
    }
    ledgers = saved.ledgers if saved.session == servers.session else {}
    try:
        servers.ask_all(headers, timeout_s=timeout_s)
        agree()
    except BaseException:
        # Some servers may have read values ahead, and another may be unable to read its own.
        give_up = {"kind": "give_up_load", "load": load_id}
        with contextlib.suppress(DataServiceError):
            servers.ask_all(
                dict.fromkeys(headers, give_up), timeout_s=servers.config.request_timeout_s
            )
        raise
    servers.ask_all(
        {
            ps: {**header, "kind": "load", "ledger": ledgers.get(str(ps))}
            for ps, header in headers.items()
        },
        timeout_s=timeout_s,
    )


def parts_for(
    ps: int, specs: Mapping[str, VariableSpec], parts: Iterable[SavedShard]
) -> list[SavedShard]:
    """Returns the saved parts that a server needs: those with rows of its shards.

    If no part of a variable has such rows, returns all, so that the server says what is missing.
    """
    by_name: dict[str, list[SavedShard]] = {}
    for part in parts:
        by_name.setdefault(part.name, []).append(part)
    needed: list[SavedShard] = []
    for name, spec in specs.items():
        mine = [shard for shard in spec.shards if shard.ps == ps]
        of_name = by_name.get(name, [])
        some = [part for part in of_name if _has_rows_of(part, mine)]
        needed += (some or of_name) if mine else []
    return needed


def _has_rows_of(part: SavedShard, shards: Sequence[ShardSpec]) -> bool:
    """True if ``part`` has rows of one of ``shards``, which are in row order."""
    first = bisect.bisect_right(shards, part.row_start, key=lambda shard: shard.row_stop)
    return first < len(shards) and shards[first].row_start < part.row_stop
