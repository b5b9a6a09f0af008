"""A process's cache of the rows of keys, so that it does not ask the servers for a key again.

Knows nothing of servers. Invariant: the cache is emptied when the mapping is restored or assigned,
or when keys are evicted, so a key never gets a row that has become another key's. It holds at most
three times as many keys as there are rows, and its table of counts has a fixed size.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pstrain.kernels import keys as kernels
from pstrain.variables.rows import row_bounds
from pstrain.vocabulary import VariableSpec

I64 = NDArray[np.int64]

_FIRST_SLOTS = 1 << 12
_MOST_COUNTS = 1 << 20


class KeyFields(NamedTuple):
    """The fields of a mapping, whose rows follow one another: int64 arrays with an entry per field.

    ``first``: the field's first row, which no key gets; ``capacity``: the number of rows, including
    the first; ``min_count``: how often a process has to meet a key before it claims a row for it.
    """

    first: I64
    capacity: I64
    min_count: I64

    @classmethod
    def of(cls, capacities: Iterable[int], min_counts: Iterable[int]) -> KeyFields:
        rows = np.array(list(capacities), np.int64)
        return cls(np.cumsum(rows) - rows, rows, np.array(list(min_counts), np.int64))

    @property
    def rows(self) -> int:
        """The number of rows of all fields."""
        return int(self.capacity.sum())

    def cuts(self) -> list[int]:
        """Returns the rows at which buckets begin, ascending; shards consist of whole buckets."""
        cuts: list[I64] = []
        for first, capacity in zip(self.first.tolist(), self.capacity.tolist(), strict=True):
            buckets = -(-(capacity - 1) // kernels.BUCKET_ROWS)
            size, larger = divmod(capacity - 1, buckets)
            number = np.arange(1, buckets)
            starts = first + 1 + number * size + np.minimum(number, larger)
            cuts += [np.array([first], np.int64), starts]
        return np.concatenate(cuts).tolist()

    def buckets_in(self, ranges: Iterable[tuple[int, int]]) -> list[I64]:
        """Returns, for each range of rows, where its buckets begin, ascending, and its end.

        A range must be of one field and consist of whole buckets, with or without the first row.
        """
        cuts = np.array(self.cuts(), np.int64)
        bounds = []
        for start, stop in ranges:
            first = start + int(start in self.first)
            inside = cuts[(cuts > first) & (cuts < stop)]
            bounds.append(np.concatenate([[first], inside, [stop]]))
        return bounds


class KeyQuery(NamedTuple):
    """Distinct keys to ask the servers for, in the order of their buckets.

    ``fields``: the field of each key; ``starts`` and ``stops``: the rows of its bucket;
    ``may_claim``: 1 if the key is to get a row if it has none, else 0.
    """

    keys: I64
    fields: I64
    starts: I64
    stops: I64
    may_claim: NDArray[np.uint8]

    def by_shard(self, spec: VariableSpec) -> Iterator[tuple[int, slice, KeyQuery]]:
        """Yields (shard index, slice of these keys, the keys) for each shard that has any."""
        ends = np.searchsorted(self.starts, row_bounds(spec)).tolist()
        for index, (start, stop) in enumerate(itertools.pairwise(ends)):
            if start < stop:
                part = slice(start, stop)
                yield index, part, KeyQuery._make(array[part] for array in self)


def distinct(keys: I64, fields: I64, key_fields: KeyFields) -> tuple[KeyQuery, I64, I64]:
    """Returns the distinct keys, how often each occurred, and the index of each given key."""
    starts, stops = np.empty(len(keys), np.int64), np.empty(len(keys), np.int64)
    kernels.find_buckets(keys, fields, key_fields.first, key_fields.capacity, starts, stops)
    order = np.lexsort((keys, starts))
    keys, fields, starts, stops = keys[order], fields[order], starts[order], stops[order]
    is_new = np.ones(len(keys), np.bool_)
    is_new[1:] = (keys[1:] != keys[:-1]) | (starts[1:] != starts[:-1])
    inverse = np.empty(len(keys), np.int64)
    inverse[order] = np.cumsum(is_new) - 1
    may_claim = np.zeros(int(is_new.sum()), np.uint8)
    query = KeyQuery(keys[is_new], fields[is_new], starts[is_new], stops[is_new], may_claim)
    return query, np.bincount(inverse, minlength=len(may_claim)), inverse


class WaitingKeys:
    """The counts of keys that were not met often enough yet to claim a row. Thread-safe."""

    def __init__(self, rows: int) -> None:
        self._places = min(_MOST_COUNTS, 1 << max(4, rows.bit_length()))
        self._counts: I64 | None = None
        self._lock = threading.Lock()

    def meet(self, keys: I64, salts: I64, times: I64, min_counts: I64) -> NDArray[np.uint8]:
        """Counts keys that were met so many ``times``; returns which ones often enough by now."""
        is_met = np.empty(len(keys), np.uint8)
        with self._lock:
            if self._counts is None:
                self._counts = np.zeros((self._places, 3), np.int64)
            kernels.count_occurrences(self._counts, keys, salts, times, min_counts, is_met)
        return is_met


class KeyMap:
    """The known rows of the keys of one variable. Thread-safe; lookups take no lock.

    A training lookup does not know the rows that only lookups without training have asked for, so
    that the servers hear of each key's first training since the map was made.
    """

    def __init__(self, fields: KeyFields, waiting: WaitingKeys | None = None) -> None:
        self._fields = fields
        self._known = _no_keys(_FIRST_SLOTS)
        self._entries = self._refused = 0
        self._waiting = waiting or WaitingKeys(fields.rows)
        self._lock = threading.Lock()
        self.has_warned = False
        """True once a warning was logged that there are keys without a row."""

    def emptied(self) -> KeyMap:
        """Returns a map that knows no rows, but goes on with the counts of this one."""
        empty = KeyMap(self._fields, self._waiting)
        empty.has_warned = self.has_warned
        return empty

    def replace(
        self,
        ids: I64,
        fields: I64,
        columns: I64,
        targets: I64,
        nulls: I64,
        *,
        is_training: bool = True,
    ) -> I64:
        """Replaces known keys in ``columns``, of ``fields``, by ids; returns places of the others.

        See :func:`pstrain.kernels.keys.replace_known`.
        """
        missing = np.empty(len(ids) * len(columns), np.int64)
        count = kernels.replace_known(
            self._known,
            ids,
            columns,
            self._fields.first[fields],
            self._fields.capacity[fields],
            targets,
            nulls,
            missing,
            is_training,
        )
        return missing[:count]

    def admit(self, query: KeyQuery, occurrences: I64) -> KeyQuery:
        """Counts how often keys were met; returns them with ``may_claim`` set if often enough."""
        min_counts = self._fields.min_count[query.fields]
        admitted = (min_counts <= 1).astype(np.uint8)
        waiting = np.flatnonzero(admitted == 0)
        if len(waiting):
            salts = self._fields.first[query.fields[waiting]]
            admitted[waiting] = self._waiting.meet(
                query.keys[waiting], salts, occurrences[waiting], min_counts[waiting]
            )
        return query._replace(may_claim=admitted)

    def add(self, query: KeyQuery, rows: I64, *, is_training: bool = True) -> None:
        """Adds the rows that the servers gave to keys.

        Keys that can get no row before the next eviction are known too, with the first row of their
        field.
        """
        firsts = self._fields.first[query.fields]
        with self._lock:
            self._add(query.keys, rows if is_training else ~rows, firsts, rows >= 0)
            is_refused = rows == kernels.NO_ROW_EVER
            if self._refused + np.count_nonzero(is_refused) > self._fields.rows:
                self._rebuild(self._entries, is_whole=False)
            self._refused += self._add(query.keys, firsts, firsts, is_refused)

    def _add(self, keys: I64, rows: I64, firsts: I64, selected: NDArray[np.bool_]) -> int:
        """Adds the keys that ``selected`` marks; returns how many of them are new."""
        entries = self._entries + int(np.count_nonzero(selected))
        if 2 * entries > len(self._known):
            self._rebuild(entries)
        added = kernels.add_known(self._known, keys[selected], rows[selected], firsts[selected])
        self._entries += added
        return added

    def _rebuild(self, entries: int, *, is_whole: bool = True) -> None:
        """Makes a new table with room for so many entries.

        Other threads see the table once it is complete; until then lookups in the old one may miss
        keys. Not ``is_whole``: leaves out keys that can never get a row.
        """
        slots = len(self._known)
        while slots < 2 * entries:
            slots *= 2
        old = self._known[self._known[:, 0] != kernels.NO_KEY]
        keys, rows = np.ascontiguousarray(old[:, 0]), np.ascontiguousarray(old[:, 1])
        plain = np.where(rows < 0, ~rows, rows)
        field = np.searchsorted(self._fields.first, plain, side="right") - 1
        firsts = self._fields.first[field]
        kept = np.ones(len(rows), np.bool_) if is_whole else rows != firsts
        built = _no_keys(slots)
        self._entries = kernels.add_known(built, keys[kept], rows[kept], firsts[kept])
        self._refused = self._refused if is_whole else 0
        self._known = built


def _no_keys(slots: int) -> I64:
    known = np.empty((slots, 2), np.int64)
    known[:, 0], known[:, 1] = kernels.NO_KEY, -1
    return known


class KeyMaps:
    """The key maps of one process's parameters, by variable id. Thread-safe.

    ``generation`` grows in the program when rows get other keys than before, by a restore, an
    assignment or an eviction. It is sent to the trainers with every later closure.
    """

    def __init__(self) -> None:
        self.generation = 0
        self.moving = threading.RLock()
        """Held while rows get other keys, or while a snapshot of them is taken."""
        self._variables: set[int] = set()
        self._maps: dict[int, KeyMap] = {}
        self._lock = threading.Lock()

    def register(self, variable: int) -> None:
        """Marks a variable as one whose values are keys."""
        self._variables.add(variable)

    def drop(self, variables: Iterable[int]) -> None:
        """Drops all that is known of variables that are no more."""
        with self._lock:
            for variable in variables:
                self._variables.discard(variable)
                self._maps.pop(variable, None)

    def of(self, variable: int, fields: KeyFields) -> KeyMap:
        """Returns the map of a variable; a new one without rows after :meth:`forget`."""
        with self._lock:
            found = self._maps.get(variable)
            if found is None:
                found = self._maps[variable] = KeyMap(fields)
            return found

    def advance(self, generation: int) -> None:
        """Empties all maps if ``generation`` is newer than the present one."""
        with self._lock:
            if generation > self.generation:
                self.generation = generation
                self._maps = {variable: each.emptied() for variable, each in self._maps.items()}

    def any_holds_keys(self, variables: Iterable[int]) -> bool:
        """True if the values of at least one of these variables are keys."""
        return not self._variables.isdisjoint(variables)

    def forget(self, variables: Iterable[int] | None = None) -> None:
        """Empties all maps after these variables were changed, if one of them holds keys.

        None: empties them in any case. Not meant for changes by claims.
        """
        if variables is None or self.any_holds_keys(variables):
            self.advance(self.generation + 1)
