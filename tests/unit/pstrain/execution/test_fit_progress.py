"""The state of a fit in a checkpoint, and the rollback of a fit to it, without running closures."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import pstrain as ps
from pstrain.callbacks.base import CallbackList
from pstrain.errors import RolledBackError, UnimplementedError
from pstrain.execution.progress import Progress, is_unfinished
from pstrain.execution.resumption import recovery
from pstrain.training import EpochPlan, Loop


class Iterator:
    def __init__(self, dataset: Dataset, epoch: int) -> None:
        self.dataset, self.epoch, self.at = dataset, epoch, 0

    def __next__(self) -> int:
        return self.at

    def state_dict(self) -> dict[str, Any]:
        if not self.dataset.has_positions:
            raise UnimplementedError("no position")
        return {"epoch": self.epoch, "at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.at = state["epoch"], state.get("at", 0)
        self.dataset.epoch = self.epoch + 1

    def rewind(self) -> None:
        self.dataset.rewound.append(self.epoch)


class Dataset:
    has_positions = True

    def __init__(self) -> None:
        self.epoch = 0
        self.rewound: list[int] = []

    def __iter__(self) -> Any:
        self.epoch += 1
        return Iterator(self, self.epoch - 1)


class Runner:
    def __init__(self) -> None:
        self.reports: list[dict[str, Any]] = []

    def unreported(self) -> list[dict[str, Any]]:
        return self.reports


class Model:
    stop_training = False


def report(steps: int) -> dict[str, Any]:
    return {
        "steps": steps, "examples": 10 * steps, "loss_sum": 5.0 * steps, "wait_s": 0.0,
        "busy_s": 1.0, "states": [np.full(2, steps)],
    }  # fmt: skip


class Count:
    name, group = "count", None

    def initial_state(self) -> Any:
        return np.zeros(2, np.int64)

    def merge(self, mine: Any, theirs: Any) -> Any:
        return mine + theirs

    def compute(self, state: Any) -> float:
        return float(state[0])


def new_progress(
    callbacks: Any = (), epochs: int = 3
) -> tuple[Progress, Dataset, Runner, CallbackList]:
    dataset, runner = Dataset(), Runner()
    calls = CallbackList(callbacks, Model())
    progress = Progress(runner, dataset, [Count()], calls, epochs=epochs, initial_epoch=0)
    return progress, dataset, runner, calls


def saved(progress: Progress) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(json.dumps(progress.state_dict()))
    return state


def test_unreported_ended_steps_are_saved_and_restored() -> None:
    progress, _, runner, _ = new_progress()
    progress.iterator().at = 7
    progress.totals.add(report(4))
    runner.reports = [report(2), report(0)]
    state = saved(progress)
    assert state["totals"]["steps"] == 6
    assert state["data"] == {"epoch": 0, "at": 7}
    assert progress.totals.steps == 4
    other, dataset, _, _ = new_progress()
    other.load_state_dict(state)
    with pytest.raises(RolledBackError):
        other.state_dict()
    other.go_back()
    assert (other.totals.steps, other.totals.logs()["count"]) == (6, 6.0)
    assert (other.iterator().epoch, other.iterator().at, dataset.epoch) == (0, 7, 1)


@pytest.mark.parametrize("is_at_end", [False, True])
def test_pass_ends_only_when_no_trainer_has_data_left(is_at_end: bool) -> None:
    class Executor:
        def run(self, *_: Any, **__: Any) -> Any:
            yield {**report(2), "ended": True}  # the end of one trainer's data

    progress, _, _, calls = new_progress(epochs=1)
    executor: Any = Executor()
    executor.is_at_end = is_at_end
    Loop(Model(), None, executor, progress, calls, EpochPlan(None)).train()  # type: ignore[arg-type]
    assert progress.is_inside is not is_at_end


def test_interrupted_fit_gives_up_its_closures() -> None:
    given_up: list[bool] = []

    class Executor:
        recovery = SimpleNamespace(checkpoint=None)

        def give_up(self) -> None:
            given_up.append(True)

    executor: Any = Executor()
    with recovery(executor, new_progress()[0], (), 0):
        pass
    assert not given_up
    with pytest.raises(KeyboardInterrupt), recovery(executor, new_progress()[0], (), 0):
        raise KeyboardInterrupt
    assert given_up


def test_loss_sum_does_not_depend_on_order_of_reports() -> None:
    losses = [0.1, 1e16, 0.7, -1e16, 0.3]
    sums = []
    for order in (losses, losses[::-1]):
        progress, _, _, _ = new_progress()
        for number, loss in enumerate(order):
            progress.totals.add({**report(1), "loss_sum": loss})
            if number == 2:  # a resume does not change the sum either
                state = saved(progress)
                progress, _, _, _ = new_progress()
                progress.load_state_dict(state)
                progress.go_back()
        sums.append(progress.totals.logs()["loss"])
    assert sums == [math.fsum(losses) / 50] * 2


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_non_finite_loss_is_saved_and_restored(loss: float) -> None:
    progress, _, _, _ = new_progress()
    progress.totals.add({**report(1), "loss_sum": loss})
    progress.totals.add(report(1))
    progress.load_state_dict(saved(progress))
    progress.go_back()
    assert repr(progress.totals.logs()["loss"]) == repr(loss)


def test_loss_sum_saved_by_earlier_version_is_continued() -> None:
    progress, _, _, _ = new_progress()
    progress.totals.add(report(2))
    state = saved(progress)
    state["totals"]["loss_sum"] = 10.0
    progress.load_state_dict(state)
    progress.go_back()
    assert progress.totals.logs()["loss"] == 0.5


def test_state_at_end_of_epoch_holds_next_epoch_and_history() -> None:
    progress, _, _, _ = new_progress()
    progress.iterator()
    progress.totals.add(report(4))
    progress.use_up()
    progress.end_epoch(progress.totals.logs())
    state = saved(progress)
    assert (state["epoch"], state["data"], state["is_over"]) == (1, {"epoch": 1}, False)
    assert state["history"]["history"]["examples"] == [40.0]
    progress.close_epoch()
    assert progress.history.history["examples"] == [40.0]
    other, dataset, _, _ = new_progress()
    other.load_state_dict(state)
    other.go_back()
    assert other.history.epoch == [0]
    assert other.iterator().epoch == 1
    other.use_up()
    assert other.iterator().epoch == 2
    assert dataset.rewound == [2]  # this pass may have begun before the restore


def test_rollback_without_state_returns_to_start_of_fit() -> None:
    progress, dataset, _, _ = new_progress()
    progress.load_state_dict(None)
    progress.go_back()
    assert (progress.epoch, progress.iterator().epoch) == (0, 0)
    progress.totals.add(report(3))
    progress.use_up()
    progress.end_epoch({})
    progress.close_epoch()
    assert progress.iterator().epoch == 1
    progress.load_state_dict(None)
    progress.go_back()
    assert (progress.epoch, progress.totals.steps, progress.history.epoch) == (0, 0, [])
    assert (progress.iterator().epoch, dataset.epoch) == (0, 1)


def test_data_without_positions_restart_their_epoch_on_rollback() -> None:
    progress, dataset, _, _ = new_progress()
    dataset.has_positions = False
    progress.iterator()
    progress.totals.add(report(4))
    progress.load_state_dict(saved(progress))
    progress.go_back()
    assert progress.totals.steps == 0
    assert progress.iterator().epoch == 0


def test_rollback_restores_callbacks_and_clears_stop_training() -> None:
    stop = ps.callbacks.EarlyStopping("loss", patience=2)
    progress, _, _, calls = new_progress([stop])
    calls.train_begin()
    stop.on_epoch_end(0, {"loss": 1.0})
    stop.on_epoch_end(1, {"loss": 2.0})
    state = saved(progress)
    stop.on_epoch_end(2, {"loss": 2.0})
    assert calls.stop_training
    assert saved(progress)["is_over"]
    progress.load_state_dict(state)
    progress.go_back()
    assert not calls.stop_training
    stop.on_epoch_end(2, {"loss": 3.0})
    assert calls.stop_training


def test_fit_that_stops_inside_an_epoch_is_over_once_the_epoch_has_ended() -> None:
    progress, _, _, _ = new_progress([stop := ps.callbacks.Callback()])
    progress.iterator()
    progress.totals.add(report(2))
    stop.stop_training = True
    assert not saved(progress)["is_over"]
    progress.end_epoch({})
    assert saved(progress)["is_over"]
    progress.close_epoch()
    assert saved(progress)["is_over"]


def test_only_unfinished_fits_are_resumed() -> None:
    state = saved(new_progress()[0])
    assert is_unfinished(state, 0)
    assert not is_unfinished(state, 1)
    assert not is_unfinished({**state, "is_over": True}, 0)
    assert not is_unfinished(None, 0)
