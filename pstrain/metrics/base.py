"""What a metric is: an int64 array of counts, and pure functions over it.

Knows nothing of models or of who evaluates. Invariant: merging two states is integer addition,
so the result is the same for any split of the examples over batches and trainers.
"""

from __future__ import annotations

import functools
import inspect
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from dataservice.runtime.arguments import check_text
from pstrain import foreign_arguments, initializers
from pstrain.errors import FailedPreconditionError, InvalidArgumentError, InvalidTypeError
from pstrain.features.columns import vector
from pstrain.foreign_arguments import instead_of
from pstrain.variables.creation import Maker
from pstrain.variables.parameters import current_step
from pstrain.variables.scope import LocalPlacement, current_placement
from pstrain.variables.variable import create_variable

State = NDArray[np.int64]

_creation = threading.Lock()


class MetricValue(float):
    """A float that also answers ``numpy()``, as what TensorFlow's metrics give does."""

    def numpy(self) -> np.float64:
        return np.float64(self)


class Metric(Maker, ABC):
    """A metric over (labels, probabilities), as pure functions and as an object with a state.

    The object's state is a variable: made under a strategy scope it is on parameter servers,
    where concurrent ``update_state`` calls of all trainers add up; elsewhere it is made by the
    first ``update_state``, in this process. One that a scheduled function makes is its own.
    """

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
        """A state that has seen nothing."""
        return np.zeros(self._shape, dtype=np.int64)

    @abstractmethod
    def update(self, state: State, labels: ArrayLike, probabilities: ArrayLike) -> State:
        """Adds examples to ``state``, in place, and returns it.

        Labels 0 or 1 [n], probabilities [n]. InvalidArgumentError for different lengths, another
        label, or a probability outside [0, 1]. A metric that can weigh takes ``weights=None``
        besides: [n], or one for all, how many times each example counts.
        """

    @abstractmethod
    def compute(self, state: State) -> float:
        """The metric's value for ``state``; NaN where undefined, as without any example."""

    @staticmethod
    def merge(first: State, second: State) -> State:
        """The state of both sets of examples together."""
        return first + second

    def check_weighs(self) -> None:
        """InvalidArgumentError for a metric whose :meth:`update` takes no weights of examples."""
        try:
            inspect.signature(self.update).bind(None, [], [], weights=None)
        except TypeError as error:
            raise InvalidArgumentError(
                f"metric {self.name!r} takes no weights of examples: give {type(self).__name__}"
                ".update a parameter weights=None after the probabilities, or leave the weights out"
            ) from error

    @instead_of("update_state", foreign_arguments.METRIC)
    def update_state(
        self,
        labels: ArrayLike,
        probabilities: ArrayLike,
        sample_weight: ArrayLike | None = None,
    ) -> None:
        """Adds examples to this object's own state. Blocks until the servers have them.

        Each example counts ``sample_weight`` [n] times, or one number for all; 1 unless given.
        """
        update: Any = self.update
        if sample_weight is not None:
            self.check_weighs()
            update = functools.partial(update, weights=sample_weight)
        self.add_state(update(self.initial_state(), labels, probabilities))

    def add_state(self, state: State) -> None:
        """Merges ``state`` into this object's own."""
        self._own().assign_add(state)

    def result(self) -> MetricValue:
        """The metric's value for this object's own state."""
        return MetricValue(self.compute(self._seen()))

    def __call__(self, *args: Any, **kwargs: Any) -> MetricValue:
        """:meth:`update_state`, then the value for all that it has seen."""
        self.update_state(*args, **kwargs)
        return self.result()

    def merge_state(self, metrics: Iterable[Metric]) -> None:
        """Adds what other metrics of this class, made with the same arguments, have seen."""
        for metric in metrics:
            if type(metric) is not type(self) or metric._shape != self._shape:
                raise InvalidArgumentError(
                    f"{self!r} merges metrics of its own class and shape {self._shape}, got "
                    f"{metric!r}: make both with the same arguments"
                )
            self.add_state(metric._seen())

    def reset_state(self) -> None:
        """Forgets all examples."""
        if self._variable is not None:
            self._variable.assign(0)

    reset_states = reset_state

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    def make_variables(self) -> None:
        # Else a restore were unseen by its result, a reset and the next save, and one to a moment
        # before its first use were refused.
        self._own()

    def _seen(self) -> State:
        return self.initial_state() if self._variable is None else self._variable.numpy()

    def _own(self) -> Any:
        with _creation:
            if self._variable is None:
                if self._is_of_step:
                    self._variable = _Counts(self.initial_state())
                elif current_step() is not None:
                    raise FailedPreconditionError(
                        f"metric {self.name!r} was made outside strategy.scope(), so trainers "
                        "cannot add to it: make it inside"
                    )
                else:
                    self._variable = self._create()
        return self._variable

    def _create(self) -> Any:
        with self.making():
            return create_variable(
                initializers.zeros(),
                shape=self._shape,
                dtype="int64",
                name=f"metrics/{self.name}",
                trainable=False,
            )


class _Counts:
    """The state of a metric in one run of a scheduled function, which commits nothing of it."""

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


def pairs(
    name: str, labels: ArrayLike, predictions: ArrayLike, dtype: DTypeLike = np.float32
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Labels and predictions as vectors of the same length."""
    first = vector(f"metric {name!r}: labels", labels, dtype)
    second = vector(f"metric {name!r}: predictions", predictions, dtype)
    if len(first) != len(second):
        raise InvalidArgumentError(
            f"metric {name!r} got {len(first)} labels and {len(second)} probabilities"
        )
    return first, second


def weights_of(name: str, weights: ArrayLike | None, count: int) -> NDArray[np.float64] | None:
    """One for each of ``count`` examples, None where there are none."""
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


def refuse_labels(name: str, values: NDArray[np.float32]) -> None:
    """Raises where a label is neither 0 nor 1."""
    known = (values == 0) | (values == 1)
    if not known.all():
        raise InvalidArgumentError(
            f"metric {name!r} needs labels 0 and 1, got {values[~known][0]:g}: map them to 0 and 1"
        )


def refuse_probabilities(name: str, skipped: int, values: NDArray[np.float32]) -> None:
    """Raises where a kernel has skipped probabilities."""
    if skipped:
        wrong = values[~((values >= 0) & (values <= 1))]
        raise InvalidArgumentError(
            f"metric {name!r} needs probabilities in [0, 1], got {wrong[0]}: apply a sigmoid to "
            "logits; NaN means that training has diverged"
        )
