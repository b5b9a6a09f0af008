"""One pull: the messages for a list of fetches, and the values combined from the replies.

No network. Invariant: a whole variable is taken from the cache if its server says that the version
is unchanged; rows are never cached.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from pstrain.paramserver.changes import WHOLE
from pstrain.paramserver.messages import Array, BodyPart, Message, Received, body_arrays, part_bytes
from pstrain.paramserver.transport import FLOAT32, body_of, dtype_fields, ids_dtype, narrowed
from pstrain.serialization.bfloat16 import widen_into
from pstrain.variables.rows import look_up
from pstrain.vocabulary import Fetch, Lookup, VariableSpec

_NONE = -1
_UNKNOWN: Final = (_NONE, np.empty(0, np.float32))

Known = dict[tuple[int, int], tuple[int, Array]]


class Pull:
    """The fetches of one step, by server.

    ``known``: the cache, read and updated: version and rows of whole shards, by (variable id, shard
    index). Whole variables above ``whole_bytes`` are left out: their value is None. float32 values
    travel as ``transport_dtype``.
    """

    def __init__(
        self,
        requests: Sequence[Fetch],
        known: Known,
        whole_bytes: int,
        transport_dtype: str = FLOAT32,
    ) -> None:
        self._known = known
        self._specs = [request.variable for request in requests]
        rows = max([spec.rows for spec in self._specs], default=0)
        self._dtypes = transport_dtype, ids_dtype(rows, transport_dtype)
        self._lookups: list[Lookup | None] = [
            None if request.ids is None else look_up(request.variable, request.ids)
            for request in requests
        ]
        self._wholes: list[dict[int, Array] | None] = [None] * len(requests)
        # By server: (position of the request, shard index, number of rows) of each fetch.
        self._asked: dict[int, list[tuple[int, int, int]]] = {}
        self._offered: dict[tuple[int, int], tuple[int, Array]] = {}
        for position, (spec, lookup) in enumerate(zip(self._specs, self._lookups, strict=True)):
            if lookup is None:
                if part_bytes((spec.dtype, spec.shape)) > whole_bytes:
                    continue
                self._wholes[position] = {}
            self._ask_for(position, spec, lookup)

    @classmethod
    def of_rows(cls, spec: VariableSpec, lookup: Lookup, dtype: Any) -> Pull:
        """Makes a pull of the rows of an existing lookup, of any dtype."""
        pull = cls([], {}, 0)
        rows = np.empty((len(lookup.unique), spec.width), dtype)
        pull._specs, pull._lookups, pull._wholes = [spec], [lookup._replace(rows=rows)], [None]
        pull._ask_for(0, spec, lookup)
        return pull

    def messages(self) -> dict[int, Message]:
        """Returns the message to each server that holds something asked for."""
        messages: dict[int, Message] = {}
        names = dtype_fields(*self._dtypes)
        for ps, asked in self._asked.items():
            items, ids = [], []
            for position, index, rows in asked:
                spec, lookup = self._specs[position], self._lookups[position]
                if lookup is None:
                    known = self._known.get((spec.id, index), _UNKNOWN)
                    # Another pull may replace the cache entry before the reply arrives.
                    self._offered[spec.id, index] = known
                    items.append([spec.id, index, WHOLE, known[0]])
                else:
                    ids.append(lookup.unique[_part(lookup, index)])
                    items.append([spec.id, index, rows, _NONE])
            header = {"kind": "pull", "items": items, **names}
            messages[ps] = header, body_of(ids, *self._dtypes)
        return messages

    def receive(self, ps: int, versions: Sequence[int], body: Received) -> None:
        """Takes in one server's reply."""
        asked, narrow = self._asked[ps], narrowed(self._dtypes[0])
        parts: list[BodyPart] = []
        fresh = []
        for (position, index, rows), version in zip(asked, versions, strict=True):
            spec, whole = self._specs[position], self._wholes[position]
            if whole is not None:
                known = self._offered[spec.id, index]
                if version == known[0]:
                    whole[index] = known[1]
                    continue
            fresh.append((position, index, version))
            parts.append((narrow.get(spec.dtype, spec.dtype), (rows, spec.width)))
        for (position, index, version), came in zip(fresh, body_arrays(body, parts), strict=True):
            whole = self._wholes[position]
            if whole is None:
                self._keep_rows(position, index, came)
            else:
                # A copy: a view would keep the body, with all other variables, in memory.
                whole[index] = _copy(came)
                self._known[self._specs[position].id, index] = (version, whole[index])

    def values(self) -> list[Any]:
        """Returns for each request an array, a Lookup, or None (too large to be pulled whole)."""
        return [self._value(position) for position in range(len(self._specs))]

    def _value(self, position: int) -> Any:
        lookup, parts = self._lookups[position], self._wholes[position]
        if lookup is not None or parts is None:
            return lookup
        spec = self._specs[position]
        if len(spec.shards) == 1:
            return parts[0].reshape(spec.shape)
        rows = [parts[index] for index in range(len(spec.shards))]
        return np.concatenate(rows).reshape(spec.shape)

    def _ask_for(self, position: int, spec: VariableSpec, lookup: Lookup | None) -> None:
        for index, shard in enumerate(spec.shards):
            if lookup is None:
                rows = shard.row_stop - shard.row_start
            else:
                rows = int(lookup.offsets[index + 1] - lookup.offsets[index])
            if rows:
                self._asked.setdefault(shard.ps, []).append((position, index, rows))

    def _keep_rows(self, position: int, index: int, rows: Array) -> None:
        lookup = self._lookups[position]
        assert lookup is not None
        if rows.dtype == np.uint16:
            widen_into(lookup.rows[_part(lookup, index)], rows)
        elif len(rows) == len(lookup.unique):
            self._lookups[position] = lookup._replace(rows=rows)
        else:
            lookup.rows[_part(lookup, index)] = rows


def _copy(rows: Array) -> Array:
    if rows.dtype != np.uint16:
        return rows.copy()
    out = np.empty(rows.shape, np.float32)
    widen_into(out, rows)
    return out


def _part(lookup: Lookup, index: int) -> slice:
    return slice(int(lookup.offsets[index]), int(lookup.offsets[index + 1]))
