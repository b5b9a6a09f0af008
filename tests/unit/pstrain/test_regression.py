"""Models that predict numbers: their labels, loss, predictions and metrics, and saved ones."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sklearn.metrics import mean_absolute_error, mean_squared_error

import pstrain as ps
from pstrain.errors import DataError, InvalidArgumentError
from pstrain.serialization.pickling import capture_generation

SCHEMA = ps.FeatureSchema(
    dense=["size"], categorical={"city": ps.Category(8, hashed=False)}, label="price"
)
KINDS = ["LogisticRegression", "FactorizationMachine", "WideDeep", "DeepFM", "DLRM", "DCNv2"]


def flats(rows: int = 2_000) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    city, size = rng.integers(0, 8, rows), rng.normal(size=rows).astype(np.float32)
    weight = rng.random(rows)
    return {"city": city, "size": size, "price": 2.0 * size + city - 4.0, "weight": weight}


def regression(kind: str = "LogisticRegression", loss: Any = "mse", **options: Any) -> Any:
    given = {} if kind == "LogisticRegression" else {"dim": 4}
    model = getattr(ps.models, kind)(SCHEMA, **given)
    model.compile(ps.optimizers.Adagrad(0.3), loss=loss, **options)
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_every_model_learns_numbers(kind: str) -> None:
    data = flats()
    model = regression(kind, metrics=["mse", "mae", "rmse"])
    history = model.fit(data, epochs=8, batch_size=100, verbose=0).history
    assert history["loss"][-1] < 0.1 * np.var(data["price"]) < history["loss"][0] * 2
    logs = model.evaluate(data, verbose=0)
    predicted = model.predict(data)
    assert predicted.min() < -1
    assert predicted.max() > 1
    assert logs["loss"] == pytest.approx(mean_squared_error(data["price"], predicted), rel=1e-5)
    assert logs["mse"] == pytest.approx(logs["loss"], rel=1e-12)
    assert logs["rmse"] == pytest.approx(logs["mse"] ** 0.5)
    assert logs["mae"] == pytest.approx(mean_absolute_error(data["price"], predicted), rel=1e-5)
    np.testing.assert_array_equal(model.predict_on_batch(data), predicted)


def test_loss_of_a_batch_and_of_a_step_of_ones_own_is_that_of_compile() -> None:
    data = flats(50)
    model = regression(loss=ps.losses.Huber(0.5))
    with ps.GradientTape() as tape:
        loss = model.loss(data)
    expected = ps.losses.Huber(0.5)(data["price"], model.predict_on_batch(data))
    assert float(loss) == float(expected)
    model.optimizer.apply_gradients(tape.gradients(loss))
    assert float(model.loss(data)) < float(loss)


@pytest.mark.parametrize("loss", ["mse", "mae", "huber"])
def test_weights_of_rows_count_in_fit_and_evaluate(loss: str) -> None:
    data = flats(300)
    model = regression(loss=loss, weighted_metrics=["mae"])
    losses = model.objective.of_predictions("loss", data["price"], model.predict(data))
    expected = float(np.mean(losses * data["weight"].astype(np.float32)))
    logs = model.evaluate(data, sample_weight="weight", verbose=0)
    assert logs["loss"] == pytest.approx(expected, rel=1e-6)
    errors = np.abs(model.predict(data) - data["price"])
    assert logs["mae"] == pytest.approx(np.average(errors, weights=data["weight"]), rel=1e-6)
    history = model.fit(data, batch_size=300, sample_weight="weight", verbose=0).history
    assert history["loss"] == [pytest.approx(expected, rel=1e-5)]
    assert history["mae"] == [pytest.approx(logs["mae"], rel=1e-6)]


def test_class_weights_of_numbers_are_refused_before_training() -> None:
    model = regression()
    with pytest.raises(InvalidArgumentError, match=r"MeanSquaredError\(.*give sample_weight, a w"):
        model.fit(flats(), class_weight={1: 2.0}, verbose=0)
    assert int(model.optimizer.iterations) == 0


@pytest.mark.parametrize(
    "column",
    [
        pa.array([250_000, 3, -7]),
        pa.array([4.5, -1.25, 3e30]),
        pa.array([4.5, 3, 1], pa.float16()),
        pa.array([True, False, True]),
        pa.array([[4.5], [3.0], [-1.0]]),
        pa.array([2**63, 1, 2], pa.uint64()),
    ],
)
def test_labels_are_any_finite_numbers(column: pa.Array) -> None:
    model = regression()
    batch = pa.record_batch({"city": [1, 2, 3], "size": [0.0, 1.0, 2.0], "price": column})
    flat = np.asarray([float(np.squeeze(value)) for value in column.to_pylist()], np.float32)
    np.testing.assert_array_equal(model.encode(batch).labels, flat)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([1.0, float("nan"), 2.0]), "column 'price', row 1: nan is not a finite float32"),
        (pa.array([1.0, 2.0, 1e39]), r"row 2: 1e\+39 is not a finite float32: filter such rows"),
        (pa.array([1.0, None, 2.0]), "'price' holds 1 nulls: filter them out"),
        (pa.array(["1", "2", "3"]), "label column 'price' holds string: cast it to numbers"),
        (pa.array([[1.0], [], [2.0]]), "holds list<.*: a model is trained on one number for each"),
    ],
)
def test_other_labels_are_refused_by_column_and_row(column: pa.Array, message: str) -> None:
    batch = pa.record_batch({"city": [1, 2, 3], "size": [0.0, 1.0, 2.0], "price": column})
    with pytest.raises(DataError, match=message):
        regression().loss(batch)


def test_classifier_given_numbers_names_the_loss_for_them() -> None:
    model = ps.models.LogisticRegression(SCHEMA)
    with pytest.raises(DataError, match=r"found .*, \.\.\.: map it to 0 and 1, or, to predict num"):
        model.loss(flats())


def test_diverged_regression_has_no_loss() -> None:
    model = regression()
    model.layers[0].set_weights([np.full(v.shape, np.nan) for v in model.layers[0].variables])
    assert np.isnan(model.evaluate(flats(), verbose=0)["loss"])
    stopped = model.fit(flats(), epochs=3, callbacks=[ps.callbacks.TerminateOnNaN()], verbose=0)
    assert len(stopped.history["loss"]) == 1


def test_saved_regression_is_loaded_as_one(tmp_path: pathlib.Path) -> None:
    data = flats()
    model = regression(loss=ps.losses.Huber(2.0))
    model.fit(data, verbose=0)
    model.save_weights(tmp_path)
    again = ps.models.load_model(tmp_path)
    assert repr(again.objective) == "Huber(delta=2, reduction='mean')"
    np.testing.assert_array_equal(again.predict(data), model.predict(data))
    again.compile(metrics=["mae"])
    found, expected = again.evaluate(data, verbose=0), model.evaluate(data, verbose=0)
    assert found["loss"] == expected["loss"]
    assert "loss" not in ps.models.LogisticRegression(SCHEMA).get_config()


def test_values_of_a_regression_are_not_restored_into_a_classifier(tmp_path: pathlib.Path) -> None:
    regression().save_weights(tmp_path)
    classifier = ps.models.LogisticRegression(SCHEMA)
    with pytest.raises(InvalidArgumentError, match=r"call compile\(loss='mean_squared_error'\) be"):
        classifier.load_weights(tmp_path)
    regression(loss="mae").load_weights(tmp_path)
    classifier.compile(loss="mse")
    classifier.load_weights(tmp_path)
    classifier.compile(loss="binary_crossentropy")
    path = classifier.save_weights(tmp_path / "classifier")
    with pytest.raises(InvalidArgumentError, match=r"compile\(loss='binary_crossentropy'\) before"):
        regression().load_weights(path)


def test_sidecar_evaluates_checkpoints_of_a_regression(tmp_path: pathlib.Path) -> None:
    data = flats()
    model = regression(metrics=["rmse"])
    expected = []
    for _ in range(2):
        model.fit(data, verbose=0)
        ps.Checkpoint(model=model, optimizer=model.optimizer).save(tmp_path)
        expected.append(model.evaluate(data, verbose=0)["rmse"])
    beside = regression(metrics=["rmse"])
    results = ps.SidecarEvaluator(
        beside, data, tmp_path, every=True, timeout=0, monitor="rmse", verbose=0
    ).start()
    assert [each["metrics"]["rmse"] for each in results] == expected
    assert expected[1] < expected[0]
    best = json.loads((tmp_path / "evaluation" / "best.json").read_text())
    assert best["metrics"]["rmse"] == expected[1]


def test_callbacks_watch_errors_of_a_regression() -> None:
    model = regression(metrics=["mae"])
    stop = ps.callbacks.EarlyStopping("val_mae", patience=1, min_delta=1e6)
    plateau = ps.callbacks.ReduceLROnPlateau("val_mae", factor=0.5, patience=1, min_delta=1e6)
    options: dict[str, Any] = {"validation_split": 0.2, "callbacks": [plateau, stop], "verbose": 0}
    history = model.fit(flats(), epochs=5, **options)
    assert len(history.history["val_mae"]) == 2
    assert float(model.optimizer.learning_rate) == pytest.approx(0.15)


def test_workers_of_the_v1_form_train_a_regression() -> None:
    data = flats()
    with ps.v1.ParameterServerStrategy().scope():
        model = regression(metrics=["mse"])
    history = model.fit(data, epochs=4, verbose=0).history
    assert history["mse"][-1] == pytest.approx(history["loss"][-1], rel=1e-5)
    assert history["loss"][-1] < 0.5 * history["loss"][0]


def test_torch_module_is_a_regression_too() -> None:
    torch = pytest.importorskip("torch")
    model = ps.torch.Model(SCHEMA, torch.nn.LazyLinear(1), dim=4)
    model.compile(ps.optimizers.Adagrad(0.3), loss="mse")
    history = model.fit(flats(), epochs=4, batch_size=100, verbose=0).history
    assert history["loss"][-1] < 0.1 * history["loss"][0]


class Shown(ps.models.Model):
    """A model that puts out a column of the batch, or its values in float64."""

    def __init__(self, dtype: Any) -> None:
        super().__init__(SCHEMA)
        self.dtype = dtype
        self.layers = [ps.layers.Dense(1, input_size=1)]

    def compute(self, values: Any, features: Any) -> Any:  # noqa: ARG002
        return features.dense[:, :1].astype(self.dtype, copy=False)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_predictions_are_float32_of_their_own(dtype: Any) -> None:
    model = Shown(dtype)
    model.compile(loss="mse")
    features = model.encode(flats(10))
    predicted = model.predict_on_batch(features)
    assert (predicted.dtype, predicted.shape) == (np.float32, (10,))
    assert not np.shares_memory(predicted, features.dense)


def test_functions_are_sent_again_after_compile() -> None:
    model = regression()
    before = capture_generation()
    model.compile(loss="mae")
    assert capture_generation() > before


@pytest.mark.filterwarnings("error")
def test_loss_beyond_float32_is_infinite_without_a_warning() -> None:
    model = regression(metrics=["rmse"])
    data = flats(100)
    data["price"] *= 1e30
    logs = model.fit(data, verbose=0).history
    assert logs["loss"] == [np.inf]
    assert np.isfinite(logs["rmse"][0])
    each = ps.losses.MeanSquaredError("none")(data["price"], np.zeros(100, np.float32))
    assert np.isinf(each.numpy()).all()


class Configured(Shown):
    """A model with a configuration of its own form."""

    def get_config(self) -> dict[str, Any]:
        return {"dtype": str(np.dtype(self.dtype))}


def test_own_configuration_need_not_tell_the_loss(tmp_path: pathlib.Path) -> None:
    model = Configured(np.float32)
    model.compile(loss="mse")
    model.save_weights(tmp_path)
    again = Configured(np.float32)
    again.compile(loss="mse")
    again.load_weights(tmp_path)
    assert again.objective.link == "identity"
