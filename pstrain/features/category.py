"""A categorical column: the rows of an embedding table that its values get, and their number.

Knows one column, not the table that columns share. Invariant: for equal categories, a value has the
same row, or key, in every process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dataservice.runtime.arguments import (
    check_choice,
    check_text,
    check_true_or_false,
    integer_at_least,
)
from pstrain.errors import DataError, InvalidArgumentError
from pstrain.features import columns
from pstrain.features.bags import Bags, Lists, Pooling, check_pooling
from pstrain.features.tokens import Vocabulary

MAX_BUCKETS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Category:
    """A categorical column: its values go to ``buckets`` rows, its nulls to one further row.

    ``hashed``: values are any integers or strings, assigned to rows by a hash that is stable across
    processes; if False, values are ids in ``[0, buckets)`` and are used unchanged. ``vocabulary``:
    a list of values, a ``Vocabulary`` or a lookup layer that assigns rows to values; it determines
    ``buckets``. ``online``: values are any integers or strings, and a value gets a row of its own
    when a model is trained on it for the first or, if given, for the ``min_count``-th time (see
    ``layers.OnlineLookup``). Until then, and if none of the ``buckets`` is left, values share the
    first row. ``pooling`` makes it a column of lists, whose rows are pooled into one: their "sum",
    "mean" or "sqrtn"; zeros for an empty list. ``weights``: the name of a column of lists that has
    a weight for each value. ``holds``: "integers" or "strings", if the column must hold these,
    because the integer 7 and the string "7" have different rows; schemas made of data state it.
    """

    buckets: int = 0
    hashed: bool = True
    pooling: Pooling | None = None
    weights: str | None = None
    vocabulary: Vocabulary | None = None
    online: bool = False
    min_count: int = 1
    # A check of columns only: which row a value has does not depend on it.
    holds: columns.Kind | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.vocabulary is not None:
            vocabulary = Vocabulary.of(self.vocabulary)
            object.__setattr__(self, "vocabulary", vocabulary)
            if self.buckets not in (0, vocabulary.size):
                raise InvalidArgumentError(
                    f"buckets={self.buckets} for a vocabulary of {vocabulary.size} ids: leave it "
                    "out"
                )
            object.__setattr__(self, "buckets", vocabulary.size)
        # Python's integers, because those of NumPy have no JSON form.
        object.__setattr__(self, "buckets", integer_at_least(self.buckets, 0, "buckets"))
        if self.buckets not in range(1, MAX_BUCKETS + 1):
            raise InvalidArgumentError(f"buckets must be in [1, 2^31), got {self.buckets}")
        self._check_online()
        check_pooling(self.pooling)
        if self.holds is not None:
            check_choice("holds", self.holds, list(get_args(columns.Kind)))
        if self.weights is not None:
            check_text("weights", self.weights)
        if self.weights is not None and self.pooling is None:
            raise InvalidArgumentError(
                f"weights={self.weights!r} of a column that is not pooled: give pooling too"
            )

    def _check_online(self) -> None:
        check_true_or_false(hashed=self.hashed, online=self.online)
        object.__setattr__(self, "min_count", integer_at_least(self.min_count, 1, "min_count"))
        if self.min_count > 1 and not self.online:
            raise InvalidArgumentError(
                f"min_count={self.min_count} of a column that is not online: give online=True too"
            )
        if self.online and (self.vocabulary is not None or not self.hashed):
            raise InvalidArgumentError(
                "an online column takes any value: leave out vocabulary and hashed"
            )
        if self.online and self.buckets < 2:
            raise InvalidArgumentError(
                f"an online column needs 2 buckets or more, one for unknown values, got "
                f"{self.buckets}"
            )

    @property
    def rows(self) -> int:
        """The number of rows of this column in an embedding table."""
        return self.buckets + 1

    def ids_into(
        self, name: str, column: pa.Array, base: int, out: NDArray[np.int64], k: int
    ) -> None:
        """Writes a column's rows, from ``base`` on, or keys if online, into ``out[:, k]``."""
        if self.vocabulary is None:
            self._check_kind(name, column.type)
        if self.online:
            columns.keys_into(name, column, out, k)
        elif self.vocabulary is not None:
            self.vocabulary.ids_into(name, column, base, out, k)
        else:
            columns.ids_into(name, column, self.buckets, self.hashed, base, out, k)

    def _check_kind(self, name: str, type_: pa.DataType) -> None:
        found = columns.kind_of(type_)
        if None in (self.holds, found) or found == self.holds:
            return
        wanted = "int64" if self.holds == "integers" else "string"
        raise DataError(
            f"categorical column {name!r} holds {type_}, and the model is made for {self.holds}, "
            f"which have other rows: cast it, as with_column({name!r}, "
            f'col({name!r}).cast("{wanted}")) does'
        )

    def bags(
        self, name: str, column: pa.Array, weights: pa.Array | None, base: int, field: int
    ) -> Bags:
        """Returns the values of a column of lists, as bags of field number ``field``."""
        lists = Lists(name, column)
        ids = np.empty((len(lists.values), 1), np.int64)
        if len(ids):
            self.ids_into(name, lists.values, base, ids, 0)
        counted = None if weights is None else Lists(str(self.weights), weights)
        scales = lists.scales(self.pooling or "sum", counted)
        return Bags(ids.reshape(-1), lists.offsets, scales, (field,))

    def to_json(self) -> list[Any]:
        """Returns the JSON form: ``[buckets, hashed]``, then a dict of other options, if any."""
        rest = {
            "pooling": self.pooling,
            "weights": self.weights,
            "vocabulary": None if self.vocabulary is None else self.vocabulary.to_json(),
            "online": self.online or None,
            "holds": self.holds,
            "min_count": self.min_count if self.online else None,
        }
        given = {name: value for name, value in rest.items() if value is not None}
        return [self.buckets, self.hashed, *([given] if given else [])]

    @classmethod
    def from_json(
        cls, buckets: int, hashed: bool, rest: Mapping[str, Any] | None = None
    ) -> Category:
        """Returns the category that :meth:`to_json` encoded."""
        given = dict(rest or {})
        if "vocabulary" in given:
            given["vocabulary"] = Vocabulary.from_json(given["vocabulary"])
        return cls(buckets, hashed, **given)
