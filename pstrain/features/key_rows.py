"""Rows for keys that nobody knew before: a mapping that all trainers share and grow.

It is an ordinary variable, which has at each row the key that the row is of, so checkpoints,
restores onto other servers and reads of it are those of any variable. Must not know what the rows
are used for. Invariant: as long as a mapping is not assigned or restored, a key keeps its row.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

from dataservice.runtime.arguments import integer_at_least
from pstrain import initializers
from pstrain.features.key_map import Asked, KeyFields, KeyMap, distinct
from pstrain.gradients.recording import recording
from pstrain.kernels.keys import NO_KEY
from pstrain.variables.parameters import KeyParameters
from pstrain.variables.variable import create_variable

logger = logging.getLogger(__name__)

I64 = NDArray[np.int64]


class KeyRows:
    """A mapping from keys of one or several fields to rows, of which each field has its own.

    ``capacities``: rows of each, of which the first is that of all keys without a row;
    ``min_counts``: how often a process has to meet a key of it before it claims a row for it.
    """

    def __init__(self, capacities: Sequence[int], min_counts: Sequence[int], name: str) -> None:
        for capacity in capacities:
            integer_at_least(capacity, 2, f"{name!r}: capacity")
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
        """What this process knows of it; another object after rows were given to other keys."""
        return self._parameters.key_maps.of(self.variable.spec.id, self.fields)

    def stats(self) -> dict[str, int]:
        """``used`` rows of all fields, ``capacity``, ``refused``: claims that found no free row.

        Servers count those since they hold the variable.
        """
        counts = self._parameters.count_keys(self.variable.spec)
        return {"capacity": self.fields.rows - len(self.fields.first), **counts}

    def look_up(
        self,
        ids: I64,
        fields: I64,
        columns: I64,
        targets: I64,
        nulls: I64,
        training: bool | None = None,
    ) -> I64:
        """``ids`` [n, k] anew, with ids for the keys in ``columns``, which are of ``fields``.

        An id is the column's of ``targets`` + a row of its field, of ``NO_KEY`` that of ``nulls``.
        With ``training`` (None: while a tape records) keys that are new get rows.
        """
        claims = recording() if training is None else training
        while True:
            known = self.map
            found = ids.copy()
            missing = known.replace(found, fields, columns, targets, nulls)
            if len(missing):
                row, which = np.divmod(missing, len(columns))
                places = row, columns[which]
                of = fields[which]
                found[places] = self._ask(known, found[places], of, claims) + targets[which]
            if known is self.map:
                return found

    def _ask(self, known: KeyMap, keys: I64, of: I64, claims: bool) -> I64:
        """Rows, counted from the first of their fields, of keys that are not known here."""
        asked, times, inverse = distinct(keys, of, self.fields)
        if claims:
            asked = known.admit(asked, times)
        rows = self._parameters.claim(self.variable.spec, asked)
        known.add(asked, rows)
        self._tell(known, asked, rows)
        return np.where(rows < 0, 0, rows - self.fields.first[asked.fields])[inverse]

    def _tell(self, known: KeyMap, asked: Asked, rows: I64) -> None:
        refused = np.flatnonzero((rows < 0) & (asked.may_claim != 0))
        if len(refused) and not known.has_told:
            known.has_told = True
            capacity = self.fields.capacity[asked.fields[refused[0]]]
            logger.warning(
                "%r has no row left for some new keys, which share the row of unknown ones: raise "
                "its capacity (%d), or min_count", self.name, capacity,
            )  # fmt: skip
