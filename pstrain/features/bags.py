"""Categorical columns of lists: the values of each example, and the weight of each value.

Knows Arrow's list layouts, not tables or layers. Invariant: a null list counts as an empty one, and
an empty one is pooled to zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike, NDArray

from dataservice.runtime.arguments import check_choice
from dataservice.runtime.number_arrays import scalar_of, to_numbers
from pstrain.errors import DataError, InvalidArgumentError
from pstrain.kernels import pooling

Pooling = Literal["sum", "mean", "sqrtn"]
"""How the rows of a list are pooled into one.

``sum``: the sum of weight * row; ``mean``: that divided by the sum of weights; ``sqrtn``: that
divided by the root of the sum of squared weights.
"""

_RULES = {"sum": pooling.SUM, "mean": pooling.MEAN, "sqrtn": pooling.SQRTN}


@dataclass(frozen=True, slots=True, eq=False)
class Bags:
    """The values of multi-valued fields, ordered by field and, within a field, by example.

    ``ids``: int64 [m], rows of the table that all fields share; ``offsets``: int64
    [fields * n + 1], where each list begins in ``ids``; ``scales``: float32 [m], the factor of each
    value; ``fields``: positions of the fields among all categorical columns.
    """

    ids: NDArray[np.int64]
    offsets: NDArray[np.int64]
    scales: NDArray[np.float32]
    fields: tuple[int, ...]


class Lists:
    """One column of lists, split into offsets and values."""

    def __init__(self, name: str, column: pa.Array) -> None:
        if pa.types.is_null(column.type):
            column = column.cast(pa.list_(pa.null()))
        if not is_list(column.type):
            raise DataError(
                f"column {name!r} holds {column.type}, its schema says lists: leave out pooling, "
                "or make it a list column"
            )
        self.name = name
        lengths = _without_nulls(pc.list_value_length(column))
        self.offsets = np.zeros(len(column) + 1, np.int64)
        np.cumsum(lengths, out=self.offsets[1:])
        # Null lists of a fixed size still occupy values, so they are dropped.
        self.values = column.drop_null().flatten() if column.null_count else column.flatten()
        is_fixed = pa.types.is_fixed_size_list(column.type) and not column.null_count
        self._fixed_size = column.type.list_size if is_fixed else 0

    def holding(self, values: pa.Array) -> pa.Array:
        """Returns lists of the same lengths that hold other values.

        Lists of a fixed size keep it, unless one is null: null lists become empty ones.
        """
        if self._fixed_size:
            return pa.FixedSizeListArray.from_arrays(values, self._fixed_size)
        return pa.LargeListArray.from_arrays(self.offsets, values)

    def scales(self, rule: Pooling, weights: Lists | None) -> NDArray[np.float32]:
        """Returns the factor of each value, by its weight if ``weights`` are given.

        DataError unless there is a finite weight for each value.
        """
        given = np.empty(0, np.float32)
        if weights is not None:
            given = self._weights(weights)
        out = np.empty(self.offsets[-1], np.float32)
        pooling.scale_values(self.offsets, given, _RULES[rule], out)
        return out

    def _weights(self, weights: Lists) -> NDArray[np.float32]:
        wrong = np.flatnonzero(np.diff(weights.offsets) != np.diff(self.offsets))
        if len(wrong):
            row = int(wrong[0])
            raise DataError(
                f"column {weights.name!r}, row {row}: {np.diff(weights.offsets)[row]} weights for "
                f"{np.diff(self.offsets)[row]} values of column {self.name!r}"
            )
        if not (
            pa.types.is_floating(weights.values.type) or pa.types.is_integer(weights.values.type)
        ):
            raise DataError(
                f"column {weights.name!r} holds {weights.values.type}: weights are numbers"
            )
        # Unsafe, as a safe cast refuses integers of 2^24 and more.
        numbers = _without_nulls(weights.values.cast(pa.float32(), safe=False))
        if not np.isfinite(numbers).all():
            raise DataError(f"column {weights.name!r} holds a weight that is not finite")
        return np.require(numbers, np.float32, ("C", "W"))


def _without_nulls(numbers: pa.Array) -> NDArray[Any]:
    if numbers.null_count:
        numbers = pc.fill_null(numbers, scalar_of(0, numbers.type))
    return to_numbers(numbers)


def is_list(type_: pa.DataType) -> bool:
    """True if values of this Arrow type are lists, of variable or fixed size."""
    return bool(
        pa.types.is_list(type_)
        or pa.types.is_large_list(type_)
        or pa.types.is_fixed_size_list(type_)
    )


def check_pooling(rule: str | None, what: str = "pooling") -> Pooling | None:
    """Returns ``rule``; InvalidArgumentError, naming ``what``, if it is neither a rule nor None."""
    if rule is not None:
        check_choice(what, rule, get_args(Pooling))
    return cast("Pooling | None", rule)


def joined(parts: Sequence[Bags]) -> Bags | None:
    """Concatenates the bags of several fields; None if there are none."""
    if len(parts) < 2:
        return parts[0] if parts else None
    counts = [len(part.ids) for part in parts]
    starts = np.cumsum([0, *counts[:-1]])
    offsets = [part.offsets[:-1] + start for part, start in zip(parts, starts, strict=True)]
    return Bags(
        np.concatenate([part.ids for part in parts]),
        np.concatenate([*offsets, np.array([sum(counts)], np.int64)]),
        np.concatenate([part.scales for part in parts]),
        tuple(field for part in parts for field in part.fields),
    )


def of_ids(name: str, ids: ArrayLike | pa.Array, rule: Pooling) -> Bags:
    """Returns the bags of one field with lists of ids: an Arrow list array, or an array [n, k]."""
    column: Any = ids.combine_chunks() if isinstance(ids, pa.ChunkedArray) else ids
    if not isinstance(column, pa.Array):
        try:
            matrix = np.asarray(column)
        except ValueError as error:
            raise InvalidArgumentError(
                f"{name} pools lists of ids: give those of several lengths as pyarrow.array(lists)"
            ) from error
        if matrix.ndim != 2:
            raise InvalidArgumentError(
                f"{name} pools lists of ids: an Arrow list array or an array [n, k], got shape "
                f"{matrix.shape}"
            )
        flat, size = pa.array(matrix.reshape(-1)), matrix.shape[1]
        if size == 0:
            column = pa.array([[]] * len(matrix), pa.list_(pa.int64()))
        else:
            column = pa.FixedSizeListArray.from_arrays(flat, size)
    lists = Lists(name, column)
    if not pa.types.is_integer(lists.values.type) and len(lists.values):
        raise InvalidArgumentError(f"{name} pools ids, got {lists.values.type}")
    if lists.values.null_count:
        raise InvalidArgumentError(f"{name} got a null id; leave it out of its list")
    found = to_numbers(lists.values.cast(pa.int64()))
    return Bags(np.ascontiguousarray(found), lists.offsets, lists.scales(rule, None), (0,))
