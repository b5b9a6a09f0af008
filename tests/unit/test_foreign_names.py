"""A name of tf.data or Keras works here too, or raises an error that says what to write."""

from __future__ import annotations

import copy
import inspect
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dataservice as ds
import pstrain as ps
from dataservice import public_names
from dataservice.client.snapshots import OF_SAVE
from dataservice.config import OF_DISPATCHER_CONFIG, OF_WORKER_CONFIG
from dataservice.dataset import foreign_arguments as of_tf_data
from dataservice.dataset import foreign_names
from pstrain import coordinator
from pstrain.errors import InvalidTypeError
from pstrain.porting import foreign_arguments
from pstrain.porting import foreign_names as of_keras
from pstrain.strategy import replica
from pstrain.trainer.resources import TrainerIterator


@pytest.mark.parametrize("name", foreign_names._REMEDIES)
def test_tf_data_method_of_dataset_is_refused_naming_replacement(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"a Dataset has no attribute '{name}': \w+"):
        getattr(ds.Dataset.range(3), name)
    with pytest.raises(AttributeError, match=rf"a Dataset has no attribute '{name}': \w+"):
        getattr(ds.Dataset, name)


HOLDERS: list[tuple[Any, dict[str, str]]] = [
    (ds, public_names.FOREIGN),
    (ps, of_keras.PSTRAIN),
    (coordinator, of_keras.COORDINATOR),
    (ps.callbacks, of_keras.CALLBACKS),
    (ps.initializers, of_keras.INITIALIZERS),
    (ps.layers, of_keras.LAYERS),
    (ps.layers.Dense(1), of_keras.LAYER),
    (ps.losses, of_keras.LOSSES),
    (ps.metrics, of_keras.METRICS),
    (ps.models, of_keras.MODELS),
    (ps.optimizers, of_keras.OPTIMIZERS),
    (ps.models.LogisticRegression(ps.FeatureSchema(dense=("d",))), of_keras.MODEL),
    (ps.Checkpoint(value=ps.Variable(0.0)), of_keras.CHECKPOINT_OBJECT),
    (replica.Replica(), of_keras.STRATEGY),
    (ps.Variable(0.0), of_keras.VARIABLE),
]


@pytest.mark.parametrize(("holder", "remedies"), HOLDERS)
def test_tensorflow_attribute_is_refused_naming_replacement(
    holder: Any, remedies: dict[str, str]
) -> None:
    for name, remedy in remedies.items():
        with pytest.raises(AttributeError) as caught:
            getattr(holder, name)
        assert str(caught.value).endswith(f"no attribute {name!r}: {remedy}")
        assert name not in dir(holder)
    with pytest.raises(AttributeError, match=r"no attribute 'nothing'$"):
        _ = holder.nothing


MODULES = [(holder, remedies) for holder, remedies in HOLDERS if isinstance(holder, ModuleType)]


@pytest.mark.parametrize(("module", "remedies"), MODULES)
def test_import_of_a_tensorflow_name_is_refused_naming_replacement(
    module: ModuleType, remedies: dict[str, str]
) -> None:
    for name, remedy in remedies.items():
        with pytest.raises(ImportError) as caught:
            exec(f"from {module.__name__} import {name}", {})
        assert (
            str(caught.value) == f"cannot import name {name!r} from {module.__name__!r}: {remedy}"
        )
        assert not hasattr(module, name)
    with pytest.raises(ImportError, match=r"cannot import name 'nothing' from .* \(.*\.py\)$"):
        exec(f"from {module.__name__} import nothing", {})


def test_unknown_dataset_attribute_is_plain_attribute_error() -> None:
    data = ds.Dataset.range(3)
    with pytest.raises(AttributeError, match=r"no attribute 'shufle'$") as raised:
        data.shufle(3)  # type: ignore[attr-defined]
    assert (raised.value.name, raised.value.obj) == ("shufle", data)
    for same in (copy.copy(data), pickle.loads(pickle.dumps(data))):
        assert same.to_table().num_rows == 3


