"""Builds the messages that trainers send to parameter servers.

No network. Invariant: two requests that share a message have the same effect as two messages in
that order; each is done, or refused, by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pstrain.paramserver.changes import WHOLE
from pstrain.paramserver.messages import Array, Header, LateBody, Message, Received
from pstrain.paramserver.transport import FLOAT32, body_of, ids_dtype, named
from pstrain.vocabulary import VariableSpec


class Answer(NamedTuple):
    """The reply of a server."""

    header: Header
    body: Received


Pulls = Mapping[int, Message]
Answers = dict[int, Answer]


class Push:
    """Updates for one server, gathered into one body. Added arrays must not change afterwards.

    Gradients travel as ``transport_dtype``.
    """

    def __init__(self, transport_dtype: str = FLOAT32) -> None:
        self._transport_dtype = transport_dtype
        self._items: list[list[int]] = []
        self._rows = 0  # the number of rows of the longest variable
        self._arrays: list[Array] = []

    def add(
        self, variable: VariableSpec, index: int, ids: NDArray[np.int64] | None, gradient: Array
    ) -> None:
        if variable.rows > self._rows:
            self._rows = variable.rows
        self._items.append([variable.id, index, WHOLE if ids is None else len(ids)])
        self._arrays += [gradient] if ids is None else [ids, gradient]

    def message(self, **details: Any) -> Message:
        """Returns the message, with ``details`` in its header."""
        dtypes = self._transport_dtype, ids_dtype(self._rows, self._transport_dtype)
        header = {"kind": "push", "items": self._items, **named(*dtypes), **details}
        return header, body_of(self._arrays, *dtypes)


def with_rows(create: Header, spec: VariableSpec, rows: Array) -> Message:
    """Returns the message that creates shards of a variable, with their first values."""
    mine = [spec.shards[index] for index in create["shards"]]
    body = LateBody.of([rows[shard.row_start : shard.row_stop] for shard in mine])
    return {**create, "has_values": True}, body


def assignment(
    spec: VariableSpec, index: int, op: str, bounds: tuple[int, int], rows: Array
) -> Message:
    """Returns the message that assigns ``rows`` to rows ``[start, stop)`` of a shard."""
    start, stop = bounds
    header = {"kind": "assign", "op": op, "shard": [spec.id, index]}
    # A copy: the caller may change the value before it is sent.
    return {**header, "start": start, "count": stop - start}, LateBody.of([rows.copy()])


def several(changes: Sequence[Message]) -> Message:
    """Joins changes, each with a body, into one message that makes them in order."""
    body = LateBody.joined([body for _, body in changes if body is not None])
    return {"kind": "change", "changes": [header for header, _ in changes]}, body


def both(first: Message, then: Message) -> Message:
    """Joins a decision or a commit and the pull that follows it into one message."""
    # The pull's arrays come first, because the server can tell from the pull where they end.
    bodies = [body for body in (then[1], first[1]) if body is not None]
    body = LateBody.joined(bodies) if len(bodies) > 1 else next(iter(bodies), None)
    return {"kind": "both", "first": first[0], "then": then[0]}, body
