"""What a parameter server does for each kind of request, over one store.

No network and no session: a request is a header and a body, and so is a reply. Invariant:
everything in a request is checked before anything changes. No Python per row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pyarrow as pa

from pstrain.errors import InvalidArgumentError
from pstrain.paramserver.checkpoint import Saved, read_into, verify, write_shard
from pstrain.paramserver.messages import Part, body_arrays, new_body
from pstrain.paramserver.shard import Shard
from pstrain.paramserver.store import ChangeKey, ShardUpdate, Store
from pstrain.vocabulary import OptimizerSpec, spec_from_json

Header = dict[str, Any]
Reply = tuple[Header, pa.Buffer | None]
WHOLE = -1


class Call(NamedTuple):
    """A request as it arrived."""

    header: Header
    body: pa.Buffer | None


def answer(store: Store, call: Call) -> Reply:
    """The reply to a request; raises a DataServiceError where it cannot be done."""
    handler = _HANDLERS.get(str(call.header.get("kind")))
    if handler is None:
        raise InvalidArgumentError(
            f"unknown request {call.header.get('kind')!r}; there are {sorted(_HANDLERS)}"
        )
    return handler(store, call)


def _create(store: Store, call: Call) -> Reply:
    spec = spec_from_json(call.header["spec"])
    for index in call.header["shards"]:
        store.create(spec, index)
    return {}, None


def _pull(store: Store, call: Call) -> Reply:
    """Items: [variable, shard, ids or WHOLE, known version]. Unchanged wholes are left out."""
    items = [(store.shard(v, i), count, known) for v, i, count, known in call.header["items"]]
    ids = body_arrays(call.body, [("int64", (count,)) for _, count, _ in items if count != WHOLE])
    versions = [shard.version for shard, _, _ in items]
    parts: list[Part] = []
    for (shard, count, known), version in zip(items, versions, strict=True):
        if count != WHOLE or version != known:
            rows = shard.row_stop - shard.row_start if count == WHOLE else count
            parts.append((shard.spec.dtype, (rows, shard.width)))
    reply, arrays = new_body(parts)
    wanted, targets = iter(ids), iter(arrays)
    for (shard, count, known), version in zip(items, versions, strict=True):
        if count != WHOLE:
            shard.gather(next(wanted), next(targets))
        elif version != known:
            shard.read(shard.row_start, shard.row_stop, next(targets))
    return {"versions": versions}, reply


def _read(store: Store, call: Call) -> Reply:
    shard = _shard(store, call)
    start, stop = call.header["rows"]
    if not shard.row_start <= start <= stop <= shard.row_stop:
        raise InvalidArgumentError(f"rows [{start}, {stop}) are not on this shard")
    reply, (out,) = new_body([(shard.spec.dtype, (stop - start, shard.width))])
    shard.read(start, stop, out)
    return {}, reply


def _push(store: Store, call: Call) -> Reply:
    """Items: [variable, shard, ids or WHOLE]; body: ids (unless WHOLE) and gradient of each."""
    shards = [(store.shard(v, i), count) for v, i, count in call.header["items"]]
    parts: list[Part] = []
    for shard, count in shards:
        rows = shard.row_stop - shard.row_start if count == WHOLE else count
        if count != WHOLE:
            parts.append(("int64", (count,)))
        parts.append(("float32", (rows, shard.width)))
    arrays = iter(body_arrays(call.body, parts))
    changes = [
        ShardUpdate(shard, None if count == WHOLE else next(arrays), next(arrays))
        for shard, count in shards
    ]
    counter = call.header.get("iterations")
    applied = store.update(
        changes,
        OptimizerSpec.from_json(call.header["optimizer"]),
        iterations=None if counter is None else store.shard(*counter),
        key=_key(call),
    )
    return {"applied": applied}, None


def _assign(store: Store, call: Call) -> Reply:
    shard = _shard(store, call)
    start, count = call.header["start"], call.header["count"]
    (value,) = body_arrays(call.body, [(shard.spec.dtype, (count, shard.width))])
    shard.check_assign(call.header["op"], start, count)
    with store.change(_key(call)) as new:
        if new:
            shard.assign(call.header["op"], start, value)
    return {"applied": new}, None


def _scatter(store: Store, call: Call) -> Reply:
    shard = _shard(store, call)
    count = call.header["count"]
    parts: list[Part] = [("int64", (count,)), (shard.spec.dtype, (count, shard.width))]
    ids, rows = body_arrays(call.body, parts)
    shard.check_scatter(call.header["op"], ids)
    with store.change(_key(call)) as new:
        if new:
            shard.scatter(call.header["op"], ids, rows)
    return {"applied": new}, None


def _save(store: Store, call: Call) -> Reply:
    named = _named(store, call)
    with store.quiet():
        shards = tuple(write_shard(call.header["directory"], name, shard) for name, shard in named)
        ledger = store.ledger_state()
    return {"saved": Saved(shards).to_json(), "ledger": ledger}, None


def _verify(store: Store, call: Call) -> Reply:
    saved = Saved.from_json(call.header["saved"])
    verify(call.header["directory"], _named(store, call), saved.shards)
    return {}, None


def _load(store: Store, call: Call) -> Reply:
    saved = Saved.from_json(call.header["saved"])
    named = _named(store, call)
    with store.quiet():
        read_into(call.header["directory"], named, saved.shards)
        if call.header["ledger"] is not None:
            store.restore_ledger(call.header["ledger"])
    return {}, None


def _named(store: Store, call: Call) -> list[tuple[str, Shard]]:
    """The shards here of the variables that a save or load names."""
    names: dict[int, str] = {id_: name for name, id_ in call.header["variables"]}
    return [(names[s.spec.id], s) for s in store.shards() if s.spec.id in names]


def _shard(store: Store, call: Call) -> Shard:
    return store.shard(*call.header["shard"])


def _key(call: Call) -> ChangeKey | None:
    change = call.header.get("change")
    return None if change is None else ChangeKey(*change)


_HANDLERS: dict[str, Callable[[Store, Call], Reply]] = {
    "create": _create,
    "pull": _pull,
    "read": _read,
    "push": _push,
    "assign": _assign,
    "scatter": _scatter,
    "save": _save,
    "verify": _verify,
    "load": _load,
}
