"""The keyword arguments of a model's ``fit``, ``evaluate`` and ``predict``, for type checkers.

Holds no defaults and checks nothing: the functions that the methods call do. Invariant: each class
has the names and types of its function's arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from pstrain.callbacks.base import Callback, CallbackList


class FitOptions(TypedDict, total=False):
    """The keyword arguments of :func:`pstrain.training.fit`, which describes them."""

    verbose: int | str
    batch_size: int
    steps_per_execution: int
    initial_epoch: int
    class_weight: Mapping[Any, float] | None
    sample_weight: Any
    validation_freq: int | Sequence[int]
    validation_sample_weight: Any
    validation_split: float


class PredictOptions(TypedDict, total=False):
    """The keyword arguments of :func:`pstrain.evaluation.predict`, which describes them."""

    steps: int | None
    batch_size: int
    steps_per_execution: int
    verbose: int | str
    callbacks: Sequence[Callback] | CallbackList
    distributed: bool | None


class EvaluateOptions(PredictOptions, total=False):
    """The keyword arguments of :func:`pstrain.evaluation.evaluate`, which describes them."""

    sample_weight: Any
