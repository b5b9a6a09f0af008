"""What is shown of the scores of a model of a table."""

from __future__ import annotations

import pytest

from pstrain.tabular.measures import Score, scores_of


def test_scores_are_those_that_suit_the_labels_in_a_fixed_order() -> None:
    others = {"examples": 10.0, "loss": 0.5}
    two = scores_of({"accuracy": 0.7, "auc": 0.8, "gauc": 0.6, **others})
    assert [score.key for score in two] == ["auc", "logloss", "accuracy", "gauc"]
    numbers = scores_of({"mae": 2.0, "r2_score": 0.9, "rmse": 3.0, **others})
    assert [(score.key, score.value) for score in numbers] == [
        ("r2", 0.9), ("rmse", 3.0), ("mae", 2.0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "text", "rounded"),
    [
        (0.731234567, "0.7312", 0.73123),
        (-3.21987654, "-3.2199", -3.219877),
        (20458.3387, "20458", 20458.34),
        (0.00012345678, "0.0001", 0.00012),
        (1.5e9, "1.5e+09", 1.5e9),
        (float("nan"), "nan", pytest.approx(float("nan"), nan_ok=True)),
    ],
)
def test_scores_are_shown_with_as_many_digits_as_tell_something(
    value: float, text: str, rounded: float
) -> None:
    score = Score("R2", "r2", value)
    assert (score.text, score.rounded) == (text, rounded)
