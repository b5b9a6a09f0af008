"""Columns of a schema whose values get rows when they are first trained on.

Encoded batches have keys in the place of such a column's rows; here they get the rows of the table
that all columns share. Knows nothing of models. Invariant: what is no key stays as it is.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pstrain.features.key_map import KeyMap
from pstrain.features.key_rows import KeyRows
from pstrain.features.schema import Features, FeatureSchema

I64 = NDArray[np.int64]


class _Places(NamedTuple):
    """Fields with a column of one matrix: the first row of each in the table, and that of nulls."""

    fields: I64
    columns: I64
    targets: I64
    nulls: I64

    @classmethod
    def of(cls, places: list[tuple[int, int, int, int]]) -> _Places:
        return cls(*np.array(places, np.int64).reshape(-1, 4).T.copy())


class OnlineColumns:
    """The online columns of a schema; they share a mapping, in which each has rows of its own."""

    def __init__(self, schema: FeatureSchema, name: str) -> None:
        online = [category for category in schema.categorical.values() if category.online]
        self._rows = KeyRows(
            [category.buckets for category in online],
            [category.min_count for category in online],
            name,
        )
        self.variables = [self._rows.variable]
        single: list[tuple[int, int, int, int]] = []
        self._bags: dict[int, _Places] = {}
        base = field = columns = bags = 0
        for category in schema.categorical.values():
            is_single = category.pooling is None
            if category.online:
                place = (field, columns if is_single else 0, base, base + category.buckets)
                if is_single:
                    single.append(place)
                else:
                    self._bags[bags] = _Places.of([place])
            field, base = field + category.online, base + category.rows
            columns, bags = columns + is_single, bags + (not is_single)
        self._single = _Places.of(single)

    @property
    def map(self) -> KeyMap:
        """What this process knows; another object after rows were given to other keys."""
        return self._rows.map

    def stats(self) -> dict[str, int]:
        """Of all columns together: see ``OnlineLookup.stats``."""
        return self._rows.stats()

    def with_rows(self, features: Features, training: bool | None = None) -> Features:
        """The same batch, with rows in the place of keys.

        With ``training`` (None: while a tape records) keys that are new get rows.
        """
        ids, bags = features.ids, features.bags
        if len(self._single.fields):
            ids = self._rows.look_up(ids, *self._single, training)
        if bags is not None and self._bags:
            listed = bags.ids.copy()
            for position, places in self._bags.items():
                first, last = position * len(features), (position + 1) * len(features)
                part = slice(bags.offsets[first], bags.offsets[last])
                column = listed[part].reshape(-1, 1)
                listed[part] = self._rows.look_up(column, *places, training).reshape(-1)
            bags = replace(bags, ids=listed)
        return replace(features, ids=ids, bags=bags, has_keys=False)
