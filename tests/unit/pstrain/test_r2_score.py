"""The share of the variance that predictions explain: its value, exactness and settings."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sklearn.metrics import r2_score

from pstrain.callbacks.monitor import Monitor
from pstrain.errors import InvalidArgumentError, InvalidTypeError
from pstrain.kernels import metrics as kernels
from pstrain.metrics import MeanSquaredError, R2Score

RANDOM = np.random.default_rng(2)
LABELS = RANDOM.normal(1e4, 3, 2_000)
PREDICTIONS = LABELS + RANDOM.normal(size=2_000)


def value(labels: Any, predictions: Any, weights: Any = None) -> float:
    metric = R2Score()
    metric.update_state(labels, predictions, weights)
    return float(metric.result())


@pytest.mark.parametrize("weights", [None, RANDOM.random(2_000), 2.0])
def test_value_agrees_with_sklearn(weights: Any) -> None:
    by = None if weights is None else np.broadcast_to(weights, LABELS.shape)
    expected = r2_score(LABELS, PREDICTIONS, sample_weight=by)
    assert value(LABELS, PREDICTIONS, weights) == pytest.approx(expected, rel=1e-7)


def test_states_of_parts_in_any_order_are_that_of_the_whole() -> None:
    whole, parts = R2Score(), [R2Score(), R2Score("other")]
    whole.update_state(LABELS, PREDICTIONS)
    parts[0].update_state(LABELS[1_500:], PREDICTIONS[1_500:])
    parts[1].update_state(LABELS[:1_500], PREDICTIONS[:1_500])
    parts[0].merge_state(parts[1:])
    assert parts[0].result() == whole.result()
    with pytest.raises(InvalidArgumentError, match="merges metrics of its own class"):
        whole.merge_state([MeanSquaredError()])
    whole.reset_state()
    assert math.isnan(whole.result())


def test_value_of_mean_of_errors_and_of_nothing() -> None:
    assert value([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]) == 1.0
    assert value([1.0, 2.0, 3.0], [2.0, 2.0, 2.0]) == 0.0
    assert value([1.0, 3.0], [3.0, 1.0]) == -3.0
    for labels, predictions in [([], []), ([2.0, 2.0], [2.0, 2.0]), ([1.0, 2.0], [1.0, math.inf])]:
        assert math.isnan(value(labels, predictions))


def test_arguments_of_keras_are_refused_by_name_and_callbacks_maximise_it() -> None:
    with pytest.raises(InvalidTypeError, match="'num_regressors': it is not adjusted: leave it"):
        R2Score(num_regressors=2)  # type: ignore[call-arg]
    assert R2Score().name == "r2_score"
    assert Monitor("val_r2_score").mode == "max"


@pytest.mark.parametrize("base", [1e6, 1.7e9, 1e12])
@pytest.mark.parametrize("weights", [None, RANDOM.random(2_000)])
def test_labels_far_from_zero_lose_no_digits(base: float, weights: Any) -> None:
    errors = RANDOM.normal(size=2_000)
    labels = base + RANDOM.normal(0, 3, 2_000)
    given = labels + errors
    # Differences of such numbers are exact, so they may be moved to 0.
    expected = r2_score(labels - base, given - base, sample_weight=weights)
    assert value(labels, given, weights) == pytest.approx(expected, rel=1e-12)


def test_equal_labels_have_no_variance_whatever_their_weights() -> None:
    for weights in (None, 0.3, RANDOM.random(10)):
        assert math.isnan(value(np.full(10, 0.1), np.full(10, 0.2), weights))


def test_arrays_of_arrow_need_no_kernels_of_their_own() -> None:
    expected = value(LABELS, PREDICTIONS, 2.0)
    before = len(kernels.add_exactly.signatures)
    assert value(*map(pa.array, (LABELS, PREDICTIONS, np.full(2_000, 2.0)))) == expected
    assert len(kernels.add_exactly.signatures) == before
