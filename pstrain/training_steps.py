"""The training steps of ``fit``, as a trainer or this process runs them, and their reports.

Must not know who schedules steps, nor what becomes of a report. Invariant: a report on steps is the
same whether the closure that ran them returned it or it is rebuilt from the notes on the steps.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from pstrain.execution.executor import Note, NotingFunction, Report, take
from pstrain.features.weighting import Weighting
from pstrain.gradients.tape import GradientTape
from pstrain.metrics.tally import Tally, of_each_row

_Values = NDArray[Any] | None


class Step(NamedTuple):
    """The result of one step. The three arrays are the inputs of metrics; None without metrics."""

    rows: int
    loss: float
    wait_s: float
    busy_s: float
    labels: _Values = None
    predictions: _Values = None
    weights: _Values = None

    def packed(self, label_type: DTypeLike, *, are_weighed: bool) -> Step:
        """Returns the step as a note stores it: labels of ``label_type``, weights if needed."""
        labels = None if self.labels is None else self.labels.astype(label_type, copy=False)
        return self._replace(labels=labels, weights=self.weights if are_weighed else None)

    def unpacked(self) -> Step:
        """Returns the step with labels as metrics take them; the inverse of :meth:`packed`."""
        return (
            self
            if self.labels is None
            else self._replace(labels=self.labels.astype(np.float32, copy=False))
        )


class Sums:
    """Sums over the steps of one closure."""

    def __init__(self, model: Any) -> None:
        self._tally = Tally(of_each_row(model.metrics), model.weighted_metrics)
        self._steps = self._examples = 0
        self._loss_sum = self._wait_s = self._busy_s = 0.0

    def add(self, step: Step) -> None:
        """Adds one step; steps come in their order, because sums of floats depend on it."""
        if step.labels is not None and step.predictions is not None:
            self._tally.add(step.labels, step.predictions, step.weights, {})
        self._steps, self._examples = self._steps + 1, self._examples + step.rows
        self._loss_sum += step.loss * step.rows
        self._wait_s, self._busy_s = self._wait_s + step.wait_s, self._busy_s + step.busy_s

    def report(self) -> Report:
        """Returns the report of a closure that has not met the end of its data."""
        return {
            "steps": self._steps,
            "ended": False,
            "examples": self._examples,
            "loss_sum": self._loss_sum,
            "wait_s": self._wait_s,
            "busy_s": self._busy_s,
            "states": self._tally.states,
        }


class TrainSteps(NotingFunction):
    """The function that trains one model for a number of steps, and notes each step."""

    def __init__(self, model: Any, weighting: Weighting) -> None:
        self._model, self._weighting = model, weighting

    def run(self, iterator: Any, steps: int, note: Note) -> Report:
        model, sums, done, has_room = self._model, Sums(self._model), 0, True
        are_weighed = bool(of_each_row(model.weighted_metrics))
        began_s = at_s = time.perf_counter()
        for batch, wait_s in take(iterator, steps):
            rows, loss, counted = self._train(batch)
            now_s = time.perf_counter()
            step = Step(rows, loss, wait_s, now_s - at_s, *counted)
            at_s, done = now_s, done + 1
            sums.add(step)
            # The last step needs no note: the report covers it.
            if done < steps:
                has_room = note(step.packed(model.objective.packed_labels, are_weighed=are_weighed))
            if not has_room:
                break
        busy_s = time.perf_counter() - began_s
        return {**sums.report(), "ended": done < steps and has_room, "busy_s": busy_s}

    def _train(self, batch: Any) -> tuple[int, float, tuple[_Values, ...]]:
        """Runs one step; returns its number of rows, its loss, and the inputs of metrics."""
        model = self._model
        features = model.encode(batch)
        if features.labels is None:
            raise model.schema.lacks_label(batch)
        weights = self._weighting.of(batch, features.labels)
        with GradientTape() as tape:
            outputs = model.forward(features)
            loss = model.objective(features.labels, outputs, weights)
        model.optimizer.apply_gradients(tape.gradients(loss))
        counted: tuple[_Values, ...] = ()
        if of_each_row(model.metrics):
            predictions = model.objective.predicted(outputs.value.reshape(-1))
            counted = features.labels, predictions, weights
        return len(features.labels), float(loss), counted

    def report_of(self, notes: Iterable[Any]) -> Report:
        sums = Sums(self._model)
        for step in notes:
            sums.add(Step(*step).unpacked())
        return sums.report()
