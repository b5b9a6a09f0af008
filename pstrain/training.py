"""``fit``, to be read from top to bottom: epochs, steps, what is reported, what is called back.

Where a step runs is the executor's business, how a model computes its loss the model's.
Invariant: an epoch ends when its data or its steps are used up, and every report of a run is
counted once.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pstrain.callbacks.base import Callback, CallbackList
from pstrain.callbacks.progress import ProgressBar
from pstrain.errors import DataError, InvalidArgumentError
from pstrain.execution import Report, as_source, executor_of, steps_at_once, take
from pstrain.losses import BinaryCrossentropy, sigmoid
from pstrain.tape import GradientTape

Logs = dict[str, float]


@dataclass(slots=True)
class History:
    """What ``fit`` returns: ``history[name]`` has one value per epoch."""

    epoch: list[int] = field(default_factory=list)
    history: dict[str, list[float]] = field(default_factory=dict)

    def add(self, epoch: int, logs: Logs) -> None:
        self.epoch.append(epoch)
        for name, value in logs.items():
            self.history.setdefault(name, []).append(value)


def fit(
    model: Any,
    data: Any,
    epochs: int = 1,
    steps_per_epoch: int | None = None,
    validation_data: Any = None,
    callbacks: Sequence[Callback] = (),
    *,
    verbose: int | str = 1,
    batch_size: int = 1024,
    steps_per_execution: int = 8,
    initial_epoch: int = 0,
) -> History:
    """Trains a compiled model; on the trainers of the strategy it was made under, if any.

    ``data``: a Dataset of batches (under a strategy best a distributed one), a function that
    makes one, an Arrow table or a dict of arrays. An epoch is one pass over it, or
    ``steps_per_epoch`` steps over all trainers together. ``steps_per_execution``: how many steps
    are scheduled as one, where the strategy's consistency is "async". ``verbose``: 0 nothing, 1
    (or "auto") a bar, 2 a line per epoch. Blocks.
    Raises what a step raised, DataError where there were no rows.
    """
    _check(model, epochs, steps_per_epoch, steps_per_execution)
    verbose = check_verbose(verbose)
    steps_per_execution = steps_at_once(model, steps_per_execution)
    executor = executor_of(model)
    dataset = executor.dataset(as_source(data, batch_size))
    step = TrainSteps(model)
    shown = [ProgressBar(verbose)] if verbose else []
    calls = CallbackList(
        [*callbacks, *shown], model, epochs=epochs, steps=steps_per_epoch, verbose=verbose
    )
    history = History()
    calls.train_begin()
    iterator, is_used_up = None, True
    for epoch in range(initial_epoch, epochs):
        calls.epoch_begin(epoch)
        if is_used_up:
            iterator, is_used_up = iter(dataset), False
        totals = Totals(model.metrics)
        for report in executor.run(step, iterator, steps_per_epoch, steps_per_execution):
            if report["steps"]:
                calls.batch_begin(totals.steps)
                totals.add(report)
                calls.batch_end(totals.steps, totals.logs())
            if report["ended"]:
                is_used_up = True
        if not totals.steps:
            raise DataError(f"epoch {epoch} had no rows to train on: the dataset is empty")
        logs = totals.logs()
        if validation_data is not None:
            held_out = model.evaluate(
                validation_data, batch_size=batch_size, verbose=0, callbacks=calls
            )
            measured = ["loss", *(metric.name for metric in model.metrics)]
            logs |= {f"val_{name}": held_out[name] for name in measured}
        calls.epoch_end(epoch, logs)
        history.add(epoch, logs)
        if calls.stop_training:
            break
    calls.train_end()
    return history


class TrainSteps:
    """The function that trains: so many steps of one model, then a report."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._loss = BinaryCrossentropy(from_logits=True)

    def __call__(self, iterator: Any, steps: int) -> Report:
        model = self._model
        started_s = time.perf_counter()
        examples, loss_sum, waited_s, done = 0, 0.0, 0.0, 0
        states = [metric.initial_state() for metric in model.metrics]
        for batch, wait_s in take(iterator, steps):
            features = model.encode(batch)
            if features.labels is None:
                raise DataError(f"the data has no label column {model.schema.label!r}")
            with GradientTape() as tape:
                logits = model.forward(features)
                loss = self._loss(features.labels, logits)
            model.optimizer.apply_gradients(tape.gradients(loss))
            probabilities = sigmoid(logits.value.reshape(-1))
            for index, metric in enumerate(model.metrics):
                states[index] = metric.update(states[index], features.labels, probabilities)
            rows = len(features.labels)
            examples, loss_sum = examples + rows, loss_sum + float(loss) * rows
            waited_s, done = waited_s + wait_s, done + 1
        return {
            "steps": done,
            "ended": done < steps,
            "examples": examples,
            "loss_sum": loss_sum,
            "wait_s": waited_s,
            "busy_s": time.perf_counter() - started_s,
            "states": states,
        }


class Totals:
    """Sums of an epoch's reports."""

    def __init__(self, metrics: Iterable[Any]) -> None:
        self._metrics = list(metrics)
        self._states = [metric.initial_state() for metric in self._metrics]
        self._started_s = time.perf_counter()
        self.steps = 0
        self.examples = 0
        self._loss_sum = 0.0
        self._wait_s = 0.0
        self._busy_s = 0.0

    def add(self, report: Report) -> None:
        self.steps += report["steps"]
        self.examples += report["examples"]
        self._loss_sum += report["loss_sum"]
        self._wait_s += report["wait_s"]
        self._busy_s += report["busy_s"]
        self._states = [
            metric.merge(mine, theirs)
            for metric, mine, theirs in zip(
                self._metrics, self._states, report["states"], strict=True
            )
        ]

    def logs(self) -> Logs:
        """``data_stall``: share of the steps' time that was spent waiting for data."""
        elapsed_s = max(time.perf_counter() - self._started_s, 1e-9)
        values = {
            "loss": self._loss_sum / max(self.examples, 1),
            "examples": float(self.examples),
            "examples_per_s": self.examples / elapsed_s,
            "data_stall": self._wait_s / max(self._busy_s, 1e-9),
        }
        for metric, state in zip(self._metrics, self._states, strict=True):
            values[metric.name] = metric.compute(state)
        return values


def check_verbose(verbose: int | str) -> int:
    """0, 1 or 2; "auto" is 1."""
    if verbose == "auto":
        return 1
    if verbose not in (0, 1, 2):
        raise InvalidArgumentError(f'verbose is 0, 1, 2 or "auto", got {verbose!r}')
    return int(verbose)


def _check(model: Any, epochs: int, steps_per_epoch: int | None, steps_per_execution: int) -> None:
    if model.optimizer is None:
        raise InvalidArgumentError("call model.compile(optimizer=...) before fit")
    for name, value in (
        ("epochs", epochs),
        ("steps_per_epoch", steps_per_epoch),
        ("steps_per_execution", steps_per_execution),
    ):
        if value is not None and (not isinstance(value, int) or value < 1):
            raise InvalidArgumentError(f"{name} must be a positive integer, got {value!r}")
