"""The handlers of a parameter server, one for each kind of request, on top of one store.

Knows no network and no session: a request is a header and a body, and so is a reply. Invariant:
everything in a request is checked before anything changes, the shape of its header first. Runs no
Python per row.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from pstrain.errors import DataServiceError, InvalidArgumentError
from pstrain.paramserver import key_requests
from pstrain.paramserver.changes import WHOLE, check_staged, read_changes
from pstrain.paramserver.checkpoint import write
from pstrain.paramserver.commits import Entry, PartKey
from pstrain.paramserver.headers import REQUESTS, check_header
from pstrain.paramserver.increments import Base
from pstrain.paramserver.loading import can_read_ahead, read_ahead, read_into, verify
from pstrain.paramserver.messages import (
    Array,
    BodyPart,
    Call,
    Header,
    LateBody,
    Message,
    body_arrays,
    new_body,
    refusal,
    split_body,
)
from pstrain.paramserver.saved import Saved, Tracking
from pstrain.paramserver.shard import Shard
from pstrain.paramserver.steps import Change
from pstrain.paramserver.store import Store
from pstrain.paramserver.transport import all_widest, dtypes_of, narrowed
from pstrain.vocabulary import OptimizerSpec, spec_from_json


def answer(store: Store, call: Call) -> Message:
    """Returns the reply to a request; raises a DataServiceError if it cannot be done."""
    kind = str(call.header.get("kind"))
    handler = _HANDLERS.get(kind)
    if handler is None:
        raise InvalidArgumentError(
            f"unknown request {call.header.get('kind')!r}; there are {sorted(_HANDLERS)}"
        )
    check_header(REQUESTS, kind, call.header)
    return handler(store, call)


def _create(store: Store, call: Call) -> Message:
    """Does some of the work; the client repeats the request until no rows are left.

    If ``has_values`` is set, the body has the values of each of ``shards``, all made at once.
    """
    spec = spec_from_json(call.header["spec"])
    for index in call.header["shards"]:
        if index >= len(spec.shards):
            raise InvalidArgumentError(
                f"variable {spec.name!r} has {len(spec.shards)} shards, and shard {index} of it is "
                "to be made"
            )
    if call.header.get("has_values"):
        places = [spec.shards[index] for index in call.header["shards"]]
        parts = [(spec.dtype, (p.row_stop - p.row_start, spec.width)) for p in places]
        for index, value in zip(call.header["shards"], body_arrays(call.body, parts), strict=True):
            store.create(spec, index, value)
        return {"left": 0}, None
    for index in call.header["shards"]:
        left = store.make(spec, index)
        if left:
            return {"left": left}, None
    return {"left": 0}, None


def _delete(store: Store, call: Call) -> Message:
    store.delete(call.header["variables"])
    return {}, None


def _make_slots(store: Store, call: Call) -> Message:
    """Does some of the work; the client repeats the request until no rows are left."""
    shards = store.shards_of(call.header["shards"])
    optimizer = OptimizerSpec.from_text(call.header["optimizer"])
    return {"left": store.make_slots(shards, optimizer)}, None


def _pull(store: Store, call: Call) -> Message:
    """Reads items [variable, shard, number of ids or WHOLE, known version].

    The reply leaves out whole shards whose version the client knows.
    """
    items = call.header["items"]
    shards = store.shards_of(items)
    dtypes = dtypes_of(call.header)
    narrow = narrowed(dtypes[0])
    ids = iter(all_widest(body_arrays(call.body, _ids_of(call.header)), dtypes))
    # Each version is read once, before the rows: the rows sent are at least as new as it says.
    versions = [shard.version for shard in shards]
    parts: list[BodyPart] = []
    wanted: list[tuple[Shard, Array | None]] = []
    for shard, (_, _, count, known), version in zip(shards, items, versions, strict=True):
        if count != WHOLE:
            mine = next(ids)
            shard.check_ids(mine)
            wanted.append((shard, mine))
            rows = count
        elif version != known:
            wanted.append((shard, None))
            rows = shard.row_stop - shard.row_start
        else:
            continue
        dtype = shard.spec.dtype
        parts.append((narrow.get(dtype, dtype), (rows, shard.width)))
    if not wanted:
        return {"versions": versions}, None
    return {"versions": versions}, LateBody(parts, functools.partial(_fill, wanted))


def _fill(
    wanted: Sequence[tuple[Shard, Array | None]], part: int, start: int, stop: int, target: Array
) -> None:
    shard, ids = wanted[part]
    if ids is None:
        shard.read(shard.row_start + start, shard.row_start + stop, target)
    else:
        shard.gather_checked(ids[start:stop], target)


def _ids_of(pull: Header) -> list[BodyPart]:
    """Returns the parts in the body of a pull."""
    _, dtype = dtypes_of(pull)
    return [(dtype, (count,)) for _, _, count, _ in pull["items"] if count != WHOLE]


def _both(store: Store, call: Call) -> Message:
    """Prepares, decides or commits parts (``first``), and then pulls (``then``).

    The body has the arrays of ``then``, followed by those of ``first``. Each of the two succeeds or
    is refused by itself: the pull is done even if ``first`` is refused.
    """
    first, then = call.header["first"], call.header["then"]
    kinds = (first.get("kind"), then.get("kind"))
    if kinds[0] not in ("prepare", "decide", "commit") or kinds[1] != "pull":
        raise InvalidArgumentError(
            f"a request for two things is to prepare, decide or commit, then to pull; got {kinds}"
        )
    check_header(REQUESTS, "pull", then)
    ids, changes = split_body(call.body, _ids_of(then))
    done, _ = _or_refused(answer, store, Call(first, changes))
    read, body = _or_refused(_pull, store, Call(then, ids))
    return {"first": done, "then": read}, body


def _or_refused(handler: Callable[[Store, Call], Message], store: Store, call: Call) -> Message:
    try:
        return handler(store, call)
    except DataServiceError as error:
        return refusal(error), None


def _read(store: Store, call: Call) -> Message:
    shard = _shard(store, call)
    start, stop = call.header["rows"]
    if not shard.row_start <= start <= stop <= shard.row_stop:
        raise InvalidArgumentError(f"rows [{start}, {stop}) are not on this shard")
    dtype, narrow = shard.spec.dtype, narrowed(dtypes_of(call.header)[0])
    reply, (out,) = new_body([(narrow.get(dtype, dtype), (stop - start, shard.width))])
    shard.read(start, stop, out)
    return {}, reply


def _change(store: Store, call: Call) -> Message:
    """Applies a change outside closures at once. Not idempotent: a repeat is applied again."""
    store.apply(read_changes(store, [call.header], call.body))
    return {}, None


def _change_all(store: Store, call: Call) -> Message:
    """Applies several changes as :func:`_change` does one; all are checked before the first."""
    store.apply(read_changes(store, call.header["changes"], call.body))
    return {}, None


def _read_staged(store: Store, call: Call) -> list[Change]:
    check_staged(store, call.header["changes"])
    return read_changes(store, call.header["changes"], call.body)


def _prepare(store: Store, call: Call) -> Message:
    changes = _read_staged(store, call)
    _commit_earlier(store, call)
    store.prepare(*_part(store, call), changes, call.header.get("try", 0))
    return {}, None


def _check(store: Store, call: Call) -> Message:
    """Checks the changes as ``prepare`` does, but holds nothing."""
    _read_staged(store, call)
    return {}, None


def _decide(store: Store, call: Call) -> Message:
    """Decides a part; ``entries`` has the Entry fields of each closure that it decides."""
    changes = _read_staged(store, call)
    _commit_earlier(store, call)
    entries = [Entry(*entry) for entry in call.header["entries"]]
    new = store.decide(*_part(store, call), changes, entries, call.header["rows"])
    return {"applied": new}, None


def _commit(store: Store, call: Call) -> Message:
    _commit_earlier(store, call)
    store.advance(call.header["low_water"])
    return {}, None


def _commit_earlier(store: Store, call: Call) -> None:
    """Commits the parts in ``commits``, which were decided elsewhere."""
    for key in call.header.get("commits", ()):
        store.commit(call.header["trainer"], PartKey(*key))


def _abort(store: Store, call: Call) -> Message:
    store.abort(*_part(store, call), call.header.get("try", 0))
    return {}, None


def _apply_round(store: Store, call: Call) -> Message:
    """Applies a round; ``parts`` has [trainer, key] of each of its closures, in order."""
    parts = [(trainer, PartKey(*key)) for trainer, key in call.header["parts"]]
    store.apply_round(parts, call.header["gradients"])
    return {}, None


def _fence(store: Store, call: Call) -> Message:
    return store.fence(call.header["trainer"])._asdict(), None


def _complete(store: Store, call: Call) -> Message:
    keys = [PartKey(*key) for key in call.header["keys"]]
    store.complete(call.header["trainer"], keys)
    return {}, None


def _snapshot(store: Store, call: Call) -> Message:
    """Takes a snapshot.

    ``since``, if it is in the header, has changes tracked, and names the snapshot since which they
    are wanted, or is None for a first one. ``ended`` lists snapshots to drop, in case the request
    that dropped them was lost.
    """
    for ended in call.header.get("ended", ()):
        store.drop_snapshot(ended)
    names: dict[int, str] = {id_: name for name, id_ in call.header["variables"]}
    tracking = Tracking(call.header["since"]) if "since" in call.header else None
    snapshots, ledger = store.take_snapshot(call.header["snapshot"], names, tracking)
    return {"size_bytes": sum(each.size_bytes for _, each in snapshots), "ledger": ledger}, None


def _write(store: Store, call: Call) -> Message:
    snapshots = store.snapshot(call.header["snapshot"])
    base = Base.from_json(call.header.get("base"))
    saved = write(call.header["directory"], snapshots, call.header["writer"], base)
    return {"saved": saved.to_json()}, None


def _drop(store: Store, call: Call) -> Message:
    store.drop_snapshot(call.header["snapshot"])
    return {}, None


def _verify(store: Store, call: Call) -> Message:
    """Checks that a load can be done; already reads tables that still have initial values."""
    saved, named = Saved.from_json(call.header["saved"]), _named(store, call)
    directory = call.header["directory"]
    with store.quiet():
        if can_read_ahead(named, saved.shards):
            store.read_ahead = (call.header["load"], read_ahead(directory, named, saved.shards))
            return {}, None
    verify(directory, named, saved.shards)
    return {}, None


def _load(store: Store, call: Call) -> Message:
    saved = Saved.from_json(call.header["saved"])
    named = _named(store, call)
    with store.quiet():
        ahead = store.take_read_ahead(call.header["load"])
        read_into(call.header["directory"], named, saved.shards, ahead)
        if call.header["ledger"] is not None:
            store.restore_ledger(call.header["ledger"])
    return {}, None


def _give_up_load(store: Store, call: Call) -> Message:
    with store.quiet():
        store.take_read_ahead(call.header["load"]).undo()
    return {}, None


def _named(store: Store, call: Call) -> list[tuple[str, Shard]]:
    """Returns the shards on this server of the variables that a load names."""
    names: dict[int, str] = {id_: name for name, id_ in call.header["variables"]}
    return [(names[s.spec.id], s) for s in store.shards() if s.spec.id in names]


def _shard(store: Store, call: Call) -> Shard:
    return store.shard(*call.header["shard"])


def _part(store: Store, call: Call) -> tuple[str, PartKey]:
    """Returns the trainer and the key of a part, after advancing the low-water mark."""
    store.advance(call.header["low_water"])
    return call.header["trainer"], PartKey(*call.header["key"])


_HANDLERS: dict[str, Callable[[Store, Call], Message]] = {
    "create": _create,
    "delete": _delete,
    "slots": _make_slots,
    "pull": _pull,
    "both": _both,
    "read": _read,
    "push": _change,
    "assign": _change,
    "scatter": _change,
    "change": _change_all,
    **key_requests.HANDLERS,
    "check": _check,
    "prepare": _prepare,
    "decide": _decide,
    "commit": _commit,
    "abort": _abort,
    "apply_round": _apply_round,
    "fence": _fence,
    "complete": _complete,
    "snapshot": _snapshot,
    "write": _write,
    "drop": _drop,
    "verify": _verify,
    "load": _load,
    "give_up_load": _give_up_load,
}
