"""Models: gradients against finite differences, learning, configuration, reuse by threads."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from pstrain import models
from pstrain.errors import DataError, InvalidArgumentError, InvalidTypeError
from pstrain.features.schema import Category, FeatureSchema
from pstrain.gradients.tape import GradientTape
from pstrain.models import (
    DLRM,
    DCNv2,
    DeepFM,
    FactorizationMachine,
    LogisticRegression,
    Model,
    WideDeep,
    factorization,
)
from pstrain.optimizers import SGD, Adagrad
from pstrain.tabular.choices import MODELS, OPTIMIZERS, make_model

pytestmark = pytest.mark.usefixtures("own_parameters")

SCHEMA = FeatureSchema(
    dense=["x", "y"],
    categorical={"color": Category(5, hashed=False), "shape": Category(3, hashed=False)},
)


def _batch(rows: int = 32, seed: int = 0) -> pa.RecordBatch:
    random = np.random.default_rng(seed)
    color, x = random.integers(0, 5, rows), random.normal(size=rows)
    return pa.RecordBatch.from_pydict(
        {
            "x": x.astype(np.float32),
            "y": random.normal(size=rows),
            "color": color,
            "shape": random.integers(0, 3, rows).astype(np.int32),
            "label": (x + (color == 2) * 3 > 0.5).astype(np.int64),
        }
    )


MAKERS: dict[str, Callable[[], Model]] = {
    "wide_deep": lambda: WideDeep(SCHEMA, dim=3, hidden=(6, 4)),
    "factorization_machine": lambda: FactorizationMachine(SCHEMA, dim=3),
    "deep_fm": lambda: DeepFM(SCHEMA, dim=3, hidden=(6, 4)),
    "dlrm": lambda: DLRM(SCHEMA, dim=3, bottom=(5,), top=(6, 4)),
    "dcn": lambda: DCNv2(SCHEMA, dim=3, hidden=(6, 4)),
    "dcn, parallel, low rank": lambda: DCNv2(
        SCHEMA, dim=3, hidden=(5,), crosses=1, rank=2, structure="parallel"
    ),
}
KINDS = ["linear", *MAKERS]


def _model(kind: str) -> Model:
    if kind == "linear":
        return LogisticRegression(SCHEMA)
    model = MAKERS[kind]()
    # Moved away from the initial values, where wide weights and biases are all 0.
    random = np.random.default_rng(11)
    for variable in model.variables:
        variable.assign_add(random.normal(scale=0.3, size=variable.shape).astype(np.float32))
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_model_loss_gradients_match_finite_differences(kind: str) -> None:
    model, batch = _model(kind), _batch(16)
    with GradientTape() as tape:
        loss = model.loss(batch)
    gradients = tape.gradients(loss)
    assert len(gradients) == len(model.trainable_variables)
    random = np.random.default_rng(1)
    for variable in model.trainable_variables:
        update = gradients.of(variable)
        full = np.zeros(variable.shape, dtype=np.float32)
        full[... if update.lookup is None else update.lookup.unique] = update.gradient
        for _ in range(3):
            direction = random.normal(size=variable.shape).astype(np.float32)
            slope = _slope(model, batch, variable, direction)
            expected = float(np.sum(full * direction, dtype=np.float64))
            assert slope == pytest.approx(expected, rel=0.02, abs=2e-4), variable.name


def _slope(model: Model, batch: pa.RecordBatch, variable: Any, direction: np.ndarray) -> float:
    step, start = 2e-3, variable.numpy()
    values = []
    for sign in (1, -1):
        variable.assign(start + np.float32(sign * step) * direction)
        values.append(float(model.loss(batch)))
    variable.assign(start)
    return (values[0] - values[1]) / (2 * step)


def test_network_over_distinct_ids_equals_network_over_all_ids(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, batch, asked = DeepFM(SCHEMA, dim=8, hidden=(16, 4)), _batch(), []
    random = np.random.default_rng(11)
    for variable in model.variables:
        variable.assign_add(random.normal(scale=0.3, size=variable.shape).astype(np.float32))
    is_worth_fusing, found = factorization.is_worth_fusing, []

    def asked_first(*given: Any) -> bool:
        asked.append(is_worth_fusing(*given))
        return len(asked) == 1

    monkeypatch.setattr(factorization, "is_worth_fusing", asked_first)
    for _ in range(2):
        with GradientTape() as tape:
            loss = model.loss(batch)
        found.append((float(loss), tape.gradients(loss)))
    assert asked == [True, True]
    (loss_of_distinct, of_distinct), (loss_of_all, of_all) = found
    assert loss_of_distinct == pytest.approx(loss_of_all, rel=1e-5)
    for variable in model.variables:
        mine, theirs = of_distinct.of(variable).gradient, of_all.of(variable).gradient
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6, err_msg=variable.name)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("optimizer", [SGD(0.5), Adagrad(0.2)], ids=["sgd", "adagrad"])
def test_training_learns_the_pattern(kind: str, optimizer: Any) -> None:
    optimizer = type(optimizer)(optimizer.learning_rate)
    model = _model(kind)
    for step in range(150):
        with GradientTape() as tape:
            loss = model.loss(_batch(256, seed=step))
        optimizer.apply_gradients(tape.gradients(loss))
    unseen = _batch(500, seed=1000)
    probabilities = model.predict_on_batch(unseen)
    right = (probabilities > 0.5) == unseen.column("label").to_numpy()
    assert right.mean() > 0.9
    assert int(optimizer.iterations) == 150


def test_new_logistic_regression_predicts_one_half() -> None:
    probabilities = LogisticRegression(FeatureSchema(categorical={"c": Category(4, False)}))
    batch = pa.RecordBatch.from_pydict({"c": [0, 3, None]})
    assert probabilities.predict_on_batch(batch).tolist() == [0.5, 0.5, 0.5]


@pytest.mark.parametrize("make", [LogisticRegression, WideDeep, FactorizationMachine, DeepFM])
def test_weights_of_dense_columns_start_at_zero(make: Callable[..., Model]) -> None:
    (kernel,) = (v for v in make(SCHEMA).variables if v.name.endswith("/linear/kernel"))
    assert kernel.numpy().tolist() == [[0.0], [0.0]]


@pytest.mark.parametrize("make", [FactorizationMachine, DeepFM])
def test_factorization_models_learn_from_one_dense_column(make: Callable[..., Model]) -> None:
    model = make(FeatureSchema(dense=["x"], categorical={"shape": Category(3, hashed=False)}))
    model.compile(Adagrad(0.1), metrics=["auc"])
    rows = pa.Table.from_batches([_batch(4000)])
    assert model.evaluate(rows, verbose=0)["loss"] == pytest.approx(np.log(2), abs=0.05)
    model.fit(rows, epochs=3, verbose=0)
    assert model.evaluate(rows, verbose=0)["auc"] > 0.8


@pytest.mark.parametrize(
    "schema",
    [
        FeatureSchema(dense=["x", "y"]),
        FeatureSchema(categorical={"color": Category(5, hashed=True)}),
    ],
    ids=["dense only", "categorical only"],
)
def test_models_accept_schema_with_one_kind_of_column(schema: FeatureSchema) -> None:
    model = LogisticRegression(schema)
    with GradientTape() as tape:
        loss = model.loss(_batch())
    assert len(tape.gradients(loss)) == len(model.variables)
    for make in (WideDeep, FactorizationMachine, DeepFM, DLRM, DCNv2):
        if schema.categorical:
            assert make(schema).predict_on_batch(_batch()).shape == (32,)
        else:
            with pytest.raises(InvalidArgumentError, match="use LogisticRegression"):
                make(schema)


def test_factorization_machine_sums_all_pairs() -> None:
    model = _model("factorization_machine")
    features = model.encode(_batch(4))
    table, bias, numeric, linear = (variable.numpy() for variable in model.variables)
    expected = []
    for ids, numbers in zip(features.ids, features.dense, strict=True):
        vectors = [*table[ids, 1:], *(numbers[:, None] * numeric)]
        pairs = sum(a @ b for a, b in itertools.combinations(vectors, 2))
        expected.append(bias[0] + table[ids, 0].sum() + numbers @ linear[:, 0] + pairs)
    found = model.forward(features).value[:, 0]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_unknown_dcn_structure_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="'stacked' or 'parallel'"):
        DCNv2(SCHEMA, structure="sideways")  # type: ignore[arg-type]


def test_loss_fetches_all_variables_in_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    model, calls = _model("wide_deep"), []
    fetch = model.parameters.fetch

    def counted(requests: list[Any]) -> list[Any]:
        calls.append(len(requests))
        return fetch(requests)

    monkeypatch.setattr(model.parameters, "fetch", counted)
    model.loss(_batch())
    assert calls == [len(model.variables)]


def test_predictions_are_float32_probabilities_and_need_no_labels() -> None:
    model, batch = _model("wide_deep"), _batch()
    probabilities = model.predict_on_batch(batch.drop_columns(["label"]))
    assert probabilities.dtype == np.float32
    assert ((probabilities > 0) & (probabilities < 1)).all()
    np.testing.assert_array_equal(probabilities, model.predict_on_batch(batch))
    with pytest.raises(DataError, match="no label column 'label'"):
        model.loss(batch.drop_columns(["label"]))


@pytest.mark.parametrize("labels", [[7] * 64, [None] * 64, ["?"] * 64])
def test_predictions_ignore_label_column(labels: list[Any]) -> None:
    model, batch = _model("wide_deep"), _batch(64)
    expected = model.predict_on_batch(batch)
    place = batch.schema.get_field_index("label")
    other = batch.set_column(place, "label", pa.array(labels))
    np.testing.assert_array_equal(model.predict_on_batch(other), expected)
    np.testing.assert_array_equal(model.predict(pa.Table.from_batches([other])), expected)
    np.testing.assert_array_equal(model(other).value, model(batch).value)
    with pytest.raises(DataError, match="label column 'label'"):
        model.loss(other)


@pytest.mark.parametrize("method", ["evaluate", "predict"])
def test_labels_passed_beside_data_are_refused_with_remedy(method: str) -> None:
    with pytest.raises(InvalidTypeError, match=r"got list after the data; .* column 'label' of"):
        getattr(_model("wide_deep"), method)(_batch(), [0, 1])


def test_empty_batch_has_zero_loss_and_gradients() -> None:
    model = _model("wide_deep")
    with GradientTape() as tape:
        loss = model.loss(_batch().slice(0, 0))
    assert float(loss) == 0.0
    gradients = tape.gradients(loss)
    assert len(gradients) == len(model.trainable_variables)
    assert all(not update.gradient.any() for update in gradients)


@pytest.mark.parametrize("kind", KINDS)
def test_model_is_recreated_from_its_configuration(kind: str) -> None:
    model = _model(kind)
    config = json.loads(json.dumps(model.get_config()))
    again = models.from_config(config)
    assert again.get_config() == config
    assert [v.name for v in again.variables] == [v.name for v in model.variables]
    for mine, theirs in zip(again.variables, model.variables, strict=True):
        mine.assign(theirs.numpy())
    batch = _batch()
    np.testing.assert_array_equal(again.predict_on_batch(batch), model.predict_on_batch(batch))


def test_model_with_numpys_integers_has_a_json_form() -> None:
    one, four = np.int64(1), np.int64(4)
    for make in (WideDeep, DeepFM):
        config = make(SCHEMA, dim=four, hidden=(four,), seed=one).get_config()
        assert json.loads(json.dumps(config)) == config
    config = DCNv2(SCHEMA, dim=four, crosses=one, rank=four, seed=one).get_config()
    assert json.loads(json.dumps(config)) == config


def test_unknown_model_kind_is_refused_by_name() -> None:
    with pytest.raises(InvalidArgumentError, match="unknown model 'Transformer'"):
        models.from_config({"kind": "Transformer"})


def test_model_can_be_made_from_arrow_schema() -> None:
    model = WideDeep(_batch().schema, dim=2, hidden=())
    assert model.schema.dense == ("x", "y")
    assert model.schema.vocabulary_sizes == (2**18 + 1, 2**18 + 1)
    assert model.predict_on_batch(_batch()).shape == (32,)


def test_threads_can_run_steps_of_one_model_concurrently() -> None:
    model = _model("wide_deep")
    batches = [_batch(3000, seed=k) for k in range(4)]

    def gradients(batch: pa.RecordBatch) -> list[np.ndarray]:
        with GradientTape() as tape:
            loss = model.loss(batch)
        return [update.gradient.copy() for update in tape.gradients(loss)]

    alone = [gradients(batch) for batch in batches]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            for expected, found in zip(alone, pool.map(gradients, batches), strict=True):
                for first, second in zip(expected, found, strict=True):
                    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("name", MODELS)
def test_every_command_line_model_can_be_made_and_configured(name: str) -> None:
    model = make_model(name, SCHEMA, 4, (6, 4), 0)
    assert models.from_config(json.loads(json.dumps(model.get_config()))).kind == model.kind


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_default_learning_rate_of_each_optimizer_learns(name: str) -> None:
    usual, make = OPTIMIZERS[name]
    model, optimizer = LogisticRegression(SCHEMA), make(usual)
    losses = []
    for step in range(120):
        with GradientTape() as tape:
            loss = model.loss(_batch(256, seed=step))
        optimizer.apply_gradients(tape.gradients(loss))
        losses.append(float(loss))
    assert losses[-1] < losses[0]
