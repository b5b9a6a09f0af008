"""Public metrics, which merge exactly across batches and trainers."""

from __future__ import annotations

from pstrain.metrics.base import Metric
from pstrain.metrics.classification import AUC, Accuracy
from pstrain.metrics.mean import LogLoss, Mean

__all__ = ["AUC", "Accuracy", "LogLoss", "Mean", "Metric"]
