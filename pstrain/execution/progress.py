"""The progress of a ``fit``: sums, history, data position; saved as a part of checkpoints.

A saved progress counts every step whose changes are in the values saved with it, reported or not.
Must not know how steps run, nor who saves. Invariant: after ``go_back`` everything equals the
state that was restored last, so each step that the values contain is counted once.
"""

from __future__ import annotations

import base64
import copy
import logging
import time
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from dataservice.runtime.identity import new_id
from pstrain.callbacks.base import CallbackList, Logs
from pstrain.errors import RolledBackError, UnimplementedError
from pstrain.execution.executor import Executor, Report
from pstrain.metrics.tally import of_each_row
from pstrain.serialization import results

logger = logging.getLogger(__name__)

_PROGRAM = new_id("program")


@dataclass(slots=True)
class History:
    """What ``fit`` returns: ``history[name]`` has one value per epoch that measured it.

    ``params``: the epochs, steps (None: whole passes) and verbosity that ``fit`` was called with.
    """

    epoch: list[int] = field(default_factory=list)
    history: dict[str, list[float]] = field(default_factory=dict)
    params: dict[str, Any] = field(default_factory=dict)

    def add(self, epoch: int, logs: Mapping[str, float]) -> None:
        self.epoch.append(epoch)
        for name, value in logs.items():
            self.history.setdefault(name, []).append(value)


class Totals:
    """Sums of an epoch's reports; the loss is summed exactly, so their order does not matter."""

    def __init__(self, metrics: Iterable[Any]) -> None:
        self._metrics = list(metrics)
        self._states = [metric.initial_state() for metric in self._metrics]
        self._started_s = time.perf_counter()
        self.steps = 0
        self.examples = 0
        self._loss_sum: Fraction | float = Fraction()
        self._wait_s = 0.0
        self._busy_s = 0.0

    def add(self, report: Report) -> None:
        self.steps += report["steps"]
        self.examples += report["examples"]
        self._loss_sum += _exact(report["loss_sum"])
        self._wait_s += report["wait_s"]
        self._busy_s += report["busy_s"]
        self._states = [
            metric.merge(mine, theirs)
            for metric, mine, theirs in zip(
                self._metrics, self._states, report["states"], strict=True
            )
        ]

    def logs(self) -> Logs:
        """Returns the logs; ``data_stall``: the share of the steps' time spent waiting for data."""
        elapsed_s = max(time.perf_counter() - self._started_s, 1e-9)
        values = {
            "loss": float(self._loss_sum) / max(self.examples, 1),
            "examples": float(self.examples),
            "examples_per_s": self.examples / elapsed_s,
            "data_stall": self._wait_s / max(self._busy_s, 1e-9),
        }
        for metric, state in zip(self._metrics, self._states, strict=True):
            values[metric.name] = metric.compute(state)
        return values

    def to_json(self, reports: Iterable[Report] = ()) -> dict[str, Any]:
        """Returns these sums, with ``reports`` added to them, as JSON."""
        both = copy.copy(self)
        for report in reports:
            both.add(report)
        return {
            "steps": both.steps,
            "examples": both.examples,
            "loss_sum": str(both._loss_sum),
            "wait_s": both._wait_s,
            "busy_s": both._busy_s,
            "elapsed_s": time.perf_counter() - self._started_s,
            "states": _packed(both._states),
        }

    def load(self, saved: Mapping[str, Any]) -> None:
        """Continues from sums of :meth:`to_json`; if metrics differ, their states start anew."""
        self.steps, self.examples = int(saved["steps"]), int(saved["examples"])
        self._loss_sum = _exact(saved["loss_sum"])
        self._wait_s, self._busy_s = float(saved["wait_s"]), float(saved["busy_s"])
        self._started_s = time.perf_counter() - float(saved["elapsed_s"])
        states = _unpacked(saved["states"])
        if [np.shape(state) for state in states] == [state.shape for state in self._states]:
            self._states = states
        else:
            logger.warning("the metrics are not those that were saved, so they count from zero")


