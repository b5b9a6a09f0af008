"""An eviction: which keys of a mapping go, and the steps in which they do.

Knows no servers and no network: it is given the steps to take. Rows are reset before their keys are
removed, so that whatever step fails, a key either has the row that it had, with its values or with
initial ones, as if the key had been evicted and had come again, or it has no row. Invariant: of two
keys of a field, the one that was trained on in a later period stays.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from dataservice.runtime.arguments import integer_at_least
from pstrain.errors import InvalidArgumentError
from pstrain.features.key_map import KeyFields
from pstrain.variables.rows import overlaps
from pstrain.vocabulary import VariableSpec

I64 = NDArray[np.int64]


class Part(NamedTuple):
    """Rows ``[start, stop)`` of one shard, all of one field."""

    shard: int
    start: int
    stop: int


class Share(NamedTuple):
    """What a part gives up: keys idle for more than ``periods``, and ``ties`` of the next ones."""

    periods: int
    ties: int


class IdleCounts(NamedTuple):
    """For each part, the present period, and how many keys are idle for 0, 1, ... periods."""

    periods: list[int]
    counts: list[I64]


class IdleKeys(NamedTuple):
    """The keys that a part gives up, and their rows."""

    rows: I64
    keys: I64


class Table(NamedTuple):
    """A variable whose rows the keys stand for.

    ``offsets``: for each field, the difference between a row of the variable and of the mapping.
    """

    spec: VariableSpec
    offsets: I64


class Eviction(NamedTuple):
    """What to evict: ``keep`` has for each field the number of keys to keep, or None for all."""

    mapping: VariableSpec
    fields: KeyFields
    keep: tuple[int | None, ...]
    tables: tuple[Table, ...]


class Steps(Protocol):
    """The steps of an eviction; parts and their entries are in the same order."""

    def count_idle(self, mapping: VariableSpec, parts: Sequence[Part]) -> IdleCounts:
        """Counts the keys of each part by the number of periods for which they are idle."""

    def idle_keys(
        self, mapping: VariableSpec, parts: Sequence[Part], shares: Sequence[Share]
    ) -> list[IdleKeys]:
        """Returns the keys that each part gives up."""

    def reset_rows(self, table: VariableSpec, rows: I64) -> None:
        """Gives ``rows``, ascending, and their slots their initial values."""

    def remove_keys(
        self,
        mapping: VariableSpec,
        parts: Sequence[Part],
        found: Sequence[IdleKeys],
        buckets: Sequence[I64],
        periods: Sequence[int],
    ) -> None:
        """Removes keys from their rows, and begins the next one of ``periods``.

        ``buckets``: for each part, where its buckets begin, and its end.
        """


def evict(eviction: Eviction, steps: Steps) -> int:
    """Evicts keys, and begins a new period; returns how many. Nothing may use rows meanwhile."""
    mapping, fields = eviction.mapping, eviction.fields
    parts = [list(_parts(mapping, fields, field)) for field in range(len(eviction.keep))]
    every = [part for of_field in parts for part in of_field]
    periods, counts = steps.count_idle(mapping, every)
    shares: list[Share] = []
    for of_field, keep in zip(parts, eviction.keep, strict=True):
        mine = counts[len(shares) : len(shares) + len(of_field)]
        shares += shares_of(mine, keep)
    found = steps.idle_keys(mapping, every, shares)
    for table in eviction.tables:
        steps.reset_rows(table.spec, _rows_in(table, fields, found))
    buckets = fields.buckets_in([(part.start, part.stop) for part in every])
    steps.remove_keys(mapping, every, found, buckets, periods)
    return sum(len(each.keys) for each in found)


def shares_of(counts: Sequence[I64], keep: int | None) -> list[Share]:
    """Returns what each part of a field gives up, so that ``keep`` keys are left, or all.

    Keys that are idle for equally long are given up by all parts in proportion.
    """
    total = np.zeros(1 + max(map(len, counts), default=0), np.int64)
    for each in counts:
        total[: len(each)] += each
    excess = 0 if keep is None else int(total.sum()) - keep
    if excess <= 0:
        return [Share(len(total), 0)] * len(counts)
    at_least = np.cumsum(total[::-1])[::-1]
    periods = int(np.flatnonzero(at_least >= excess)[-1])
    wanted = excess - int(at_least[periods + 1])
    tied = [int(each[periods]) if periods < len(each) else 0 for each in counts]
    # Python's integers, as the products of two counts may exceed int64.
    ends = [end * wanted // int(total[periods]) for end in itertools.accumulate(tied, initial=0)]
    return [Share(periods, end - start) for start, end in itertools.pairwise(ends)]


def check_keep(name: str, keep: int, capacity: int) -> int:
    """Returns ``keep``; InvalidArgumentError if it is no integer in ``[0, capacity)``."""
    if integer_at_least(keep, 0, f"{name}: keep") >= capacity:
        raise InvalidArgumentError(
            f"{name}: keep must be below the capacity ({capacity}), which includes the row of "
            f"keys without a row of their own, got {keep}"
        )
    return keep


def _parts(mapping: VariableSpec, fields: KeyFields, field: int) -> list[Part]:
    start = int(fields.first[field])
    stop = start + int(fields.capacity[field])
    return [Part(*each) for each in overlaps(mapping, start, stop)]


def _rows_in(table: Table, fields: KeyFields, found: Sequence[IdleKeys]) -> I64:
    """Returns the rows of a table for which the found keys stand, ascending."""
    rows = np.concatenate([np.empty(0, np.int64), *(each.rows for each in found)])
    field = np.searchsorted(fields.first, rows, side="right") - 1
    return np.sort(rows + table.offsets[field])
