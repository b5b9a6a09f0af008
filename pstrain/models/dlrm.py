"""DLRM (Naumov et al., 2019): a network, dot products of pairs of vectors, and another network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from pstrain.features.schema import Features
from pstrain.gradients.tensor import Tensor
from pstrain.layers.embedding import Embedding
from pstrain.layers.interaction import Interaction, concatenate
from pstrain.models import network
from pstrain.models.base import Model


class DLRM(Model):
    """Logits = top(bottom(numbers), dot products of all pairs of embeddings and bottom(numbers)).

    ``bottom``: units of the bottom network's ReLU layers, to which a layer of ``dim`` units is
    added. ``top``: units of the top network's ReLU layers, to which a layer for the logit is added.
    Without numeric columns there is no bottom network, and the embeddings replace its output.
    """

    kind: ClassVar[str] = "DLRM"
    _arguments = ("dim", "bottom", "top", "name", "seed")

    def __init__(
        self,
        schema: Any,
        dim: int = 16,
        bottom: Sequence[int] = (64,),
        top: Sequence[int] = (64, 32),
        *,
        name: str = "dlrm",
        seed: int = 0,
    ) -> None:
        super().__init__(schema)
        fields, numbers = network.checked_fields(self.kind, self.schema), len(self.schema.dense)
        self.dim, self.bottom, self.top = network.checked_sizes(
            self.kind, dim, bottom=bottom, top=top
        )
        self.name, self.seed = name, seed
        sizes = self.schema.vocabulary_sizes
        self._table = Embedding(sizes, dim, name=f"{name}/table", seed=seed)
        self._bottom = (
            network.relu_layers([numbers, *self.bottom, dim], f"{name}/bottom", seed)
            if numbers
            else []
        )
        count = fields + bool(numbers)
        self._pairs = Interaction(count, dim, name=f"{name}/pairs")
        joined = count * (count - 1) // 2 + (dim if numbers else fields * dim)
        tops = [joined, *self.top]
        self._top = network.relu_layers(tops, f"{name}/top", seed)
        self._top.append(network.logit_layer(tops[-1], f"{name}/top_out", seed, use_bias=True))
        self.layers = [self._table, *self._bottom, *self._top]

    def compute(self, values: Sequence[Sequence[Any]], features: Features) -> Tensor:
        vectors = self._table.forward(values[0], features)
        passed_on = vectors
        if self._bottom:
            of_bottom = values[1 : 1 + len(self._bottom)]
            passed_on = network.run(self._bottom, of_bottom, features.dense)
            vectors = concatenate([passed_on, vectors])
        joined = concatenate([passed_on, self._pairs(vectors)])
        logits: Tensor = network.run(self._top, values[1 + len(self._bottom) :], joined)
        return logits
