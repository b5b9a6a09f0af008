"""Learning rate schedules: rates that depend on the step number, as Keras defines them.

Pure arithmetic on a step number, which the caller passes; knows nothing of optimizers. Invariant:
a schedule gives the same rate for a step in every process.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any

import numpy as np

from dataservice.runtime.arguments import check_number, non_negative, positive
from pstrain.errors import InvalidArgumentError, InvalidTypeError


class LearningRateSchedule(ABC):
    """The base class of schedules, which return the rate of a step; steps count from 0."""

    @abstractmethod
    def __call__(self, step: int) -> float: ...

    def get_config(self) -> dict[str, Any]:
        """Returns the JSON form, from which ``from_config`` makes the same schedule.

        For a class that is not a dataclass this is only its name, unless it overrides this method.
        """
        arguments: dict[str, Any] = plain(asdict(self)) if is_dataclass(self) else {}
        return {"kind": type(self).__name__, **arguments}


def plain(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments with NumPy's numbers and arrays converted to Python's, as for JSON."""
    return {
        name: value.tolist() if isinstance(value, np.ndarray | np.generic) else value
        for name, value in arguments.items()
    }


class _Decay(LearningRateSchedule):
    """The base of schedules that decay in a number of steps, and whose arguments are numbers."""

    decay_steps: int

    def __post_init__(self) -> None:
        _check_numbers(self)
        positive(self.decay_steps, "decay_steps")


@dataclass(frozen=True)
class ExponentialDecay(_Decay):
    """Exponential decay: ``initial_learning_rate * decay_rate ** (step / decay_steps)``.

    ``staircase``: the exponent is rounded down, so that the rate decays in steps.
    """

    initial_learning_rate: float
    decay_steps: int
    decay_rate: float
    staircase: bool = False

    def __call__(self, step: int) -> float:
        exponent = step / self.decay_steps
        exponent = math.floor(exponent) if self.staircase else exponent
        return float(self.initial_learning_rate * self.decay_rate**exponent)


@dataclass(frozen=True)
class InverseTimeDecay(_Decay):
    """Inverse time decay: ``initial_learning_rate / (1 + decay_rate * step / decay_steps)``.

    ``staircase``: ``step / decay_steps`` is rounded down, so that the rate decays in steps.
    """

    initial_learning_rate: float
    decay_steps: int
    decay_rate: float
    staircase: bool = False

    def __call__(self, step: int) -> float:
        passed = step / self.decay_steps
        passed = math.floor(passed) if self.staircase else passed
        return float(self.initial_learning_rate / (1 + self.decay_rate * passed))


@dataclass(frozen=True)
class PolynomialDecay(_Decay):
    """Polynomial decay from the initial to the end rate in ``decay_steps``; constant afterwards.

    ``cycle``: instead of staying constant, the decay restarts over two times, three times, ... the
    number of steps.
    """

    initial_learning_rate: float
    decay_steps: int
    end_learning_rate: float = 0.0001
    power: float = 1.0
    cycle: bool = False

    def __call__(self, step: int) -> float:
        steps = self.decay_steps
        if self.cycle:
            steps *= max(1, math.ceil(step / self.decay_steps))
        left = 1 - min(step, steps) / steps
        span = self.initial_learning_rate - self.end_learning_rate
        return float(span * left**self.power + self.end_learning_rate)


@dataclass(frozen=True)
class CosineDecay(_Decay):
    """Decay along half a cosine to ``alpha`` times the first rate (Loshchilov and Hutter, 2017).

    With ``warmup_target`` the rate first rises linearly from the initial rate to the target in
    ``warmup_steps``, and decays from there.
    """

    initial_learning_rate: float
    decay_steps: int
    alpha: float = 0.0
    warmup_target: float | None = None
    warmup_steps: int = 0

    def __call__(self, step: int) -> float:
        top = self.initial_learning_rate
        if self.warmup_target is not None:
            if step < self.warmup_steps:
                return top + (self.warmup_target - top) * step / self.warmup_steps
            top, step = self.warmup_target, step - self.warmup_steps
        passed = min(step, self.decay_steps) / self.decay_steps
        cosine = 0.5 * (1 + math.cos(math.pi * passed))
        return top * ((1 - self.alpha) * cosine + self.alpha)