def test_arguments_needed_only_by_tf_data_are_accepted() -> None:
    data = ds.Dataset.from_tensor_slices({"x": [1, 2, 3], "label": [0, 1, 0]})
    mapped = data.map(lambda c: {"y": c["x"] * 2}, num_parallel_calls=ds.AUTOTUNE)
    elements = mapped.batch(2, num_parallel_calls=4, deterministic=False)
    batches = [batch["y"].tolist() for batch in elements.numpy()]
    assert batches == [[2, 4], [6]]
    with pytest.raises(ValueError, match="num_parallel_calls"):
        data.map(dict, num_parallel_calls=0)
    with pytest.raises(TypeError, match=r"a dict of arrays.*from_numpy"):
        ds.Dataset.from_tensor_slices([1, 2])  # type: ignore[arg-type]


@pytest.mark.parametrize("method", of_tf_data.REMEDIES)
def test_tf_data_argument_is_refused_naming_replacement(method: str) -> None:
    remedies = of_tf_data.REMEDIES[method]
    taker = getattr(ds.Dataset.range(3), method)
    assert not remedies.keys() & inspect.signature(taker).parameters.keys()
    for name, remedy in remedies.items():
        with pytest.raises(InvalidTypeError) as caught:
            taker(**{name: 3})
        assert str(caught.value) == f"{method} takes no argument {name!r}: {remedy}"
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        taker(1, colour="red")


def test_arguments_of_operators_have_the_names_of_the_contract() -> None:
    data = ds.Dataset.range(4).filter(expression_or_fn=ds.col("id") > 1)
    data = data.with_column(name="y", expression_or_fn=lambda c: c["id"] * 2)
    assert data.apply(fn=lambda d: d.take(n=1)).to_table().to_pylist() == [{"id": 2, "y": 4}]


def test_dataset_itself_names_what_makes_one() -> None:
    with pytest.raises(InvalidTypeError, match=r"made by Dataset\.range\(\).*not from \[1, 2\]"):
        ds.Dataset([1, 2])  # type: ignore[arg-type]


def test_embedding_of_lists_names_combiner_and_reset_states_works() -> None:
    with pytest.raises(ValueError, match=r"got \(1, 3\); for the mean.*combiner="):
        ps.layers.Embedding(9, 2)(np.array([[1, 2, 3]]))
    metric = ps.metrics.Accuracy()
    metric.update_state([1, 0], [1, 1])
    metric.reset_states()
    assert np.isnan(metric.result())


def test_iterators_have_get_next() -> None:
    batches = iter(ds.Dataset.range(4).batch(2))
    assert batches.get_next()["id"].to_pylist() == [0, 1]
    of_trainer = TrainerIterator(lambda: batches)
    assert of_trainer.get_next()["id"].to_pylist() == [2, 3]
    with pytest.raises(StopIteration):
        of_trainer.get_next()


def test_restore_failure_is_caught_as_tensorflow_op_error(tmp_path: Path) -> None:
    with pytest.raises(ps.errors.OpError):
        ps.Checkpoint(value=ps.Variable(1.0)).restore(tmp_path / "ckpt-1")


def test_errors_are_caught_by_tensorflow_names() -> None:
    assert issubclass(ps.errors.UnauthenticatedError, ps.errors.PermissionDeniedError)
    with pytest.raises(ps.errors.UnknownError):
        raise ps.errors.RemoteError("of a class that this side does not know")


def _model() -> ps.models.Model:
    return ps.models.LogisticRegression(ps.FeatureSchema(dense=("d",)))


