"""Vocabularies: the values of a column that have an id of their own, learnt from data or given.

Ids 0 to ``num_oov_indices`` - 1 are for unknown values, by their hash; the ids of the tokens
follow, in order. Knows Arrow columns, not tables or models. Invariant: a vocabulary never changes
once made, and a value has the same id in every process.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dataservice.runtime.arguments import integer_at_least
from dataservice.runtime.number_arrays import from_numbers, to_numbers
from pstrain.errors import DataError, InvalidArgumentError, InvalidTypeError
from pstrain.features import columns
from pstrain.features.bags import is_list
from pstrain.kernels import tokens as kernels

_COMPACT_AT_ROWS = 1 << 20


class Vocabulary:
    """A list of distinct tokens, either all strings or all integers.

    InvalidArgumentError for null and for a token that occurs twice, DataError for other types.
    """

    def __init__(self, tokens: Sequence[Any] | pa.Array, num_oov_indices: int = 1) -> None:
        self.num_oov_indices = integer_at_least(num_oov_indices, 0, "num_oov_indices")
        self.tokens = _as_tokens(tokens)
        twice = self._table[1]
        if twice >= 0:
            raise InvalidArgumentError(
                f"the vocabulary holds {self.tokens[twice].as_py()!r} more than once"
            )

    @property
    def size(self) -> int:
        """The number of ids, of unknown values and of tokens."""
        return self.num_oov_indices + len(self.tokens)

    @property
    def holds_text(self) -> bool:
        """True if tokens are strings, False if they are integers."""
        return bool(pa.types.is_large_string(self.tokens.type))

    def ids_into(
        self, name: str, column: pa.Array, base: int, out: NDArray[np.int64], k: int
    ) -> None:
        """Writes ``base`` + id of each value into ``out[:, k]``; for nulls ``base`` + ``size``.

        DataError for an unknown value if ``num_oov_indices`` is 0, naming the value, and for a
        column of another type than the tokens.
        """
        null = base + self.size
        if pa.types.is_dictionary(column.type):
            codes = np.empty((len(column.dictionary), 1), dtype=np.int64)
            self.ids_into(name, column.dictionary, base, codes, 0)
            columns.codes_into(name, column, codes, null, out, k)
            return
        if pa.types.is_null(column.type):
            out[:, k] = null
            return
        wrong = self._place(name, column, base, null, out, k)
        if wrong >= 0:
            raise DataError(
                f"column {name!r}, row {wrong}: {column[wrong].as_py()!r} is not in the vocabulary "
                f"of {len(self.tokens):,}; give num_oov_indices=1 or more"
            )

    def _place(
        self, name: str, column: pa.Array, base: int, null: int, out: NDArray[np.int64], k: int
    ) -> int:
        table, tokens = self._table[0], self._arrays
        if columns.is_text(column.type) != self.holds_text:
            raise DataError(
                f"column {name!r} holds {column.type}, its vocabulary "
                f"{'strings' if self.holds_text else 'integers'}: cast one of them"
            )
        if self.holds_text:
            offsets, data, valid, bit = columns.text(column)
            starts, data_of_tokens = tokens
            return kernels.place_text(
                offsets,
                data,
                valid,
                bit,
                table,
                starts,
                data_of_tokens,
                self.num_oov_indices,
                base,
                null,
                out,
                k,
            )
        values, valid, bit = columns.numbers(name, column, "categorical")
        if values.dtype.kind == "f":
            raise DataError(f"column {name!r} holds {column.type}: cast it to integers")
        return kernels.place_numbers(
            values, valid, bit, table, tokens[0], self.num_oov_indices, base, null, out, k
        )

    @functools.cached_property
    def _arrays(self) -> tuple[NDArray[Any], ...]:
        """The tokens as arrays: offsets and bytes of strings, or the numbers."""
        if not self.holds_text:
            return (columns.numbers("vocabulary", self.tokens, "categorical").values,)
        if not len(self.tokens):
            nothing = columns.text(pa.array([""], pa.large_string()))
            return nothing[0][:1], nothing[1]
        return columns.text(self.tokens)[:2]

    @functools.cached_property
    def _table(self) -> tuple[NDArray[np.int32], int]:
        """The hash table, at least half empty, and the index of a repeated token, or below 0."""
        table = np.zeros(1 << max(1, (2 * len(self.tokens)).bit_length()), np.int32)
        if self.holds_text:
            starts, data = self._arrays
            return table, kernels.fill_with_text(starts, data, table)
        return table, kernels.fill_with_numbers(self._arrays[0], table)

    def to_json(self) -> dict[str, Any]:
        return {"tokens": self.tokens.to_pylist(), "num_oov_indices": self.num_oov_indices}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Vocabulary:
        """Returns the vocabulary that :meth:`to_json` encoded."""
        return cls(value["tokens"], value["num_oov_indices"])

    @classmethod
    def of(cls, source: Any) -> Vocabulary:
        """Returns a vocabulary unchanged, that of a lookup layer, or a new one of given values."""
        if isinstance(source, cls):
            return source
        found = getattr(source, "vocabulary", source)
        return found if isinstance(found, cls) else cls(found)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Vocabulary)
            and self.num_oov_indices == other.num_oov_indices
            and self.tokens.equals(other.tokens)
        )

    def __hash__(self) -> int:
        return hash((self.num_oov_indices, len(self.tokens)))

    def __reduce__(self) -> tuple[Any, ...]:
        return Vocabulary, (self.tokens, self.num_oov_indices)

    def __repr__(self) -> str:
        return f"Vocabulary({len(self.tokens):,} tokens, num_oov_indices={self.num_oov_indices})"


class TokenCounts:
    """Counts how often each value of a column occurs, over several batches; lists by value."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._parts: list[tuple[pa.Array, NDArray[np.int64]]] = []
        self._rows = 0
        self._compacted_rows = 0

    def add(self, column: pa.Array | pa.ChunkedArray) -> None:
        """Counts the values of a column, but not nulls.

        DataError for a type that has no vocabulary, such as floats.
        """
        for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
            counted = _plain(self._name, chunk).drop_null().value_counts()
            self._parts.append((counted.field("values"), to_numbers(counted.field("counts"))))
            self._rows += len(counted)
        if self._rows > max(_COMPACT_AT_ROWS, 2 * self._compacted_rows):
            self._compact()

    def most_common(self, limit: int | None = None) -> pa.Array:
        """Returns the ``limit`` most frequent values; greater ones first if equally frequent."""
        if not self._parts:
            return pa.array([], pa.large_string())
        self._compact()
        tokens, counts = self._parts[0]
        table = pa.table({"token": tokens, "count": from_numbers(counts)})
        order = [("count", "descending"), ("token", "descending")]
        if limit is None:
            return tokens.take(pc.sort_indices(table, sort_keys=order))
        # Tokens differ, so no two of them are equal in this order.
        return tokens.take(pc.select_k_unstable(table, limit, sort_keys=order))

    def _compact(self) -> None:
        # Arrow's grouping by strings takes six times as long as its dictionaries of them.
        encoded = pa.concat_arrays([tokens for tokens, _ in self._parts]).dictionary_encode()
        counts = np.concatenate([counts for _, counts in self._parts])
        # Sums of float64 are exact here: nobody counts 2^53 rows.
        sums = np.bincount(to_numbers(encoded.indices), counts, len(encoded.dictionary))
        self._parts = [(encoded.dictionary, sums.astype(np.int64))]
        self._rows = self._compacted_rows = len(sums)


