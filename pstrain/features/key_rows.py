"""A mapping from keys to rows that all trainers share, and to which they add new keys.

The mapping is an ordinary variable, which holds for each row the key of that row. Checkpoints,
restores onto other servers and reads of it are therefore those of any variable. Must not know what
the rows are used for. Invariant: unless the mapping is assigned or restored, a key keeps its row
until it is evicted.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

from dataservice.runtime.arguments import integer_at_least
from pstrain import initializers
from pstrain.errors import FailedPreconditionError, InvalidArgumentError
from pstrain.features.category import MAX_BUCKETS
from pstrain.features.eviction import Eviction, Table
from pstrain.features.key_map import KeyFields, KeyMap, KeyQuery, distinct
from pstrain.gradients.recording import recording
from pstrain.kernels.keys import NO_KEY
from pstrain.variables.parameters import KeyParameters, current_step
from pstrain.variables.variable import create_variable

logger = logging.getLogger(__name__)

I64 = NDArray[np.int64]


class KeyRows:
    """A mapping from the keys of one or several fields to rows; each field has rows of its own.

    ``capacities``: the number of rows of each field, the first of which stands for all keys without
    a row. ``min_counts``: for each field, how often a process has to meet a key before it claims a
    row for the key.
    """

    def __init__(self, capacities: Sequence[int], min_counts: Sequence[int], name: str) -> None:
        for capacity in capacities:
            if integer_at_least(capacity, 2, f"{name!r}: capacity") > MAX_BUCKETS:
                raise InvalidArgumentError(
                    f"{name!r}: capacity must be in [2, 2^31), got {capacity}: it is "
                    "the number of keys that have a row of their own at a time"
                )
        for count in min_counts:
            integer_at_least(count, 1, f"{name!r}: min_count")
        self.fields = KeyFields.of(capacities, min_counts)
        self.name = name
        self.variable = create_variable(
            initializers.constant(NO_KEY),
            shape=(self.fields.rows,),
            dtype="int64",
            name=f"{name}/keys",
            trainable=False,
            cuts=self.fields.cuts(),
        )
        self._parameters.key_maps.register(self.variable.spec.id)

    @property
    def _parameters(self) -> KeyParameters:
        return cast("KeyParameters", self.variable.parameters)

    @property
    def map(self) -> KeyMap:
        """The part of the mapping known here; a new object once rows have other keys."""
        return self._parameters.key_maps.of(self.variable.spec.id, self.fields)

    def stats(self) -> dict[str, int]:
        """Returns the number of rows ``used``, the ``capacity``, and the number ``refused``.

        All are totals over the fields. ``refused`` counts claims that found no free row, since the
        servers hold the variable.
        """
        counts = self._parameters.count_keys(self.variable.spec)
        return {"capacity": self.fields.rows - len(self.fields.first), **counts}

    def evict(self, keep: Sequence[int | None], tables: Sequence[Table]) -> int:
        """Removes the keys that were trained on least recently; returns how many.

        ``keep``: for each field, how many keys to keep, or None for all. ``tables``: the variables
        whose rows belong to keys; the rows of removed keys get their initial values. Raises
        FailedPreconditionError in a scheduled function.
        """
        if current_step() is not None:
            raise FailedPreconditionError(
                f"{self.name!r}: keys cannot be evicted by a scheduled function, while others use "
                "their rows: evict them in the program"
            )
        spec = self.variable.spec
        return self._parameters.evict(Eviction(spec, self.fields, tuple(keep), tuple(tables)))

    def look_up(
        self,
        ids: I64,
        fields: I64,
        columns: I64,
        targets: I64,
        nulls: I64,
        training: bool | None = None,
    ) -> I64:
        """Returns a copy of ``ids`` [n, k] in which the keys in ``columns`` are replaced by ids.

        Column ``columns[f]`` has keys of field ``fields[f]``. The id of a key is ``targets[f]``
        plus its row, counted from the first row of the field; the id of ``NO_KEY`` is ``nulls[f]``.
        If ``training`` (None: if a tape is active), new keys get rows.
        """
        claims = recording() if training is None else training
        while True:
            key_map = self.map
            found = ids.copy()
            missing = key_map.replace(found, fields, columns, targets, nulls, is_training=claims)
            if len(missing):
                row, column = np.divmod(missing, len(columns))
                places = row, columns[column]
                key_fields = fields[column]
                found[places] = (
                    self._request_rows(key_map, found[places], key_fields, claims) + targets[column]
                )
            if key_map is self.map:
                return found

    def _request_rows(self, key_map: KeyMap, keys: I64, key_fields: I64, claims: bool) -> I64:
        """Asks the servers for unknown keys; returns rows, counted from each field's first row."""
        query, occurrences, inverse = distinct(keys, key_fields, self.fields)
        if claims:
            query = key_map.admit(query, occurrences)
        rows = self._parameters.claim(self.variable.spec, query, is_training=claims)
        key_map.add(query, rows, is_training=claims)
        self._warn_if_refused(key_map, query, rows)
        return np.where(rows < 0, 0, rows - self.fields.first[query.fields])[inverse]

    def _warn_if_refused(self, key_map: KeyMap, query: KeyQuery, rows: I64) -> None:
        refused = np.flatnonzero((rows < 0) & (query.may_claim != 0))
        if len(refused) and not key_map.has_warned:
            key_map.has_warned = True
            capacity = self.fields.capacity[query.fields[refused[0]]]
            logger.warning(
                "%r has no row left for some new keys, which share the row of unknown ones: raise "
                "its capacity (%d), or min_count", self.name, capacity,
            )  # fmt: skip
