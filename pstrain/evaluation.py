"""``evaluate`` and ``predict``: metrics and probabilities over a dataset.

Metric states travel and are merged, never averages, so that the result is the same for any
number of trainers. Knows nothing of how a model computes.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pstrain.errors import DataError
from pstrain.execution import LocalExecutor, Report, as_source, executor_of, take
from pstrain.metrics import LogLoss
from pstrain.training import Logs


def evaluate(
    model: Any,
    data: Any,
    *,
    steps: int | None = None,
    batch_size: int = 4096,
    steps_per_execution: int = 8,
    verbose: int = 1,
) -> Logs:
    """Loss and compiled metrics over ``data`` (as for ``fit``), on the trainers if there are any.

    Integer counts are merged, so the number of trainers makes no difference. A trainer lost on
    the way takes the batches along that it was reading, which is logged. Blocks.
    """
    executor = executor_of(model)
    dataset = executor.dataset(as_source(data, batch_size))
    metrics = [LogLoss(name="loss"), *model.metrics]
    states = [metric.initial_state() for metric in metrics]
    started_s = time.perf_counter()
    examples = 0
    step = EvaluateSteps(model, metrics)
    for report in executor.run(step, iter(dataset), steps, steps_per_execution):
        examples += report["examples"]
        states = [
            metric.merge(mine, theirs)
            for metric, mine, theirs in zip(metrics, states, report["states"], strict=True)
        ]
    if not examples:
        raise DataError("there were no rows to evaluate on: the dataset is empty")
    elapsed_s = time.perf_counter() - started_s
    logs = {m.name: m.compute(s) for m, s in zip(metrics, states, strict=True)}
    logs |= {"examples": float(examples), "examples_per_s": examples / max(elapsed_s, 1e-9)}
    if verbose:
        shown = "  ".join(f"{name} {value:.4f}" for name, value in logs.items())
        print(f"evaluation: {shown}")
    return logs


class EvaluateSteps:
    """The function that evaluates so many batches."""

    def __init__(self, model: Any, metrics: list[Any]) -> None:
        self._model = model
        self._metrics = metrics

    def __call__(self, iterator: Any, steps: int) -> Report:
        model, done, examples = self._model, 0, 0
        states = [metric.initial_state() for metric in self._metrics]
        for batch, _ in take(iterator, steps):
            features = model.encode(batch)
            if features.labels is None:
                raise DataError(f"the data has no label column {model.schema.label!r}")
            probabilities = model.predict_on_batch(features)
            for index, metric in enumerate(self._metrics):
                states[index] = metric.update(states[index], features.labels, probabilities)
            done, examples = done + 1, examples + len(probabilities)
        return {"steps": done, "ended": done < steps, "examples": examples, "states": states}


def predict(
    model: Any, data: Any, *, steps: int | None = None, batch_size: int = 4096
) -> NDArray[np.float32]:
    """Probability of label 1 for every row, float32 [rows], in the order of the rows.

    Runs in this process, since the order of rows is the result's meaning; parameters are read
    from wherever they live. Blocks.
    """
    executor = LocalExecutor()
    dataset = executor.dataset(as_source(data, batch_size))
    parts: list[NDArray[np.float32]] = []
    for report in executor.run(PredictSteps(model), iter(dataset), steps, 8):
        parts += report["predictions"]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.float32)


class PredictSteps:
    """The function that predicts so many batches."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __call__(self, iterator: Any, steps: int) -> Report:
        predictions = [self._model.predict_on_batch(batch) for batch, _ in take(iterator, steps)]
        return {
            "steps": len(predictions),
            "ended": len(predictions) < steps,
            "predictions": predictions,
        }
