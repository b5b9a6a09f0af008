"""What a model's ``fit``, ``evaluate`` and ``predict`` take by name, for checkers and editors.

Holds no defaults and checks nothing: the functions that the methods hand over to do. Invariant:
each says what its function takes, by the same names and types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from pstrain.callbacks.base import Callback, CallbackList


class FitOptions(TypedDict, total=False):
    """Of :func:`pstrain.training.fit`, where they are told."""

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
    """Of :func:`pstrain.evaluation.predict`, where they are told."""

    steps: int | None
    batch_size: int
    steps_per_execution: int
    callbacks: Sequence[Callback] | CallbackList
    distributed: bool | None


class EvaluateOptions(PredictOptions, total=False):
    """Of :func:`pstrain.evaluation.evaluate`, where they are told."""

    verbose: int | str
    sample_weight: Any
