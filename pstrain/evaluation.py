"""``evaluate`` and ``predict``: metrics and predictions over a dataset.

Knows nothing of how a model computes. Invariant: metric states travel and are merged, never
averages, so the result is the same for any number of trainers.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dataservice.runtime.arguments import check_optional, integer_at_least
from pstrain.callbacks.base import Callback, CallbackList, check_verbose
from pstrain.execution.choice import executor_of
from pstrain.execution.data import as_source, can_be_dealt, check_end, no_rows, warn_of_end
from pstrain.execution.executor import Report, Steps, take
from pstrain.features.weighting import Weighting, with_weights
from pstrain.metrics.grouping import Grouping
from pstrain.metrics.mean import TrainedLoss
from pstrain.metrics.tally import MergedState, Tally
from pstrain.vocabulary import OUTCOME_MAX_BYTES

Logs = dict[str, float]

_ROWS_MAX_BYTES: Final = OUTCOME_MAX_BYTES // 2
"""A call ends once it has collected so many bytes of rows for metrics by group.

With one batch more, and the other metrics, it is small enough to be kept if its trainer is lost.
"""


def evaluate(
    model: Any,
    data: Any,
    *,
    steps: int | None = None,
    batch_size: int = 4096,
    steps_per_execution: int = 8,
    verbose: int | str = 1,
    callbacks: Sequence[Callback] | CallbackList = (),
    distributed: bool | None = None,
    sample_weight: Any = None,
) -> Logs:
    """Returns loss and compiled metrics over ``data``, from the trainers if there are any. Blocks.

    ``data`` and ``sample_weight`` are as for ``fit``; weights count in the loss and in
    ``weighted_metrics``. ``distributed=False`` evaluates in this process.

    The result is exact for a Dataset that is not distributed, a table or arrays: each closure names
    the rows that it reads and returns the states of its metrics, so neither the number of trainers
    nor the loss of one changes the result. It is exact too for a data service that gives each row
    out once (``DYNAMIC``): a row counts as read when its report has arrived, so the rows of a lost
    trainer go to the others. Trainers read the data of other dataset functions by themselves: if a
    trainer is lost, what it was reading is left out.
    """
    wanted = _checked_steps(steps, steps_per_execution)
    verbose = check_verbose(verbose)
    executor = executor_of(model, distributed)
    data, column = with_weights(data, sample_weight)
    loss = TrainedLoss(model.objective)
    metrics, weighted = [loss, *model.metrics], [loss, *model.weighted_metrics]
    merged = [MergedState(metric.merge, metric.initial_state()) for metric in metrics]
    hooks = _hooks(callbacks, model, steps)
    hooks.test_begin()
    started_s = time.perf_counter()
    examples = done = 0
    step = EvaluateSteps(model, metrics, weighted, Weighting(column), Grouping(metrics))
    source = as_source(data, batch_size)
    check_end(source, steps, "steps=")
    with closing(executor.run_once(step, source, wanted)) as reports:
        for report in reports:
            examples += report["examples"]
            for mine, theirs in zip(merged, report["states"], strict=True):
                mine.add(theirs)
            before, done = done, done + report["steps"]
            if done > before:
                hooks.test_batch(before, done, {"examples": float(examples)})
    if not examples:
        raise no_rows("there were no rows to evaluate on", source)
    if steps is not None and done < steps:
        warn_of_end("evaluate", done, f"steps={steps}", "these were evaluated")
    elapsed_s = time.perf_counter() - started_s
    logs = {m.name: m.compute(s.value()) for m, s in zip(metrics, merged, strict=True)}
    logs |= {"examples": float(examples), "examples_per_s": examples / max(elapsed_s, 1e-9)}
    hooks.test_end(logs)
    if verbose:
        shown = "  ".join(f"{name} {value:.4f}" for name, value in logs.items())
        print(f"evaluation: {shown}")
    return logs


class EvaluateSteps:
    """The function that evaluates a number of batches; metrics in ``weighted`` count weights.

    It ends early, before the end of its data, once it has as many rows as its report may hold.
    """

    def __init__(
        self,
        model: Any,
        metrics: list[Any],
        weighted: list[Any],
        weighting: Weighting,
        grouping: Grouping,
    ) -> None:
        self._model = model
        self._metrics, self._weighted = metrics, weighted
        self._weighting, self._grouping = weighting, grouping

    def __call__(self, iterator: Any, steps: int) -> Report:
        model, done, examples, has_room = self._model, 0, 0, True
        tally = Tally(self._metrics, self._weighted)
        for batch, _ in take(iterator, steps):
            features = model.encode(batch)
            if features.labels is None:
                raise model.schema.lacks_label(batch)
            predictions = model.predict_on_batch(features)
            weights = self._weighting.of(batch, features.labels)
            tally.add(features.labels, predictions, weights, self._grouping.of(batch))
            done, examples = done + 1, examples + len(predictions)
            has_room = tally.rows_bytes < _ROWS_MAX_BYTES
            if not has_room:
                break
        return {
            "steps": done,
            "ended": done < steps and has_room,
            "examples": examples,
            "states": tally.states,
        }


def predict(
    model: Any,
    data: Any,
    *,
    steps: int | None = None,
    batch_size: int = 4096,
    steps_per_execution: int = 8,
    verbose: int | str = 0,
    callbacks: Sequence[Callback] | CallbackList = (),
    distributed: bool | None = None,
) -> NDArray[np.float32]:
    """Returns the prediction for every row, float32 [rows], in row order. Blocks.

    Of a classifier it is the probability of label 1.

    Runs on the trainers if there are any and each can read the data by itself (a Dataset that is
    not distributed, a table, arrays), otherwise in this process. With ``distributed=True`` trainers
    read a data service together: each row once, in no particular order. For a few rows at a time,
    as in a server, ``model.predict_on_batch(rows)`` takes a quarter of the time. Prints a line at
    the end unless ``verbose`` is 0.
    """
    wanted = _checked_steps(steps, steps_per_execution)
    verbose = check_verbose(verbose)
    source = as_source(data, batch_size)
    check_end(source, steps, "steps=")
    if distributed is None and not can_be_dealt(source):
        distributed = False
    executor = executor_of(model, distributed)
    hooks = _hooks(callbacks, model, steps)
    hooks.predict_begin()
    started_s = time.perf_counter()
    parts: list[NDArray[np.float32]] = []
    step = PredictSteps(model)
    run = executor.run_once(step, source, wanted, is_in_order=True)
    with closing(run) as reports:
        for report in reports:
            before = len(parts)
            parts += report["predictions"]
            if len(parts) > before:
                hooks.predict_batch(before, len(parts), {})
    hooks.predict_end({})
    if steps is not None and len(parts) < steps:
        warn_of_end("predict", len(parts), f"steps={steps}", "these were predicted")
    predictions = np.concatenate(parts) if parts else np.empty(0, dtype=np.float32)
    if verbose:
        elapsed_s = time.perf_counter() - started_s
        rate = len(predictions) / max(elapsed_s, 1e-9)
        print(f"prediction: examples {len(predictions):,}  examples_per_s {rate:,.0f}")
    return predictions


class PredictSteps:
    """The function that predicts a number of batches."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __call__(self, iterator: Any, steps: int) -> Report:
        predictions = [self._model.predict_on_batch(batch) for batch, _ in take(iterator, steps)]
        return {
            "steps": len(predictions),
            "ended": len(predictions) < steps,
            "predictions": predictions,
        }


def _checked_steps(steps: int | None, steps_per_execution: int) -> Steps:
    check_optional(1, steps=steps)
    return Steps(steps, integer_at_least(steps_per_execution, 1, "steps_per_execution"))


def _hooks(
    callbacks: Sequence[Callback] | CallbackList, model: Any, steps: int | None
) -> CallbackList:
    if isinstance(callbacks, CallbackList):
        return callbacks
    return CallbackList(callbacks, model, steps=steps)
