"""Deep & Cross Network, version 2 (Wang et al., 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from dataservice.runtime.arguments import check_choice, integer_at_least
from pstrain.features.schema import Features
from pstrain.gradients.tensor import Tensor
from pstrain.layers.embedding import WideDeepTable
from pstrain.layers.interaction import Cross, concatenate
from pstrain.models import network
from pstrain.models.base import Model


class DCNv2(Model):
    """Logits of cross layers and a network over the concatenated embeddings and numeric columns.

    ``crosses``: the number of cross layers; ``rank`` as in ``Cross``. ``structure="stacked"``: the
    network takes the output of the cross layers; ``"parallel"``: it takes the input, and the logit
    is computed from both outputs. A weight per category value, kept in the table's rows, is added
    to the logit.
    """

    kind: ClassVar[str] = "DCNv2"
    _arguments = ("dim", "hidden", "crosses", "rank", "structure", "name", "seed")

    def __init__(
        self,
        schema: Any,
        dim: int = 16,
        hidden: Sequence[int] = (64, 32),
        crosses: int = 2,
        rank: int | None = None,
        structure: Literal["stacked", "parallel"] = "stacked",
        *,
        name: str = "dcn_v2",
        seed: int = 0,
    ) -> None:
        super().__init__(schema)
        fields = network.checked_fields(self.kind, self.schema)
        check_choice("DCNv2: structure", structure, ("stacked", "parallel"))
        self.dim, self.hidden = network.checked_sizes(self.kind, dim, hidden=hidden)
        self.crosses = crosses = integer_at_least(crosses, 1, "DCNv2: crosses")
        self.rank, self.structure, self.name, self.seed = rank, structure, name, seed
        rows = self.schema.table_rows
        size = fields * dim + len(self.schema.dense)
        self._table = WideDeepTable(rows, fields, dim, name=f"{name}/table", seed=seed)
        self._crosses = [
            Cross(size, rank, name=f"{name}/cross_{k}", seed=seed) for k in range(crosses)
        ]
        sizes = [size, *self.hidden]
        self._deep = network.relu_layers(sizes, f"{name}/deep", seed)
        last = sizes[-1] + (size if structure == "parallel" else 0)
        self._out = network.logit_layer(last, f"{name}/out", seed)
        self.layers = [self._table, *self._crosses, *self._deep, self._out]

    def compute(self, values: Sequence[Sequence[Any]], features: Features) -> Tensor:
        start, wide = self._table.forward(values[0], features)
        crossed, rest = start, values[1:]
        for layer in self._crosses:
            crossed = layer.forward(rest[0], (start, crossed))
            rest = rest[1:]
        stacked = self.structure == "stacked"
        deep = network.run(self._deep, rest[: len(self._deep)], crossed if stacked else start)
        joined = deep if stacked else concatenate([crossed, deep])
        return wide + self._out.forward(rest[-1], joined)
