"""Logistic regression over hashed categories and dense columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from pstrain.features.schema import Features
from pstrain.gradients.tensor import Tensor
from pstrain.layers.embedding import WideDeepTable
from pstrain.models import network
from pstrain.models.base import Model


class LogisticRegression(Model):
    """One weight per category value and dense column, and a bias; all start at 0."""

    kind: ClassVar[str] = "LogisticRegression"
    _arguments = ("name", "seed")

    def __init__(self, schema: Any, *, name: str = "logistic_regression", seed: int = 0) -> None:
        super().__init__(schema)
        self.name, self.seed = name, seed
        fields, dense = len(self.schema.categorical), len(self.schema.dense)
        if fields:
            rows = self.schema.table_rows
            self.layers.append(WideDeepTable(rows, fields, 0, name=f"{name}/table", seed=seed))
        if dense:
            # The table, if there is one, has the bias of the sum.
            self.layers.append(network.linear_layer(dense, f"{name}/linear", use_bias=not fields))

    def compute(self, values: Sequence[Sequence[Any]], features: Features) -> Tensor:
        parts = []
        for layer, value in zip(self.layers, values, strict=True):
            if isinstance(layer, WideDeepTable):
                parts.append(layer.forward(value, features)[1])
            else:
                parts.append(layer.forward(value, features.dense))
        return parts[0] if len(parts) == 1 else parts[0] + parts[1]
