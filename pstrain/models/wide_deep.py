"""Wide & Deep (Cheng et al., 2016): the sum of a linear model and a network over embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from pstrain.errors import InvalidArgumentError
from pstrain.features.schema import Features
from pstrain.gradients.tensor import Tensor
from pstrain.kernels.vectors import LANES
from pstrain.layers.embedding import WideDeepTable
from pstrain.layers.projection import project
from pstrain.models.base import Model
from pstrain.models.network import checked_sizes, linear, logit, rectified


class WideDeep(Model):
    """Logits = wide weights + linear(dense) + bias + network(embeddings and dense).

    ``dim``: embedding values per category value; ``hidden``: units of the ReLU layers. Wide weight
    and embedding of a value are one row of one table.
    """

    kind: ClassVar[str] = "WideDeep"

    def __init__(
        self,
        schema: Any,
        dim: int = 16,
        hidden: Sequence[int] = (64, 32),
        *,
        name: str = "wide_deep",
        seed: int = 0,
    ) -> None:
        super().__init__(schema)
        if not self.schema.categorical:
            raise InvalidArgumentError(
                "WideDeep needs at least one categorical column; use LogisticRegression"
            )
        self.dim, self.hidden = checked_sizes(self.kind, dim, hidden=hidden)
        self.name, self.seed = name, seed
        fields, dense = len(self.schema.categorical), len(self.schema.dense)
        rows = self.schema.table_rows
        self.table = WideDeepTable(
            rows, fields, dim, name=f"{name}/table", seed=seed, by_field=dim % LANES == 0
        )
        sizes = [fields * dim + dense, *self.hidden]
        self.deep = rectified(sizes, f"{name}/deep", seed)
        # The table has the bias of the sum.
        self.deep.append(logit(sizes[-1], f"{name}/deep_out", seed))
        self.linear = linear(dense, f"{name}/linear") if dense else None
        self.layers = [self.table, *self.deep, *([self.linear] if self.linear else [])]

    def compute(self, values: Sequence[Sequence[Any]], features: Features) -> Tensor:
        first, *others = zip(self.deep, values[1 : 1 + len(self.deep)], strict=True)
        both = project(self.table, values[0], *first, features)
        if both is None:
            matrix, logits = self.table.forward(values[0], features)
            hidden = first[0].forward(first[1], matrix)
        else:
            hidden, logits = both
        for layer, value in others:
            hidden = layer.forward(value, hidden)
        logits = logits + hidden
        if self.linear is not None:
            logits = logits + self.linear.forward(values[-1], features.dense)
        return logits

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {
            "dim": self.dim,
            "hidden": list(self.hidden),
            "name": self.name,
            "seed": self.seed,
        }
