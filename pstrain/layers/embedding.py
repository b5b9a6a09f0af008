"""Embedding tables: one table for all fields, whose rows are gathered directly into a matrix.

Knows nothing of models. Invariant: an id is fetched as one row however often it occurs, so its
gradients are summed before they are sent.
"""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataservice.runtime.arguments import integer_at_least, sizes_of
from dataservice.runtime.number_arrays import to_axes
from pstrain import buffers, initializers
from pstrain.errors import InvalidArgumentError
from pstrain.features.bags import Pooling, check_pooling, of_ids
from pstrain.features.schema import Features
from pstrain.gradients.recording import record, record_all
from pstrain.gradients.tensor import Tensor
from pstrain.gradients.training_argument import takes_training
from pstrain.kernels import embedding as kernels
from pstrain.layers.base import Layer, contiguous_rows, whole_leaf
from pstrain.layers.pooling import FieldRows, field_rows
from pstrain.porting import foreign_arguments
from pstrain.porting.foreign_arguments import refuse_arguments
from pstrain.variables.variable import create_variable
from pstrain.vocabulary import Fetch, Lookup

_FLOATS_PER_LINE = 16


class Embedding(Layer):
    """A table of rows of width ``dim``; outputs the rows of all fields of an example, concatenated.

    ``vocabulary_sizes``: ids per field; all fields share one table with the sum of these as rows.
    Inputs are int64 [n, fields] (or [n] for one field), each in ``[0, size of its field)``, or
    ``Features``, whose ids are rows of the table already; the output is float32 [n, fields * dim].
    With ``combiner`` ("sum", "mean" or "sqrtn"), which needs a single field, each input is a list
    of ids, in an Arrow list array or int64 [n, k], whose rows are pooled into one; the output is
    float32 [n, dim]. ``by_field``: looks ids up field by field, which saves ``project_embedding``
    the grouping; the layer itself has no use for it.
    """

    @refuse_arguments("Embedding", foreign_arguments.EMBEDDING)
    def __init__(
        self,
        vocabulary_sizes: Sequence[int] | int,
        dim: int,
        *,
        combiner: Pooling | None = None,
        name: str = "embedding",
        seed: int = 0,
        by_field: bool = False,
    ) -> None:
        super().__init__(name)
        name = self.name
        self.by_field = by_field
        self.combiner = check_pooling(combiner, "combiner")
        is_one = isinstance(vocabulary_sizes, numbers.Number)
        sizes = (vocabulary_sizes,) if is_one else vocabulary_sizes
        what = f"layer {name!r}: vocabulary_sizes"
        self.vocabulary_sizes = sizes_of(sizes, what, least=1)
        dim = integer_at_least(dim, 1, f"layer {name!r}: dim")
        if combiner is not None and len(self.vocabulary_sizes) > 1:
            raise InvalidArgumentError(
                f"layer {name!r}: a combiner pools lists of one field, got "
                f"{len(self.vocabulary_sizes)}; make a layer for each, or give a FeatureSchema"
            )
        self.dim = dim
        start = initializers.uniform(seed=initializers.seed_for(name, seed))
        shape = (sum(self.vocabulary_sizes), dim)
        self.variables = [create_variable(start, shape=shape, name=name)]

    @property
    def embeddings(self) -> Any:
        """The table, a variable [sum of vocabulary_sizes, dim]."""
        return self.variables[0]

    def features(self, inputs: Any) -> Features:
        """Returns ``inputs`` as ``Features`` with rows of the shared table.

        InvalidArgumentError for an id outside its field's range.
        """
        if isinstance(inputs, Features):
            return inputs
        if self.combiner is None:
            ids, bags = self._table_rows(inputs), None
        else:
            bags = of_ids(f"layer {self.name!r}", inputs, self.combiner)
            wrong = (bags.ids < 0) | (bags.ids >= self.vocabulary_sizes[0])
            if wrong.any():
                raise InvalidArgumentError(
                    f"layer {self.name!r}: id {bags.ids[wrong][0]} is outside "
                    f"[0, {self.vocabulary_sizes[0]})"
                )
            ids = np.empty((len(bags.offsets) - 1, 0), np.int64)
        return Features(np.empty((len(ids), 0), np.float32), ids, None, bags)

    def _table_rows(self, inputs: NDArray[Any]) -> NDArray[np.int64]:
        ids = _whole_numbers(self.name, inputs)
        ids = ids[:, None] if ids.ndim == 1 else ids
        if ids.ndim != 2 or ids.shape[1] != len(self.vocabulary_sizes):
            lists = len(self.vocabulary_sizes) == 1 and ids.ndim == 2
            raise InvalidArgumentError(
                f"layer {self.name!r} takes ids [n, {len(self.vocabulary_sizes)}], got {ids.shape}"
                + ("; for the mean or sum of several ids a row, give it combiner=" if lists else "")
            )
        sizes = np.asarray(self.vocabulary_sizes, dtype=np.int64)
        wrong = np.argwhere((ids < 0) | (ids >= sizes))
        if len(wrong):
            row, field = wrong[0]
            raise InvalidArgumentError(
                f"layer {self.name!r}: id {ids[row, field]} of row {row}, field {field} is outside "
                f"[0, {sizes[field]})"
            )
        return ids + (np.cumsum(sizes) - sizes)

    @takes_training
    @refuse_arguments("a layer", foreign_arguments.CALL_OF_LAYER, beyond="a second input")
    def __call__(self, inputs: Any) -> Any:
        return super().__call__(self.features(inputs))

    def requests(self, inputs: Any) -> list[Fetch]:
        features = self.features(inputs)
        return [Fetch(self.variables[0].spec, _ids_to_look_up(features, self.by_field))]

    def forward(self, values: Sequence[Lookup], inputs: Any) -> Tensor:
        pooled = self.combiner is not None
        found = field_rows(
            self.variables[0], values[0], self.features(inputs) if pooled else inputs
        )
        rows, inverse = found.rows, found.inverse
        fields = len(self.vocabulary_sizes)
        output = Tensor(buffers.empty((len(inverse) // fields, fields * self.dim)))
        kernels.gather_fields(rows.value, inverse, fields, output.value)

        def backward(gradient: NDArray[np.float32]) -> NDArray[np.float32]:
            total = buffers.zeros(rows.shape)
            kernels.scatter_fields(contiguous_rows(gradient), inverse, fields, total)
            return total

        return record(output, (rows,), backward)


class WideDeepTable(Layer):
    """A table of wide weights and embeddings: a row is [wide weight, dim embedding values].

    One row per id means one cache miss and one request for both parts. From ``Features`` it
    computes two tensors: the network's input, float32 [n, F * dim + D] (embeddings, then the dense
    columns), and bias + sum of the wide weights, float32 [n, 1]. Wide weights and bias start at 0.
    ``by_field`` as in ``Embedding``, here for ``project``.
    """

    def __init__(
        self,
        rows: int,
        fields: int,
        dim: int,
        *,
        name: str = "table",
        seed: int = 0,
        by_field: bool = False,
    ) -> None:
        super().__init__(name)
        name = self.name
        self.by_field = by_field
        rows = integer_at_least(rows, 1, f"layer {name!r}: rows")
        self.fields = integer_at_least(fields, 1, f"layer {name!r}: fields")
        self.dim = dim = integer_at_least(dim, 0, f"layer {name!r}: dim")
        start = initializers.uniform(seed=initializers.seed_for(name, seed), zero_columns=1)
        self.variables = [
            create_variable(start, shape=(rows, 1 + dim), name=name),
            create_variable(initializers.zeros(), shape=(1,), name=f"{name}/bias"),
        ]

    def requests(self, inputs: Features) -> list[Fetch]:
        table, bias = self.variables
        return [Fetch(table.spec, _ids_to_look_up(inputs, self.by_field)), Fetch(bias.spec)]

    def forward(self, values: Sequence[Any], inputs: Features) -> tuple[Tensor, Tensor]:
        return self.computed(*self.leaves(values, inputs), inputs)

    def leaves(self, values: Sequence[Any], inputs: Features) -> tuple[FieldRows, Tensor]:
        """Returns the looked-up rows and the bias."""
        found = field_rows(self.variables[0], values[0], inputs)
        return found, whole_leaf(self.variables[1], values[1])

    def computed(self, found: FieldRows, bias: Tensor, inputs: Features) -> tuple[Tensor, Tensor]:
        """Computes the outputs of ``forward`` from the results of :meth:`leaves`."""
        rows, inverse = found.rows, found.inverse
        fields, size = self.fields, len(inputs)
        embedded = fields * self.dim
        padded = _padded_matrix(size, embedded + inputs.dense.shape[1])
        wide = np.empty((size, 1), dtype=np.float32)
        kernels.gather_wide_deep(rows.value, bias.value, inverse, fields, padded, wide.reshape(-1))
        matrix = padded[:, : embedded + inputs.dense.shape[1]]
        matrix[:, embedded:] = inputs.dense
        outputs = (Tensor(matrix), Tensor(wide))

        def backward(
            to_matrix: NDArray[np.float32] | None, to_wide: NDArray[np.float32] | None
        ) -> list[NDArray[np.float32]]:
            deep = np.zeros_like(matrix) if to_matrix is None else contiguous_rows(to_matrix)
            plain = np.zeros(size, np.float32) if to_wide is None else to_wide.reshape(-1)
            to_rows = buffers.zeros(rows.shape)
            kernels.scatter_wide_deep(deep, plain, inverse, fields, to_rows)
            return [to_rows, plain.sum(keepdims=True)]

        record_all(outputs, (rows, bias), backward)
        return outputs


def _whole_numbers(name: str, inputs: Any) -> NDArray[np.int64]:
    """Returns ids as int64; accepts floats that are whole numbers.

    InvalidArgumentError for other types and values; names the first wrong value.
    """
    try:
        given = to_axes(inputs)
    except ValueError as error:
        raise InvalidArgumentError(
            f"layer {name!r} takes an id for each row and field; for lists of ids give it combiner="
        ) from error
    if given.dtype.kind not in "iufb":
        raise InvalidArgumentError(
            f"layer {name!r} takes ids, which are integers, got {given.dtype}"
            f" of {type(inputs).__name__}: layers.StringLookup makes ids of strings, and "
            "combiner= pools lists"
        )
    with np.errstate(invalid="ignore"):
        ids = given.astype(np.int64)
    others = ids != given
    if others.any():
        raise InvalidArgumentError(
            f"layer {name!r} takes ids, which are integers of at least 0, got {given[others][0]}"
        )
    return ids


def _ids_to_look_up(features: Features, by_field: bool) -> NDArray[np.int64]:
    """Returns the ids to look up: by field if asked and there are no lists to be pooled first."""
    if features.has_keys:
        raise InvalidArgumentError(
            "these Features have keys of online columns, which are not rows yet: give them to a "
            "model, or look the columns up with an OnlineLookup"
        )
    return features.ids if by_field and features.bags is None else features.table_ids


def _padded_matrix(rows: int, width: int) -> NDArray[np.float32]:
    """Returns an uninitialised matrix of ``width`` columns or more, in rows of full cache lines."""
    stride = -(-width // _FLOATS_PER_LINE) * _FLOATS_PER_LINE
    return buffers.empty((rows, stride))
