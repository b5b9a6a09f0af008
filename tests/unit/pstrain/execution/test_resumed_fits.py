"""Random small fits that stop at a random step and go on from a checkpoint, against whole ones."""

from __future__ import annotations

import contextlib
import pathlib
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import dataservice as ds
import pstrain as ps
from pstrain.errors import DataServiceError
from pstrain.optimizers import schedules

ROWS = 96
TIMING_LOGS = {"examples_per_s", "data_stall"}


def table(seed: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    tags = [rng.integers(0, 16, n).tolist() for n in rng.integers(0, 4, ROWS)]
    return pa.table(
        {
            "price": rng.normal(size=ROWS).astype(np.float32),
            "page": rng.integers(0, 20, ROWS),
            "tags": pa.array(tags, pa.list_(pa.int64())),
            "weight": rng.random(ROWS).astype(np.float32),
            "label": rng.integers(0, 2, ROWS),
        }
    )


class InterruptAfterBatches(ps.callbacks.Callback):
    """A callback that interrupts the program after ``after`` batches have been reported."""

    def __init__(self, after: int) -> None:
        self._left = after

    def on_train_batch_end(self, batch: int, logs: Any) -> None:  # noqa: ARG002
        self._left -= 1
        if not self._left:
            raise KeyboardInterrupt


class Program:
    """A training program that its seed decides; each run stands for a process of its own."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        choose = chance.choice
        tags = ps.Category(16, pooling=choose(("sum", "mean", "sqrtn")), hashed=False)
        page = choose((ps.Category(20, hashed=False), ps.Category(32, online=True)))
        schema = ps.FeatureSchema(dense=["price"], categorical={"page": page, "tags": tags})
        kind = choose((ps.models.FactorizationMachine, ps.models.WideDeep, ps.models.DCNv2))
        config = {**kind(schema, dim=4).get_config(), "seed": seed}
        self._make = lambda: ps.models.from_config(config)
        self._rule = choose(("momentum", "adagrad", "rmsprop", "adam", "ftrl"))
        warm = schedules.CosineDecay(0.1, 40, warmup_target=0.2, warmup_steps=5)
        self._rate = choose((0.05, warm.get_config()))
        self._clipping = choose(({}, {"clipnorm": 0.1}, {"global_clipnorm": 0.2}))
        self._has_scheduler, self._every = choose((True, False)), choose((None, 2, 5))
        self._stop_after = chance.randrange(5, 14)
        self._options: dict[str, Any] = {
            "steps_per_epoch": choose((None, 4)),
            "steps_per_execution": choose((1, 2)),
            "class_weight": choose((None, {1: 3.0})),
            "sample_weight": choose((None, "weight")),
            "validation_data": table(seed + 1),
        }
        self._data = table(seed)

    def run(self, directory: pathlib.Path | None = None, *, stops: bool = False) -> Any:
        """Trains; returns the values of the variables, the logs and the epochs."""
        model, callbacks = self._make(), list[ps.callbacks.Callback]()
        rule = {"name": self._rule, "learning_rate": self._rate, **self._clipping}
        model.compile(ps.optimizers.from_config(rule), ["auc"])
        if self._has_scheduler:
            callbacks.append(ps.callbacks.LearningRateScheduler(lambda _, rate: 0.8 * rate))
        else:
            callbacks.append(ps.callbacks.ReduceLROnPlateau(patience=1, min_delta=1))
        if directory is not None:
            saved = ps.callbacks.Checkpoint(
                directory, every_steps=self._every, incremental=True, asynchronous=False
            )
            callbacks += [saved, *([InterruptAfterBatches(self._stop_after)] if stops else [])]
        history = model.fit(
            self._data, 4, batch_size=12, callbacks=callbacks, verbose=0, **self._options
        )
        logs = {name: v for name, v in history.history.items() if name not in TIMING_LOGS}
        return [variable.numpy().tolist() for variable in model.variables], logs, history.epoch


@pytest.mark.parametrize("seed", range(4))
def test_resumed_fit_ends_like_uninterrupted_fit(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    program = Program(seed)
    with pytest.raises(KeyboardInterrupt):
        program.run(tmp_path, stops=True)
    monkeypatch.setattr("pstrain.execution.progress._PROGRAM", "another")
    assert program.run(tmp_path) == program.run()


def interrupted(directory: pathlib.Path, after: int, dense: str = "price", **options: Any) -> int:
    """Trains two epochs of six steps, or until ``after`` batches; returns how many were trained."""
    model = ps.models.LogisticRegression(ps.FeatureSchema(dense=dense.split(), label="label"))
    model.compile("sgd")
    saves = ps.callbacks.Checkpoint(directory, asynchronous=False, **options)
    with contextlib.suppress(KeyboardInterrupt):
        model.fit(
            table(0), 2, callbacks=[saves, stops := InterruptAfterBatches(after)],
            batch_size=16, steps_per_execution=1, verbose=0,
        )  # fmt: skip
    return after - stops._left


@pytest.mark.parametrize(
    ("program", "resume", "trained"), [("another", True, 6), ("another", False, 12), ("", True, 12)]
)
def test_only_the_fit_of_another_program_is_resumed_unless_declined(
    program: str,
    resume: bool,
    trained: int,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert interrupted(tmp_path, after=8) == 8
    if program:
        monkeypatch.setattr("pstrain.execution.progress._PROGRAM", program)
    assert interrupted(tmp_path, after=99, resume=resume) == trained
    told = f"resuming the fit that saved {tmp_path / 'ckpt-1'}, in epoch 2 after step 0"
    assert (told in caplog.text) == (trained == 6)


def test_checkpoint_that_a_fit_cannot_resume_from_is_named_with_the_remedy(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(tmp_path, after=8)
    monkeypatch.setattr("pstrain.execution.progress._PROGRAM", "another")
    with pytest.raises(DataServiceError) as caught:
        interrupted(tmp_path, after=99, dense="price weight")
    (note,) = caught.value.__notes__
    assert note.startswith(f"fit tried to resume from {tmp_path / 'ckpt-1'}; to start over, pass")


@pytest.mark.parametrize("steps", [None, 2])
def test_second_fit_continues_passes_of_first(steps: int | None) -> None:
    rows = ds.Dataset.from_table(table(0)).shuffle(ROWS, seed=5).batch(16)
    if steps:
        rows = rows.repeat()

    def trained(*epochs: tuple[int, int]) -> list[Any]:
        model = ps.models.LogisticRegression(ps.FeatureSchema(dense=["price"], label="label"))
        model.compile("sgd")
        options: Any = {"steps_per_epoch": steps, "verbose": 0}
        losses = [
            model.fit(rows, end, initial_epoch=first, **options).history["loss"]
            for first, end in epochs
        ]
        return [*np.concatenate(losses)]

    # With ``steps_per_epoch`` epochs are no passes, so each fit begins with the first pass.
    assert (trained((0, 2), (2, 3)) == trained((0, 3))) is (steps is None)


def test_fit_with_numpys_integers_is_saved(tmp_path: pathlib.Path) -> None:
    model = ps.models.LogisticRegression(ps.FeatureSchema(dense=["price"], label="label"))
    model.compile("sgd")
    one, saves = np.int64(1), ps.callbacks.Checkpoint(tmp_path, asynchronous=False)
    options: Any = {"steps_per_epoch": one, "steps_per_execution": one, "initial_epoch": one}
    history = model.fit(table(0), 2 * one, callbacks=[saves], verbose=0, **options)
    assert history.epoch == [1]
    assert history.params == {"epochs": 2, "steps": 1, "verbose": 0}
    assert any(tmp_path.iterdir())
