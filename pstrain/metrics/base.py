"""The base of metrics: a state, an int64 array, and pure functions over it.

Knows nothing of models or of evaluation. Invariant: states are merged exactly, because counts are
added as integers and rows are kept as they are, so the result is the same however the examples are
divided among batches and trainers.
"""

from __future__ import annotations

import functools
import inspect
import numbers
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from dataservice.runtime.arguments import check_text
from pstrain import initializers
from pstrain.errors import FailedPreconditionError, InvalidArgumentError, InvalidTypeError
from pstrain.features.columns import vector
from pstrain.porting import foreign_arguments
from pstrain.porting.foreign_arguments import refuse_arguments
from pstrain.variables.creation import Maker
from pstrain.variables.parameters import current_step
from pstrain.variables.scope import LocalPlacement, current_placement
from pstrain.variables.variable import create_variable

State = NDArray[np.int64]

WEIGHTS_BELOW: Final = 2**23
"""Weights that are counted in units of 2^-40 must be less, so that int64 holds them."""

_creation = threading.Lock()


class MetricValue(float):
    """A float with a ``numpy()`` method, like the results of TensorFlow's metrics."""

    def numpy(self) -> np.float64:
        return np.float64(self)


class Metric(Maker, ABC):
    """A metric over (labels, probabilities): pure functions, and an object with a state.

    The object's state is a variable. If the metric is made in a strategy scope, the variable is on
    parameter servers, where concurrent ``update_state`` calls of all trainers add up. Otherwise the
    first ``update_state`` makes it in this process. A metric that a scheduled function makes has a
    state of its own in each run. ``group``: the column whose values say which rows the metric looks
    at together; None if it takes each row by itself.
    """

    group: str | None = None
    more_is_better: bool | None = None
    """Whether callbacks that monitor it look for its maximum; None: they decide by its name."""
    of_probabilities: ClassVar[bool] = False
    """Whether predictions outside [0, 1], such as those of a regression, are refused."""

    def __init__(self, name: str, shape: tuple[int, ...]) -> None:
        check_text("the name of a metric", name)
        self.name = name
        self._shape = shape
        self._variable: Any = None
        self._is_of_step = current_step() is not None
        if not isinstance(current_placement(), LocalPlacement):
            self._variable = self._create()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if cls.update is Metric.update and {"result", "update_state"} & vars(cls).keys():
            raise InvalidTypeError(
                f"metric {cls.__name__} overrides update_state and result, as Keras' do: write "
                "update(state, labels, probabilities), which adds to an int64 array and returns "
                "it, and compute(state), so that states of all trainers add up exactly"
            )

    @property
    def variables(self) -> list[Any]:
        return [] if self._variable is None or self._is_of_step else [self._variable]

    def initial_state(self) -> State:
        """Returns the state before any example."""
        return np.zeros(self._shape, dtype=np.int64)

    @abstractmethod
    def update(self, state: State, labels: ArrayLike, probabilities: ArrayLike) -> State:
        """Adds examples to ``state``, in place, and returns it.

        ``labels``: 0 or 1, [n]; ``probabilities``: [n]. InvalidArgumentError for different lengths,
        another label, or a probability outside [0, 1]. A metric that supports weights also takes
        ``weights=None``: how many times each example counts, [n] or one number for all.
        """

    @abstractmethod
    def compute(self, state: State) -> float:
        """Returns the metric's value for ``state``; NaN if undefined, such as without examples."""

    @staticmethod
    def merge(first: State, second: State) -> State:
        """Returns the state of both sets of examples together."""
        return first + second

    def check_weighs(self) -> None:
        """Raises InvalidArgumentError if :meth:`update` of this metric takes no weights."""
        try:
            inspect.signature(self.update).bind_partial(None, [], [], weights=None)
        except TypeError as error:
            raise InvalidArgumentError(
                f"metric {self.name!r} takes no weights of examples: give {type(self).__name__}"
                ".update a parameter weights=None after the probabilities, or leave the weights out"
            ) from error

    @refuse_arguments("update_state", foreign_arguments.METRIC)
    def update_state(
        self,
        labels: ArrayLike,
        probabilities: ArrayLike,
        sample_weight: ArrayLike | None = None,
    ) -> None:
        """Adds examples to this object's own state; blocks until the servers have applied them.

        ``sample_weight``: how many times each example counts, [n] or one number for all; default 1.
        """
        self.add_state(self._state_of(labels, probabilities, sample_weight))

    def _state_of(
        self,
        labels: ArrayLike,
        probabilities: ArrayLike,
        sample_weight: ArrayLike | None,
        **groups: Any,
    ) -> State:
        """Returns the state of these examples alone."""
        update: Any = self.update
        if sample_weight is not None:
            self.check_weighs()
            update = functools.partial(update, weights=sample_weight)
        return update(self.initial_state(), labels, probabilities, **groups)

    def add_state(self, state: State) -> None:
        """Merges ``state`` into this object's own state."""
        self._own_variable().assign_add(state)

    def result(self) -> MetricValue:
        """Returns the metric's value for this object's own state."""
        return MetricValue(self.compute(self._current_state()))

    def __call__(self, *args: Any, **kwargs: Any) -> MetricValue:
        """Calls :meth:`update_state` and returns the value over all examples seen."""
        self.update_state(*args, **kwargs)
        return self.result()

    def merge_state(self, metrics: Iterable[Metric]) -> None:
        """Adds the states of other metrics of this class that were made with the same arguments.

        InvalidArgumentError, and nothing is added, if one has another shape or another setting,
        such as a threshold. Settings are public attributes with the name of an argument of the
        constructor that hold numbers, texts or arrays; only the name may differ.
        """
        others = list(metrics)
        for metric in others:
            self._check_merges(metric)
        for metric in others:
            self.add_state(metric._current_state())

    def _check_merges(self, other: Metric) -> None:
        if type(other) is not type(self) or other._shape != self._shape:
            raise InvalidArgumentError(
                f"{self!r} merges metrics of its own class and shape {self._shape}, got "
                f"{other!r}: make both with the same arguments"
            )
        mine, theirs = _settings(self), _settings(other)
        for name in sorted(mine.keys() | theirs.keys()):
            if mine.get(name) != theirs.get(name):
                raise InvalidArgumentError(
                    f"{self!r} with {name}={mine.get(name)!r} cannot merge {other!r} with "
                    f"{name}={theirs.get(name)!r}: their states count different things; make "
                    "both with the same arguments"
                )

    def reset_state(self) -> None:
        """Resets this object's own state to that before any example."""
        if self._variable is not None:
            self._variable.assign(0)

    reset_states = reset_state

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    def make_variables(self) -> None:
        # Without a variable, result(), reset_state() and the next save would ignore a restored
        # state, and a checkpoint from before the first use could not be restored.
        self._own_variable()

    def _current_state(self) -> State:
        return self.initial_state() if self._variable is None else self._variable.numpy()

    def _own_variable(self) -> Any:
        with _creation:
            if self._variable is None:
                if self._is_of_step:
                    self._variable = self._create_of_step()
                elif current_step() is not None:
                    raise FailedPreconditionError(
                        f"metric {self.name!r} was made outside strategy.scope(), so trainers "
                        "cannot add to it: make it inside"
                    )
                else:
                    self._variable = self._create()
        return self._variable

    def _create_of_step(self) -> Any:
        return _StepState(self.initial_state())

    def _create(self) -> Any:
        with self.making():
            return create_variable(
                initializers.zeros(),
                shape=self._shape,
                dtype="int64",
                name=f"metrics/{self.name}",
                trainable=False,
            )


