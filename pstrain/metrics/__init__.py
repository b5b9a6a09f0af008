"""The public metrics, which merge exactly across batches and trainers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dataservice.runtime.arguments import nearest
from pstrain.errors import InvalidArgumentError, InvalidTypeError
from pstrain.losses.base import Loss
from pstrain.metrics.base import Metric
from pstrain.metrics.by_group import GAUC, NDCG, HitRate, RecallAtK
from pstrain.metrics.classification import AUC, Accuracy, Precision, Recall
from pstrain.metrics.explained import R2Score
from pstrain.metrics.mean import (
    LogLoss,
    Mean,
    MeanAbsoluteError,
    MeanSquaredError,
    RootMeanSquaredError,
)
from pstrain.porting import foreign_names

__all__ = [
    "AUC",
    "GAUC",
    "NDCG",
    "Accuracy",
    "HitRate",
    "LogLoss",
    "Mean",
    "MeanAbsoluteError",
    "MeanSquaredError",
    "Metric",
    "Precision",
    "R2Score",
    "Recall",
    "RecallAtK",
    "RootMeanSquaredError",
]

if not TYPE_CHECKING:  # type checkers still report unknown names
    __getattr__ = foreign_names.module_getattr(__name__, foreign_names.METRICS)

_BY_NAME: dict[str, type[Any]] = {
    "auc": AUC,
    "accuracy": Accuracy,
    "log_loss": LogLoss,
    "mean_absolute_error": MeanAbsoluteError,
    "mean_squared_error": MeanSquaredError,
    "precision": Precision,
    "r2_score": R2Score,
    "recall": Recall,
    "root_mean_squared_error": RootMeanSquaredError,
}
# A metric made by one of these names has it in the logs too, as in Keras.
_ALIASES: dict[str, type[Any]] = {
    "acc": Accuracy,
    "mae": MeanAbsoluteError,
    "mse": MeanSquaredError,
    "rmse": RootMeanSquaredError,
}

_BY_GROUP = ("GAUC(", "NDCG(k, ", "HitRate(k, ", "RecallAtK(k, ")


def named(value: Any) -> Metric:
    """Returns a metric unchanged, and a new one for a name such as "auc", "LogLoss" or "mse"."""
    if isinstance(value, Metric):
        return value
    if isinstance(value, Loss):
        raise InvalidTypeError(f"{value!r} is a loss, and given by name: compile(loss=...)")
    if not isinstance(value, str):
        raise InvalidTypeError(
            f"a metric is one of pstrain.metrics, such as AUC(), or of a subclass of Metric, got "
            f"{value!r}"
        )
    plain = value.lower().replace("_", "")
    if plain in _ALIASES:
        alias: Metric = _ALIASES[plain](name=plain)
        return alias
    for begun in _BY_GROUP:
        if plain == begun.partition("(")[0].lower():
            raise InvalidArgumentError(
                f"metric {value!r} needs the column of its groups: give {begun}group='user_id')"
            )
    if plain == "binarycrossentropy":
        raise InvalidArgumentError(
            f'{value!r} is "log_loss" as a metric, and as a loss is given by name: loss={value!r}'
        )
    found = next((kind for name, kind in _BY_NAME.items() if name.replace("_", "") == plain), None)
    if found is None:
        raise InvalidArgumentError(
            f"unknown metric {value!r}: choose one of {', '.join(_BY_NAME)}, or give an object"
            f"{nearest(value, _BY_NAME)}"
        )
    metric: Metric = found()
    return metric
