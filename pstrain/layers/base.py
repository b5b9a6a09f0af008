"""The base of layers: variables, the reads that an input requires, and the computation.

Reading is separate from computing so that a model fetches for all of its layers in one message per
server. Knows nothing of models. Invariant: a layer holds no arrays and no step changes it after it
is built, so several threads may run steps of one layer at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataservice.runtime.arguments import check_text
from dataservice.runtime.number_arrays import to_axes
from pstrain.errors import InvalidArgumentError, InvalidTypeError
from pstrain.gradients.recording import leaf
from pstrain.gradients.tensor import Tensor, as_tensor
from pstrain.gradients.training_argument import takes_training
from pstrain.porting import foreign_arguments, foreign_names
from pstrain.porting.foreign_arguments import refuse_arguments
from pstrain.porting.foreign_names import Hinting
from pstrain.variables.arrays import ArrayAccess
from pstrain.variables.attributes import reached
from pstrain.variables.freezing import Freezable
from pstrain.variables.variable import ShardedVariable
from pstrain.vocabulary import Fetch, Lookup


class Layer(ArrayAccess, Freezable, Hinting, ABC):
    """The base class of layers; :meth:`requests` asks for ``variables`` in their order.

    A layer of your own calls ``super().__init__(name)``, makes variables and layers as attributes,
    and computes in :meth:`forward`, whose ``inputs`` may be anything, also a tuple. It may leave
    ``variables`` empty and read its attributes directly; ``values`` is then empty too.
    """

    _remedies = foreign_names.LAYER

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "call" in vars(cls) and "forward" not in vars(cls):
            raise InvalidTypeError(
                f"layer {cls.__name__} overrides call, as Keras' do: write forward(self, values, "
                "inputs), which computes, and make variables in __init__, by pstrain.Variable"
            )

    def __init__(self, name: str | None = None) -> None:
        if name is not None:
            check_text(f"name of layer {type(self).__name__}", name)
        self.name = type(self).__name__.lower() if name is None else name
        self.variables: list[Any] = []

    @property
    def saved_variables(self) -> list[Any]:
        """The variables that checkpoints save: ``variables`` and those reached by attributes."""
        return reached([self.variables, vars(self)])

    def _all_variables(self) -> list[Any]:
        return self.saved_variables

    @property
    def weights(self) -> list[Any]:
        """The ``saved_variables``, with each sharded variable replaced by its shards."""
        return [
            part
            for variable in self.saved_variables
            for part in (
                variable.variables if isinstance(variable, ShardedVariable) else [variable]
            )
        ]

    @property
    def parameters(self) -> Any:
        """The ``Parameters`` that hold this layer's values."""
        return self.variables[0].parameters

    def __repr__(self) -> str:
        shapes = ", ".join(str(tuple(variable.shape)) for variable in self.variables)
        return f"<{type(self).__name__} {self.name!r} {shapes or 'not built'}>"

    def requests(self, inputs: Any) -> list[Fetch]:  # noqa: ARG002
        """Returns what to fetch for ``inputs``; by default every variable as a whole."""
        return [Fetch(variable.spec) for variable in self.variables]

    @abstractmethod
    def forward(self, values: Sequence[Any], inputs: Any) -> Any:
        """Computes the output from ``values``, the answers to :meth:`requests` in order.

        Records on the active tape.
        """

    @takes_training
    @refuse_arguments("a layer", foreign_arguments.CALL_OF_LAYER, beyond="a second input")
    def __call__(self, inputs: Any) -> Any:
        """Fetches and computes, for a layer that is used alone or in an experiment."""
        if not self.variables:
            return self.forward([], inputs)
        return self.forward(self.parameters.fetch(self.requests(inputs)), inputs)


def as_matrix(name: str, inputs: Any) -> Tensor:
    """Returns ``inputs`` as a Tensor of two axes; arrays and lists are converted to float32.

    InvalidArgumentError, naming layer ``name``, for anything but a matrix of numbers.
    """
    try:
        is_tensor = isinstance(inputs, Tensor) or hasattr(inputs, "spec")
        matrix = as_tensor(inputs if is_tensor else to_axes(inputs).astype(np.float32, copy=False))
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"layer {name!r} takes numbers [n, k], got {type(inputs).__name__}: {error}"
        ) from error
    if len(matrix.shape) != 2:
        remedy = "; for one example give [example]" if len(matrix.shape) == 1 else ""
        raise InvalidArgumentError(
            f"layer {name!r} takes numbers [n, k], got shape {matrix.shape}{remedy}"
        )
    return matrix


def whole_leaf(variable: Any, value: NDArray[Any]) -> Tensor:
    """Returns a variable's fetched value as a leaf of the tape."""
    return leaf(Tensor(value), variable)


def whole_leaves(variables: Sequence[Any], values: Sequence[NDArray[Any]]) -> list[Tensor]:
    """Returns the fetched values of several variables as leaves of the tape."""
    return [whole_leaf(each, value) for each, value in zip(variables, values, strict=True)]


def rows_leaf(variable: Any, lookup: Lookup) -> Tensor:
    """Returns a variable's fetched rows as a leaf of the tape."""
    return leaf(Tensor(lookup.rows), variable, lookup)


def contiguous_rows(values: NDArray[Any]) -> NDArray[np.float32]:
    """Returns values as float32 with contiguous rows, as vector kernels need; rarely a copy."""
    if values.dtype == np.float32 and values.strides[1] == values.itemsize:
        return values
    return np.ascontiguousarray(values, np.float32)
