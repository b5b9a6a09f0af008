"""The online columns of a schema, whose values get rows when they are first trained on.

Encoded batches have keys in place of the rows of such columns; this module replaces the keys by
rows of the table that all columns share. Knows nothing of models. Invariant: everything in a batch
but keys stays unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pstrain.errors import InvalidArgumentError
from pstrain.features.eviction import Table, check_keep
from pstrain.features.key_map import KeyMap
from pstrain.features.key_rows import KeyRows
from pstrain.features.schema import Features, FeatureSchema
from pstrain.vocabulary import VariableSpec

I64 = NDArray[np.int64]


class _OnlineFields(NamedTuple):
    """Online fields with columns in one matrix: arrays with an entry per field.

    ``fields``: the field's number; ``columns``: its column; ``targets``: its first row in the
    shared table; ``nulls``: the row for nulls.
    """

    fields: I64
    columns: I64
    targets: I64
    nulls: I64

    @classmethod
    def of(cls, places: list[tuple[int, int, int, int]]) -> _OnlineFields:
        return cls(*np.array(places, np.int64).reshape(-1, 4).T.copy())


class OnlineColumns:
    """The online columns of a schema, which share one mapping; each has rows of its own in it."""

    def __init__(self, schema: FeatureSchema) -> None:
        online = {name: each for name, each in schema.categorical.items() if each.online}
        self._capacities = {name: each.buckets for name, each in online.items()}
        min_counts = [each.min_count for each in online.values()]
        self._rows = KeyRows([*self._capacities.values()], min_counts, "online")
        self.variables = [self._rows.variable]
        self._table_rows = schema.table_rows
        firsts: list[int] = []
        single: list[tuple[int, int, int, int]] = []
        self._bags: dict[int, _OnlineFields] = {}
        base = field = columns = bags = 0
        for category in schema.categorical.values():
            is_single = category.pooling is None
            if category.online:
                firsts.append(base)
                place = (field, columns if is_single else 0, base, base + category.buckets)
                if is_single:
                    single.append(place)
                else:
                    self._bags[bags] = _OnlineFields.of([place])
            field, base = field + category.online, base + category.rows
            columns, bags = columns + is_single, bags + (not is_single)
        self._single = _OnlineFields.of(single)
        self._offsets = np.array(firsts, np.int64) - self._rows.fields.first

    @property
    def map(self) -> KeyMap:
        """The part of the mapping known here; a new object once rows have other keys."""
        return self._rows.map

    def stats(self) -> dict[str, int]:
        """Returns the totals over all columns; see ``OnlineLookup.stats``."""
        return self._rows.stats()

    def limits(self, keep: Mapping[str, int] | int) -> list[int | None]:
        """Returns for each online column how many of its keys ``keep`` says to keep, None for all.

        ``keep``: a number by column, or just a number if a single column is online. Raises
        InvalidArgumentError for other columns, and for what is not in ``[0, capacity)``.
        """
        if not isinstance(keep, Mapping):
            if len(self._capacities) > 1:
                raise InvalidArgumentError(
                    f"keep={keep!r} for {len(self._capacities)} online columns: give a dict of "
                    f"numbers by column, of {', '.join(self._capacities)}"
                )
            keep = dict.fromkeys(self._capacities, keep)
        for name in keep:
            if name not in self._capacities:
                raise InvalidArgumentError(
                    f"column {name!r} is not online, so it has no keys to evict; online are "
                    f"{', '.join(self._capacities)}"
                )
        return [
            check_keep(f"column {name!r}", keep[name], capacity) if name in keep else None
            for name, capacity in self._capacities.items()
        ]

    def evict(self, keep: Mapping[str, int] | int, specs: Iterable[VariableSpec]) -> int:
        """Removes keys as ``OnlineLookup.evict`` does; see :meth:`limits` for ``keep``.

        ``specs``: of variables, from which those with the rows of all columns are chosen.
        """
        limits = self.limits(keep)
        tables = {spec.id: spec for spec in specs if spec.rows == self._table_rows}
        if not tables:
            raise InvalidArgumentError(
                "no layer looks up rows of the table that all categorical columns share: list the "
                "layer with the table in self.layers, or use an OnlineLookup"
            )
        return self._rows.evict(limits, [Table(each, self._offsets) for each in tables.values()])

    def with_rows(self, features: Features, training: bool | None = None) -> Features:
        """Returns the batch with rows in place of keys.

        If ``training`` (None: if a tape is active), new keys get rows.
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