TAKERS: list[tuple[Callable[..., Any], dict[str, str]]] = [
    (_model().fit, foreign_arguments.FIT),
    (_model().evaluate, foreign_arguments.EVALUATE),
    (_model().predict, foreign_arguments.PREDICT),
    (_model().compile, foreign_arguments.COMPILE),
    (ds.DispatchServer, OF_DISPATCHER_CONFIG),
    (ds.save, OF_SAVE),
    (ds.WorkerServer, OF_WORKER_CONFIG),
    (ps.layers.Embedding, foreign_arguments.EMBEDDING),
    (ps.layers.Dense, foreign_arguments.DENSE),
    (ps.layers.Dense(2), foreign_arguments.CALL_OF_LAYER),
    (ps.layers.Embedding(3, 2), foreign_arguments.CALL_OF_LAYER),
    (ps.layers.Cross(2), foreign_arguments.CALL_OF_LAYER),
    (ps.optimizers.SGD, foreign_arguments.OPTIMIZER),
    (ps.optimizers.SGD, foreign_arguments.SGD),
    (ps.optimizers.Adam, foreign_arguments.OPTIMIZER),
    (ps.callbacks.Checkpoint, foreign_arguments.CHECKPOINT),
    (ps.callbacks.TensorBoard, foreign_arguments.TENSORBOARD),
    (ps.optimizers.SGD().apply_gradients, foreign_arguments.APPLY_GRADIENTS),
    (ps.Checkpoint(value=ps.Variable(0.0)).save, foreign_arguments.SAVE_OF_CHECKPOINT),
    (ps.Checkpoint(value=ps.Variable(0.0)).restore, foreign_arguments.RESTORE_OF_CHECKPOINT),
    (ps.metrics.AUC, foreign_arguments.AUC),
    (ps.metrics.Accuracy, foreign_arguments.NEW_METRIC),
    (ps.metrics.Precision, foreign_arguments.PRECISION_RECALL),
    (ps.metrics.Recall, foreign_arguments.PRECISION_RECALL),
    (ps.metrics.MeanSquaredError, foreign_arguments.NEW_METRIC),
    (ps.metrics.LogLoss, foreign_arguments.LOG_LOSS),
    (ps.metrics.Mean, foreign_arguments.NEW_METRIC),
    (ps.metrics.GAUC, foreign_arguments.NEW_METRIC),
    (ps.metrics.NDCG, foreign_arguments.NEW_METRIC),
    (ps.metrics.HitRate, foreign_arguments.NEW_METRIC),
    (ps.metrics.RecallAtK, foreign_arguments.NEW_METRIC),
    (ps.metrics.GAUC(group="user").update_state, foreign_arguments.METRIC),
    (ps.metrics.AUC().update_state, foreign_arguments.METRIC),
    (ps.losses.BinaryCrossentropy, foreign_arguments.BINARY_CROSSENTROPY),
    (ps.losses.BinaryCrossentropy(), foreign_arguments.LOSS),
    (ps.layers.StringLookup, foreign_arguments.LOOKUP),
    (ps.layers.IntegerLookup, foreign_arguments.LOOKUP),
    (ps.Variable, foreign_arguments.NEW_VARIABLE),
    (ps.Variable(0.0).assign, foreign_arguments.CHANGE_OF_VARIABLE),
    (ps.Variable([0.0]).scatter_add, foreign_arguments.CHANGE_OF_VARIABLE),
    (ps.Variable([0.0]).sparse_read, foreign_arguments.READ_OF_VARIABLE),
    (ps.Variable([0.0]).embedding_lookup, foreign_arguments.READ_OF_VARIABLE),
    (ps.InputOptions, foreign_arguments.INPUT_OPTIONS),
    (ps.initializers.uniform, foreign_arguments.UNIFORM),
]


@pytest.mark.parametrize(("taker", "remedies"), TAKERS)
def test_keras_argument_is_refused_naming_replacement(
    taker: Callable[..., Any], remedies: dict[str, str]
) -> None:
    assert not remedies.keys() & inspect.signature(taker).parameters.keys()
    for name, remedy in remedies.items():
        with pytest.raises(InvalidTypeError) as caught:
            taker(**{name: 3})
        assert f"takes no argument {name!r}: {remedy}" in str(caught.value)


@pytest.mark.parametrize("nothing", [None, False])
def test_keras_argument_that_asks_for_nothing_is_left_out(nothing: Any) -> None:
    assert ps.optimizers.Adam(0.1, amsgrad=nothing).learning_rate == 0.1  # type: ignore[call-arg]
    assert ps.layers.Dense(2, kernel_regularizer=nothing).units == 2  # type: ignore[call-arg]
    assert ds.Dataset.range(3).map(lambda c: c, name=nothing).to_table().num_rows == 3  # type: ignore[call-arg]
    with pytest.raises(InvalidTypeError, match="no argument 'amsgrad'"):
        ps.optimizers.Adam(0.1, amsgrad=True)  # type: ignore[call-arg]


def test_keras_argument_that_asks_by_being_false_is_refused() -> None:
    with pytest.raises(InvalidTypeError, match="no argument 'watch_accessed_variables'"):
        ps.GradientTape(watch_accessed_variables=False)  # type: ignore[call-arg]
    with pytest.raises(InvalidTypeError, match="no argument 'validate_shape'"):
        ps.Variable(1.0, validate_shape=False)  # type: ignore[call-arg]