class _StepState:
    """The state of a metric that one run of a scheduled function made; it is never committed."""

    def __init__(self, state: State) -> None:
        self._state = state

    def assign_add(self, state: State) -> None:
        self._state += state

    def scatter_add(self, ids: NDArray[np.int64], rows: State) -> None:
        np.add.at(self._state, ids, rows)

    def assign(self, value: int) -> None:
        self._state[...] = value

    def numpy(self) -> State:
        return self._state.copy()


def _settings(metric: Metric) -> dict[str, Any]:
    """Returns what ``metric`` was made with, as far as it is plain data, besides its name."""
    plain = (numbers.Number, str, bytes, tuple, list, np.ndarray)
    made_by = [vars(cls)["__init__"] for cls in type(metric).__mro__ if "__init__" in vars(cls)]
    # Other attributes, such as a count of calls, are what a metric has done.
    arguments = {name for made in made_by for name in inspect.signature(made).parameters}
    return {
        name: _comparable(value)
        for name, value in vars(metric).items()
        if name in arguments and name != "name" and isinstance(value, plain)
    }


def _comparable(value: Any) -> Any:
    """Returns ``value`` with lists for arrays, which ``==`` would compare element by element."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return [_comparable(item) for item in value] if isinstance(value, list | tuple) else value


def pairs(
    name: str, labels: ArrayLike, predictions: ArrayLike, dtype: DTypeLike = np.float32
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Returns labels and predictions as vectors; InvalidArgumentError if lengths differ."""
    first = vector(f"metric {name!r}: labels", labels, dtype)
    second = vector(f"metric {name!r}: predictions", predictions, dtype)
    if len(first) != len(second):
        raise InvalidArgumentError(
            f"metric {name!r} got {len(first)} labels and {len(second)} probabilities"
        )
    return first, second


def weights_of(name: str, weights: ArrayLike | None, count: int) -> NDArray[np.float64] | None:
    """Returns one finite weight for each of ``count`` examples; None for None."""
    if weights is None:
        return None
    found = vector(f"metric {name!r}: weights", weights, np.float64)
    if np.ndim(weights) == 0:
        found = np.repeat(found, count)
    if len(found) != count:
        raise InvalidArgumentError(f"metric {name!r} got {count} labels and {len(found)} weights")
    wrong = ~np.isfinite(found)
    if wrong.any():
        raise InvalidArgumentError(
            f"metric {name!r} needs finite weights, got {found[wrong][0]:g}: leave such examples "
            "out, or weigh them by 0"
        )
    return found


def refuse_heavy(name: str, weights: NDArray[np.float64]) -> None:
    """Raises InvalidArgumentError if a weight is too large to be counted in units of 2^-40."""
    heaviest = float(np.max(np.abs(weights), initial=0))
    if heaviest >= WEIGHTS_BELOW:
        raise InvalidArgumentError(
            f"metric {name!r} needs weights below {WEIGHTS_BELOW:,}, got {heaviest:g}: divide all "
            "of them by one number, which changes no share"
        )


def refuse_labels(name: str, values: NDArray[np.float32]) -> None:
    """Raises InvalidArgumentError if a label is neither 0 nor 1."""
    known = (values == 0) | (values == 1)
    if not known.all():
        raise InvalidArgumentError(
            f"metric {name!r} needs labels 0 and 1, got {values[~known][0]:g}: map them to 0 and 1"
        )


def refuse_probabilities(name: str, skipped: int, values: NDArray[np.float32]) -> None:
    """Raises InvalidArgumentError if a kernel has skipped probabilities outside [0, 1]."""
    if skipped:
        wrong = values[~((values >= 0) & (values <= 1))]
        raise InvalidArgumentError(
            f"metric {name!r} needs probabilities in [0, 1], got {wrong[0]}: apply a sigmoid to "
            "logits; NaN means that training has diverged"
        )
