"""Claims and counts of keys, and the steps of an eviction, as messages to parameter servers.

Knows no network, and nothing of which keys go. Invariant: all messages of an eviction are of the
session in which it began, so that servers that have gone back to a checkpoint meanwhile refuse what
follows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pstrain.features.eviction import IdleCounts, IdleKeys, Part, Share
from pstrain.features.key_map import KeyQuery
from pstrain.paramserver.messages import BodyPart, Header, LateBody, Message, body_arrays
from pstrain.trainer.outgoing import Answers
from pstrain.variables.rows import row_bounds, row_bytes
from pstrain.vocabulary import VariableSpec

I64 = NDArray[np.int64]
Ask = Callable[[Mapping[int, Message]], Answers]
AskHeaders = Callable[[Mapping[int, Header]], Mapping[int, Header]]
"""As Ask, without bodies."""

_KEY_BYTES = 16  # of a row number and a key
# The numbers of resets rise in the program, the only process of a session that evicts.
_RESETS = itertools.count()


def claim(ask: Ask, spec: VariableSpec, asked: KeyQuery, *, is_training: bool) -> I64:
    """Returns the rows of keys, after claiming rows: one message to each server."""
    items: dict[int, list[list[int]]] = {}
    places: dict[int, list[slice]] = {}
    arrays: dict[int, list[Any]] = {}
    for index, part, (keys, _, starts, stops, may_claim) in asked.by_shard(spec):
        ps = spec.shards[index].ps
        items.setdefault(ps, []).append([spec.id, index, len(keys)])
        places.setdefault(ps, []).append(part)
        arrays.setdefault(ps, []).extend([keys, starts, stops, may_claim])
    header = {"kind": "claim", "is_training": is_training}
    replies = ask({ps: ({**header, "items": items[ps]}, LateBody.of(arrays[ps])) for ps in items})
    rows = np.empty(len(asked.keys), np.int64)
    for ps, reply in replies.items():
        parts = [("int64", (count,)) for _, _, count in items[ps]]
        for place, found in zip(places[ps], body_arrays(reply.body, parts), strict=True):
            rows[place] = found
    return rows


def count_keys(ask: AskHeaders, spec: VariableSpec) -> dict[str, int]:
    """Counts the rows that are ``used`` and the claims that were ``refused``."""
    headers: dict[int, Header] = {}
    for index, shard in enumerate(spec.shards):
        header = headers.setdefault(shard.ps, {"kind": "count_keys", "shards": []})
        header["shards"].append([spec.id, index])
    replies = ask(headers).values()
    return {what: sum(reply[what] for reply in replies) for what in ("used", "refused")}


class ServerSteps:
    """The steps of an eviction on servers that ``ask`` sends messages to, in ``session``.

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
