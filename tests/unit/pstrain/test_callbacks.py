"""The calls and logs that callbacks get, and what the built-in callbacks do with them."""

from __future__ import annotations

import csv
import json
import pathlib
import re
import struct
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import dataservice as ds
import pstrain as ps
from dataservice import DataServiceWarning, Dataset
from pstrain.callbacks.base import CallbackList, as_list, check_verbose
from pstrain.callbacks.monitor import Monitor
from pstrain.errors import InvalidArgumentError
from pstrain.execution.executor import Steps
from pstrain.execution.local import LocalExecutor

SCHEMA = ps.FeatureSchema(categorical={"page": ps.Category(8, hashed=False)})


def data(rows: int = 256) -> dict[str, np.ndarray]:
    page = np.random.default_rng(0).integers(0, 8, rows)
    return {"page": page, "label": page % 2}


def model() -> ps.models.LogisticRegression:
    made = ps.models.LogisticRegression(SCHEMA)
    made.compile(ps.optimizers.Adagrad(0.5), metrics=[ps.metrics.AUC()])
    return made


class Recorder(ps.callbacks.Callback):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_train_begin(self) -> None:
        self.seen.append("train")

    def on_train_end(self) -> None:
        self.seen.append("trained")

    def on_train_batch_begin(self, batch: int) -> None:
        self.seen.append(("from", batch))

    def on_train_batch_end(self, batch: int, logs: dict[str, float]) -> None:
        self.seen.append(("to", batch, logs["examples"]))

    def on_test_begin(self) -> None:
        self.seen.append("test")

    def on_test_batch_end(self, batch: int, logs: dict[str, float]) -> None:
        self.seen.append(("tested", batch, logs["examples"]))

    def on_test_end(self, logs: dict[str, float]) -> None:
        self.seen.append(("tested", sorted(logs)))

    def on_predict_begin(self) -> None:
        self.seen.append("predict")

    def on_predict_batch_end(self, batch: int, logs: dict[str, float]) -> None:  # noqa: ARG002
        self.seen.append(("predicted", batch))

    def on_predict_end(self, logs: dict[str, float]) -> None:  # noqa: ARG002
        self.seen.append("predicted")


def test_lambda_callback_calls_functions_with_and_without_logs() -> None:
    seen: list[Any] = []
    callback = ps.callbacks.LambdaCallback(
        on_train_begin=lambda logs: seen.append(("begin", logs)),
        on_epoch_begin=lambda epoch: seen.append(("epoch", epoch)),
        on_epoch_end=lambda epoch, logs: seen.append(("ended", epoch, logs["examples"])),
        on_batch_end=lambda batch, logs: seen.append((batch, logs["examples"])),
        on_train_end=None,
    )
    model().fit(data(), verbose=0, batch_size=256, callbacks=[callback])
    assert seen == [("begin", {}), ("epoch", 0), (1, 256.0), ("ended", 0, 256.0)]


def test_older_names_of_batch_hooks_are_called() -> None:
    class Keras(ps.callbacks.Callback):
        def __init__(self) -> None:
            self.seen: list[Any] = []

        def on_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.seen.append((batch, logs))

        def on_batch_end(self, batch: int, logs: Any = None) -> None:
            self.seen.append((batch, logs["examples"]))

    callback = Keras()
    model().fit(data(), verbose=0, batch_size=256, callbacks=[callback])
    assert callback.seen == [(0, {}), (1, 256.0)]


def test_lambda_callback_refuses_what_is_never_called() -> None:
    with pytest.raises(TypeError, match=r"got 'on_epoch_ends'.*mean 'on_epoch_end'\?"):
        ps.callbacks.LambdaCallback(on_epoch_ends=print)
    with pytest.raises(TypeError, match="on_epoch_end"):
        ps.callbacks.LambdaCallback(on_epoch_end=3)  # type: ignore[arg-type]


def test_training_ends_once_the_loss_is_no_number(caplog: pytest.LogCaptureFixture) -> None:
    trained = model()
    trained.compile("sgd")
    trained.layers[0].variables[0].assign(np.nan)
    callback = ps.callbacks.TerminateOnNaN()
    history = trained.fit(data(4096), epochs=3, verbose=0, batch_size=8, callbacks=[callback])
    assert callback.stop_training
    assert len(history.epoch) == 1
    assert history.history["examples"][0] < 4096
    (warning,) = (record for record in caplog.records if "training stops" in record.message)
    assert warning.message.startswith("the loss is nan after step ")
    assert len(model().fit(data(), epochs=2, verbose=0, callbacks=callback).epoch) == 2


def test_misspelled_callback_hook_is_warned_about() -> None:
    class Typo(ps.callbacks.Callback):
        def on_epoch_ends(self, epoch: int, logs: dict[str, float]) -> None: ...

        def online(self) -> None: ...

    with pytest.warns(DataServiceWarning, match=r"Typo\.on_epoch_ends is .*mean 'on_epoch_end'\?"):
        model().fit(data(), verbose=0, callbacks=[Typo()])


@pytest.mark.parametrize("steps_per_execution", [1, 2, 3])
def test_batch_hooks_report_only_existing_batches(steps_per_execution: int) -> None:
    recorder, made = Recorder(), model()
    options: dict[str, Any] = {"batch_size": 64, "steps_per_execution": steps_per_execution}
    made.evaluate(data(), verbose=0, callbacks=[recorder], **options)
    made.predict(data(), callbacks=[recorder], **options)
    batches = [each[1] for each in recorder.seen if isinstance(each[1], int)]
    steps = list(range(steps_per_execution, 4, steps_per_execution))
    assert batches == 2 * [*steps, 4]


def test_fit_calls_batch_hooks_in_pairs_and_validation_hooks_inside() -> None:
    recorder = Recorder()
    model().fit(
        data(),
        validation_data=data(64),
        callbacks=[recorder],
        verbose=0,
        batch_size=64,
        steps_per_execution=3,
    )
    assert recorder.params == {"epochs": 1, "steps": None, "verbose": 0}
    assert recorder.seen == [
        "train",
        ("from", 0),
        ("to", 3, 192.0),
        ("from", 3),
        ("to", 4, 256.0),
        "test",
        ("tested", 1, 64.0),
        ("tested", ["auc", "examples", "examples_per_s", "loss"]),
        "trained",
    ]


