"""Impossible arguments raise an error at once, which names the value given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dataservice as ds
import pstrain as ps
from pstrain.errors import InvalidArgumentError, InvalidTypeError
from pstrain.optimizers import schedules

SCHEMA = ps.FeatureSchema(dense=("d",), categorical={"c": ps.Category(8)})
MODEL = ps.models.LogisticRegression(SCHEMA)
CHECKPOINT = ps.Checkpoint(x=ps.Variable(1.0))


def manager(**options: Any) -> Any:
    return ps.CheckpointManager(CHECKPOINT, "c", **options)


def evaluator(**options: Any) -> Any:
    return ps.SidecarEvaluator(MODEL, {}, "c", **options)


WRONG_TYPES: dict[str, Callable[[], Any]] = {
    "takes a Checkpoint, then the directory, got 3": lambda: ps.CheckpointManager(3, "c"),  # type: ignore[arg-type]
    "directory must be a path.*got 3": lambda: ps.CheckpointManager(CHECKPOINT, 3),  # type: ignore[arg-type]
    "step_counter must be a variable.*got 'x'": lambda: manager(step_counter="x"),
    "step_counter must be a variable.*got 3": lambda: manager(step_counter=3),
    "init_fn must be a function or None, got 3": lambda: manager(init_fn=3),
    "name of a checkpoint must be text, got 3": lambda: manager(checkpoint_name=3),
    "last_checkpoint_step must be .*'x'": lambda: manager(last_checkpoint_step="x"),
    "asynchronous must be True or False, got 'no'": lambda: manager(asynchronous="no"),
    "got 3 without one; .*Checkpoint\\(model=m\\)": lambda: ps.Checkpoint(3),
    "directory must be a path.*got None": lambda: CHECKPOINT.save(None),  # type: ignore[arg-type]
    "number of a checkpoint must be .*'a'": lambda: CHECKPOINT.save("c", number="a"),  # type: ignore[arg-type]
    "written must be a function or None, got 3": lambda: CHECKPOINT.save("c", written=3),  # type: ignore[arg-type]
    "path of a checkpoint must be a path.*3": lambda: CHECKPOINT.restore(3),  # type: ignore[arg-type]
    "directory must be a path.*got 1": lambda: ps.latest_checkpoint(1),  # type: ignore[arg-type]
    "checkpoint_dir must be a path.*got 3": lambda: ps.checkpoints_iterator(3),  # type: ignore[arg-type]
    "timeout_fn must be a function or None, got 3": lambda: ps.checkpoints_iterator("c", 0, 1, 3),  # type: ignore[arg-type]
    "directory must be a path.*got 5": lambda: ps.callbacks.Checkpoint(5),
    "resume must be True or False, got 'no'": lambda: ps.callbacks.Checkpoint("c", resume="no"),
    "incremental must be True": lambda: ps.callbacks.Checkpoint("c", incremental="no"),
    "extra=int has neither variables": lambda: ps.callbacks.Checkpoint("c", extra=3),
    "monitor must be text, got 3": lambda: ps.callbacks.EarlyStopping(3),
    "baseline must be a number, got 'x'": lambda: ps.callbacks.EarlyStopping(baseline="x"),
    "log_dir must be a path.*got 3": lambda: ps.callbacks.TensorBoard(3),  # type: ignore[arg-type]
    "filename must be a path.*got 3": lambda: ps.callbacks.CSVLogger(3),  # type: ignore[arg-type]
    "separator must be text, got 3": lambda: ps.callbacks.CSVLogger("f", 3),  # type: ignore[arg-type]
    "append must be True or False": lambda: ps.callbacks.CSVLogger("f", append="no"),  # type: ignore[arg-type]
    "schedule must be a function, got 3": lambda: ps.callbacks.LearningRateScheduler(3),  # type: ignore[arg-type]
    "takes a model, then the data, got 'c'": lambda: ps.SidecarEvaluator("c", MODEL, "c"),
    "timeout_fn must be a function or None": lambda: evaluator(timeout_fn=3),
    "callbacks are objects .*got 3": lambda: evaluator(callbacks=3),
    "results_dir must be a path.*got 3": lambda: evaluator(results_dir=3),
    "supervise must be True or False, got 'x'": lambda: ps.LocalCluster(supervise="x"),  # type: ignore[arg-type]
    "log_dir must be a path.*got 4": lambda: ps.LocalCluster(log_dir=4),  # type: ignore[arg-type]
    "from_logits must be True or False, got 3": lambda: ps.losses.BinaryCrossentropy(3),  # type: ignore[arg-type]
    "name of a metric must be text, got 3": lambda: ps.metrics.Mean(3),  # type: ignore[arg-type]
    "epsilon must be a number, got 'x'": lambda: ps.metrics.LogLoss(epsilon="x"),  # type: ignore[arg-type]
    "name of layer Dense must be text, got 3": lambda: ps.layers.Dense(2, name=3),  # type: ignore[arg-type]
    "name of layer Embedding must be text": lambda: ps.layers.Embedding(8, 2, name=b"x"),  # type: ignore[arg-type]
    "path must be a path.*got None": lambda: MODEL.load_weights(None),  # type: ignore[arg-type]
    "print_fn must be a function, got 'x'": lambda: MODEL.summary("x"),  # type: ignore[arg-type]
    "boundaries must be a list": lambda: schedules.PiecewiseConstantDecay(3, [1.0]),  # type: ignore[arg-type]
    "each of boundaries must be a number, got 'a'": lambda: schedules.PiecewiseConstantDecay(
        ["a"],  # type: ignore[list-item]
        [0.1, 0.2],
    ),
    "nesterov must be True or False": lambda: ps.optimizers.Momentum(nesterov="x"),  # type: ignore[arg-type]
    "dense must be a list of column names, got 'price'": lambda: ps.FeatureSchema(dense="price"),
    "each of dense must be text, got 3": lambda: ps.FeatureSchema(dense=(3,)),  # type: ignore[arg-type]
    "'city' needs a Category, got 8; as in Category\\(8\\)": lambda: ps.FeatureSchema(
        categorical={"city": 8}  # type: ignore[dict-item]
    ),
    "categorical must be a dict of Category": lambda: ps.FeatureSchema(categorical=["c"]),  # type: ignore[arg-type]
    "label must be text, got 3": lambda: ps.FeatureSchema(dense=("d",), label=3),  # type: ignore[arg-type]
    "weights must be text, got 3": lambda: ps.Category(8, pooling="mean", weights=3),  # type: ignore[arg-type]
    "name of a variable must be text, got 3": lambda: ps.Variable(1.0, name=3),
    "trainable must be True or False": lambda: ps.Variable(1.0, trainable="x"),
    "zero_columns must be .*1.5": lambda: ps.initializers.normal(zero_columns=1.5),  # type: ignore[arg-type]
    "stddev must be a number, got 'x'": lambda: ps.initializers.normal(stddev="x"),  # type: ignore[arg-type]
    "a vocabulary is a list of tokens.*got 3": lambda: ps.layers.StringLookup(vocabulary=3),
    "a vocabulary is a list of tokens, got 4": lambda: ps.Vocabulary(4),  # type: ignore[arg-type]
    "normalization must be a dict of .mean, standard deviation.": lambda: ps.FeatureSchema(
        dense=("d",),
        normalization=[("d", 0, 1)],  # type: ignore[arg-type]
    ),
    "takes a pyarrow.Schema, got dict: ": lambda: ps.FeatureSchema.from_arrow({"d": "float"}),
    "dict of arrays, got int": lambda: SCHEMA.normalized(5),
    "dict of arrays, got the function 'manager': give": lambda: SCHEMA.adapted(manager),
    "fan_in must be .*'2'": lambda: ps.initializers.glorot_uniform("2", 2),  # type: ignore[arg-type]
    "max_tokens must be .*'5'": lambda: SCHEMA.adapted({"c": [1]}, max_tokens="5"),  # type: ignore[arg-type]
    "num_oov_indices must be .*'1'": lambda: SCHEMA.adapted({"c": [1]}, num_oov_indices="1"),  # type: ignore[arg-type]
}
WRONG_VALUES: dict[str, Callable[[], Any]] = {
    "zero_columns must be .*-1": lambda: ps.initializers.uniform(zero_columns=-1),
    "directory must not be empty; '.' is": lambda: ps.CheckpointManager(CHECKPOINT, ""),
    "directory must not be empty; '.'": lambda: CHECKPOINT.save(""),
    "directory must be .* the URL 's3://b/c': mount": lambda: CHECKPOINT.save("s3://b/c"),
    "directory must be .* got the URL 'gs://b/c'": lambda: ps.CheckpointManager(
        CHECKPOINT, "gs://b/c"
    ),
    "path of a checkpoint must be .* URL": lambda: CHECKPOINT.restore("s3://b/c/ckpt-1"),
    "log_dir must be .* URL": lambda: ps.callbacks.TensorBoard("gs://b/logs"),
    "work_dir must be .* URL": lambda: ds.DispatcherConfig(work_dir="hdfs://host/state"),
    "directory must not be empty": lambda: ps.latest_checkpoint(""),
    "the path of a checkpoint must not be empty": lambda: CHECKPOINT.restore(""),
    "not a name for a checkpoint's folder: 'a/b'": lambda: manager(checkpoint_name="a/b"),
    "by itself: leave out model=": lambda: ps.callbacks.Checkpoint("c", model=MODEL),
    "directory must not": lambda: ps.callbacks.Checkpoint(""),
    "verbose is 0, 1, 2 or \"auto\", got 'no'": lambda: MODEL.evaluate({}, verbose="no"),
    "mode must be one of .*'x'": lambda: ps.callbacks.Checkpoint("c", mode="x"),
    "monitor must not be empty": lambda: ps.callbacks.EarlyStopping(""),
    "log_dir must not be empty": lambda: ps.callbacks.TensorBoard(""),
    "filename must not be empty": lambda: ps.callbacks.CSVLogger(""),
    "separator must be one character, got 'ab'": lambda: ps.callbacks.CSVLogger("f", "ab"),
    "checkpoint_dir must not be empty": lambda: ps.SidecarEvaluator(MODEL, {}, ""),
    "tokens of a StringLookup: .*'int'": lambda: ps.layers.StringLookup().adapt([1, 2]),
    "tokens of a IntegerLookup: .*'a'": lambda: ps.layers.IntegerLookup().adapt(["a"]),
    "tokens of a IntegerLookup: .*'m'": lambda: ps.layers.IntegerLookup(mask_token="m"),  # type: ignore[arg-type]
    "fan_out must be a positive integer, got 0": lambda: ps.initializers.glorot_uniform(1, 0),
    "epsilon must be positive, got -1": lambda: ps.metrics.LogLoss(epsilon=-1),
    "path must not be empty": lambda: MODEL.load_weights(""),
    "name of layer Dense must not be empty": lambda: ps.layers.Dense(2, name=""),
    "combiner must be one of .*'max'": lambda: ps.layers.Embedding(8, 2, combiner="max"),
    "workers must be a positive integer, got '2'": lambda: ps.LocalCluster("2"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize(
    ("error", "message"),
    [
        *((InvalidTypeError, message) for message in WRONG_TYPES),
        *((InvalidArgumentError, message) for message in WRONG_VALUES),
    ],
)
def test_wrong_argument_is_refused_at_once(
    error: type[Exception], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=message):
        (WRONG_TYPES | WRONG_VALUES)[message]()
    assert not list(tmp_path.iterdir()), "nothing was begun"
