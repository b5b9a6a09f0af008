"""The arguments of compile: objects or names, made inside or outside the model's strategy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from pstrain import losses, metrics, models, optimizers
from pstrain.errors import InvalidArgumentError, InvalidTypeError
from pstrain.variables.scope import local_parameters
from pstrain.variables.variable import Variable

SCHEMA = pa.schema({"x": pa.float32(), "c": pa.int64(), "label": pa.int64()})


@contextmanager
def _strategy() -> Iterator[Any]:
    """Yields a strategy that places variables elsewhere than this process usually does."""
    with local_parameters() as parameters:

        @contextmanager
        def scope() -> Iterator[None]:
            yield

        yield SimpleNamespace(
            scope=scope,
            extended=SimpleNamespace(
                variable_created_in_scope=lambda variable: variable.parameters is parameters
            ),
        )


def test_compile_resolves_optimizer_and_metric_names() -> None:
    model = models.LogisticRegression(SCHEMA)
    model.compile("adagrad", metrics=["AUC", metrics.LogLoss()])
    assert isinstance(model.optimizer, optimizers.Adagrad)
    assert [type(metric) for metric in model.metrics] == [metrics.AUC, metrics.LogLoss]
    model.compile(optimizers.SGD(0.1), metrics="accuracy")
    assert [metric.name for metric in model.metrics] == ["accuracy"]
    model.compile(optimizers.SGD(0.1), metrics=["acc"])
    assert [metric.name for metric in model.metrics] == ["acc"]
    model.compile("RowWiseAdagrad", metrics=["LogLoss"])
    assert isinstance(model.optimizer, optimizers.RowWiseAdagrad)
    assert isinstance(model.metrics[0], metrics.LogLoss)
    model.compile("sgd", metrics=None)
    assert model.metrics == []
    model.compile("sgd", metrics=[metrics.AUC(), metrics.AUC("coarse", bins=4)])
    assert [metric.name for metric in model.metrics] == ["auc", "coarse"]
    model.compile("sgd", metrics="rmse", weighted_metrics=["AUC", "precision"])
    assert [metric.name for metric in model.metrics] == ["rmse", "auc", "precision"]
    assert model.weighted_metrics == model.metrics[1:]
    model.compile("sgd", metrics=["auc", "mse"], weighted_metrics=["auc", "mae"])
    assert [metric.name for metric in model.metrics] == ["auc", "mse", "weighted_auc", "mae"]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"optimizer": 3}, InvalidTypeError, "such as Adagrad"),
        ({"optimizer": "lion"}, InvalidArgumentError, "unknown optimizer 'lion': choose one of"),
        ({"metrics": [3]}, InvalidTypeError, "such as AUC"),
        ({"metrics": ["f1"]}, InvalidArgumentError, "unknown metric 'f1': choose one of"),
        ({"metrics": ["auc", "auc"]}, InvalidArgumentError, r"another 'auc'.*AUC\(name='auc_2'\)"),
        ({"metrics": [metrics.AUC("loss")]}, InvalidArgumentError, "another 'loss'"),
        (
            {"metrics": "auc", "weighted_metrics": [metrics.AUC()]},
            InvalidArgumentError,
            "another 'auc'",
        ),
        ({"weighted_metrics": [metrics.Mean()]}, InvalidArgumentError, "'mean' takes no weights"),
    ],
)
def test_invalid_compile_arguments_are_refused_by_name(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        models.LogisticRegression(SCHEMA).compile(**arguments)


def test_fit_of_model_without_optimizer_asks_for_compile() -> None:
    with pytest.raises(InvalidArgumentError, match=r"call model\.compile\(optimizer="):
        models.LogisticRegression(SCHEMA).fit({"x": [0.5], "c": [1], "label": [1]})


def test_unused_optimizer_is_moved_into_strategy_of_model() -> None:
    model = models.LogisticRegression(SCHEMA)
    optimizer = optimizers.SGD(0.1)
    with _strategy() as strategy:
        model.strategy = strategy
        model.compile(optimizer)
        assert model.optimizer is optimizer
        assert strategy.extended.variable_created_in_scope(optimizer.iterations)
        counter = optimizer.iterations
        model.compile(optimizer)
        assert optimizer.iterations is counter


def test_optimizer_with_steps_outside_strategy_is_refused() -> None:
    model, weight = models.LogisticRegression(SCHEMA), Variable(1.0)
    optimizer = optimizers.SGD(0.1)
    optimizer.apply_gradients([(1.0, weight)])
    with _strategy() as strategy:
        model.strategy = strategy
        with pytest.raises(InvalidArgumentError, match="has made 1 steps outside"):
            model.compile(optimizer)


def test_labels_passed_beside_data_are_refused_with_remedy() -> None:
    model = models.LogisticRegression(SCHEMA)
    model.compile("adagrad")
    with pytest.raises(ValueError, match=r"got list: labels are the column 'label' of the data"):
        model.fit({"x": [1.0], "c": [1]}, [1])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"takes no argument 'y': labels are a column"):
        model.fit({"x": [1.0], "c": [1]}, [1], epochs=2)  # type: ignore[misc]
    with pytest.raises(TypeError, match="multiple values for argument 'epochs'"):
        model.fit({"x": [1.0], "c": [1], "label": [1]}, 1, epochs=2)  # type: ignore[misc]


def test_loss_that_models_minimise_may_be_named() -> None:
    made = models.LogisticRegression(SCHEMA)
    for loss in (None, "binary_crossentropy", losses.BinaryCrossentropy()):
        made.compile("sgd", loss=loss)
        assert repr(made.objective) == "BinaryCrossentropy(from_logits=True, reduction='mean')"
    for loss in ("mse", losses.MeanSquaredError()):
        made.compile("sgd", loss=loss)
        assert isinstance(made.objective, losses.MeanSquaredError)
    made.compile("adagrad", metrics=["mae"])
    assert isinstance(made.objective, losses.MeanSquaredError)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("hinge", "unknown loss 'hinge': choose one of binary_crossentropy, huber, .*GradientTape"),
        ("mean_squared_eror", "did you mean 'mean_squared_error'"),
        (losses.BinaryCrossentropy(reduction="none"), "minimises the mean of a loss, got Binary"),
        (print, "or an object of pstrain.losses, got <built-in function print>: for another"),
    ],
)
def test_other_losses_are_refused_and_change_nothing(wrong: Any, message: str) -> None:
    made = models.LogisticRegression(SCHEMA)
    made.compile("sgd", metrics=["mse"], loss="mse")
    with pytest.raises(InvalidArgumentError, match=message):
        made.compile("adagrad", loss=wrong)
    assert isinstance(made.optimizer, optimizers.SGD)
    assert isinstance(made.objective, losses.MeanSquaredError)


def test_loss_in_the_place_of_metrics_is_told_its_own() -> None:
    made = models.LogisticRegression(SCHEMA)
    with pytest.raises(InvalidArgumentError, match=r"by name: loss='binary_crossentropy'"):
        made.compile("sgd", "binary_crossentropy")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match='is "log_loss" as a metric'):
        made.compile("sgd", ["BinaryCrossentropy"])


def test_result_of_evaluate_is_a_dict_as_keras_asks_for() -> None:
    made = models.LogisticRegression(SCHEMA)
    made.compile("sgd")
    rows = {"x": [0.5, -0.5], "c": [1, 2], "label": [1, 0]}
    assert "loss" in made.evaluate(rows, return_dict=True, verbose=0)
    with pytest.raises(InvalidArgumentError, match="leave return_dict= out"):
        made.evaluate(rows, return_dict=False)


@pytest.mark.parametrize("metric", ["auc", "accuracy", "precision", "recall", "log_loss"])
def test_metrics_of_probabilities_are_refused_for_a_regression(metric: str) -> None:
    made = models.LogisticRegression(SCHEMA)
    for options in ({"metrics": [metric]}, {"weighted_metrics": metric}):
        with pytest.raises(InvalidArgumentError, match=rf"'{metric}' measures probabil.*\"rmse\""):
            made.compile("sgd", loss="mse", **options)  # type: ignore[arg-type]
    assert made.optimizer is None
    by_user = metrics.NDCG(5, group="user")
    made.compile("sgd", ["rmse", "r2_score", by_user], loss="mse")
    with pytest.raises(InvalidArgumentError, match="measures probabilities"):
        made.compile("sgd", [metric])


def test_loss_object_in_the_place_of_metrics_is_told_its_own() -> None:
    with pytest.raises(InvalidTypeError, match=r"MeanSquaredError\(.*is a loss, and given by name"):
        models.LogisticRegression(SCHEMA).compile("sgd", losses.MeanSquaredError())  # type: ignore[arg-type]
