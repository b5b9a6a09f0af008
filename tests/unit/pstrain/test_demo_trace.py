"""What the demo records of a training run: losses by stretch, scores, examples."""

from __future__ import annotations

import pytest

from pstrain.demo.trace import Trace


def test_trace_losses_are_means_of_intervals() -> None:
    trace = Trace()
    trace.on_epoch_begin(0)
    trace.on_train_batch_end(8, {"examples": 10_000.0, "loss": 0.6})
    trace.on_train_batch_end(9, {"examples": 10_100.0, "loss": 0.6})
    trace.on_train_batch_end(16, {"examples": 20_000.0, "loss": 0.5})
    assert [point.loss for point in trace.losses] == [pytest.approx(0.6), pytest.approx(0.4)]


def test_trace_sums_examples_over_epochs_and_keeps_scores() -> None:
    trace = Trace()
    for epoch in range(2):
        trace.on_epoch_begin(epoch)
        trace.on_train_batch_end(8, {"examples": 500.0, "loss": 0.6})
        trace.on_epoch_end(
            epoch, {"examples": 500.0, "loss": 0.6, "val_auc": 0.7 + epoch, "val_loss": 0.5}
        )
    assert trace.examples == 1000
    assert [point.auc for point in trace.tests] == [0.7, 1.7]
    assert trace.tests[0].seconds <= trace.tests[1].seconds
