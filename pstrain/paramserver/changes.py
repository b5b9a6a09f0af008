"""What the changes in a message do to the shards: checked first, done later.

A change is a header (``push``, ``assign`` or ``scatter``) and arrays; several travel in one body,
in order. No network, no session. Invariant: what this module returns cannot fail for what it
holds, so that a part of a closure can be decided before it is applied. No Python per row.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from pstrain.errors import InvalidArgumentError
from pstrain.paramserver.headers import CHANGES, Header, check_header
from pstrain.paramserver.messages import Array, Part, Received, body_arrays
from pstrain.paramserver.shard import Shard
from pstrain.paramserver.steps import Change, ShardUpdate
from pstrain.paramserver.store import Store
from pstrain.paramserver.transport import FLOAT32, ids_dtype_in, named_in, widest, wire_dtype
from pstrain.vocabulary import OptimizerSpec

WHOLE = -1


def read_changes(store: Store, headers: Sequence[Header], body: Received) -> list[Change]:
    """What is to be done, in order; raises where any of it cannot be done."""
    for header in headers:
        check_header(CHANGES, _kind(header), header)
    shapes = [_SHAPES[_kind(header)](store, header) for header in headers]
    arrays = body_arrays(body, [part for parts in shapes for part in parts])
    changes = []
    for header, parts in zip(headers, shapes, strict=True):
        mine, arrays = arrays[: len(parts)], arrays[len(parts) :]
        changes.append(_BINDERS[_kind(header)](store, header, mine))
    return changes


def check_staged(store: Store, headers: Sequence[Header]) -> None:
    """InvalidArgumentError for what a closure cannot do: give rows to other keys while others run,
    which know the rows of those before.
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


def _kind(header: Header) -> str:
    kind = str(header.get("kind"))
    if kind not in _SHAPES:
        raise InvalidArgumentError(f"unknown change {kind!r}; there are {sorted(_SHAPES)}")
    return kind


def _push_shapes(store: Store, header: Header) -> list[Part]:
    """Items: [variable, shard, ids or WHOLE]; body: ids (unless WHOLE) and gradient of each."""
    parts: list[Part] = []
    dtype, ids_dtype = wire_dtype(FLOAT32, named_in(header)), ids_dtype_in(header)
    for variable, index, count in header["items"]:
        shard = store.shard(variable, index)
        rows = shard.row_stop - shard.row_start if count == WHOLE else count
        if count != WHOLE:
            parts.append((ids_dtype, (count,)))
        parts.append((dtype, (rows, shard.width)))
    return parts


def _push(store: Store, header: Header, arrays: list[Array]) -> Change:
    found = map(widest, arrays)
    updates = [
        ShardUpdate(store.shard(v, i), None if count == WHOLE else next(found), next(found))
        for v, i, count in header["items"]
    ]
    counter = header.get("iterations")
    return store.checked_update(
        updates,
        OptimizerSpec.from_text(header["optimizer"]),
        None if counter is None else store.shard(*counter),
        header.get("owner"),
    )


def _assign_shapes(store: Store, header: Header) -> list[Part]:
    shard = _shard(store, header)
    return [(shard.spec.dtype, (header["count"], shard.width))]


def _assign(store: Store, header: Header, arrays: list[Array]) -> Change:
    shard, op, start = _shard(store, header), header["op"], header["start"]
    shard.check_assign(op, start, header["count"])
    return functools.partial(shard.assign, op, start, arrays[0])


def _scatter_shapes(store: Store, header: Header) -> list[Part]:
    shard, count = _shard(store, header), header["count"]
    return [("int64", (count,)), (shard.spec.dtype, (count, shard.width))]


def _scatter(store: Store, header: Header, arrays: list[Array]) -> Change:
    shard, op = _shard(store, header), header["op"]
    shard.check_scatter(op, arrays[0])
    return functools.partial(shard.scatter, op, *arrays)


def _shard(store: Store, header: Header) -> Shard:
    return store.shard(*header["shard"])


_SHAPES: dict[str, Callable[[Store, Header], list[Part]]] = {
    "push": _push_shapes,
    "assign": _assign_shapes,
    "scatter": _scatter_shapes,
}
_BINDERS: dict[str, Callable[[Store, Header, list[Array]], Change]] = {
    "push": _push,
    "assign": _assign,
    "scatter": _scatter,
}
