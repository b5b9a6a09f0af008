"""The evaluator beside a training run: what it evaluates, when it ends, what it writes."""

from __future__ import annotations

import json
import pathlib
import re
import shutil
import threading
from typing import Any

import numpy as np
import pytest

import pstrain as ps
from pstrain import sidecar
from pstrain.errors import InvalidArgumentError

SCHEMA = ps.FeatureSchema(categorical={"page": ps.Category(8, hashed=False)})


def data() -> dict[str, np.ndarray]:
    page = np.random.default_rng(0).integers(0, 8, 256)
    return {"page": page, "label": page % 2}


def model() -> Any:
    made = ps.models.LogisticRegression(SCHEMA)
    made.compile(ps.optimizers.Adagrad(0.5), metrics=[ps.metrics.AUC()])
    return made


@pytest.fixture
def trained(tmp_path: pathlib.Path) -> list[dict[str, float]]:
    """Saves three checkpoints, one per epoch of four steps; returns the metrics of each."""
    made = model()
    expected = []
    for _ in range(3):
        made.fit(data(), batch_size=64, verbose=0)
        ps.Checkpoint(model=made, optimizer=made.optimizer).save(tmp_path)
        expected.append(made.evaluate(data(), verbose=0))
    return expected


def test_best_evaluation_is_that_of_the_greatest_renamed_score(
    tmp_path: pathlib.Path, trained: list[dict[str, float]]
) -> None:
    assert len(trained) == 3
    made = model()
    made.compile(metrics=[ps.metrics.AUC(name="quality")])
    values = iter([0.5, 0.7, 0.6])
    made.metrics[0].compute = lambda _state: next(values)
    ps.SidecarEvaluator(made, data(), tmp_path, every=True, timeout=0, monitor="quality").start()
    best = json.loads((tmp_path / "evaluation" / "best.json").read_text())
    assert best["metrics"]["quality"] == 0.7


def losses(results: list[dict[str, Any]]) -> list[float]:
    return [result["metrics"]["loss"] for result in results]