@dataclass(frozen=True)
class CosineDecayRestarts(LearningRateSchedule):
    """Repeated decay along half a cosine from the initial rate to ``alpha`` times it (SGDR).

    Each repetition takes ``t_mul`` times the steps of the one before, and starts at ``m_mul`` times
    its rate.
    """

    initial_learning_rate: float
    first_decay_steps: int
    t_mul: float = 2.0
    m_mul: float = 1.0
    alpha: float = 0.0

    def __post_init__(self) -> None:
        _check_numbers(self)
        positive(self.first_decay_steps, "first_decay_steps")
        if self.t_mul < 1:
            raise InvalidArgumentError(f"t_mul must be at least 1, got {self.t_mul}")

    def __call__(self, step: int) -> float:
        passed = step / self.first_decay_steps
        if self.t_mul == 1:
            restarts = math.floor(passed)
            share = passed - restarts
        else:
            rounds = math.log(1 - passed * (1 - self.t_mul)) / math.log(self.t_mul)
            # Without the margin, rounding could place the first step of a repetition at the end of
            # the one before.
            restarts = math.floor(rounds + 1e-9)
            before = (1 - self.t_mul**restarts) / (1 - self.t_mul)
            share = (passed - before) / self.t_mul**restarts
        cosine = 0.5 * self.m_mul**restarts * (1 + math.cos(math.pi * share))
        return float(self.initial_learning_rate * ((1 - self.alpha) * cosine + self.alpha))


@dataclass(frozen=True)
class PiecewiseConstantDecay(LearningRateSchedule):
    """A rate of ``values[i]`` up to and including step ``boundaries[i]``, then the last value."""

    boundaries: Sequence[int]
    values: Sequence[float]

    def __post_init__(self) -> None:
        for name in ("boundaries", "values"):
            given = getattr(self, name)
            if isinstance(given, str) or not isinstance(given, Sequence | np.ndarray):
                raise InvalidTypeError(f"{name} must be a list of numbers, got {given!r}")
        for boundary in self.boundaries:
            check_number("each of boundaries", boundary)
        if len(self.values) != len(self.boundaries) + 1:
            raise InvalidArgumentError(
                f"PiecewiseConstantDecay needs one value more than boundaries, got "
                f"{len(self.values)} values and {len(self.boundaries)} boundaries"
            )
        if list(self.boundaries) != sorted(set(self.boundaries)):
            raise InvalidArgumentError(f"boundaries must rise, got {list(self.boundaries)}")
        for value in self.values:
            non_negative(value, "each of values")

    def __call__(self, step: int) -> float:
        return float(self.values[bisect_left(self.boundaries, step)])


_KINDS: dict[str, Any] = {
    cls.__name__: cls
    for cls in (
        ExponentialDecay,
        InverseTimeDecay,
        PolynomialDecay,
        CosineDecay,
        CosineDecayRestarts,
        PiecewiseConstantDecay,
    )
}


def is_known(schedule: LearningRateSchedule) -> bool:
    """True if :func:`from_config` can make the schedule: its class is one of this module."""
    return type(schedule) in _KINDS.values()


def from_config(config: Mapping[str, Any]) -> LearningRateSchedule:
    """Makes a schedule from the result of :meth:`LearningRateSchedule.get_config`."""
    kind = _KINDS.get(config.get("kind", ""))
    if kind is None:
        raise InvalidArgumentError(
            f"unknown schedule {config.get('kind')!r}: choose one of {', '.join(_KINDS)}"
        )
    schedule: LearningRateSchedule = kind(**{k: v for k, v in config.items() if k != "kind"})
    return schedule


def _check_numbers(schedule: Any) -> None:
    for name, value in vars(schedule).items():
        if value is not None and not isinstance(value, bool):
            check_number(name, value)
