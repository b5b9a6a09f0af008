"""Reads the changes in a message: checks them first, for the caller to make them later.

A change is a header (``push``, ``assign`` or ``scatter``) and arrays; the arrays of several changes
travel in one body, in order. Knows no network and no session, and runs no Python per row.
Invariant: a returned change cannot fail because of its contents, so that a part of a closure can be
decided before it is applied.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TypeAlias

from pstrain.errors import InvalidArgumentError
from pstrain.paramserver.headers import CHANGES, check_header
from pstrain.paramserver.messages import Array, BodyPart, Header, Received, body_arrays
from pstrain.paramserver.shard import Shard
from pstrain.paramserver.steps import Change, ShardUpdate
from pstrain.paramserver.store import Store
from pstrain.paramserver.transport import FLOAT32, all_widest, named_in, narrowed
from pstrain.vocabulary import OptimizerSpec

WHOLE = -1

Bind: TypeAlias = Callable[[list[Array]], Change]
"""Checks the arrays of a change, and makes the change from them."""


def read_changes(store: Store, headers: Sequence[Header], body: Received) -> list[Change]:
    """Returns the changes of a message, in order; raises if any of them cannot be made."""
    found = [_read(store, header) for header in headers]
    arrays = body_arrays(body, [part for parts, _ in found for part in parts])
    changes = []
    for parts, bind in found:
        mine, arrays = arrays[: len(parts)], arrays[len(parts) :]
        changes.append(bind(mine))
    return changes


def check_staged(store: Store, headers: Sequence[Header]) -> None:
    """Raises InvalidArgumentError for a change to keys, which a closure must not make.

    They would give rows to other keys while other closures still use the rows of the old keys.
    """
    for header in headers:
        kind = header.get("kind")
        if kind not in ("assign", "scatter"):
            continue
        check_header(CHANGES, kind, header)
        if _shard(store, header).holds_keys:
            raise InvalidArgumentError(
                f"variable {_shard(store, header).spec.name!r} has keys and cannot be assigned by "
                "a scheduled function, while others use the rows of its keys; assign it in the "
                "program, or restore a checkpoint"
            )


def _read(store: Store, header: Header) -> tuple[list[BodyPart], Bind]:
    """Returns the parts that a change has in the body, and the function that makes it from them."""
    kind = str(header.get("kind"))
    read = _READERS.get(kind)
    if read is None:
        raise InvalidArgumentError(f"unknown change {kind!r}; there are {sorted(_READERS)}")
    check_header(CHANGES, kind, header)
    return read(store, header)


def _read_push(store: Store, header: Header) -> tuple[list[BodyPart], Bind]:
    """Reads items [variable, shard, number of ids or WHOLE].

    The body has the ids, unless WHOLE, and the gradient of each item.
    """
    values, ids = named_in(header)
    dtype = narrowed(values).get(FLOAT32, FLOAT32)
    shards = store.shards_of(header["items"])
    parts: list[BodyPart] = []
    for shard, (_, _, count) in zip(shards, header["items"], strict=True):
        if count != WHOLE:
            parts.append((ids, (count,)))
        rows = shard.row_stop - shard.row_start if count == WHOLE else count
        parts.append((dtype, (rows, shard.width)))
    return parts, functools.partial(_push, store, header, shards)


def _push(store: Store, header: Header, shards: list[Shard], arrays: list[Array]) -> Change:
    found = iter(all_widest(arrays, named_in(header)))
    updates = [
        ShardUpdate(shard, None if count == WHOLE else next(found), next(found))
        for shard, (_, _, count) in zip(shards, header["items"], strict=True)
    ]
    counter = header.get("iterations")
    return store.checked_update(
        updates,
        OptimizerSpec.from_text(header["optimizer"]),
        None if counter is None else store.shard(*counter),
        header.get("owner"),
    )


def _read_assign(store: Store, header: Header) -> tuple[list[BodyPart], Bind]:
    shard, op, start = _shard(store, header), header["op"], header["start"]

    def bind(arrays: list[Array]) -> Change:
        shard.check_assign(op, start, header["count"])
        return functools.partial(shard.assign, op, start, arrays[0])

    return [(shard.spec.dtype, (header["count"], shard.width))], bind


def _read_scatter(store: Store, header: Header) -> tuple[list[BodyPart], Bind]:
    shard, op, count = _shard(store, header), header["op"], header["count"]

    def bind(arrays: list[Array]) -> Change:
        shard.check_scatter(op, arrays[0])
        return functools.partial(shard.scatter, op, *arrays)

    return [("int64", (count,)), (shard.spec.dtype, (count, shard.width))], bind


def _shard(store: Store, header: Header) -> Shard:
    return store.shard(*header["shard"])


_READERS: dict[str, Callable[[Store, Header], tuple[list[BodyPart], Bind]]] = {
    "push": _read_push,
    "assign": _read_assign,
    "scatter": _read_scatter,
}
