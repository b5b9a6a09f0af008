"""Metrics by group: values against sklearn, exact merging, and where they are computed."""

from __future__ import annotations

import itertools
import math
import pathlib
import pickle
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import ndcg_score, roc_auc_score

import dataservice as ds
import pstrain as ps
from pstrain import evaluation
from pstrain.callbacks.monitor import Monitor
from pstrain.errors import DataError, FailedPreconditionError, InvalidArgumentError
from pstrain.execution.local import LocalExecutor
from pstrain.features.weighting import Weighting
from pstrain.metrics import GAUC, NDCG, HitRate, Metric, RecallAtK, named
from pstrain.metrics.by_group import GroupMetric
from pstrain.metrics.grouping import Grouping
from pstrain.metrics.tally import MergedState
from pstrain.serialization import results
from pstrain.variables.parameters import step_scope
from pstrain.vocabulary import OUTCOME_MAX_BYTES, StepToken

pytestmark = pytest.mark.usefixtures("own_parameters")

METRICS = [
    GAUC(group="user"), NDCG(3, group="user"), HitRate(3, group="user"), RecallAtK(3, group="user"),
]  # fmt: skip


def _rows(count: int = 2000, seed: int = 0) -> tuple[np.ndarray, ...]:
    """Returns labels, probabilities (with ties), groups and weights."""
    random = np.random.default_rng(seed)
    groups, labels = random.integers(-40, 40, count), random.integers(0, 2, count)
    scores = np.round(random.random(count) * 0.6 + 0.2 * labels, 2).astype(np.float32)
    return labels, scores, groups, random.random(count) * 3


def _state(metric: Any, labels: Any, scores: Any, groups: Any, weights: Any = None) -> Any:
    by = {"weights": weights} if weights is not None and isinstance(metric, GAUC) else {}
    return metric.update(metric.initial_state(), labels, scores, groups=groups, **by)


def _value(metric: Any, *rows: Any) -> float:
    return float(metric.compute(_state(metric, *rows)))


@pytest.mark.parametrize("is_weighed", [False, True])
def test_gauc_is_mean_of_sklearns_areas_by_weight_of_group(is_weighed: bool) -> None:
    labels, scores, groups, weights = _rows(400)
    labels[groups == 7] = 1  # one class only
    by = weights if is_weighed else np.ones(400)
    areas, sizes = [], []
    for group in np.unique(groups):
        mine = groups == group
        if len(set(labels[mine])) == 2:
            areas.append(roc_auc_score(labels[mine], scores[mine], sample_weight=by[mine]))
            sizes.append(by[mine].sum())
    assert len(areas) < len(np.unique(groups))
    found = _value(METRICS[0], labels, scores, groups, weights if is_weighed else None)
    assert found == pytest.approx(np.average(areas, weights=sizes), rel=1e-12)


@pytest.mark.parametrize("grades", [2, 4])
@pytest.mark.parametrize("k", [1, 5, 100])
def test_ndcg_agrees_with_sklearn_which_averages_ties_too(grades: int, k: int) -> None:
    _, scores, groups, _ = _rows()
    labels = np.random.default_rng(2).integers(0, grades, 2000)
    labels[groups == 7] = 0
    values = [
        ndcg_score([2.0 ** labels[groups == group] - 1], [scores[groups == group]], k=k)
        for group in np.unique(groups)
        if group != 7
    ]
    found = _value(NDCG(k, group="user"), labels, scores, groups)
    assert found == pytest.approx(np.mean(values), rel=1e-12)


def test_hit_rate_and_recall_count_relevant_rows_among_the_highest() -> None:
    rows = [1, 0, 1, 0, 0, 0], [0.9, 0.8, 0.1, 0.3, 0.2, 0.1], ["a", "a", "a", "b", "b", "b"]
    assert _value(HitRate(1, group="g"), *rows) == 1
    assert _value(RecallAtK(1, group="g"), *rows) == 0.5
    rows[0][5] = 1
    assert _value(HitRate(2, group="g"), *rows) == 0.5
    assert _value(RecallAtK(2, group="g"), *rows) == 0.25
    tied = [1, 0, 0], [0.5, 0.5, 0.5], [1, 1, 1]
    assert _value(HitRate(1, group="g"), *tied) == pytest.approx(1 / 3)


