"""The arguments of an eviction by an ``OnlineLookup``: numbers of keys, and tables of their rows.

Knows no keys. Invariant: a table has exactly the rows of its lookup.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from pstrain.errors import InvalidArgumentError, InvalidTypeError
from pstrain.features.eviction import Table, check_keep
from pstrain.variables.base import BaseVariable


def checked_keep(name: str, keep: Any, capacities: Sequence[int]) -> list[int]:
    """Returns how many keys of each field to keep; InvalidArgumentError for what cannot be."""
    numbers = list(keep) if isinstance(keep, Sequence) and not isinstance(keep, str) else [keep]
    if len(numbers) != len(capacities):
        raise InvalidArgumentError(
            f"{name!r} has {len(capacities)} fields, got keep={keep!r}: give a number for each"
        )
    return [
        check_keep(repr(name), each, capacity)
        for each, capacity in zip(numbers, capacities, strict=True)
    ]


def tables_of(name: str, tables: Any, capacities: Sequence[int], parameters: Any) -> list[Table]:
    """Returns the variables, given or of given layers, that have a row for each id.

    Raises InvalidArgumentError for a table without such a variable, and for a variable that is not
    among ``parameters``.
    """
    several = tables if isinstance(tables, list | tuple) else [tables]
    rows = sum(capacities)
    found = {each.spec.id: each for table in several for each in _with_rows(name, table, rows)}
    for each in found.values():
        if each.parameters is not parameters:
            raise InvalidArgumentError(
                f"{name!r}: {each!r} is not kept where the keys are: make both in the same "
                "strategy.scope(), as one variable, not per worker or joined"
            )
    offsets = np.zeros(len(capacities), np.int64)
    return [Table(each.spec, offsets) for each in found.values()]


def _with_rows(name: str, table: Any, rows: int) -> list[Any]:
    variables = [table] if isinstance(table, BaseVariable) else getattr(table, "variables", None)
    if not isinstance(variables, Iterable):
        raise InvalidTypeError(
            f"{name!r}: tables are layers or variables that its ids are rows of, got {table!r}"
        )
    found = [each for each in variables if each.shape[:1] == (rows,)]
    if not found:
        raise InvalidArgumentError(
            f"{name!r}: no variable of {table!r} has the {rows} rows that the ids stand for"
        )
    return found
