"""The models, losses and optimizers that ``pstrain train`` offers, with rates that suit tables.

Knows nothing of files or clusters. Invariant: every model and optimizer that a name here makes can
be saved and restored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import pstrain as ps

# Gradients of a mean over a batch are small; with Keras' 0.1 rare categories would hardly learn.
_ACCUMULATOR: Final = 1e-4

Optimizer = Callable[[float], Any]
OPTIMIZERS: Final[dict[str, tuple[float, Optimizer]]] = {
    "adagrad": (0.02, lambda r: ps.optimizers.Adagrad(r, initial_accumulator_value=_ACCUMULATOR)),
    "rowwise_adagrad": (0.02, lambda r: ps.optimizers.RowWiseAdagrad(r)),
    "adam": (0.001, lambda r: ps.optimizers.Adam(r)),
    "rmsprop": (0.001, lambda r: ps.optimizers.RMSprop(r)),
    "momentum": (0.02, lambda r: ps.optimizers.Momentum(r)),
    "ftrl": (0.05, lambda r: ps.optimizers.Ftrl(r)),
    "sgd": (0.1, lambda r: ps.optimizers.SGD(r)),
}
LOSSES: Final = ("binary_crossentropy", "mse", "mae", "huber")
"""The first is of labels with two values, the others are of numbers."""
MODELS: Final = (
    "wide_deep",
    "deep_fm",
    "dlrm",
    "dcn_v2",
    "factorization_machine",
    "logistic_regression",
)


def make_model(kind: str, schema: Any, dim: int, hidden: Sequence[int], seed: int) -> Any:
    """Returns a model of ``kind`` over the columns of ``schema``, with fresh variables."""
    models = ps.models
    match kind:
        case "deep_fm":
            return models.DeepFM(schema, dim=dim, hidden=hidden, seed=seed)
        case "dlrm":
            return models.DLRM(schema, dim=dim, bottom=hidden[:1], top=hidden, seed=seed)
        case "dcn_v2":
            return models.DCNv2(schema, dim=dim, hidden=hidden, seed=seed)
        case "factorization_machine":
            return models.FactorizationMachine(schema, dim=dim, seed=seed)
        case "logistic_regression":
            return models.LogisticRegression(schema, seed=seed)
    return models.WideDeep(schema, dim=dim, hidden=hidden, seed=seed)
