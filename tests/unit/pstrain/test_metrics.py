"""Metrics: values against sklearn, and merging that no grouping of the examples can change."""

from __future__ import annotations

import copy
import json
import math
import pathlib
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sklearns
from sklearn.metrics import accuracy_score, log_loss, roc_auc_score

from pstrain.checkpoints.checkpoint import Checkpoint
from pstrain.errors import DataError, FailedPreconditionError, InvalidArgumentError
from pstrain.metrics import (
    AUC,
    GAUC,
    NDCG,
    Accuracy,
    LogLoss,
    Mean,
    MeanAbsoluteError,
    MeanSquaredError,
    Metric,
    Precision,
    Recall,
    RootMeanSquaredError,
)
from pstrain.variables.parameters import step_scope
from pstrain.variables.scope import LocalPlacement
from pstrain.vocabulary import StepToken

pytestmark = pytest.mark.usefixtures("own_parameters")

KINDS = [AUC, Accuracy, LogLoss, Precision, Recall]
ERRORS = [MeanAbsoluteError, MeanSquaredError, RootMeanSquaredError]


def _examples(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    labels = random.integers(0, 2, rows)
    scores = np.clip(random.normal(0.4 + 0.2 * labels, 0.2), 0.001, 0.999)
    return labels, scores.astype(np.float32)


def _value(metric: Metric, *examples: Any) -> float:
    return metric.compute(metric.update(metric.initial_state(), *examples))


def test_metric_values_agree_with_sklearn() -> None:
    labels, probabilities = _examples(5000)
    assert _value(AUC(), labels, probabilities) == pytest.approx(
        roc_auc_score(labels, probabilities), abs=1e-4
    )
    expected = accuracy_score(labels, probabilities > 0.5)
    assert _value(Accuracy(), labels, probabilities) == pytest.approx(expected, abs=1e-12)
    exact = log_loss(labels, probabilities.astype(np.float64))
    assert _value(LogLoss(), labels, probabilities) == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("weights", [None, np.random.default_rng(3).random(5000) * 7])
def test_weighted_metric_values_agree_with_sklearn(weights: Any) -> None:
    labels, probabilities = _examples(5000)
    by: dict[str, Any] = {"sample_weight": weights}
    answers = probabilities > np.float32(0.4)
    exact = probabilities.astype(np.float64)
    squares = sklearns.mean_squared_error(labels, exact, **by)
    for metric, expected in (
        (AUC(), roc_auc_score(labels, probabilities, **by)),
        (Accuracy(threshold=0.4), accuracy_score(labels, answers, **by)),
        (Precision(threshold=0.4), sklearns.precision_score(labels, answers, **by)),
        (Recall(threshold=0.4), sklearns.recall_score(labels, answers, **by)),
        (LogLoss(), log_loss(labels, exact, **by)),
        (MeanSquaredError(), squares),
        (RootMeanSquaredError(), math.sqrt(squares)),
        (MeanAbsoluteError(), sklearns.mean_absolute_error(labels, exact, **by)),
    ):
        tolerance = 1e-4 if isinstance(metric, AUC) else 1e-9
        found = _value(metric, labels, probabilities, weights)
        assert found == pytest.approx(expected, rel=tolerance), metric
        metric.update_state(labels, probabilities, sample_weight=weights)
        assert metric.result() == found


@pytest.mark.parametrize("kind", KINDS)
def test_weight_of_two_equals_repeated_example(kind: type) -> None:
    labels, probabilities = _examples(100)
    twice, weighted = kind(), kind()
    weighted.update_state(labels, probabilities, np.arange(100) % 3)
    for least in (1, 2):
        twice.update_state(labels[np.arange(100) % 3 >= least],
                           probabilities[np.arange(100) % 3 >= least])  # fmt: skip
    assert weighted.result() == twice.result()
    weighted.reset_state()
    weighted.update_state(labels, probabilities, 0.25)
    assert weighted.result() == _value(kind(), labels, probabilities)


@pytest.mark.parametrize("kind", KINDS)
def test_invalid_sample_weights_are_refused(kind: type) -> None:
    for weights, message in (([1.0], "2 labels and 1 weights"), ([1, math.nan], "finite weights")):
        with pytest.raises(InvalidArgumentError, match=message):
            kind().update_state([0, 1], [0.5, 0.5], weights)
    if kind is not LogLoss:
        with pytest.raises(InvalidArgumentError, match=r"below 8,388,608, got 1e\+07: divide"):
            kind().update_state([0, 1], [0.5, 0.5], [1, -1e7])


def test_first_number_that_is_no_probability_is_named() -> None:
    with pytest.raises(InvalidArgumentError, match=r"in \[0, 1\], got nan"):
        LogLoss().update_state([0, 1, 1], [0.0, 1.0, math.nan])


def test_weights_are_refused_by_metric_without_weight_support() -> None:
    class Count(Metric):
        def update(self, state: Any, labels: Any, probabilities: Any) -> Any:  # noqa: ARG002
            return state + len(labels)

        def compute(self, state: Any) -> float:
            return float(state[0])

    count = Count("count", (1,))
    count.update_state([0, 1], [0.5, 0.5])
    assert count.result() == 2
    with pytest.raises(InvalidArgumentError, match=r"'count' takes no weights.*Count\.update a"):
        count.update_state([0, 1], [0.5, 0.5], [1, 2])


def test_precision_and_recall_without_answers_are_nan() -> None:
    assert math.isnan(_value(Precision(), [0, 1], [0.1, 0.2]))
    assert _value(Recall(), [0, 1], [0.1, 0.2]) == 0
    assert math.isnan(_value(Recall(), [0, 0], [0.9, 0.2]))


def test_error_metrics_accept_any_numbers() -> None:
    assert _value(MeanSquaredError(), [3.0, -1.0], [5.0, 3.0]) == 10
    assert _value(MeanAbsoluteError(), [3.0, -1.0], [5.0, 3.0], [3, 1]) == 2.5
    assert _value(RootMeanSquaredError(), [1e9 + 1], [1e9 + 3]) == 2
    assert math.isnan(_value(MeanSquaredError(), [math.inf], [0.0]))


def test_auc_counts_ties_as_half() -> None:
    random = np.random.default_rng(4)
    labels = random.integers(0, 2, 300)
    probabilities = (random.integers(0, 8, 300) / 8).astype(np.float32)
    assert _value(AUC(), labels, probabilities) == pytest.approx(
        roc_auc_score(labels, probabilities), abs=1e-12
    )
    assert _value(AUC(), np.array([0, 1]), np.array([0.0, 1.0])) == 1.0
    assert _value(AUC(), np.array([1, 0]), np.array([0.0, 1.0])) == 0.0


@pytest.mark.parametrize("kind", [*KINDS, *ERRORS])
def test_merging_states_in_any_grouping_gives_identical_value(kind: type) -> None:
    metric, (labels, probabilities) = kind(), _examples(1000, seed=1)
    random = np.random.default_rng(2)
    weights = random.random(1000)
    whole = _value(metric, labels, probabilities, weights)
    for _ in range(5):
        order = random.permutation(1000)
        state = metric.initial_state()
        for part in np.array_split(order, random.integers(1, 20)):
            examples = labels[part], probabilities[part], weights[part]
            other = metric.update(metric.initial_state(), *examples)
            state = metric.merge(state, other)
        assert metric.compute(state) == whole
    np.testing.assert_array_equal(metric.merge(state, state), 2 * state)


@given(st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=30), st.randoms())
def test_mean_is_exact_in_any_order(values: list[float], random: object) -> None:
    from fractions import Fraction

    metric = Mean()
    expected = float(sum(map(Fraction, values), Fraction(0)) / len(values))
    random.shuffle(values)  # type: ignore[attr-defined]
    state = metric.initial_state()
    for value in values:
        state = metric.merge(state, metric.update(metric.initial_state(), value))
    assert metric.compute(state) == expected