def test_every_checkpoint_is_evaluated_and_best_is_recorded(
    tmp_path: pathlib.Path, trained: list[dict[str, float]], capsys: pytest.CaptureFixture[str]
) -> None:
    results = ps.SidecarEvaluator(model(), data(), tmp_path, every=True, timeout=0).start()
    assert losses(results) == [logs["loss"] for logs in trained]
    assert [result["step"] for result in results] == [4, 8, 12]
    lines = (tmp_path / "evaluation" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [4, 8, 12]
    best = json.loads((tmp_path / "evaluation" / "best.json").read_text())
    assert best["metrics"]["loss"] == min(losses(results))
    assert pathlib.Path(best["checkpoint"]).name == "ckpt-3"
    assert "ckpt-3 at step 12: loss" in capsys.readouterr().out


def test_sidecar_evaluates_newest_checkpoint_by_default(
    tmp_path: pathlib.Path, trained: list[dict[str, float]]
) -> None:
    results = ps.SidecarEvaluator(model(), data(), tmp_path, max_evaluations=1, verbose=0).start()
    assert losses(results) == [trained[-1]["loss"]]


@pytest.mark.usefixtures("trained")
def test_sidecar_evaluation_uses_sample_weights(tmp_path: pathlib.Path) -> None:
    weights = np.linspace(0, 1, 256)
    options: dict[str, Any] = {"timeout": 0, "verbose": 0, "sample_weight": weights}
    (result,) = ps.SidecarEvaluator(model(), data(), tmp_path, **options).start()
    made = model()
    ps.Checkpoint(model=made).restore(result["checkpoint"])
    weighed = made.evaluate(data(), sample_weight=weights, verbose=0)
    assert result["metrics"]["loss"] == weighed["loss"]
    assert weighed["loss"] != made.evaluate(data(), verbose=0)["loss"]


@pytest.mark.parametrize("wrong", [3, [{"page": 1}], "clicks.parquet"])
def test_what_is_no_data_is_refused_before_any_checkpoint(
    wrong: Any, tmp_path: pathlib.Path
) -> None:
    with pytest.raises(InvalidArgumentError, match=f"data is a Dataset.*{type(wrong).__name__}"):
        ps.SidecarEvaluator(model(), wrong, tmp_path)


@pytest.mark.usefixtures("trained")
def test_sidecar_ends_by_max_evaluations_last_step_timeout_or_stop(tmp_path: pathlib.Path) -> None:
    def steps(**options: Any) -> list[int]:
        evaluator = ps.SidecarEvaluator(model(), data(), tmp_path, every=True, verbose=0, **options)
        return [result["step"] for result in evaluator.start()]

    assert steps(max_evaluations=2) == [4, 8]
    assert steps(last_step=7) == [4, 8]
    answers = iter([False, True])
    assert steps(timeout=0, timeout_fn=lambda: next(answers)) == [4, 8, 12]
    with pytest.raises(InvalidArgumentError, match="max_evaluations"):
        steps(max_evaluations=0)

    class Stop(ps.callbacks.Callback):
        def on_test_end(self, logs: dict[str, float]) -> None:  # noqa: ARG002
            evaluator.stop()

    evaluator = ps.SidecarEvaluator(model(), data(), tmp_path, callbacks=[Stop()], verbose=0)
    thread = threading.Thread(target=evaluator.start)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    assert len(evaluator.results) == 1


@pytest.mark.parametrize("optimizer", [None, "sgd", "adagrad"])
@pytest.mark.usefixtures("trained")
def test_sidecar_reads_step_from_checkpoint_whatever_optimizer_its_model_has(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, optimizer: str | None
) -> None:
    made = ps.models.LogisticRegression(SCHEMA)
    made.compile(optimizer, metrics=["auc"])
    board, shown = ps.callbacks.TensorBoard(tmp_path), []
    monkeypatch.setattr(board, "_write", lambda _run, _values, step: shown.append(step))
    evaluator = ps.SidecarEvaluator(
        made, data(), tmp_path, callbacks=[board], every=True, last_step=7
    )
    assert [result["step"] for result in evaluator.start()] == shown == [4, 8]


def test_last_step_with_checkpoint_without_optimizer_is_refused(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ps.Checkpoint(model=model()).save(tmp_path)
    with pytest.raises(InvalidArgumentError, match=r"last_step=7, but .*ckpt-1 holds no 'optim"):
        ps.SidecarEvaluator(model(), data(), tmp_path, last_step=7, timeout=0).start()
    ps.SidecarEvaluator(model(), data(), tmp_path, timeout=0).start()
    assert "ckpt-1: loss" in capsys.readouterr().out


@pytest.mark.usefixtures("trained")
def test_restarted_sidecar_keeps_best_result(tmp_path: pathlib.Path) -> None:
    ps.SidecarEvaluator(model(), data(), tmp_path, timeout=0, verbose=0).start()
    worse = model()
    ps.Checkpoint(model=worse, optimizer=worse.optimizer).save(tmp_path)
    ps.SidecarEvaluator(model(), data(), tmp_path, timeout=0, verbose=0).start()
    best = json.loads((tmp_path / "evaluation" / "best.json").read_text())
    assert best["step"] == 12
    assert (tmp_path / "evaluation" / "metrics.jsonl").read_text().count("\n") == 2


@pytest.mark.usefixtures("trained")
def test_restarted_sidecar_counts_earlier_evaluations(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    def steps(most: int) -> list[int]:
        options: dict[str, Any] = {"every": True, "max_evaluations": most, "verbose": 0}
        evaluator = ps.SidecarEvaluator(model(), data(), tmp_path, timeout=0, **options)
        return [result["step"] for result in evaluator.start()]

    assert steps(1) == [4]
    assert steps(2) == [4, 8], "what is evaluated once more counts once"
    assert steps(2) == [4], "one evaluation is made before it ends"
    assert steps(3) == [4, 8, 12]
    results = tmp_path / "evaluation" / "metrics.jsonl"
    results.write_bytes(results.read_bytes() + b'\xff\n[]\n{"checkpoint": "cut o')
    assert steps(3) == [4]
    assert "metrics.jsonl" in caplog.text


@pytest.mark.usefixtures("trained")
def test_restarted_sidecar_tells_which_evaluations_count(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(**options: Any) -> str:
        ps.SidecarEvaluator(model(), data(), tmp_path, timeout=0, **options).start()
        return capsys.readouterr().out

    assert "before" not in said(max_evaluations=2)
    assert re.search(r"=2 counts 1 made before, by \S*metrics.jsonl", said(max_evaluations=2))
    assert "before" not in said() + said(max_evaluations=2, verbose=0)
    assert "before" not in said(max_evaluations=2, results_dir=tmp_path / "other")


@pytest.mark.usefixtures("trained")
def test_checkpoint_deleted_before_evaluation_is_skipped(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def vanish(path: str) -> Any:
        if path.endswith("ckpt-2"):
            shutil.rmtree(path)
        return read(path)

    read = sidecar.manifest.read
    monkeypatch.setattr(sidecar.manifest, "read", vanish)
    results = ps.SidecarEvaluator(
        model(), data(), tmp_path, every=True, timeout=0, verbose=0
    ).start()
    assert [pathlib.Path(result["checkpoint"]).name for result in results] == ["ckpt-1", "ckpt-3"]


@pytest.mark.usefixtures("trained")
def test_model_that_does_not_match_checkpoint_is_refused(tmp_path: pathlib.Path) -> None:
    other = ps.models.LogisticRegression(
        ps.FeatureSchema(categorical={"page": ps.Category(9, hashed=False)})
    )
    with pytest.raises(InvalidArgumentError, match="shape"):
        ps.SidecarEvaluator(other, data(), tmp_path, timeout=0).start()


def test_incomplete_checkpoint_is_not_evaluated(tmp_path: pathlib.Path) -> None:
    made = model()
    folder = pathlib.Path(ps.Checkpoint(model=made, optimizer=made.optimizer).save(tmp_path))
    folder.rename(tmp_path / ".partial-ckpt-1")
    (tmp_path / "ckpt-2").mkdir()
    assert ps.SidecarEvaluator(made, data(), tmp_path, timeout=0).start() == []