class Progress:
    """The progress of one ``fit``: its loop reads and advances it, checkpoints save and restore it.

    ``load_state_dict`` may be called by another thread, which restores lost servers: it takes
    effect when the loop calls :meth:`go_back`. Until then nothing is saved.
    """

    def __init__(
        self,
        executor: Executor,
        dataset: Any,
        metrics: Iterable[Any],
        hooks: CallbackList,
        *,
        epochs: int,
        initial_epoch: int,
    ) -> None:
        self._executor = executor
        self._dataset = dataset
        self._metrics = of_each_row(metrics)
        self._hooks = hooks
        self._epochs = epochs
        self.epoch = initial_epoch
        self.history = History()
        self.totals = Totals(self._metrics)
        self._ended: tuple[int, Logs] | None = None
        self._iterator: Any = None
        self._first: dict[str, Any] | None = None
        self._is_used_up = True
        self._begins_anew = False
        self._saves_position = True
        # For a restore without a checkpoint of this fit.
        self._start: dict[str, Any] = {"epoch": initial_epoch, "callbacks": hooks.state_dict()}
        self._restored: Mapping[str, Any] | None = None
        self.is_behind = False

    def iterator(self) -> Any:
        """Returns the current iterator, or the dataset's next one if that is used up."""
        if self._is_used_up:
            self._iterator, self._is_used_up = iter(self._dataset), False
            self._first = self._first or {"epoch": self._iterator.epoch}
            if self._begins_anew:
                # A data service may have given out rows of it before the restore.
                self._iterator.rewind()
        return self._iterator

    @property
    def is_inside(self) -> bool:
        """True if the next steps continue a pass over the data that has begun."""
        return not self._is_used_up

    @property
    def is_complete(self) -> bool:
        """True if no epoch is left."""
        return self.epoch >= self._epochs

    def use_up(self) -> None:
        """Notes that the data of the current iterator has ended."""
        self._is_used_up = True

    def end_epoch(self, logs: Logs) -> None:
        """Begins the next epoch, to which later saves belong; ``logs`` may still be extended."""
        self._ended = (self.epoch, logs)
        self.epoch += 1
        self.totals = Totals(self._metrics)

    def close_epoch(self) -> None:
        """Adds the complete logs of the ended epoch to the history."""
        if self._ended is not None:
            self.history.add(*self._ended)
            self._ended = None
        self.totals = Totals(self._metrics)

    # -- for checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Returns the JSON-able state; RolledBackError while :meth:`go_back` is due."""
        if self.is_behind:
            raise RolledBackError("everything went back to a checkpoint: there is nothing to save")
        before = {name: [*values] for name, values in self.history.history.items()}
        history = History([*self.history.epoch], before)
        if self._ended is not None:
            history.add(*self._ended)
        reports = [report for report in self._executor.unreported() if report["steps"]]
        totals = self.totals.to_json(reports)
        return {
            "program": _PROGRAM,
            "epochs": self._epochs,
            "epoch": self.epoch,
            # A fit that is to stop inside an epoch still has to end that epoch.
            "is_over": self.is_complete or (self._hooks.stop_training and not self.totals.steps),
            "totals": totals,
            "history": {"epoch": history.epoch, "history": _plain(history.history)},
            "data": self._position(is_begun=totals["steps"] > 0),
            "callbacks": self._hooks.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Restores ``state`` at the next :meth:`go_back`.

        None stands for a checkpoint that this fit did not make: the fit then starts over.
        """
        self._restored = state
        self.is_behind = True

    def go_back(self) -> None:
        """Resets everything to the state that was restored last. No closure may be running."""
        self.is_behind = False
        state = self._restored if self._restored is not None else self._start
        data = state.get("data") or self._first
        self.epoch = int(state["epoch"])
        self.history = History(**state.get("history", {}))
        self._ended = None
        self.totals = Totals(self._metrics)
        if "totals" in state and (data is None or data.get("is_known", True)):
            self.totals.load(state["totals"])
        self._hooks.resume(state.get("callbacks", ()))
        self._begins_anew = True
        if data is None:
            self._iterator, self._is_used_up = None, True
            return
        if self._iterator is None:
            self._iterator = iter(self._dataset)
            self._first = self._first or {"epoch": self._iterator.epoch}
        self._iterator.load_state_dict(data)
        self._is_used_up = False

    def _position(self, *, is_begun: bool) -> dict[str, Any] | None:
        if self._iterator is None:
            return None
        if self._is_used_up and not is_begun:
            return {"epoch": self._iterator.epoch + 1}
        try:
            return dict(self._iterator.state_dict())
        except UnimplementedError as error:
            if self._saves_position:
                self._saves_position = False
                logger.warning(
                    "the position of the data cannot be saved (%s): going back to this "
                    "checkpoint will start the data of the epoch from its beginning", error
                )  # fmt: skip
            return {"epoch": self._iterator.epoch, "is_known": False}


def is_unfinished(state: Any, initial_epoch: int) -> bool:
    """True if a fit that begins at ``initial_epoch`` continues the saved one."""
    return bool(state) and not state["is_over"] and state["epoch"] >= initial_epoch


def is_of_this_program(state: Mapping[str, Any]) -> bool:
    """True if this process saved ``state``."""
    return bool(state["program"] == _PROGRAM)


def _exact(number: float | str) -> Fraction | float:
    try:
        return Fraction(number)
    except (ValueError, OverflowError):  # NaN or infinite
        return float(number)


def _packed(states: list[Any]) -> str:
    return base64.b64encode(zlib.compress(results.encode(states), 1)).decode()


def _unpacked(text: str) -> list[Any]:
    return list(results.decode(zlib.decompress(base64.b64decode(text))))


def _plain(history: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """Returns the history with values as JSON numbers; other values become text."""
    return {name: [_number(value) for value in values] for name, values in history.items()}


def _number(value: Any) -> Any:
    try:
        return float(value)
    except (TypeError, ValueError):
        return str(value)