def test_mean_can_be_weighted() -> None:
    metric = Mean()
    metric.update_state([1.0, 2.0], [3.0, 1.0])
    metric.update_state(9.0, sample_weight=4.0)
    metric.update_state([4.0, 5.0], 0.5)
    assert metric.result() == (3 + 2 + 36 + 4.5) / 9
    with pytest.raises(InvalidArgumentError, match="2 values and 1 weights"):
        metric.update_state([1.0, 2.0], [1.0])


def test_mean_of_nan_is_nan() -> None:
    metric = Mean()
    metric.update_state([1.0, math.nan])
    assert math.isnan(metric.result())
    metric.reset_state()
    metric.update_state(2.0)
    assert metric.result() == 2.0


@pytest.mark.parametrize(
    ("values", "weights", "message"),
    [
        ("a", None, "metric 'mean': values are not numbers but <U1: map them to numbers"),
        (None, None, "metric 'mean': values are not numbers but None"),
        ([[1.0], [1.0, 2.0]], None, "values are not numbers but lists of several lengths"),
        ([1.0, None], None, "metric 'mean': values hold 1 nulls: filter them out"),
        ([1.0], ["a"], "metric 'mean': weights are not numbers but <U1"),
    ],
)
def test_mean_of_non_numeric_values_is_refused(values: Any, weights: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Mean().update_state(values, weights)


@pytest.mark.parametrize("kind", [*KINDS, *ERRORS, Mean])
def test_metric_without_examples_is_nan(kind: type) -> None:
    assert math.isnan(kind().result())


def test_auc_of_one_class_is_nan() -> None:
    assert math.isnan(_value(AUC(), np.ones(3), np.full(3, 0.5)))


def test_metric_result_is_float_with_numpy_method() -> None:
    metric = Accuracy()
    metric.update_state([0, 1, 1], [0.1, 0.9, 0.2])
    value = metric.result()
    assert value == 2 / 3
    assert value.numpy() == 2 / 3
    assert isinstance(value.numpy(), np.generic)
    assert isinstance(value, float)
    assert f"{value:.2f} {value}" == "0.67 0.6666666666666666"
    assert json.loads(json.dumps({"accuracy": value})) == {"accuracy": 2 / 3}
    assert pickle.loads(pickle.dumps(value)) == value


@pytest.mark.parametrize("kind", KINDS)
def test_calling_metric_adds_examples_and_returns_value(kind: type) -> None:
    metric, other = kind(), kind()
    metric(*_examples(100, 0))
    other.update_state(*_examples(100, 0))
    other.update_state(*_examples(100, 1))
    assert metric(*_examples(100, 1)) == other.result()


@pytest.mark.parametrize("kind", KINDS)
def test_merge_state_adds_examples_of_other_metrics(kind: type) -> None:
    first, second, whole = kind(), kind(), kind()
    for metric in (first, whole):
        metric.update_state(*_examples(100, 0))
    for metric in (second, whole):
        metric.update_state(*_examples(50, 1))
    first.merge_state([second, kind()])
    assert first.result() == whole.result()
    with pytest.raises(InvalidArgumentError, match="of its own class and shape"):
        first.merge_state([Mean()])


def test_merge_state_refuses_another_shape_and_adds_nothing_of_it() -> None:
    first, other = AUC(bins=8), AUC(bins=16)
    other.update_state([0, 1], [0.25, 0.75])
    with pytest.raises(InvalidArgumentError, match=r"shape \(8, 2, 2\)"):
        first.merge_state([other])
    assert math.isnan(first.result())


class _Banded(Mean):
    """A mean with settings of its own: a list of arrays, a function and a private one.

    ``steps`` is none: it is what the metric has done.
    """

    def __init__(self, edges: list[int], calls: int = 0) -> None:
        super().__init__("banded")
        self.edges = [np.array(edges)]
        self.change = lambda value: value
        self._calls = self.steps = calls


@pytest.mark.parametrize(
    ("first", "other", "told"),
    [
        (Accuracy(threshold=0.5), Accuracy(threshold=0.9), "threshold=0.5.*threshold=0.9"),
        (Precision(threshold=0.25), Precision(), "threshold=0.25.*threshold=0.5"),
        (LogLoss(epsilon=1e-3), LogLoss(epsilon=1e-7), "epsilon=0.001.*epsilon=1e-07"),
        (GAUC(group="user"), GAUC(group="item"), "group='user'.*group='item'"),
        (NDCG(5, group="user"), NDCG(9, group="user"), "k=5.*k=9"),
        (_Banded([0, 1]), _Banded([0, 2]), r"edges=\[\[0, 1\]\].*edges=\[\[0, 2\]\]"),
    ],
)
def test_merge_state_refuses_other_settings_and_adds_nothing_at_all(
    first: Any, other: Any, told: str
) -> None:
    alike = copy.deepcopy(first)
    groups = {} if first.group is None else {"groups": [1, 1]}
    for metric in (alike, other):
        examples = [0.25] if isinstance(metric, Mean) else [[0, 1], [0.25, 0.75]]
        metric.update_state(*examples, **groups)
    with pytest.raises(InvalidArgumentError, match=told):
        first.merge_state([alike, other])
    assert math.isnan(first.result())


def test_merge_state_takes_metrics_that_differ_in_name_and_in_what_is_no_setting() -> None:
    first, other = Accuracy("first"), Accuracy("other")
    other.update_state([1, 1], [0.75, 0.25])
    first.merge_state([other])
    assert first.result() == 0.5
    banded, same = _Banded([0, 1], calls=1), _Banded([0, 1], calls=2)
    same.update_state([3.0])
    banded.merge_state([same])
    assert banded.result() == 3


@pytest.mark.parametrize("kind", KINDS)
def test_metric_accumulates_until_reset_state(kind: type) -> None:
    metric = kind()
    for seed in range(3):
        metric.update_state(*_examples(100, seed))
    parts = [_examples(100, seed) for seed in range(3)]
    labels, probabilities = (np.concatenate(column) for column in zip(*parts, strict=True))
    assert metric.result() == _value(metric, labels, probabilities)
    metric.reset_state()
    assert math.isnan(metric.result())


@pytest.mark.parametrize("kind", KINDS)
def test_metric_without_examples_is_reset_merged_and_saved(
    kind: type, tmp_path: pathlib.Path
) -> None:
    metric, trained = kind(), kind()
    metric.reset_state()
    metric.update_state([], [], sample_weight=[])
    metric.merge_state([kind()])
    assert math.isnan(metric.result())
    trained.update_state(*_examples(100, 0))
    path = Checkpoint(metric=trained).save(tmp_path)
    unused = kind()
    Checkpoint(metric=unused).restore(path)
    assert unused.result() == trained.result()
    Checkpoint(metric=kind()).save(tmp_path)


def test_called_metric_weighs_examples_and_returns_its_value() -> None:
    metric = Accuracy()
    assert metric([1, 0], [0.75, 0.75], sample_weight=[3.0, 1.0]) == 0.75
    assert metric([1], [0.25]) == 0.6


def test_metric_in_the_form_of_keras_is_refused_where_its_class_is_made() -> None:
    methods = {"result": lambda _: 0.0, "update_state": lambda *_: None}
    for name, method in methods.items():
        with pytest.raises(TypeError, match="metric Mine overrides update_state and result"):
            type("Mine", (Metric,), {name: method})
        type("Mine", (Accuracy,), {name: method})  # has an update
        type("Mine", (Metric,), {name: method, "update": lambda *_: None})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wrong", [1.5, -0.1, math.nan])
def test_probabilities_outside_unit_interval_are_refused(kind: type, wrong: float) -> None:
    with pytest.raises(InvalidArgumentError, match=r"probabilities in \[0, 1\]"):
        kind().update_state([0, 1], [0.5, wrong])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wrong", [-1.0, 2.0, math.nan])
def test_labels_outside_zero_to_one_are_refused(kind: type, wrong: float) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"labels .* got {wrong:g}: map"):
        kind().update_state([0, wrong], [0.5, 0.5])


