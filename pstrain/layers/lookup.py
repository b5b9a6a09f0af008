"""Lookup layers: map strings and integers to ids and back, like Keras' preprocessing layers.

They have no variables: a vocabulary travels with the functions that use it, so datasets can apply
it on data workers or trainers. The order of ids is: mask token, unknown values, tokens. Knows
nothing of tables or models. Invariant: after ``adapt`` tokens are in descending order of
frequency, and in descending order of value where frequencies are equal.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

import dataservice
from dataservice.runtime.arguments import check_optional, integer_at_least
from dataservice.runtime.number_arrays import from_numbers
from pstrain.errors import (
    DataError,
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
)
from pstrain.features.bags import Lists, is_list
from pstrain.features.batches import flat_column
from pstrain.features.tokens import TokenCounts, Vocabulary
from pstrain.porting import foreign_arguments
from pstrain.porting.foreign_arguments import refuse_arguments


class _Lookup:
    """The common base of both lookups."""

    kind: ClassVar[str]
    arrow_type: ClassVar[pa.DataType]

    def __init__(
        self,
        max_tokens: int | None,
        num_oov_indices: int,
        mask_token: Any,
        oov_token: Any,
        vocabulary: Any,
        invert: bool,
    ) -> None:
        check_optional(1, max_tokens=max_tokens)
        self.max_tokens = max_tokens
        self.num_oov_indices = integer_at_least(num_oov_indices, 0, "num_oov_indices")
        self.mask_token = mask_token
        self._mask = None if mask_token is None else Vocabulary(self._typed([mask_token]))
        self.oov_token = oov_token
        self.invert = invert
        if max_tokens is not None and max_tokens <= self._specials:
            raise InvalidArgumentError(
                f"max_tokens must be above {self._specials}, the ids that are no token, got "
                f"{max_tokens}"
            )
        self._vocabulary: Vocabulary | None = None
        if vocabulary is not None:
            self.set_vocabulary(vocabulary)

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary; FailedPreconditionError before one is learnt or set."""
        if self._vocabulary is None:
            raise FailedPreconditionError(
                f"this {self.kind} has no vocabulary yet: call adapt(data) or set_vocabulary(...)"
            )
        return self._vocabulary

    def __repr__(self) -> str:
        size = (
            "no vocabulary"
            if self._vocabulary is None
            else f"{len(self._vocabulary.tokens)} tokens"
        )
        return f"<{self.kind} {size}>"

    @property
    def _specials(self) -> int:
        return self.num_oov_indices + (self.mask_token is not None)

    def adapt(self, data: Any, column: str | None = None) -> None:
        """Learns the vocabulary from one pass over ``data``; replaces any earlier vocabulary.

        ``data``: a list or array of any shape, an Arrow array, a table, record batches or a
        Dataset; ``column`` names the column to use if there are several.
        """
        counts = TokenCounts(column or self.kind)
        for values in _columns(data, column):
            counts.add(values)
        limit = None if self.max_tokens is None else self.max_tokens - self._specials
        kept = (self.mask_token, self.oov_token)
        tokens = [t for t in counts.most_common().to_pylist() if t not in kept][:limit]
        self._vocabulary = Vocabulary(self._typed(tokens), self.num_oov_indices)

    def set_vocabulary(self, vocabulary: Any) -> None:
        """Sets the vocabulary to a list of tokens in order, or to a file with one token per line.

        The tokens may be preceded by the special tokens. InvalidArgumentError for more than
        ``max_tokens`` ids, or for a token that occurs twice.
        """
        if isinstance(vocabulary, Vocabulary):
            tokens = vocabulary.tokens.to_pylist()
        elif isinstance(vocabulary, str | os.PathLike):
            with open(vocabulary, encoding="utf-8") as lines:
                tokens = self._typed([line.rstrip("\n") for line in lines], pa.string()).to_pylist()
        else:
            listed = vocabulary.tolist() if hasattr(vocabulary, "tolist") else vocabulary
            if not isinstance(listed, Iterable):
                raise InvalidTypeError(
                    f"a vocabulary is a list of tokens, or a file of them, got {vocabulary!r}"
                )
            tokens = listed.to_pylist() if hasattr(listed, "to_pylist") else list(listed)
        leading = self._special_tokens()
        if leading and tokens[: len(leading)] == leading:
            tokens = tokens[len(leading) :]
        if self.max_tokens is not None and len(tokens) + self._specials > self.max_tokens:
            raise InvalidArgumentError(
                f"a vocabulary of {len(tokens)} tokens and {self._specials} other ids is larger "
                f"than max_tokens={self.max_tokens}"
            )
        self._vocabulary = Vocabulary(self._typed(tokens), self.num_oov_indices)

    def _typed(self, tokens: Sequence[Any], given: pa.DataType | None = None) -> pa.Array:
        try:
            return pa.array(tokens, given or self.arrow_type).cast(self.arrow_type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, OverflowError) as error:
            raise InvalidArgumentError(f"tokens of a {self.kind}: {error}") from error

    def get_vocabulary(self, include_special_tokens: bool = True) -> list[Any]:
        """Returns the tokens in order of id, by default with mask and unknown tokens in front."""
        tokens = self.vocabulary.tokens.to_pylist()
        return [*self._special_tokens(), *tokens] if include_special_tokens else tokens

    def vocabulary_size(self) -> int:
        """Returns the number of ids, which is the vocabulary size of an ``Embedding`` for them."""
        return self.vocabulary.size + (self.mask_token is not None)

    def _special_tokens(self) -> list[Any]:
        mask = [] if self.mask_token is None else [self.mask_token]
        return mask + [self.oov_token] * self.num_oov_indices

    def __call__(self, inputs: Any) -> Any:
        """Returns the ids of tokens, int64 of the inputs' shape; with ``invert``, tokens of ids.

        Returns an Arrow array, also of lists, for an Arrow array. Nulls get the id of the mask
        token or, without one, an id of unknown values; DataError if there is neither.
        """
        if self.invert:
            return self._tokens_of(inputs)
        if isinstance(inputs, pa.ChunkedArray):
            inputs = inputs.combine_chunks()
        if isinstance(inputs, pa.Array):
            return self._of_arrow(inputs)
        array = inputs if hasattr(inputs, "shape") else np.asarray(inputs)
        return self._ids(flat_column(array)).reshape(array.shape)

    def _of_arrow(self, inputs: pa.Array) -> pa.Array:
        if not is_list(inputs.type):
            return pa.array(self._ids(inputs))
        lists = Lists(self.kind, inputs)
        return lists.holding(pa.array(self._ids(lists.values)))

    def _ids(self, column: pa.Array) -> NDArray[np.int64]:
        first = int(self.mask_token is not None)
        found = self._found(self.vocabulary, self._without_mask(column), first)
        null = found == first + self.vocabulary.size
        if null.any():
            if not self._specials:
                raise DataError(f"{self.kind}: null at {int(null.argmax())}; give a mask_token")
            found[null] = 0
        return found

    def _without_mask(self, column: pa.Array) -> pa.Array:
        """Returns the column with null, which has the same id, in place of the mask token."""
        if self._mask is None:
            return column
        is_mask = self._found(self._mask, column, 0) == self._mask.num_oov_indices
        if not is_mask.any():
            return column
        # Arrow replaces nothing in views of strings.
        is_view = pa.types.is_string_view(column.type) or pa.types.is_binary_view(column.type)
        plain = column.cast(self.arrow_type) if is_view else column
        return pc.if_else(from_numbers(is_mask), pa.scalar(None, plain.type), plain)

    def _found(self, vocabulary: Vocabulary, column: pa.Array, base: int) -> NDArray[np.int64]:
        out = np.empty((len(column), 1), np.int64)
        vocabulary.ids_into(self.kind, column, base, out, 0)
        return out.reshape(-1)

    def _tokens_of(self, inputs: Any) -> Any:
        table = np.array(self.get_vocabulary(), dtype=object)
        ids = np.asarray(inputs, dtype=np.int64)
        found = np.full(ids.shape, self.oov_token, dtype=object)
        known = (ids >= 0) & (ids < len(table))
        found[known] = table[ids[known]]
        return found

    def get_config(self) -> dict[str, Any]:
        """Returns the JSON form: the arguments of the constructor."""
        return {
            "max_tokens": self.max_tokens,
            "num_oov_indices": self.num_oov_indices,
            "mask_token": self.mask_token,
            "oov_token": self.oov_token,
            "invert": self.invert,
            "vocabulary": None if self._vocabulary is None else self.get_vocabulary(False),
        }

    def state_dict(self) -> dict[str, Any]:
        """Returns what a checkpoint saves: the vocabulary."""
        return {"tokens": None if self._vocabulary is None else self.get_vocabulary(False)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the result of :meth:`state_dict`."""
        self._vocabulary = None
        if state["tokens"] is not None:
            self._vocabulary = Vocabulary(self._typed(state["tokens"]), self.num_oov_indices)


class StringLookup(_Lookup):
    """A layer that maps strings to ids by a vocabulary, which is given or learnt by ``adapt``.

    ``max_tokens`` limits the number of all ids. An unknown string gets one of ``num_oov_indices``
    ids by its hash; if that is 0, it raises DataError (a ValueError). ``invert``: the layer maps
    ids to strings.
    """

    kind = "StringLookup"
    arrow_type = pa.large_string()

    @refuse_arguments("StringLookup", foreign_arguments.LOOKUP)
    def __init__(
        self,
        max_tokens: int | None = None,
        num_oov_indices: int = 1,
        mask_token: str | None = None,
        oov_token: str = "[UNK]",
        vocabulary: Any = None,
        invert: bool = False,
    ) -> None:
        super().__init__(max_tokens, num_oov_indices, mask_token, oov_token, vocabulary, invert)


class IntegerLookup(_Lookup):
    """A layer that maps integers to ids by a vocabulary; otherwise like ``StringLookup``."""

    kind = "IntegerLookup"
    arrow_type = pa.int64()

    @refuse_arguments("IntegerLookup", foreign_arguments.LOOKUP)
    def __init__(
        self,
        max_tokens: int | None = None,
        num_oov_indices: int = 1,
        mask_token: int | None = None,
        oov_token: int = -1,
        vocabulary: Any = None,
        invert: bool = False,
    ) -> None:
        super().__init__(max_tokens, num_oov_indices, mask_token, oov_token, vocabulary, invert)


def _columns(data: Any, column: str | None) -> Iterable[pa.Array | pa.ChunkedArray]:
    """Yields the column to learn from, batch by batch."""
    if isinstance(data, pa.Array | pa.ChunkedArray):
        yield data
    elif isinstance(data, pa.Table | pa.RecordBatch):
        yield _column_of(data, column)
    elif isinstance(data, dataservice.Dataset) or _holds_batches(data):
        for batch in data:
            yield _column_of(batch, column)
    else:
        yield flat_column(data)


def _holds_batches(data: Any) -> bool:
    if isinstance(data, Sequence):
        return len(data) > 0 and isinstance(data[0], pa.RecordBatch)
    return isinstance(data, Iterable) and not hasattr(data, "__array__")


def _column_of(batch: Any, column: str | None) -> pa.Array | pa.ChunkedArray:
    names = batch.schema.names
    if column is None and len(names) == 1:
        column = names[0]
    if column not in names:
        raise InvalidArgumentError(
            f"adapt needs column=, one of {', '.join(names)}, got {column!r}"
        )
    return batch.column(column)