def test_metrics_are_computed_only_when_callback_reads_logs(tmp_path: pathlib.Path) -> None:
    computed: list[int] = []

    class Counted(ps.metrics.Accuracy):
        def compute(self, state: Any) -> float:
            computed.append(int(state[..., 0].sum()) >> 8)
            return super().compute(state)

    class Shown(ps.callbacks.ProgressBar):
        def on_train_batch_end(self, steps: int, logs: dict[str, float]) -> None:
            seen.append(logs["accuracy"])
            super().on_train_batch_end(steps, logs)

    seen: list[float] = []
    silent = [ps.callbacks.Checkpoint(tmp_path, every_steps=2), ps.callbacks.TensorBoard(tmp_path)]
    trained = model()
    trained.compile("adagrad", metrics=[Counted()])
    options: dict[str, Any] = {"batch_size": 64, "steps_per_execution": 1}
    trained.fit(data(), callbacks=silent, **options)
    assert computed == [256]
    trained.fit(data(), callbacks=[*silent, Shown(), Recorder()], verbose=0, **options)
    assert computed[1:] == [64, 128, 192, 256, 256]
    assert len(seen) == 4
    # Written every two steps: at two of the four steps of an epoch, and at its end.
    computed.clear()
    board = ps.callbacks.TensorBoard(tmp_path, update_freq=2)
    trained.fit(data(), callbacks=[board], verbose=0, **options)
    assert computed == [128, 256, 256]


def test_predict_calls_predict_hooks() -> None:
    recorder = Recorder()
    model().predict(data(), batch_size=64, callbacks=[recorder])
    assert recorder.seen == ["predict", ("predicted", 4), "predicted"]


def test_predict_prints_a_line_when_told_to(capsys: pytest.CaptureFixture[str]) -> None:
    for silent in ({}, {"verbose": 0}):
        model().predict(data(), **silent)
    assert not capsys.readouterr().out
    model().predict(data(), verbose=1)
    assert re.fullmatch(
        r"prediction: examples 256  examples_per_s [\d,]+\n", capsys.readouterr().out
    )
    with pytest.raises(InvalidArgumentError, match="verbose"):
        model().predict(data(), verbose=7)


def test_training_that_continues_forgets_who_stopped_it() -> None:
    callback, trained = ps.callbacks.Callback(), model()
    callbacks = CallbackList([callback], trained)
    for stops in (callback, trained):
        stops.stop_training = True
        assert callbacks.stop_training
        callbacks.resume(callbacks.state_dict())
        assert not callbacks.stop_training


def test_states_are_restored_by_class_and_order() -> None:
    class Counting(ps.callbacks.Callback):
        def __init__(self, count: int) -> None:
            self.count = count

        def state_dict(self) -> dict[str, Any]:
            return {"count": self.count}

        def load_state_dict(self, state: Any) -> None:
            self.count = state["count"]

    saved = CallbackList([Counting(1), Recorder(), Counting(2)], model()).state_dict()
    assert saved == [["Counting", {"count": 1}], ["Recorder", {}], ["Counting", {"count": 2}]]
    again = [Counting(7), Counting(8), Counting(9)]
    CallbackList([ps.callbacks.Callback(), *again], model()).resume(saved)
    assert [each.count for each in again] == [1, 2, 9], "there are two states for three callbacks"


