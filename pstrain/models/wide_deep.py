"""Wide & Deep (Cheng et al., 2016): the sum of a linear model and a network over embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from pstrain.features.schema import Features
from pstrain.gradients.tensor import Tensor
from pstrain.kernels.vectors import LANES
from pstrain.layers.embedding import WideDeepTable
from pstrain.layers.projection import project
from pstrain.models import network
from pstrain.models.base import Model


class WideDeep(Model):
    """Logits = wide weights + linear(dense) + bias + network(embeddings and dense).

    ``dim``: embedding values per category value; ``hidden``: units of the ReLU layers. Wide weight
    and embedding of a value are one row of one table.
    """

    kind: ClassVar[str] = "WideDeep"
    _arguments = ("dim", "hidden", "name", "seed")

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
        self.dim, self.hidden = network.checked_sizes(self.kind, dim, hidden=hidden)
        self.name, self.seed = name, seed
        fields, dense = network.checked_fields(self.kind, self.schema), len(self.schema.dense)
        rows = self.schema.table_rows
        self.table = WideDeepTable(
            rows, fields, dim, name=f"{name}/table", seed=seed, by_field=dim % LANES == 0
        )
        sizes = [fields * dim + dense, *self.hidden]
        self.deep = network.relu_layers(sizes, f"{name}/deep", seed)
        # The table has the bias of the sum.
        self.deep.append(network.logit_layer(sizes[-1], f"{name}/deep_out", seed))
        self.linear = network.linear_layer(dense, f"{name}/linear") if dense else None
        self.layers = [self.table, *self.deep, *([self.linear] if self.linear else [])]

    def compute(self, values: Sequence[Sequence[Any]], features: Features) -> Tensor:
        first, of_deep = self.deep[0], values[1 : 1 + len(self.deep)]
        both = project(self.table, values[0], first, of_deep[0], features)
        if both is None:
            matrix, logits = self.table.forward(values[0], features)
            hidden = first.forward(of_deep[0], matrix)
        else:
            hidden, logits = both
        logits = logits + network.run(self.deep[1:], of_deep[1:], hidden)
        if self.linear is not None:
            logits = logits + self.linear.forward(values[-1], features.dense)
        return logits