@pytest.mark.parametrize("metric", METRICS)
@given(
    order=st.permutations(range(40)),
    cuts=st.lists(st.integers(0, 40), max_size=5),
    is_weighed=st.booleans(),
)
def test_any_division_of_rows_gives_the_same_figure(
    metric: Any, order: list[int], cuts: list[int], is_weighed: bool
) -> None:
    labels, scores, groups, weights = _rows(40, seed=1)
    # Few groups and scores: the order of tied rows must not change sums of weights either.
    given_rows = (labels, np.round(scores), groups // 30, *((weights,) if is_weighed else ()))
    whole = _value(metric, *given_rows)
    parts = itertools.pairwise(sorted({0, 40, *cuts}))
    merged = MergedState(metric.merge, metric.initial_state())
    for start, stop in parts:
        merged.add(_state(metric, *(column[order[start:stop]] for column in given_rows)))
    assert metric.compute(merged.value()) == whole


def test_weight_of_two_equals_repeated_example_and_no_weight_equals_one() -> None:
    labels, scores, groups, _ = _rows(300)
    times = np.arange(300) % 3
    gauc = METRICS[0]
    again = [np.repeat(column, times) for column in (labels, scores, groups)]
    assert _value(gauc, labels, scores, groups, times) == pytest.approx(
        _value(gauc, *again), rel=1e-12
    )
    half = (labels[:150], scores[:150], groups[:150])
    rest = (labels[150:], scores[150:], groups[150:])
    ones = _state(gauc, *rest, np.ones(150))
    for first, second in ((_state(gauc, *half), ones), (ones, _state(gauc, *half))):
        assert gauc.compute(gauc.merge(first, second)) == _value(gauc, labels, scores, groups)


def test_tiny_weights_are_rounded_as_in_other_metrics() -> None:
    labels, scores, groups = [0, 1, 0, 1], [0.1, 0.2, 0.9, 0.3], [1, 1, 2, 2]
    tiny, unit = 1e-200, 2.0**-40
    assert _value(METRICS[0], labels, scores, groups, [tiny, tiny, 1, 1]) == 0
    assert _value(METRICS[0], labels, scores, groups, [unit, unit, unit, unit]) == 0.5
    assert math.isnan(_value(METRICS[0], labels, scores, groups, [tiny] * 4))


@pytest.mark.parametrize("metric", METRICS)
def test_keys_of_groups_may_be_of_any_type_of_integers_or_text(metric: Any) -> None:
    labels, scores, groups, _ = _rows(500)
    expected = _value(metric, labels, scores, groups)
    texts = [f"user {group}" for group in groups]
    for given_groups in (
        groups.astype(np.int8), groups.tolist(), pa.array(groups, pa.int32()), texts,
        np.array(texts), pa.array(texts).dictionary_encode(), pa.chunked_array([texts]),
    ):  # fmt: skip
        assert _value(metric, labels, scores, given_groups) == pytest.approx(expected, rel=1e-12)


def test_scores_may_be_any_numbers() -> None:
    labels, scores, groups, _ = _rows(500)
    gauc = METRICS[0]
    logits = np.log(scores) - np.log1p(-scores)
    assert _value(gauc, labels, logits, groups) == _value(gauc, labels, scores, groups)
    assert _value(gauc, [0, 1], [-0.0, 0.0], [1, 1]) == 0.5
    assert _value(gauc, [0, 1], [-math.inf, -1e30], [1, 1]) == 1


@pytest.mark.parametrize("metric", METRICS)
def test_figure_without_a_group_that_counts_is_nan(metric: Metric) -> None:
    assert math.isnan(metric.compute(metric.initial_state()))
    assert math.isnan(_value(metric, [0, 0], [0.5, 0.6], [1, 1]))


def test_update_state_accumulates_until_reset_in_this_process_only() -> None:
    labels, scores, groups, weights = _rows(300)
    gauc, other = GAUC(group="user", name="g"), GAUC(group="user")
    for at in range(0, 300, 100):
        part = slice(at, at + 100)
        gauc.update_state(labels[part], scores[part], weights[part], groups[part])
    assert gauc.result() == _value(gauc, labels, scores, groups, weights)
    other.update_state(labels, scores, groups=groups)
    other.reset_state()
    other.merge_state([gauc])
    assert other.result() == gauc.result()
    assert math.isnan(pickle.loads(pickle.dumps(gauc)).result())
    assert gauc.variables == []
    assert gauc.name == "g"
    assert NDCG(10, group="user").name == "ndcg_at_10"


def test_scheduled_function_cannot_use_rows_of_the_program_but_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pstrain.metrics.base.LocalPlacement", int)  # as in strategy.scope()
    made = GAUC(group="user")
    with step_scope(StepToken("session", 0, 0)):
        update = partial(made.update_state, [0, 1], [0.1, 0.2], groups=[1, 1])
        for use in (update, made.result, made.reset_states):
            with pytest.raises(FailedPreconditionError, match=r"'gauc' .* return metric\.update"):
                use()
        own = GAUC(group="user")
        own.update_state([0, 1], [0.1, 0.2], groups=[1, 1])
        assert own.result() == 1
        state = made.update(made.initial_state(), [0, 1], [0.1, 0.2], groups=[1, 1])
    made.add_state(state)
    assert made.result() == 1


def test_metric_by_group_is_refused_by_checkpoint(tmp_path: pathlib.Path) -> None:
    checkpoint = ps.Checkpoint(gauc=GAUC(group="user"), v=ps.Variable(1.0))
    with pytest.raises(InvalidArgumentError, match=r"'gauc' keeps its rows .* leave it out"):
        checkpoint.save(tmp_path)


@pytest.mark.parametrize(
    ("metric", "rows", "message"),
    [
        (METRICS[0], ([0, 1], [0.5, 0.5], None), "'gauc' ranks the rows .* give groups=.*'user'"),
        (METRICS[0], ([0, 1], [0.5, 0.5], [1]), "2 labels and 1 groups"),
        (METRICS[0], ([0, 1], [0.5, math.nan], [1, 1]), "by probabilities, got nan"),
        (METRICS[0], ([0, 2], [0.5, 0.5], [1, 1]), "labels 0 and 1, got 2"),
        (METRICS[0], ([0, 1], [0.5, 0.5], [1, 1], [1, -2]), "by weight, got -2: give weights from"),
        (METRICS[0], ([0, 1], [0.5, 0.5], [1, 1], [1, 2**23]), "weights below 8,388,608, got"),
        (METRICS[1], ([0, 32], [0.5, 0.5], [1, 1]), "'ndcg_at_3' needs labels from 0 to 31, got 3"),
        (METRICS[2], ([0, -1], [0.5, 0.5], [1, 1]), "labels from 0 to 31, got -1"),
        (METRICS[0], ([0, 1], [0.5, 0.5], [1.5, 2]), "groups hold double: cast them to integers"),
        (METRICS[0], ([0, 1], [0.5, 0.5], ["a", None]), "row 1: the row is in no group: fill null"),
    ],
)  # fmt: skip
def test_wrong_rows_are_refused(metric: Any, rows: Any, message: str) -> None:
    with pytest.raises((InvalidArgumentError, DataError), match=message):
        _state(metric, *rows)


def test_wrong_arguments_are_refused() -> None:
    for make, message in (
        (lambda: GAUC(group=3), "group, the name of a column, must be text, got 3"),  # type: ignore[arg-type]
        (lambda: NDCG(0, group="user"), "k must be"),
        (lambda: named("gauc"), r"'gauc' needs the column .* GAUC\(group='user_id'\)"),
        (lambda: named("NDCG"), r"NDCG\(k, group='user_id'\)"),
        (lambda: METRICS[1].update_state([0], [0.5], [1], [1]), "'ndcg_at_3' takes no weights"),
    ):
        with pytest.raises((InvalidArgumentError, TypeError), match=message):
            make()


@pytest.mark.parametrize("name", ["val_gauc", "ndcg_at_10", "val_hit_rate_at_5", "recall_at_20"])
def test_figures_by_group_are_monitored_for_their_highest_value(name: str) -> None:
    assert Monitor(name).mode == "max"


def test_merging_many_growing_states_copies_each_a_few_times() -> None:
    copied = 0

    def merge(first: np.ndarray, second: np.ndarray) -> np.ndarray:
        nonlocal copied
        copied += len(first) + len(second)
        return np.concatenate([first, second])

    merged = MergedState(merge, np.empty(0, np.int64))
    for number in range(256):
        merged.add(np.array([number]))
    assert sorted(merged.value()) == list(range(256))
    assert copied <= 256 * 9


def test_merging_states_of_one_size_keeps_one() -> None:
    merged = MergedState(np.add, np.zeros(4))
    for _ in range(5):
        merged.add(np.ones(4))
    assert len(merged._parts) == 1
    assert merged.value().tolist() == [5] * 4


SCHEMA = ps.FeatureSchema(dense=["price"], label="label")


def _clicks(count: int = 1000) -> dict[str, Any]:
    labels, scores, groups, weights = _rows(count)
    users = np.array([f"u{group}" for group in groups])
    return {"price": scores, "label": labels, "user": users, "day": groups % 7, "w": weights}


def _model(**metrics: Any) -> Any:
    made = ps.models.LogisticRegression(SCHEMA)
    made.compile(ps.optimizers.SGD(0.5), **metrics)
    return made


def _expected(model: Any, metric: Any, data: dict[str, Any], **weights: Any) -> float:
    probabilities = model.predict(data)
    return _value(metric, data["label"], probabilities, data[metric.group], *weights.values())


def test_evaluate_ranks_by_columns_that_the_model_does_not_read() -> None:
    data, by_day = _clicks(), HitRate(2, group="day")
    weighted = GAUC(group="user", name="weighted")
    model = _model(metrics=["auc", *METRICS, by_day], weighted_metrics=[weighted])
    model.fit(data, verbose=0)
    for rows in (data, pa.table(data), ds.Dataset.from_numpy(data).batch(64)):
        logs = model.evaluate(rows, verbose=0, sample_weight="w")
        for metric in (*METRICS, by_day):
            assert logs[metric.name] == _expected(model, metric, data), metric
        assert logs["weighted"] == _expected(model, weighted, data, w=np.float32(data["w"]))
        assert logs["weighted"] != logs["gauc"]


def test_fit_computes_metrics_by_group_of_validation_data_only() -> None:
    data = _clicks()
    model = _model(metrics=[GAUC(group="user")], weighted_metrics=["auc"])
    found = model.fit(data, epochs=2, validation_data=data, verbose=0, sample_weight="w").history
    assert found.keys() >= {"auc", "val_auc", "val_gauc"}
    assert "gauc" not in found
    assert found["val_gauc"][-1] == _expected(model, METRICS[0], data)
    assert "val_gauc" not in model.fit(data, verbose=0).history
    alone = _model(metrics=[GAUC(group="user")])
    assert "gauc" not in alone.fit(data, verbose=0).history


def test_sidecar_evaluates_checkpoints_by_group(tmp_path: pathlib.Path) -> None:
    data, model = _clicks(), _model(metrics=[GAUC(group="user")])
    model.fit(data, verbose=0)
    ps.Checkpoint(model=model, optimizer=model.optimizer).save(tmp_path)
    sidecar = ps.SidecarEvaluator(model, data, tmp_path, monitor="gauc", max_evaluations=1)
    assert sidecar.start()[0]["metrics"]["gauc"] == _expected(model, METRICS[0], data)


def test_data_without_the_column_of_groups_is_refused() -> None:
    model = _model(metrics=[GAUC(group="session")])
    data = _clicks(10)
    with pytest.raises(DataError, match=r"'session' of groups; it has .* by group= of metric 'gau"):
        model.evaluate(data, verbose=0)
    encoded = ds.Dataset.from_numpy(data).batch(5)
    with pytest.raises(DataError, match="encoded batches have no column 'session' of groups"):
        evaluation.Grouping(model.metrics).of(model.encode(next(iter(encoded))))
    with pytest.raises(InvalidArgumentError, match="takes no weights"):
        _model(weighted_metrics=[NDCG(3, group="user")])


def test_call_that_has_collected_enough_rows_ends_and_the_next_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = _clicks()
    model = _model(metrics=[GAUC(group="user")])
    calls: list[int] = []
    run_once = LocalExecutor.run_once

    def counted(*args: Any, **options: Any) -> Any:
        for report in run_once(*args, **options):
            calls.append(report["steps"])
            yield report

    monkeypatch.setattr(LocalExecutor, "run_once", counted)
    monkeypatch.setattr(evaluation, "_ROWS_MAX_BYTES", 3 * 50 * 16)
    logs = model.evaluate(data, batch_size=50, verbose=0)
    assert calls == [3] * 6 + [2]
    assert logs["gauc"] == _expected(model, METRICS[0], data)
    assert logs["examples"] == 1000


def test_report_of_a_call_is_kept_by_servers_if_its_trainer_is_lost() -> None:
    metrics = ["auc", GAUC(group="user"), NDCG(3, group="user")]
    model = _model(metrics=metrics, weighted_metrics=[GAUC(group="user", name="weighted")])
    batches = ds.Dataset.from_numpy(_clicks(8 * 4096)).batch(4096)
    step = evaluation.EvaluateSteps(
        model, model.metrics, model.weighted_metrics, Weighting("w"), Grouping(model.metrics)
    )
    report = step(iter(batches), 8)
    assert 0 < report["steps"] < 8
    assert not report["ended"]
    assert len(results.encode(report)) < OUTCOME_MAX_BYTES


def test_base_of_metrics_by_group_is_no_metric_of_its_own() -> None:
    with pytest.raises(TypeError, match="abstract"):
        GroupMetric("g", "user")  # type: ignore[abstract]


@pytest.mark.parametrize(
    ("kind", "name"), [(NDCG, "ndcg_at_3"), (HitRate, "hit_rate_at_3"), (RecallAtK, "recall_at_3")]
)
def test_ranking_metrics_are_named_after_k_unless_given_a_name(kind: Any, name: str) -> None:
    assert kind(3, group="user").name == name
    assert kind(3, group="user", name="mine").name == "mine"


def test_largest_grade_is_accepted() -> None:
    metric = NDCG(1, group="user")
    metric.update_state([31, 0], [0.2, 0.1], groups=[1, 1])
    assert metric.result() == 1.0
    with pytest.raises(InvalidArgumentError, match="labels from 0 to 31, got 32"):
        metric.update_state([32, 0], [0.2, 0.1], groups=[1, 1])
