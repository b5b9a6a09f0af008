"""Which metrics tell how good a model of a table is, and how their values are shown.

Knows nothing of files or models. Invariant: a model of two labels and one of numbers are each
measured by what suits them, in the same way after training and in an evaluation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Score:
    """One figure of a result; ``key`` is its name in JSON."""

    title: str
    key: str
    value: float

    @property
    def text(self) -> str:
        # Errors are in the unit of the label, of which four decimals may be too many or none.
        return f"{self.value:.5g}" if abs(self.value) >= 10 else f"{self.value:.4f}"

    @property
    def rounded(self) -> float:
        return float(f"{self.value:.7g}") if abs(self.value) >= 1 else round(self.value, 5)


NUMBER_METRICS: Final = ("r2_score", "rmse", "mae")

# By the name of the metric in the result of an evaluation: the title, and the key in JSON.
_OF_TWO_LABELS: Final = {
    "auc": ("AUC", "auc"),
    "loss": ("log loss", "logloss"),
    "accuracy": ("accuracy", "accuracy"),
    "gauc": ("GAUC", "gauc"),
    "ndcg_at_10": ("NDCG at 10", "ndcg_at_10"),
}
_OF_NUMBERS: Final = {
    "r2_score": ("R2", "r2"),
    "rmse": ("root mean squared error", "rmse"),
    "mae": ("mean absolute error", "mae"),
}


def scores_of(results: Mapping[str, float]) -> list[Score]:
    """Returns what to show of the results of an evaluation."""
    known = _OF_TWO_LABELS if "auc" in results else _OF_NUMBERS
    return [Score(*known[name], results[name]) for name in known if name in results]
