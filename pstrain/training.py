"""``fit``, written to be read from top to bottom: epochs, steps, reports and callbacks.

Knows neither where a step runs (the executor) nor how a model computes its loss (the model);
``progress`` keeps how far training has come, ``resumption`` continues it after a loss.
Invariant: an epoch ends when its data or its steps are used up, and every report of a run is
counted once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dataservice.runtime.arguments import check_optional, integer_at_least
from pstrain.callbacks.base import Callback, CallbackList, Logs, as_list, check_verbose
from pstrain.callbacks.monitor import checked_frequency, is_validated, measured_names
from pstrain.callbacks.progress import ProgressBar
from pstrain.errors import InvalidArgumentError
from pstrain.execution.choice import allowed_steps, executor_of
from pstrain.execution.data import (
    as_source,
    check_end,
    no_rows,
    rows_of,
    split_rows,
    warn_of_end,
)
from pstrain.execution.executor import Steps
from pstrain.execution.progress import History, Progress
from pstrain.execution.resumption import recovery
from pstrain.features.weighting import Weighting, with_weights
from pstrain.training_steps import TrainSteps

Validation = tuple[Any, int, str | None]
"""(validation data or None, rows per batch, name of the column of sample weights or None)."""


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
    class_weight: Mapping[Any, float] | None = None,
    sample_weight: Any = None,
    validation_freq: int | Sequence[int] = 1,
    validation_sample_weight: Any = None,
    validation_split: float = 0.0,
) -> History:
    """Trains a compiled model; on the trainers of its strategy if it was made under one. Blocks.

    ``data``: a Dataset of batches (under a strategy preferably a distributed one), a function that
    makes one, an Arrow table, a pandas DataFrame or a dict of arrays. Data that is not distributed
    is dealt to trainers a few batches at a time; each reads on from where it stands to its own.
    An epoch is one pass over the data, the pass with the epoch's own number (from
    ``initial_epoch``), or ``steps_per_epoch`` steps, counted over all trainers: it continues where
    the last epoch stopped, and ends early, with a warning, if the pass ends. ``batch_size``: for
    tables, dicts and Datasets without ``batch(n)``, the rows that one trainer takes at a time; in
    rounds (sync) a step learns from ``num_replicas_in_sync`` such batches: divide Keras' (global)
    batch size by that. ``steps_per_execution``: how many steps are scheduled as one closure, if the
    strategy's consistency is "async". ``verbose``: 0 nothing, 1 (or "auto") a bar, 2 a line per
    epoch. ``class_weight``: weights by label, as ``{1: 5.0}``; ``sample_weight``,
    ``validation_sample_weight``: weights of rows, as a column's name, or an array for a table or
    dict of arrays; those of rows may be negative. A batch's loss, in the history too, is the sum of
    weight (both multiplied) times loss over the number of rows; ``weighted_metrics`` count by
    weight. ``validation_split``: the share of a table's last rows to hold out if there is no
    ``validation_data``. ``validation_freq``: validates every so many epochs, or after those listed.

    With ``callbacks.Checkpoint``, or a coordinator that has a ``checkpoint``: once a lost parameter
    server was started again, values, data position and counts return to the newest checkpoint and
    training continues there; a killed program continues there when it is started again. Each row
    still counts once, in the values and in the history, as after the loss of a trainer; callbacks
    are called again for repeated steps. Raises what a step raised, DataError if there were no rows,
    UnavailableError if a server is lost and nothing was saved.
    """
    counts = epochs, steps_per_epoch, steps_per_execution
    epochs, steps_per_epoch, steps_per_execution = _checked(model, *counts)
    initial_epoch, validation_freq = _checked_epochs(initial_epoch, validation_freq)
    verbose, callbacks = check_verbose(verbose), as_list(callbacks)
    executor = executor_of(model)
    data, column = with_weights(data, sample_weight)
    validation = _validation(validation_data, validation_sample_weight, batch_size)
    data, validation = _divided(data, column, validation_split, validation)
    step = TrainSteps(model, _weighting(model, column, class_weight))
    source = as_source(data, batch_size)
    check_end(source, steps_per_epoch, "steps_per_epoch=")
    dataset = executor.dataset(source, 0 if steps_per_epoch else initial_epoch)
    shown = [ProgressBar(verbose, examples_per_epoch=rows_of(data))] if verbose else []
    params: dict[str, Any] = {"epochs": epochs, "steps": steps_per_epoch, "verbose": verbose}
    hooks = CallbackList([*callbacks, *shown], model, validation_freq=validation_freq, **params)
    with hooks.training():
        progress = Progress(
            executor, dataset, model.metrics, hooks, epochs=epochs, initial_epoch=initial_epoch
        )
        steps_per_call = allowed_steps(model, steps_per_execution)
        plan = EpochPlan(source, steps_per_epoch, steps_per_call, validation, validation_freq)
        loop = Loop(model, step, executor, progress, hooks, plan)
        with recovery(executor, progress, callbacks, initial_epoch) as recovering:
            recovering.train(loop.train)
    progress.history.params = params
    return progress.history


@dataclass(frozen=True, slots=True)
class EpochPlan:
    """What an epoch consists of; ``steps_per_epoch`` None: one pass over ``source``."""

    source: Any
    steps_per_epoch: int | None = None
    steps_per_call: int = 1
    validation: Validation = (None, 0, None)
    validation_freq: int | Sequence[int] = 1


class Loop:
    """The loop over epochs and steps, which starts from wherever ``progress`` stands."""

    def __init__(
        self,
        model: Any,
        step: TrainSteps,
        executor: Any,
        progress: Progress,
        hooks: CallbackList,
        plan: EpochPlan,
    ) -> None:
        self._model, self._step, self._executor = model, step, executor
        self._progress, self._hooks, self._plan = progress, hooks, plan
        self._has_warned = self._is_stopped = False

    def train(self) -> None:
        """Trains the remaining epochs, or until a callback stops training."""
        while not self._progress.is_complete:
            self._train_epoch()
            if self._hooks.stop_training:
                return

    def _train_epoch(self) -> None:
        """Trains what remains of the current epoch, validates, and closes it."""
        progress, hooks, epoch = self._progress, self._hooks, self._progress.epoch
        hooks.epoch_begin(epoch)
        began_inside = progress.is_inside
        self._run_steps()
        if began_inside and not progress.totals.steps:
            # The epoch before took the last rows of that pass: this one begins the next pass.
            self._run_steps()
        if not progress.totals.steps:
            raise no_rows(f"epoch {epoch + 1} had no rows to train on", self._plan.source)
        self._warn_of_short_pass(epoch)
        logs = progress.totals.logs() | self._validate(epoch)
        progress.end_epoch(logs)
        hooks.epoch_end(epoch, logs)
        progress.close_epoch()

    def _run_steps(self) -> None:
        """Runs what is left of the current epoch, or of the current pass if that ends first."""
        progress, hooks = self._progress, self._hooks
        self._is_stopped = False
        steps = Steps(
            self._plan.steps_per_epoch,
            self._plan.steps_per_call,
            done=progress.totals.steps,
            is_stopped=lambda: self._is_stopped,
            is_watched=hooks.act_on_batches,
        )
        for report in self._executor.run(self._step, progress.iterator(), steps):
            if report["steps"]:
                before = progress.totals.steps
                progress.totals.add(report)
                hooks.batch_begin(before)
                hooks.batch_end(progress.totals.steps, progress.totals.logs)
                self._is_stopped = hooks.stop_training
        if self._executor.is_at_end:
            progress.use_up()

    def _warn_of_short_pass(self, epoch: int) -> None:
        """Warns, once per fit, of a pass over the data that was too short for an epoch."""
        done, expected = self._progress.totals.steps, self._plan.steps_per_epoch
        is_short = expected is not None and done < expected and not self._is_stopped
        if is_short and not self._has_warned:
            self._has_warned = True
            warn_of_end(
                f"epoch {epoch + 1}",
                done,
                f"steps_per_epoch={expected}",
                "an epoch ends with its pass over the data, and the next one begins another",
            )

    def _validate(self, epoch: int) -> Logs:
        data, batch_size, column = self._plan.validation
        if data is None or not is_validated(epoch, self._plan.validation_freq):
            return {}
        held_out = self._model.evaluate(
            data, batch_size=batch_size, verbose=0, callbacks=self._hooks, sample_weight=column
        )
        return {f"val_{name}": held_out[name] for name in measured_names(self._model)}


def _checked(
    model: Any, epochs: int, steps_per_epoch: int | None, steps_per_execution: int
) -> tuple[int, int | None, int]:
    """Returns the numbers as Python's integers, because checkpoints save them as JSON."""
    if model.optimizer is None:
        raise InvalidArgumentError("call model.compile(optimizer=...) before fit")
    if np.ndim(epochs):
        raise InvalidArgumentError(
            f"epochs must be a positive integer, got {type(epochs).__name__}: labels are the "
            f"column {model.schema.label!r} of the data, not an argument of their own"
        )
    epochs = integer_at_least(epochs, 1, "epochs")
    check_optional(1, steps_per_epoch=steps_per_epoch)
    steps = None if steps_per_epoch is None else int(steps_per_epoch)
    return epochs, steps, integer_at_least(steps_per_execution, 1, "steps_per_execution")


def _weighting(model: Any, column: str | None, class_weight: Any) -> Weighting:
    if class_weight is not None:
        model.objective.check_class_weight()
    return Weighting(column, class_weight)


def _divided(
    data: Any, column: str | None, share: float, validation: Validation
) -> tuple[Any, Validation]:
    """Returns (training data, validation), holding out the last ``share`` of rows if asked to."""
    given, batch_size, _ = validation
    if not share or given is not None:
        return data, validation
    first, last = split_rows(data, share)
    return first, (as_source(last, batch_size), batch_size, column)


def _validation(data: Any, sample_weight: Any, batch_size: int) -> Validation:
    if data is None:
        if sample_weight is not None:
            raise InvalidArgumentError(
                "validation_sample_weight weighs rows of validation_data, which is not given: give "
                "it, or leave the weights out"
            )
        return None, batch_size, None
    data, column = with_weights(data, sample_weight)
    source = as_source(data, batch_size)
    check_end(source, None, "validation_data=dataset.take(batches)")
    return source, batch_size, column


def _checked_epochs(initial_epoch: int, validation_freq: Any) -> tuple[int, int | list[int]]:
    return integer_at_least(initial_epoch, 0, "initial_epoch"), checked_frequency(validation_freq)
