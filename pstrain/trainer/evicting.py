"""The steps of an eviction, as messages to the servers that hold the keys and the tables.

Knows nothing of which keys go. Invariant: all messages are of the session in which the eviction
began, so that servers that have gone back to a checkpoint meanwhile refuse what follows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pstrain.features.eviction import IdleCounts, IdleKeys, Part, Share
from pstrain.paramserver.messages import LateBody, Message, body_arrays
from pstrain.paramserver.messages import Part as BodyPart
from pstrain.trainer.outgoing import Answers
from pstrain.variables.rows import row_bounds, row_bytes
from pstrain.vocabulary import VariableSpec

I64 = NDArray[np.int64]
Ask = Callable[[Mapping[int, Message]], Answers]

_KEY_BYTES = 16  # of a row number and a key
# The numbers of resets rise in the program, the only process of a session that evicts.
_RESETS = itertools.count()


class ServerSteps:
    """The steps on servers that ``ask`` sends messages to, in ``session``.

    ``chunk_bytes``: about how much one message changes, so that no server takes long to answer.
    """

    def __init__(self, ask: Ask, session: str, chunk_bytes: int) -> None:
        self._ask = ask
        self._session = session
        self._chunk_bytes = chunk_bytes

    def count_idle(self, mapping: VariableSpec, parts: Sequence[Part]) -> IdleCounts:
        items = [[mapping.id, part.shard, part.start, part.stop] for part in parts]
        periods, counts = [0] * len(parts), [np.empty(0, np.int64)] * len(parts)
        for mine, reply in self._replies("count_idle", mapping, parts, items):
            kinds: list[BodyPart] = [("int64", (length,)) for length in reply.header["lengths"]]
            found = body_arrays(reply.body, kinds)
            for place, period, count in zip(mine, reply.header["periods"], found, strict=True):
                periods[place], counts[place] = period, count
        return IdleCounts(periods, counts)

    def idle_keys(
        self, mapping: VariableSpec, parts: Sequence[Part], shares: Sequence[Share]
    ) -> list[IdleKeys]:
        items = [[mapping.id, *part, *share] for part, share in zip(parts, shares, strict=True)]
        found: dict[int, IdleKeys] = {}
        for mine, reply in self._replies("idle_keys", mapping, parts, items):
            kinds: list[BodyPart] = [
                ("int64", (count,)) for count in reply.header["counts"] for _ in range(2)
            ]
            arrays = iter(body_arrays(reply.body, kinds))
            for place in mine:
                found[place] = IdleKeys(next(arrays), next(arrays))
        return [found[place] for place in range(len(parts))]

    def reset_rows(self, table: VariableSpec, rows: I64) -> None:
        ends = np.searchsorted(rows, row_bounds(table)).tolist()
        at_once = max(1, self._chunk_bytes // row_bytes(table))
        for index, shard in enumerate(table.shards):
            for start in range(ends[index], ends[index + 1], at_once):
                some = rows[start : min(start + at_once, ends[index + 1])]
                item = [table.id, index, len(some), next(_RESETS)]
                self._send(shard.ps, "reset_rows", item, [some])

    def remove_keys(
        self,
        mapping: VariableSpec,
        parts: Sequence[Part],
        found: Sequence[IdleKeys],
        buckets: Sequence[I64],
        periods: Sequence[int],
    ) -> None:
        at_once = max(1, self._chunk_bytes // _KEY_BYTES)
        for part, idle, bounds, period in zip(parts, found, buckets, periods, strict=True):
            # Also without any keys: the period begins on all shards.
            for start in range(0, max(1, len(idle.rows)), at_once):
                some = [array[start : start + at_once] for array in idle]
                item = [mapping.id, part.shard, len(some[0]), len(bounds), period + 1]
                ps = mapping.shards[part.shard].ps
                self._send(ps, "remove_keys", item, [*some, bounds])

    def _replies(
        self,
        kind: str,
        mapping: VariableSpec,
        parts: Sequence[Part],
        items: Sequence[list[int]],
    ) -> Iterator[tuple[list[int], Any]]:
        """Sends one message to each server; yields the places of its items, and its reply."""
        places: dict[int, list[int]] = {}
        for place, part in enumerate(parts):
            places.setdefault(mapping.shards[part.shard].ps, []).append(place)
        replies = self._ask(
            {
                ps: (self._header(kind, [items[place] for place in mine]), None)
                for ps, mine in places.items()
            }
        )
        for ps, mine in places.items():
            yield mine, replies[ps]

    def _send(self, ps: int, kind: str, item: list[int], arrays: Sequence[I64]) -> None:
        self._ask({ps: (self._header(kind, [item]), LateBody.of(arrays))})

    def _header(self, kind: str, items: list[list[int]]) -> dict[str, Any]:
        return {"kind": kind, "session": self._session, "items": items}