def test_training_argument_says_what_the_tape_says() -> None:
    rows = {"d": np.zeros(2, np.float32)}
    dense, table, model = ps.layers.Dense(1), ps.layers.Embedding(3, 2), _model()
    calls: list[tuple[Any, Any]] = [(dense, [[1.0]]), (table, np.array([1])), (model, rows)]
    for called, inputs in calls:
        plain = called(inputs, training=False)
        with ps.GradientTape():
            traced = called(inputs, training=True)
            with pytest.raises(ValueError, match=r"training=False, .* here is one\."):
                called(inputs, training=False)
        assert np.array_equal(np.asarray(plain), traced.numpy())
        with pytest.raises(ValueError, match=r"training=True, .* here is none\."):
            called(inputs, training=True)


@pytest.mark.parametrize(
    ("data", "remedy"),
    [
        (type("DataFrame", (), {})(), r"got DataFrame; write pyarrow\.table\(frame\)"),
        (([1], [0]), "got tuple; labels are a column of it"),
    ],
)
def test_keras_training_data_is_refused_naming_replacement(data: Any, remedy: str) -> None:
    model = _model()
    model.compile("sgd")
    with pytest.raises(ValueError, match=remedy):
        model.fit(data)


def test_pandas_frame_trains_like_table() -> None:
    pandas = pytest.importorskip("pandas")
    columns = {"d": [0.5, -0.5, 1.0], "c": ["a", "b", "a"], "label": [1, 0, 1]}
    frame = pandas.DataFrame(columns, index=[7, 8, 9])
    model = ps.models.LogisticRegression(
        ps.FeatureSchema(dense=("d",), categorical={"c": ps.Category(50)})
    )
    model.compile(ps.optimizers.SGD(0.1))
    model.fit(frame, epochs=2, validation_data=frame, verbose=0)
    table = pa.table(columns)
    assert model.evaluate(frame)["loss"] == model.evaluate(table)["loss"]
    assert model.predict(frame).tolist() == model.predict(table).tolist()


def test_unknown_argument_is_type_error() -> None:
    for name in ("max_norm", "partition_strategy", "validate_indices"):
        with pytest.raises(
            InvalidTypeError, match=f"embedding_lookup takes no argument '{name}': "
        ):
            ps.Variable([0.0]).embedding_lookup([0], **{name: 1})
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        ps.layers.Dense(1, colour="red")  # type: ignore[call-arg]


def test_positional_keras_argument_is_refused_naming_replacement() -> None:
    for call, named in (
        (lambda: ps.optimizers.SGD(0.1, 0.9), "SGD takes no argument 'momentum': write"),  # type: ignore[call-arg]
        (
            lambda: _model().compile("sgd", "mse", ["auc"]),
            "third argument': write compile.opti",
        ),  # type: ignore[call-arg]
    ):
        with pytest.raises(InvalidTypeError, match=named):
            call()


def test_setting_keras_optimizer_attribute_is_refused() -> None:
    optimizer = ps.optimizers.SGD(0.5)
    with pytest.raises(AttributeError, match="'SGD' object has no attribute 'lr': write learning_"):
        optimizer.lr = 0.1  # type: ignore[attr-defined]
    rate: Any = optimizer.learning_rate
    assert (rate, rate.numpy(), json.dumps(rate)) == (0.5, 0.5, "0.5")


def test_metric_subclass_with_keras_methods_is_refused() -> None:
    with pytest.raises(InvalidTypeError, match=r"metric Hits .* write update\(state, labels"):
        type("Hits", (ps.metrics.Metric,), {"result": lambda _self: 1.0})


def test_arguments_named_by_remedies_exist() -> None:
    table = {"d": np.arange(4, dtype=np.float32), "label": np.array([0, 1, 0, 1])}
    model = _model()
    model.compile(ps.optimizers.SGD(learning_rate=0.1, l2=0.1))
    model.fit(data=table, validation_data=table, verbose=0, steps_per_execution=2)
    assert ps.layers.Embedding(vocabulary_sizes=8, dim=2).variables[0].shape == (8, 2)
    assert ps.layers.Dense(1, input_size=3).variables[0].shape == (3, 1)
    ps.metrics.AUC(bins=200)
    ps.optimizers.Momentum(learning_rate=0.1, momentum=0.9, nesterov=True)
    ps.callbacks.Checkpoint(directory="d", every=2, every_steps=10, save_best_only=True)
