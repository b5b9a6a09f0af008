"""Factorization machine (Rendle, 2010) and DeepFM (Guo et al., 2017).

Invariant: the pairwise products and the network use the same vectors. The vector of a category
value is part of its row of the table; the vector of a numeric column is the column's own vector
times the value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from pstrain.features.schema import Features
from pstrain.gradients.tensor import Tensor
from pstrain.layers.base import whole_leaf, whole_leaves
from pstrain.layers.embedding import WideDeepTable
from pstrain.layers.factorization import folded, pair_logits
from pstrain.layers.interaction import NumericEmbedding
from pstrain.layers.pooling import FieldRows
from pstrain.layers.projection import is_worth_fusing, project_rows
from pstrain.models import network
from pstrain.models.base import Model
from pstrain.vocabulary import Lookup


class DeepFM(Model):
    """Logits = bias + weights + dot products of all pairs of vectors + network over the vectors.

    ``dim``: values of each vector; ``hidden``: units of the ReLU layers. Weight and vector of a
    category value are one row of one table.
    """

    kind: ClassVar[str] = "DeepFM"
    _arguments: ClassVar[tuple[str, ...]] = ("dim", "hidden", "name", "seed")

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
        fields, numbers = network.checked_fields(self.kind, self.schema), len(self.schema.dense)
        self.dim, self.hidden = network.checked_sizes(self.kind, dim, hidden=hidden)
        self.name, self.seed = name, seed
        rows = self.schema.table_rows
        self._table = WideDeepTable(
            rows, fields, dim, name=f"{name}/table", seed=seed, by_field=True
        )
        self._numeric, self._linear = None, None
        if numbers:
            self._numeric = NumericEmbedding(numbers, dim, name=f"{name}/numeric", seed=seed)
            self._linear = network.linear_layer(numbers, f"{name}/linear")
        self._deep = []
        if self.hidden:
            sizes = [(fields + numbers) * dim, *self.hidden]
            self._deep = network.relu_layers(sizes, f"{name}/deep", seed)
            self._deep.append(network.logit_layer(sizes[-1], f"{name}/deep_out", seed))
        of_numbers = [layer for layer in (self._numeric, self._linear) if layer is not None]
        self.layers = [self._table, *self._deep, *of_numbers]

    def compute(self, values: Sequence[Sequence[Any]], features: Features) -> Tensor:
        found, bias = self._table.leaves(values[0], features)
        numeric = None
        if self._numeric is not None:
            numeric = whole_leaf(self._numeric.variables[0], values[-2][0])
        logits = pair_logits(found, self._table.fields, bias, numeric, features)
        if self._linear is not None:
            logits = logits + self._linear.forward(values[-1], features.dense)
        if self._deep:
            of_deep = values[1 : 1 + len(self._deep)]
            hidden = self._first_hidden(found, bias, numeric, of_deep[0], features, values[0][0])
            logits = logits + network.run(self._deep[1:], of_deep[1:], hidden)
        return logits

    def _first_hidden(
        self,
        found: FieldRows,
        bias: Tensor,
        numeric: Tensor | None,
        values: Sequence[Any],
        features: Features,
        lookup: Lookup,
    ) -> Tensor:
        """Returns the output of the network's first layer for all vectors."""
        first = self._deep[0]
        kernel, *others = whole_leaves(first.variables, values)
        leaves = [kernel if numeric is None else folded(kernel, numeric), *others]
        if is_worth_fusing(lookup, features, self.dim, first):
            return project_rows(found, self._table.fields, None, leaves, features)[0]
        matrix, _ = self._table.computed(found, bias, features)
        return first.computed(matrix, leaves)


class FactorizationMachine(DeepFM):
    """Logits = bias + weights + dot products of all pairs of vectors."""

    kind: ClassVar[str] = "FactorizationMachine"
    _arguments = ("dim", "name", "seed")

    def __init__(
        self, schema: Any, dim: int = 16, *, name: str = "factorization_machine", seed: int = 0
    ) -> None:
        super().__init__(schema, dim, (), name=name, seed=seed)