def test_smoothed_labels_are_accepted_by_log_loss_only() -> None:
    loss = LogLoss()
    loss.update_state([0.25], [0.5])
    assert loss.result() == pytest.approx(math.log(2))
    for metric in (AUC(), Accuracy(), Precision()):
        with pytest.raises(InvalidArgumentError, match=r"needs labels 0 and 1, got 0\.25"):
            metric.update_state([0.25], [0.5])


@pytest.mark.parametrize("kind", KINDS)
def test_labels_and_probabilities_of_different_lengths_are_refused(kind: type) -> None:
    with pytest.raises(InvalidArgumentError, match="2 labels and 1 probabilities"):
        kind().update_state([0, 1], [0.5])


def test_closure_cannot_update_metric_made_outside_strategy() -> None:
    metric = Accuracy()
    token = StepToken("session", 0, 0)
    with step_scope(token), pytest.raises(FailedPreconditionError, match=r"strategy\.scope"):
        metric.update_state([1], [0.9])


@pytest.mark.parametrize("kind", KINDS)
def test_metric_made_inside_closure_is_local_to_it(kind: type) -> None:
    here = kind()
    here.update_state([1, 0, 1, 0], [0.9, 0.9, 0.3, 0.8])
    with step_scope(StepToken("session", 0, 0)):
        metric, other = kind(), kind()
        metric.update_state([1, 0], [0.9, 0.9])
        metric.update_state([1, 0], [0.3, 0.8])
        other.merge_state([metric, metric])
        assert metric.result() == other.result() == here.result()
        assert metric.variables == []
        metric.reset_state()
        assert math.isnan(metric.result())


def test_metric_under_strategy_creates_its_state_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not Accuracy().variables
    monkeypatch.setattr("pstrain.metrics.base.LocalPlacement", int)
    assert LocalPlacement is not int
    assert len(Accuracy().variables) == 1