def test_model_stop_training_ends_fit() -> None:
    class Stop(ps.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:  # noqa: ARG002
            self.model.stop_training = epoch == 1

    trained = model()
    assert trained.fit(data(), 5, callbacks=[Stop()], verbose=0).epoch == [0, 1]
    history = trained.fit(data(), 2, verbose=0)
    assert history.epoch == [0, 1]
    assert history.params == {"epochs": 2, "steps": None, "verbose": 0}


class StopAt(ps.callbacks.Callback):
    """A callback that stops training after ``batch`` batches."""

    def __init__(self, batch: int) -> None:
        self.at = batch

    def on_train_batch_end(self, batch: int, logs: dict[str, float]) -> None:  # noqa: ARG002
        self.stop_training = batch >= self.at


@pytest.mark.parametrize("steps", [None, 4])
def test_stop_training_within_epoch_ends_fit_after_that_batch(steps: int | None) -> None:
    options: dict[str, Any] = {"batch_size": 64, "steps_per_execution": 1, "verbose": 0}
    history = model().fit(data(), 5, steps, callbacks=[StopAt(2)], **options)
    assert history.history["examples"] == [128.0]


def test_keras_style_hooks_get_logs_if_they_accept_them() -> None:
    seen: dict[str, Any] = {}

    class Keras(ps.callbacks.Callback):
        def on_train_begin(self, logs: Any) -> None:  # type: ignore[override]
            seen["begin"] = logs

        def on_epoch_begin(self, epoch: int, logs: Any) -> None:  # type: ignore[override]
            seen["epoch"] = (epoch, logs)

        def on_train_batch_begin(self, batch: int, _: Any = None) -> None:
            seen["batch"] = (batch, _)

        def on_train_end(self, logs: Any = None) -> None:
            seen["end"] = logs["val_auc"]

    history = model().fit(data(), validation_data=data(), callbacks=[Keras()], verbose=0)
    end = history.history["val_auc"][0]
    assert seen == {"begin": {}, "epoch": (0, {}), "batch": (0, {}), "end": end}


@pytest.mark.parametrize(
    ("freq", "validated"), [(1, 4), (2, 2), (3, 1), ([1, 4], 2), (np.array([1, 4]), 2), ([9], 0)]
)
def test_validation_runs_at_validation_freq(freq: Any, validated: int) -> None:
    stop, reduce = ps.callbacks.EarlyStopping(patience=9), ps.callbacks.ReduceLROnPlateau()
    history = model().fit(
        data(), 4, validation_data=data(), validation_freq=freq, callbacks=[stop, reduce], verbose=0
    )
    assert len(history.history.get("val_loss", [])) == validated
    assert len(history.history["loss"]) == 4
    assert (stop.state_dict()["best"] is None) == (not validated)


@pytest.mark.parametrize("freq", [0, [2, 0], "2", 1.5])
def test_invalid_validation_freq_is_refused(freq: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="validation_freq"):
        model().fit(data(), validation_freq=freq, verbose=0)


class InterruptThirdEpoch(ps.callbacks.Callback):
    def on_epoch_begin(self, epoch: int) -> None:
        if epoch == 2:
            raise KeyboardInterrupt


class LoggedScores(ps.callbacks.Callback):
    """A callback that logs given scores and records the predictions after each epoch."""

    def __init__(self, scores: list[float]) -> None:
        self.scores, self.given = scores, list[Any]()

    def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
        logs["score"] = self.scores[epoch]
        self.given.append(self.model.predict(data()))


@pytest.mark.parametrize(
    ("scores", "best"),
    [([1, 3, 2, 2, 9], 1), ([1, 2, 3], 2), ([float("nan")] * 5, 0), ([2, 1, 1], 0)],
)
def test_early_stopping_restores_weights_of_best_epoch(scores: list[float], best: int) -> None:
    trained, told = model(), LoggedScores(scores)
    stop = ps.callbacks.EarlyStopping("score", mode="max", patience=2, restore_best_weights=True)
    trained.fit(data(), len(scores), callbacks=[told, stop], verbose=0)
    np.testing.assert_array_equal(trained.predict(data()), told.given[best])


def test_early_stopping_restores_best_epoch_although_none_reaches_baseline() -> None:
    trained, told = model(), LoggedScores([1, 3, 2])
    stop = ps.callbacks.EarlyStopping(
        "score", mode="max", baseline=9, patience=3, restore_best_weights=True
    )
    trained.fit(data(), 9, callbacks=[told, stop], verbose=0)
    assert (stop.stopped_epoch, stop.best_epoch, stop.best) == (2, 1, 3)
    np.testing.assert_array_equal(trained.predict(data()), told.given[1])


def test_failed_fit_removes_temporary_best_weights(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    stop = ps.callbacks.EarlyStopping("score", patience=9, restore_best_weights=True)
    with pytest.raises(IndexError):
        model().fit(data(), 2, callbacks=[LoggedScores([1.0]), stop], verbose=0)
    assert not list(tmp_path.iterdir())


def test_early_stopping_rolled_back_keeps_newest_best_weights(tmp_path: pathlib.Path) -> None:
    def begun() -> ps.callbacks.EarlyStopping:
        stop = ps.callbacks.EarlyStopping(
            "score", mode="max", restore_best_weights=True, directory=tmp_path
        )
        stop.set_model(model())
        stop.on_train_begin()
        return stop

    first = begun()
    first.on_epoch_end(0, {"score": 1.0})
    state = first.state_dict()
    first.on_epoch_end(1, {"score": 2.0})
    for each in (first, begun()):
        each.load_state_dict(state)
        newest = {"best": 2.0, "bad_epochs": 0, "best_epoch": 1, "values": str(tmp_path / "best-2")}
        assert each.state_dict() == newest
        for epoch, score in enumerate([1.0, 2.0]):  # trained again
            each.on_epoch_end(epoch, {"score": score})
        assert (each.state_dict(), each.stop_training) == (newest, False)
        each.on_epoch_end(2, {"score": 1.0})
        assert each.stop_training
        each.stop_training = False
        each.on_train_end()


def test_best_weights_survive_program_only_with_directory(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    def begun(directory: pathlib.Path | None) -> ps.callbacks.EarlyStopping:
        stop = ps.callbacks.EarlyStopping("score", restore_best_weights=True, directory=directory)
        stop.set_model(model())
        stop.on_train_begin()
        return stop

    for directory in (tmp_path, None):
        first = begun(directory)
        for score in (2.0, 1.0):
            first.on_epoch_end(0, {"score": score})
        state = first.state_dict()
        if directory is None:
            first.on_train_end()
        again = begun(directory)
        again.load_state_dict(state)
        assert again.state_dict()["best"] == (None if directory is None else 1.0)
        again.on_train_end()
    assert [path.name for path in tmp_path.iterdir()] == ["best-2"]
    assert "were lost with the program" in caplog.text


@pytest.mark.parametrize(
    ("name", "mode", "values", "expected"),
    [
        ("val_loss", "auto", [3.0, 2.0, 2.5, 1.0], [True, True, False, True]),
        ("val_auc", "auto", [0.5, 0.7, 0.6, 0.8], [True, True, False, True]),
        ("val_auc_2", "auto", [0.5, 0.7, 0.6, 0.8], [True, True, False, True]),
        ("x", "max", [1.0, 1.05, 1.2, float("nan")], [True, False, True, False]),
    ],
)
def test_monitor_improves_by_mode_and_min_delta(
    name: str, mode: str, values: list[float], expected: list[bool]
) -> None:
    monitor = Monitor(name, mode=mode, min_delta=0.1)
    assert [monitor.improves(value) for value in values] == expected


class Similarity(ps.metrics.Mean):
    """A metric of a program, whose name does not tell that more is better."""

    more_is_better = True


def test_monitor_asks_the_metric_of_that_name_what_is_better() -> None:
    schema = ps.FeatureSchema(dense=["x"], label="y")
    numbers, classes = (ps.models.LogisticRegression(schema) for _ in range(2))
    r2 = ps.metrics.R2Score(name="r2")
    off = ps.metrics.MeanAbsoluteError(name="off_auc")
    plain = [ps.metrics.Mean("mean_accuracy"), ps.metrics.Mean("mine"), Similarity("alike")]
    numbers.compile(loss="mse", metrics=[r2, off, *plain])
    classes.compile(metrics=["auc", ps.metrics.LogLoss("precision_of_mine")])

    def mode_of(model: Any, name: str, mode: str = "auto") -> str:
        monitor = Monitor(name, mode=mode)
        monitor.follow(model)
        return monitor.mode

    assert [mode_of(numbers, name) for name in ("r2", "val_r2", "alike")] == ["max"] * 3
    assert mode_of(numbers, "val_off_auc") == "min"
    assert [mode_of(numbers, name) for name in ("mean_accuracy", "mine")] == ["max", "min"]
    assert mode_of(numbers, "r2", "min") == "min"
    assert [mode_of(classes, name) for name in ("loss", "r2", "val_auc")] == ["min", "min", "max"]
    assert mode_of(classes, "precision_of_mine") == "min"
    # One callback in two trainings, of which the second model has no such metric.
    monitor = Monitor("val_r2")
    for model, mode in ((numbers, "max"), (classes, "min")):
        monitor.follow(model)
        assert monitor.mode == mode


def test_every_metric_of_the_package_tells_what_is_better() -> None:
    less = {"LogLoss", "MeanAbsoluteError", "MeanSquaredError", "RootMeanSquaredError"}
    metrics = ps.metrics
    found = {n: getattr(metrics, n).more_is_better for n in metrics.__all__}
    assert {name for name, more in found.items() if more is False} == less
    assert {name for name, more in found.items() if more is None} == {"Mean", "Metric"}


def test_callbacks_look_for_the_maximum_of_a_renamed_score(tmp_path: pathlib.Path) -> None:
    model = ps.models.LogisticRegression(ps.FeatureSchema(dense=["x"], label="y"))
    model.compile(ps.optimizers.SGD(0.001), loss="mse", metrics=[ps.metrics.R2Score(name="r2")])
    scores = iter([0.5, 0.6, 0.7])

    class Scores(ps.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:  # noqa: ARG002
            logs["r2"] = next(scores)

    stop = ps.callbacks.EarlyStopping("r2")
    save = ps.callbacks.Checkpoint(tmp_path, monitor="r2", save_best_only=True, asynchronous=False)
    plateau = ps.callbacks.ReduceLROnPlateau("r2", patience=1)
    data = {"x": np.arange(8.0), "y": np.arange(8.0)}
    callbacks = [Scores(), stop, save, plateau]
    history = model.fit(data, epochs=3, callbacks=callbacks, verbose=0).history
    assert history["r2"] == [0.5, 0.6, 0.7]
    assert (stop.best, stop.best_epoch, stop.stop_training) == (0.7, 2, False)
    assert len(list(tmp_path.glob("ckpt-*"))) == 3
    assert len(set(history["learning_rate"])) == 1


def stopped_after(values: list[float], **options: Any) -> int | None:
    stop = ps.callbacks.EarlyStopping("val_loss", **options)
    stop.on_train_begin()
    for epoch, value in enumerate(values):
        stop.on_epoch_end(epoch, {"val_loss": value})
        if stop.stop_training:
            assert stop.stopped_epoch == epoch
            return epoch
    return None


def test_early_stopping_stops_after_patience_epochs_without_improvement() -> None:
    assert stopped_after([3, 2, 2.5, 2.4, 2.3], patience=2) == 3
    assert stopped_after([3, 2, 2.5]) == 2
    assert stopped_after([3, 2, 2.5, 1, 1], patience=2) is None
    assert stopped_after([3, 4, 5, 1], start_from_epoch=3) is None
    assert stopped_after([3, 2.95, 2.9], min_delta=0.1) == 1
    assert stopped_after([3], baseline=2.0) == 0
    assert stopped_after([5, 4, 3, 1, 1], baseline=2.0, patience=4) is None
    assert stopped_after([5, 4, 3, 2.5], baseline=2.0, patience=3) == 2
    with pytest.raises(InvalidArgumentError, match="mode"):
        ps.callbacks.EarlyStopping(mode="best")
    with pytest.raises(InvalidArgumentError, match=r"watches 'val_loss'.*validation_data="):
        ps.callbacks.EarlyStopping().on_epoch_end(0, {"loss": 1.0})
    with pytest.raises(ValueError, match=r"the logs have \['loss', 'val_auc'\]$"):
        ps.callbacks.EarlyStopping("val_acu").on_epoch_end(0, {"loss": 1.0, "val_auc": 0.5})


def test_early_stopping_says_when_it_stops_if_told_to(capsys: pytest.CaptureFixture[str]) -> None:
    assert stopped_after([3, 3]) == 1
    assert not capsys.readouterr().out
    assert stopped_after([3, 3], verbose=1) == 1
    assert capsys.readouterr().out == "epoch 2: val_loss no longer improves; stopping\n"


def test_early_stopping_exposes_best_epoch_and_wait() -> None:
    stop = ps.callbacks.EarlyStopping("val_loss", patience=3)
    stop.on_train_begin()
    assert (stop.best, stop.best_epoch, stop.wait) == (None, 0, 0)
    for epoch, value in enumerate([3.0, 2.0, 2.5, 2.4]):
        stop.on_epoch_end(epoch, {"val_loss": value})
    again = ps.callbacks.EarlyStopping("val_loss", patience=3)
    again.load_state_dict(stop.state_dict())
    for each in (stop, again):
        assert (each.best, each.best_epoch, each.wait) == (2.0, 1, 2)
        each.on_epoch_end(4, {"val_loss": 2.1})
        assert each.stopped_epoch == 4
        each.load_state_dict({"best": 2.0, "bad_epochs": 2})  # of an older version
        assert (each.best_epoch, each.stopped_epoch, each.wait) == (0, 0, 2)
    stop.on_train_begin()
    assert (stop.best, stop.best_epoch, stop.wait) == (None, 0, 0)


def reduced_at(values: list[float], **options: Any) -> list[float]:
    """Returns the learning rate of each epoch; the rate starts at 1."""
    reduce, trained = ps.callbacks.ReduceLROnPlateau("loss", factor=0.5, **options), model()
    trained.optimizer.learning_rate = 1.0
    reduce.set_model(trained)
    reduce.on_train_begin()
    rates = []
    for epoch, value in enumerate(values):
        logs = {"loss": value}
        reduce.on_epoch_end(epoch, logs)
        rates.append(logs["learning_rate"])
    return rates


def test_reduce_lr_on_plateau_lowers_rate_without_improvement() -> None:
    assert reduced_at([3, 2, 2, 2, 2, 1, 1], patience=2) == [1, 1, 1, 1, 0.5, 0.5, 0.5]
    assert reduced_at([3, 3, 3, 3, 3, 3], patience=1, min_lr=0.3) == [1, 1, 0.5, 0.3, 0.3, 0.3]
    assert reduced_at([3] * 8, patience=1, cooldown=3) == [1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25]
    assert reduced_at([3, 2.9, 2.8], patience=1, min_delta=0.2) == [1, 1, 0.5]
    with pytest.raises(InvalidArgumentError, match=r"factor must be below 1, got 1\.5"):
        ps.callbacks.ReduceLROnPlateau(factor=1.5)


def test_reduced_learning_rate_is_used_and_restored_from_state() -> None:
    trained = model()
    first = ps.optimizers.schedules.ExponentialDecay(0.5, 1000, 0.5)
    trained.optimizer.learning_rate = first
    reduce = ps.callbacks.ReduceLROnPlateau("loss", factor=0.0, patience=1, min_delta=100.0)
    reduce.set_model(trained)
    reduce.on_train_begin()
    states = [reduce.state_dict()]
    history = trained.fit(data(), 4, batch_size=64, callbacks=[reduce], verbose=0).history
    states.append(reduce.state_dict())
    assert history["learning_rate"][2:] == [0.0, 0.0]
    assert history["loss"][1] < history["loss"][0]
    assert trained.optimizer.learning_rate == 0.0
    reduce.load_state_dict(states[0])
    assert trained.optimizer.learning_rate == first
    reduce.load_state_dict(states[1])
    assert trained.optimizer.learning_rate == 0.0


def test_csv_logger_writes_line_per_epoch_and_appends(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "log.csv"
    trained = model()
    trained.fit(data(), 2, callbacks=[ps.callbacks.CSVLogger(file)], verbose=0)
    again = ps.callbacks.CSVLogger(file, append=True)
    trained.fit(data(), 3, initial_epoch=2, callbacks=[again], verbose=0)
    with open(file, newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["epoch"] for row in rows] == ["0", "1", "2"]
    assert float(rows[2]["loss"]) < float(rows[0]["loss"])
    assert list(rows[0])[:2] == ["epoch", "auc"]


def test_csv_logger_has_columns_of_validations_after_the_first_epoch(
    tmp_path: pathlib.Path,
) -> None:
    history = model().fit(
        data(),
        4,
        validation_data=data(),
        validation_freq=[2, 3],
        callbacks=[ps.callbacks.CSVLogger(tmp_path / "log.csv")],
        verbose=0,
    )
    with open(tmp_path / "log.csv", newline="") as stream:
        rows = list(csv.DictReader(stream))
    for name in ("val_loss", "val_auc"):
        first, last = map(str, history.history[name])
        assert [row[name] for row in rows] == ["NA", first, last, "NA"]


def test_checkpoint_callback_saves_states_of_callbacks_after_it_in_the_list(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit(*more: ps.callbacks.Callback) -> Any:
        monkeypatch.setattr("pstrain.execution.progress._PROGRAM", str(len(more)))
        before = ps.callbacks.Checkpoint(tmp_path / "saved", asynchronous=False)
        after = [
            ps.callbacks.EarlyStopping("score", mode="max", patience=3),
            ps.callbacks.ReduceLROnPlateau("score", mode="max", patience=1, factor=0.5),
            ps.callbacks.CSVLogger(tmp_path / "log.csv"),
        ]
        told = LoggedScores([4.0, 3.0, 2.0, 1.0, 0.0])
        return model().fit(data(), 9, callbacks=[told, before, *after, *more], verbose=0)

    def whole() -> tuple[list[int], list[float], int]:
        with open(tmp_path / "log.csv") as stream:
            return history.epoch, history.history["learning_rate"], len(list(stream))

    with pytest.raises(KeyboardInterrupt):
        fit(InterruptThirdEpoch())
    for _ in range(2):  # a fit that was stopped leaves nothing to resume, so the second starts anew
        history = fit()
        assert whole() == ([0, 1, 2, 3], [0.5, 0.5, 0.25, 0.125], 5)


def test_checkpoint_that_a_fit_goes_back_to_knows_what_others_have_saved(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit(*more: ps.callbacks.Callback) -> None:
        monkeypatch.setattr("pstrain.execution.progress._PROGRAM", str(len(more)))
        every = ps.callbacks.Checkpoint(tmp_path / "all", asynchronous=False)
        options: Any = {"save_best_only": True, "max_to_keep": 1, "asynchronous": False}
        best = ps.callbacks.Checkpoint(tmp_path / "best", monitor="score", mode="max", **options)
        told = LoggedScores([1.0, 9.0, 2.0])
        model().fit(data(), 3, callbacks=[told, every, best, *more], verbose=0)

    with pytest.raises(KeyboardInterrupt):
        fit(InterruptThirdEpoch())
    fit()
    assert [path.name for path in (tmp_path / "best").iterdir()] == ["ckpt-2"]


def test_callbacks_of_a_fit_serve_the_next_model_even_if_it_failed(tmp_path: pathlib.Path) -> None:
    class Fail(ps.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
            raise RuntimeError(epoch, logs)

    saving = ps.callbacks.Checkpoint(tmp_path / "saved", every_steps=1, asynchronous=False)
    board = ps.callbacks.TensorBoard(tmp_path / "logs")
    with pytest.raises(RuntimeError):
        model().fit(data(), 1, 1, callbacks=[saving, board, Fail()], verbose=0)
    second = model()
    second.evaluate(data(), callbacks=[board, saving], verbose=0)
    assert list((tmp_path / "logs" / "validation").iterdir())
    assert not (tmp_path / "saved").exists()
    for trained, epochs in ((second, 3), (model(), 1)):
        trained.fit(data(), epochs, callbacks=[saving], verbose=0)
        again = model()
        ps.Checkpoint(model=again).restore(saving.last_path)
        np.testing.assert_array_equal(again.predict(data()), trained.predict(data()))


def test_checkpoint_callback_saves_every_steps_and_best_only(tmp_path: pathlib.Path) -> None:
    class Worse(ps.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: dict[str, float]) -> None:
            logs["mine"] = [3.0, 4.0, 2.0][epoch]

    best = ps.callbacks.Checkpoint(tmp_path / "best", monitor="mine", save_best_only=True)
    often = ps.callbacks.Checkpoint(tmp_path / "often", every_steps=2, max_to_keep=2)
    model().fit(
        data(),
        3,
        callbacks=[Worse(), best, often],
        verbose=0,
        batch_size=64,
        steps_per_execution=2,
    )
    saved = ps.Checkpoint(model=model())
    assert len(list((tmp_path / "best").iterdir())) == 2
    assert best.last_path == str(tmp_path / "best" / "ckpt-2")
    assert saved.restore(best.last_path)
    assert sorted(path.name for path in (tmp_path / "often").iterdir()) == ["ckpt-6", "ckpt-7"]


class Saves(ps.callbacks.Callback):
    """Notes the steps by which another callback has saved since the step before."""

    def __init__(self, saving: ps.callbacks.Checkpoint) -> None:
        self.seen: list[Any] = []
        self._saving, self._last = saving, saving.last_path

    def _note(self, when: Any) -> None:
        if self._saving.last_path != self._last:
            self._last = self._saving.last_path
            self.seen.append(when)

    def on_train_batch_end(self, batch: int, logs: dict[str, float]) -> None:  # noqa: ARG002
        self._note(batch)


def saved_at(saving: ps.callbacks.Checkpoint, **options: Any) -> list[Any]:
    """Returns the steps, by epochs of 4, at which a fit has saved, or has just begun another."""
    notes, each_step = Saves(saving), {"batch_size": 64, "steps_per_execution": 1}
    model().fit(data(), callbacks=[saving, notes], verbose=0, **each_step, **options)
    return notes.seen


def test_checkpoint_callback_counts_steps_from_the_begin_of_a_fit(tmp_path: pathlib.Path) -> None:
    saving = ps.callbacks.Checkpoint(
        tmp_path, every=9, every_steps=3, asynchronous=False, resume=False
    )
    for _ in range(2):
        assert saved_at(saving, epochs=2) == [3, 2]


def test_checkpoint_callback_saves_steps_although_their_epoch_is_not_the_best(
    tmp_path: pathlib.Path,
) -> None:
    saving = ps.callbacks.Checkpoint(
        tmp_path, monitor="loss", mode="max", save_best_only=True, every_steps=4, asynchronous=False
    )
    assert saved_at(saving, epochs=3) == [4, 1, 4, 4]


def test_checkpoint_callback_looks_for_the_best_of_epochs_with_a_validation(
    tmp_path: pathlib.Path,
) -> None:
    saving = ps.callbacks.Checkpoint(tmp_path, save_best_only=True)
    model().fit(
        data(), 4, validation_data=data(64), validation_freq=2, callbacks=[saving], verbose=0
    )
    assert sorted(path.name for path in tmp_path.iterdir())[0] == "ckpt-1"
    assert len(list(tmp_path.iterdir())) <= 2


def test_checkpoint_callback_waits_for_its_last_save_and_forgets_the_manager() -> None:
    waits: list[str] = []
    saving: Any = ps.callbacks.Checkpoint("c")
    saving.on_train_end()  # nothing was saved
    saving._manager = SimpleNamespace(wait=lambda: waits.append("end"))
    saving.on_train_end()
    assert (waits, saving._manager) == (["end"], None)
    saving._manager, saving._unsaved = SimpleNamespace(wait=lambda: pytest.fail("it waits")), 3
    saving.on_train_error(ValueError())
    assert (saving._manager, saving._unsaved) == (None, 0)


def test_checkpoint_callback_saves_while_training_goes_on(tmp_path: pathlib.Path) -> None:
    saving: Any = ps.callbacks.Checkpoint(tmp_path)
    saving.model = model()
    assert saving.manager.asynchronous
    assert not saving.manager.incremental


def test_checkpoint_callback_keeps_one_checkpoint_every_n_hours(tmp_path: pathlib.Path) -> None:
    index = {"preserved": [], "preserved_at_s": time.time() - 3 * 3600}
    (tmp_path / "checkpoint").write_text(json.dumps(index))
    options: Any = {"max_to_keep": 1, "keep_checkpoint_every_n_hours": 2}
    saving = ps.callbacks.Checkpoint(tmp_path, asynchronous=False, **options)
    model().fit(data(), 3, callbacks=[saving], verbose=0)
    assert sorted(path.name for path in tmp_path.glob("ckpt-*")) == ["ckpt-1", "ckpt-3"]


def test_csv_logger_keeps_lines_of_resumed_fit(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit(*more: ps.callbacks.Callback) -> None:
        log = ps.callbacks.CSVLogger(tmp_path / "log.csv")
        saving = ps.callbacks.Checkpoint(tmp_path / "saved", asynchronous=False)
        model().fit(data(), 4, callbacks=[log, saving, *more], verbose=0)

    def epochs() -> list[str]:
        with open(tmp_path / "log.csv", newline="") as stream:
            return [row["epoch"] for row in csv.DictReader(stream)]

    for _ in range(2):  # a fit that has ended leaves nothing to resume, so the second starts anew
        with monkeypatch.context() as patch:
            with pytest.raises(KeyboardInterrupt):
                fit(InterruptThirdEpoch())
            assert epochs() == ["0", "1"]
            patch.setattr("pstrain.execution.progress._PROGRAM", "another")
            fit()
        assert epochs() == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    ("given", "steps"),
    [
        ({}, [6, 6, 12]),  # the steps of an epoch are known from the second epoch on
        ({"steps_per_epoch": 6}, [6, 12]),
        ({"steps_per_epoch": 6, "validation_data": data()}, [6, 6, 12, 12]),
        ({"steps_per_epoch": 3, "every": 2}, [6]),  # steps are counted across epochs
        ({"steps_per_epoch": 6, "every": 2}, [6, 12]),
    ],
)
def test_checkpoint_callback_saves_end_of_epoch_once(
    given: dict[str, Any], steps: list[int], tmp_path: pathlib.Path
) -> None:
    saves: list[int] = []

    class Saving(ps.callbacks.Checkpoint):
        def _save(self) -> None:
            super()._save()
            saves.append(int(self.model.optimizer.iterations))

    given = dict(given)
    saving = Saving(tmp_path, every_steps=5, every=given.pop("every", 1), asynchronous=False)
    rows = ds.Dataset.from_numpy(data(6 * 32)).batch(32).repeat(2 if given else 1)
    model().fit(rows, 2, callbacks=[saving], verbose=0, steps_per_execution=3, **given)
    assert saves == steps


def test_checkpoint_callback_counts_reported_steps_and_not_those_taken_back(
    tmp_path: pathlib.Path,
) -> None:
    saving = ps.callbacks.Checkpoint(tmp_path, every_steps=6, asynchronous=False)
    saving.set_model(model())
    saving.on_train_begin()
    seen: list[str | None] = []
    for begin, end in ((0, 2), (2, 5), (2, 5), (5, 7), (7, 9)):
        if begin == 2:
            saving.load_state_dict(saving.state_dict())
        saving.on_train_batch_begin(begin)
        saving.on_train_batch_end(end, {})
        seen.append(saving.last_path and pathlib.Path(saving.last_path).name)
    assert seen == [None, None, None, None, "ckpt-1"]


def test_learning_rate_scheduler_passes_current_rate() -> None:
    scheduler = ps.callbacks.LearningRateScheduler(lambda _epoch, rate: rate / 2)
    history = model().fit(data(), 3, callbacks=[scheduler], verbose=0)
    assert history.history["learning_rate"] == [0.25, 0.125, 0.0625]


def test_learning_rate_scheduler_passes_same_rate_after_resume() -> None:
    def begun() -> tuple[ps.callbacks.LearningRateScheduler, Callable[[int], float]]:
        scheduler, trained = ps.callbacks.LearningRateScheduler(lambda _, rate: rate / 2), model()
        scheduler.set_model(trained)
        scheduler.on_train_begin()

        def epoch(number: int) -> float:
            scheduler.on_epoch_begin(number)
            return float(trained.optimizer.learning_rate)

        return scheduler, epoch

    first, epoch = begun()
    states = [first.state_dict()]
    assert [epoch(0), epoch(1)] == [0.25, 0.125]
    states.append(first.state_dict())
    assert epoch(2) == 0.0625
    for each, next_epoch in ((first, epoch), begun()):
        each.load_state_dict(states[1])
        assert [next_epoch(1), next_epoch(2)] == [0.125, 0.0625]
        each.load_state_dict(states[1])
        assert next_epoch(2) == 0.0625
        each.load_state_dict(states[0])
        assert next_epoch(0) == 0.25


def test_learning_rate_scheduler_passes_rate_of_schedule_at_next_step() -> None:
    trained = model()
    trained.optimizer.learning_rate = ps.optimizers.schedules.PiecewiseConstantDecay(
        [1], [0.5, 0.1]
    )
    scheduler = ps.callbacks.LearningRateScheduler(lambda _epoch, rate: rate / 2)
    history = trained.fit(data(), 2, callbacks=[scheduler], verbose=0)
    assert history.history["learning_rate"] == [0.25, 0.125]


def test_learning_rate_scheduler_refuses_function_without_rate() -> None:
    scheduler = ps.callbacks.LearningRateScheduler(lambda _epoch: None)  # type: ignore[arg-type,return-value]
    with pytest.raises(TypeError, match="the learning rate of epoch 0 must be a number, got None"):
        model().fit(data(), callbacks=[scheduler], verbose=0)


def test_tensorboard_callback_writes_event_files_without_tensorboard_package(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    history = model().fit(data(), callbacks=[ps.callbacks.TensorBoard(tmp_path)], verbose=0)
    # The TFRecord reader verifies the checksums of each record.
    files = Dataset.from_tfrecord(
        str(tmp_path / "train" / "events.out.tfevents.*"), compression=None
    )
    version, event = files.to_table()["record"].to_pylist()
    assert b"brain.Event:2" in version
    loss = b"epoch_loss\x15" + struct.pack("<f", history.history["loss"][0])
    assert loss in event
    with pytest.raises(InvalidArgumentError, match="update_freq"):
        ps.callbacks.TensorBoard(tmp_path, update_freq="often")


def test_tensorboard_steps_continue_after_rollback(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    board = ps.callbacks.TensorBoard("logs", update_freq="batch")
    monkeypatch.setattr(board, "_write", lambda _run, _values, step: written.append(step))

    def train(epoch: int, batches: list[int]) -> list[int]:
        written.clear()
        board.on_epoch_begin(epoch)
        for batch in batches:
            board.on_train_batch_end(batch, {})
        return list(written)

    board.on_train_begin()
    assert train(0, [1, 2, 3]) == [1, 2, 3]
    ended = board.state_dict()
    assert train(1, [1, 2]) == [4, 5]
    inside = board.state_dict()
    assert train(1, [3]) == [6]
    for state, rest, steps in ((inside, [3], [6]), (ended, [1, 2], [4, 5])):
        board.on_train_begin()
        board.load_state_dict(state)
        assert train(1, rest) == steps
    assert train(2, [1]) == [6]


def test_event_files_are_readable_by_tensorboard(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("tensorboard", exc_type=ImportError)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trained = model()
    board = ps.callbacks.TensorBoard(tmp_path, update_freq=2)
    history = trained.fit(
        data(),
        3,
        validation_data=data(64),
        callbacks=[board],
        verbose=0,
        batch_size=64,
        steps_per_execution=2,
    )
    scores = trained.evaluate(data(64), callbacks=[board], verbose=0)

    def read(run: str, tag: str) -> list[tuple[int, float]]:
        events = EventAccumulator(str(tmp_path / run)).Reload()
        return [(event.step, pytest.approx(event.value)) for event in events.Scalars(tag)]

    assert read("train", "epoch_loss") == list(enumerate(history.history["loss"]))
    assert read("validation", "epoch_auc") == list(enumerate(history.history["val_auc"]))
    assert [step for step, _ in read("train", "batch_loss")] == [2, 4, 6, 8, 10, 12]
    assert read("validation", "evaluation_loss_vs_iterations") == [(12, scores["loss"])]


def test_verbose_is_a_number_for_callbacks_and_invalid_ones_are_refused() -> None:
    assert [check_verbose(verbose) for verbose in ("auto", True, 0, 2)] == [1, 1, 0, 2]
    assert type(check_verbose(True)) is int
    with pytest.raises(InvalidArgumentError, match="verbose"):
        model().fit(data(), verbose=3)


def test_unbatched_dataset_is_batched_by_batch_size() -> None:
    def loss(given: Any, size: int) -> list[float]:
        return model().fit(given, 2, batch_size=size, verbose=0).history["loss"]

    rows = Dataset.from_numpy(data(256))
    assert loss(rows, 32) == loss(data(256), 32) != loss(rows, 128)
    assert loss(rows.batch(128), 32) == loss(rows, 128)


def test_infinite_data_without_steps_is_refused() -> None:
    endless = Dataset.from_numpy(data(64)).repeat().batch(32)
    for call in (model().fit, model().evaluate, model().predict):
        with pytest.raises(InvalidArgumentError, match=r"no end.*steps"):
            call(endless)
    assert model().fit(endless, steps_per_epoch=3, verbose=0).history["examples"] == [96]


def test_data_ending_before_steps_per_epoch_is_warned_about_once() -> None:
    said = r"ended after 3 steps of epoch 2, with steps_per_epoch=5: .*repeat\(\)"
    with pytest.warns(DataServiceWarning, match=said) as warned:
        history = model().fit(data(256), batch_size=32, epochs=4, steps_per_epoch=5, verbose=0)
    assert len(warned) == 1
    assert history.history["examples"] == [160, 96, 160, 96]


def test_epoch_starting_at_end_of_data_restarts_data() -> None:
    history = model().fit(data(256), batch_size=32, epochs=5, steps_per_epoch=4, verbose=0)
    assert history.history["examples"] == [128] * 5


@pytest.mark.parametrize("call", ["evaluate", "predict"])
def test_data_ending_before_steps_of_evaluate_or_predict_is_warned_about(call: str) -> None:
    said = f"ended after 2 steps of {call}, with steps=3"
    with pytest.warns(DataServiceWarning, match=said):
        getattr(model(), call)(data(64), batch_size=32, steps=3)


def test_single_callback_is_accepted_and_non_callbacks_are_refused() -> None:
    alone = ps.callbacks.EarlyStopping("loss")
    assert as_list(alone) == as_list((alone, None)) == [alone]
    assert as_list(None) == []
    with pytest.raises(TypeError, match="the class EarlyStopping: write EarlyStopping"):
        as_list([ps.callbacks.EarlyStopping])
    with pytest.raises(TypeError, match="subclasses of Callback, got 3"):
        as_list([alone, 3])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (3, "got int"),
        (Dataset.from_numpy(data()).repeat().batch(8), r"validation_data=dataset.take\(batches\)"),
    ],
)
def test_invalid_validation_data_is_refused_before_training(wrong: Any, message: str) -> None:
    seen = Recorder()
    with pytest.raises(InvalidArgumentError, match=message):
        model().fit(data(), validation_data=wrong, callbacks=[seen], verbose=0)
    assert seen.seen == []


@pytest.mark.parametrize(
    "options",
    [{"steps_per_execution": None}, {"steps_per_execution": 0}, {"steps": 0}, {"batch_size": 0}],
)
def test_invalid_step_and_batch_size_arguments_are_refused(options: dict[str, Any]) -> None:
    (name,) = options
    for call in (model().evaluate, model().predict):
        with pytest.raises((TypeError, ValueError), match=f"{name} must be a positive integer"):
            call(Dataset.from_numpy(data()).batch(8), **options)
    if name != "steps":
        with pytest.raises((TypeError, ValueError), match=f"{name} must be a positive integer"):
            model().fit(data(), **options)


class StoppingBar(ps.callbacks.ProgressBar):
    """A bar that ends training, by a method that replaces the one that only shows."""

    def on_train_batch_end(self, steps: int, logs: dict[str, float]) -> None:  # noqa: ARG002
        self.stop_training = True


class OlderName(ps.callbacks.Callback):
    def on_batch_end(self, batch: int, logs: dict[str, float]) -> None: ...


@pytest.mark.parametrize(
    ("callback", "acts"),
    [
        (ps.callbacks.EarlyStopping(), False),
        (ps.callbacks.ProgressBar(), False),
        (ps.callbacks.TensorBoard("logs", update_freq=10), False),
        (ps.callbacks.Checkpoint("ckpt", every_steps=10), False),
        (ps.callbacks.CSVLogger("log.csv"), False),
        (ps.callbacks.TerminateOnNaN(), True),
        (ps.callbacks.Evict({"user": 3}, every_steps=4), True),
        (ps.callbacks.LambdaCallback(on_train_batch_end=print), True),
        (OlderName(), True),
        (StoppingBar(), True),
    ],
)
def test_callbacks_that_only_record_do_not_act_on_batches(callback: Any, acts: bool) -> None:
    assert CallbackList([ps.callbacks.Callback(), callback], model()).act_on_batches is acts


@pytest.mark.parametrize("acts", [False, True])
def test_fit_runs_ahead_only_if_no_callback_acts_on_batches(
    acts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = []
    original = LocalExecutor.run

    def run(self: LocalExecutor, function: Any, iterator: Any, steps: Steps) -> Any:
        given.append(steps.is_watched)
        return original(self, function, iterator, steps)

    monkeypatch.setattr(LocalExecutor, "run", run)
    callbacks = [ps.callbacks.TerminateOnNaN()] if acts else []
    model().fit(data(), epochs=2, callbacks=callbacks, verbose=0)
    assert given == [acts, acts]
