"""The handlers of requests about keys: claims and counts, and the steps of an eviction.

Knows no network and no session. An eviction first counts and lists the idle keys, then resets the
rows that they stand for, and removes them last. Invariant: after any of its steps, every key has a
row that is its own, with its values or with initial ones; every step may be repeated, also late,
when keys and rows that it has changed were trained on again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Final

from pstrain.paramserver.messages import BodyPart, Call, LateBody, Message, body_arrays, claim_parts
from pstrain.paramserver.store import Store


def _claim(store: Store, call: Call) -> Message:
    """Looks up, and claims, the rows of keys for items [variable, shard, number of keys].

    The body has, for each item, the keys, the first rows of their buckets, the rows after the last,
    and whether each key may claim a row. The reply has the rows, below 0 for a key without a row.
    """
    items = [(store.shard(v, i), count) for v, i, count in call.header["items"]]
    given = iter(body_arrays(call.body, [part for _, n in items for part in claim_parts(n)]))
    claim = functools.partial(store.claim, is_training=call.header["is_training"])
    rows = [claim(shard, *(next(given) for _ in range(4))) for shard, _ in items]
    return {}, LateBody.of(rows)


def _count_keys(store: Store, call: Call) -> Message:
    shards = [store.shard(*key) for key in call.header["shards"]]
    counts = {"used": sum(shard.count_keys() for shard in shards)}
    return {**counts, "refused": sum(shard.refused for shard in shards)}, None


def _count_idle(store: Store, call: Call) -> Message:
    """Counts keys by idle periods, for items [variable, shard, first row, row after the last].

    The reply has the present period of each item, and the length of its counts in the body.
    """
    items = [(store.shard(v, i), rows) for v, i, *rows in call.header["items"]]
    periods = [shard.uses.period for shard, _ in items]
    counts = [shard.count_idle(*rows) for shard, rows in items]
    return {"periods": periods, "lengths": [len(each) for each in counts]}, LateBody.of(counts)


def _idle_keys(store: Store, call: Call) -> Message:
    """Lists idle keys for items [variable, shard, first row, row after the last, periods, ties].

    The reply has the rows of each item, followed by their keys: see ``ShardKeys.idle_rows``.
    """
    items = [(store.shard(v, i), rest) for v, i, *rest in call.header["items"]]
    rows = [(shard, shard.idle_rows(*rest)) for shard, rest in items]
    found = [(each, shard.keys_of(each)) for shard, each in rows]
    counts = [len(each) for _, each in rows]
    return {"counts": counts}, LateBody.of(list(chain.from_iterable(found)))


def _reset_rows(store: Store, call: Call) -> Message:
    """Resets rows, for items [variable, shard, number of rows, number of the reset].

    See ``Shard.reset_rows`` for the number of a reset.
    """
    items = [(store.shard(v, i), rest) for v, i, *rest in call.header["items"]]
    rows = body_arrays(call.body, [("int64", (count,)) for _, (count, _) in items])
    given = [(shard, each, number) for (shard, (_, number)), each in zip(items, rows, strict=True)]
    for shard, each, _ in given:
        shard.check_reset(each)
    store.apply([functools.partial(shard.reset_rows, *rest) for shard, *rest in given])
    return {}, None


def _remove_keys(store: Store, call: Call) -> Message:
    """Removes keys, for items [variable, shard, number of keys, number of bounds, new period].

    The body has, for each item, the rows, their keys, and the bounds of the buckets: see
    ``ShardKeys.remove_keys``.
    """
    items = [(store.shard(v, i), rest) for v, i, *rest in call.header["items"]]
    parts: list[BodyPart] = [
        ("int64", (size,)) for _, (count, bounds, _) in items for size in (count, count, bounds)
    ]
    given = iter(body_arrays(call.body, parts))
    removals = [
        (shard, next(given), next(given), next(given), period) for shard, (*_, period) in items
    ]
    for shard, rows, _, bounds, _ in removals:
        shard.check_removal(rows, bounds)
    store.apply([functools.partial(shard.remove_keys, *rest) for shard, *rest in removals])
    return {}, None


HANDLERS: Final[Mapping[str, Callable[[Store, Call], Message]]] = {
    "claim": _claim,
    "count_keys": _count_keys,
    "count_idle": _count_idle,
    "idle_keys": _idle_keys,
    "reset_rows": _reset_rows,
    "remove_keys": _remove_keys,
}