def _plain(name: str, column: pa.Array) -> pa.Array:
    """Returns a column's values as large strings or int64; DataError for other types."""
    if is_list(column.type):
        return _plain(name, column.flatten())
    if pa.types.is_dictionary(column.type):
        return _plain(name, column.dictionary_decode())
    if pa.types.is_null(column.type):
        return pa.array([], pa.large_string())
    plain = None
    if columns.is_text(column.type):
        plain = pa.large_string()
    elif pa.types.is_integer(column.type) or pa.types.is_boolean(column.type):
        plain = pa.int64()
    if plain is not None:
        try:
            return column.cast(plain)
        except pa.ArrowInvalid as error:
            raise DataError(
                f"column {name!r} holds {column.type} that does not fit into a vocabulary of "
                f"{plain}: {error}"
            ) from error
    raise DataError(
        f"column {name!r} holds {column.type}, which has no vocabulary: cast it to strings or "
        "integers"
    )


def _as_tokens(tokens: Any) -> pa.Array:
    array = tokens.combine_chunks() if isinstance(tokens, pa.ChunkedArray) else tokens
    if not isinstance(array, pa.Array):
        if not isinstance(array, Iterable):
            raise InvalidTypeError(f"a vocabulary is a list of tokens, got {tokens!r}")
        listed = array.tolist() if isinstance(array, np.ndarray) else list(array)
        array = pa.array(listed) if listed else pa.array([], pa.large_string())
    if array.null_count:
        raise InvalidArgumentError("a vocabulary cannot hold null")
    plain = _plain("vocabulary", array)
    # A slice keeps the whole array that it was cut from, which would be sent along with it.
    return pa.array(plain.to_pylist(), plain.type) if plain.offset else plain
