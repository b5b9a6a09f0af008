"""A training loop written by hand, on nothing but ``coordinator.schedule``.

It does what ``model.fit`` does, as an example to read. Invariant: an epoch ends when every live
trainer has seen the end of its data.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pstrain as ps
from pstrain.callbacks import CallbackList
from pstrain.execution.executor import take
from pstrain.execution.progress import Totals

_STEPS_PER_CALL = 8


def train_one_epoch(
    coordinator: ps.ClusterCoordinator, model: Any, batches: Any, calls: CallbackList
) -> None:
    """Schedules steps until every trainer has seen the end of its data."""
    iterator = iter(batches)
    step = _step_of(model)
    totals = Totals(())
    ended: set[int] = set()
    losses = 0
    calls.epoch_begin(0)
    while True:
        live = coordinator.live_trainers()
        if (now := coordinator.stats()["losses"]) != losses:
            # A lost trainer's remaining data comes back, also to trainers that had seen the end.
            losses, ended = now, set()
        if ended and ended >= live:
            break
        results = [
            coordinator.schedule(step, args=(iterator, _STEPS_PER_CALL))
            for _ in range(4 * coordinator.num_trainers)
        ]
        for result in results:
            report = result.fetch()
            is_last = report["steps"] < _STEPS_PER_CALL
            if is_last and coordinator.stats()["losses"] == losses:
                ended.add(report["trainer"])
            if report["steps"]:
                calls.batch_begin(totals.steps)
                totals.add(report)
                calls.batch_end(totals.steps, totals.logs)
    coordinator.join()
    calls.epoch_end(0, totals.logs())


def _step_of(model: Any) -> Callable[[Any, int], dict[str, Any]]:
    """Returns the function that runs on the trainers: it trains on up to ``count`` batches."""

    def train(batches: Any, count: int) -> dict[str, Any]:
        started_s = time.perf_counter()
        steps, examples, loss_sum, waited_s = 0, 0, 0.0, 0.0
        for batch, wait_s in take(batches, count):
            with ps.GradientTape() as tape:
                loss = model.loss(batch)
            model.optimizer.apply_gradients(tape.gradients(loss))
            steps, examples = steps + 1, examples + batch.num_rows
            loss_sum, waited_s = loss_sum + float(loss) * batch.num_rows, waited_s + wait_s
        return {
            "trainer": ps.get_current_worker_index(),
            "steps": steps,
            "examples": examples,
            "loss_sum": loss_sum,
            "wait_s": waited_s,
            "busy_s": time.perf_counter() - started_s,
            "states": [],
        }

    return train
