"""Factorization machine (Rendle, 2010) and DeepFM (Guo et al., 2017).

Invariant: both see the same vectors: a category value's is a row of the table, a numeric
column's is its own vector times the value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from pstrain.errors import InvalidArgumentError
from pstrain.features.schema import Features
from pstrain.gradients.tensor import Tensor
from pstrain.layers.embedding import WideDeepTable
from pstrain.layers.interaction import Interaction, NumericEmbedding, concatenate
from pstrain.models.base import Model
from pstrain.models.network import checked_sizes, linear, logit, rectified, run


class DeepFM(Model):
    """Logits = bias + weights + products of all pairs of vectors + network over the vectors.

    ``dim``: values of each vector; ``hidden``: units of the rectified layers. Weight and vector of
    a category value are one row of one table.
    """

    kind: ClassVar[str] = "DeepFM"

    def __init__(
        self,
        schema: Any,
        dim: int = 16,
        hidden: Sequence[int] = (64, 32),
        *,
        name: str = "deep_fm",
        seed: int = 0,
    ) -> None:
        super().__init__(schema)
        fields, numbers = len(self.schema.categorical), len(self.schema.dense)
        if not fields:
            raise InvalidArgumentError(
                f"{type(self).__name__} needs at least one categorical column; use "
                "LogisticRegression"
            )
        self.dim, self.hidden = checked_sizes(self.kind, dim, hidden=hidden)
        self.name, self.seed = name, seed
        self._fields = fields
        rows = self.schema.table_rows
        self._table = WideDeepTable(rows, fields, dim, name=f"{name}/table", seed=seed)
        self._pairs = Interaction(fields + numbers, dim, "sum", name=f"{name}/pairs")
        self._numeric, self._linear = None, None
        if numbers:
            self._numeric = NumericEmbedding(numbers, dim, name=f"{name}/numeric", seed=seed)
            self._linear = linear(numbers, f"{name}/linear")
        self._deep = []
        if self.hidden:
            sizes = [(fields + numbers) * dim, *self.hidden]
            self._deep = rectified(sizes, f"{name}/deep", seed)
            self._deep.append(logit(sizes[-1], f"{name}/deep_out", seed))
        of_numbers = [layer for layer in (self._numeric, self._linear) if layer is not None]
        self.layers = [self._table, *self._deep, *of_numbers]

    def compute(self, values: Sequence[Sequence[Any]], features: Features) -> Tensor:
        without_numbers = replace(features, dense=features.dense[:, :0])
        vectors, logits = self._table.forward(values[0], without_numbers)
        if self._numeric is not None and self._linear is not None:
            of_numbers = self._numeric.forward(values[-2], features.dense)
            vectors = concatenate([vectors, of_numbers])
            logits = logits + self._linear.forward(values[-1], features.dense)
        logits = logits + self._pairs(vectors)
        if self._deep:
            logits = logits + run(self._deep, values[1 : 1 + len(self._deep)], vectors)
        return logits

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {
            "dim": self.dim,
            "hidden": list(self.hidden),
            "name": self.name,
            "seed": self.seed,
        }


class FactorizationMachine(DeepFM):
    """Logits = bias + weights + products of all pairs of vectors."""

    kind: ClassVar[str] = "FactorizationMachine"

    def __init__(
        self, schema: Any, dim: int = 16, *, name: str = "factorization_machine", seed: int = 0
    ) -> None:
        super().__init__(schema, dim, (), name=name, seed=seed)

    def get_config(self) -> dict[str, Any]:
        return {key: value for key, value in super().get_config().items() if key != "hidden"}
