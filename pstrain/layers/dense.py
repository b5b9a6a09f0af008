"""A fully connected layer: products by BLAS, then bias and ReLU in one fused pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from dataservice.runtime.arguments import check_choice, integer_at_least
from pstrain import buffers, initializers
from pstrain.errors import FailedPreconditionError, InvalidArgumentError, InvalidTypeError
from pstrain.gradients.recording import record
from pstrain.gradients.tensor import Tensor
from pstrain.gradients.training_argument import takes_training
from pstrain.kernels import losses, network
from pstrain.layers.base import Layer, as_matrix, whole_leaves
from pstrain.porting import foreign_arguments, foreign_names
from pstrain.porting.foreign_arguments import refuse_arguments
from pstrain.variables.creation import Maker
from pstrain.variables.parameters import current_step
from pstrain.variables.scope import is_placed
from pstrain.variables.variable import create_variable
from pstrain.vocabulary import Fetch, InitializerSpec

Activation = Literal["relu", "sigmoid"] | None

_UNBUILT: Final = "the layer has no variables yet: give input_size=, or call it once"
_GRADIENTS = {"relu": network.relu_gradient, "sigmoid": network.sigmoid_gradient}


class Dense(Layer, Maker):
    """A dense layer: ``activation(inputs @ kernel + bias)``, float32 [n, input_size] to [n, units].

    Without ``input_size`` the variables are made by the first call, which then must not be on a
    trainer, and must be inside ``strategy.scope()`` if the layer was made there. The kernel starts
    Glorot-uniform unless ``kernel_initializer`` (from ``pstrain.initializers``) is given; the bias
    starts at 0. ``activation``: "relu", or "sigmoid", whose probabilities are input for
    ``losses.BinaryCrossentropy()``. A layer without activation and a loss with
    ``from_logits=True`` are more exact: probabilities may round to 0 or 1.
    """

    _remedies = foreign_names.LAYER | {"kernel": _UNBUILT, "bias": _UNBUILT}

    @refuse_arguments("Dense", foreign_arguments.DENSE)
    def __init__(
        self,
        units: int,
        activation: Activation = None,
        *,
        input_size: int | None = None,
        use_bias: bool = True,
        kernel_initializer: InitializerSpec | None = None,
        name: str = "dense",
        seed: int = 0,
    ) -> None:
        super().__init__(name)
        units = integer_at_least(units, 1, f"layer {name!r}: units")
        if input_size is not None:
            input_size = integer_at_least(input_size, 1, f"layer {name!r}: input_size")
        check_choice(f"layer {name!r}: activation", activation, (None, *_GRADIENTS))
        if not isinstance(kernel_initializer, InitializerSpec | None):
            raise InvalidTypeError(
                f"layer {name!r}: kernel_initializer must be one of pstrain.initializers, such as "
                f"initializers.zeros(), got {kernel_initializer!r}"
            )
        self.units = units
        self.activation = activation
        self.use_bias = use_bias
        self.seed = seed
        self._kernel_initializer = kernel_initializer
        self.input_size = input_size
        self._is_of_scope = is_placed()
        if input_size is not None:
            self.build(input_size)

    def build(self, input_size: int) -> None:
        """Creates the variables; later calls do nothing, but must give the same size.

        InvalidArgumentError for another size. FailedPreconditionError on a trainer, and outside of
        all scopes for a layer that was made inside one.
        """
        if self.variables:
            if input_size != self.input_size:
                raise InvalidArgumentError(
                    f"layer {self.name!r} was built for {self.input_size} inputs, got {input_size}"
                )
            return
        if current_step() is not None:
            raise FailedPreconditionError(
                f"layer {self.name!r} has no variables, and a trainer can make none: give it "
                f"input_size={input_size}, or call it once inside strategy.scope() before"
            )
        if self._is_of_scope and not is_placed():
            raise FailedPreconditionError(
                f"layer {self.name!r} was made inside strategy.scope() and is first called outside "
                f"of it, where its variables would not be on parameter servers: give it "
                f"input_size={input_size}, or call it once inside the scope before"
            )
        with self.making():
            self._make_variables(input_size)
        self._switch()

    def _make_variables(self, input_size: int) -> None:
        self.input_size = input_size
        seed = initializers.seed_for(f"{self.name}/kernel", self.seed)
        kernel = self._kernel_initializer or initializers.glorot_uniform(
            input_size, self.units, seed=seed
        )
        shape = (input_size, self.units)
        self.variables = [create_variable(kernel, shape=shape, name=f"{self.name}/kernel")]
        if self.use_bias:
            bias = initializers.zeros()
            name = f"{self.name}/bias"
            self.variables.append(create_variable(bias, shape=(self.units,), name=name))

    @takes_training
    @refuse_arguments("a layer", foreign_arguments.CALL_OF_LAYER, beyond="a second input")
    def __call__(self, inputs: Any) -> Any:
        matrix = as_matrix(self.name, inputs)
        self.build(matrix.shape[1])
        return super().__call__(matrix)

    def requests(self, inputs: Any) -> list[Fetch]:
        if not self.variables:
            raise FailedPreconditionError(
                f"layer {self.name!r} has no variables yet: give input_size=, or call it once"
            )
        return super().requests(inputs)

    @property
    def kernel(self) -> Any:
        """The variable [input_size, units]; AttributeError before the layer has variables."""
        return self._variable("kernel", 0)

    @property
    def bias(self) -> Any:
        """The variable [units], None without ``use_bias``; AttributeError as for ``kernel``."""
        return self._variable("bias", 1) if self.use_bias else None

    def _variable(self, name: str, place: int) -> Any:
        if not self.variables:
            # What Python then looks up, by this name, is the remedy.
            raise AttributeError(name)
        return self.variables[place]

    def forward(self, values: Sequence[NDArray[np.float32]], inputs: Any) -> Tensor:
        tensor = as_matrix(self.name, inputs)
        if tensor.shape[1] != self.input_size:
            raise InvalidArgumentError(
                f"layer {self.name!r} takes [n, {self.input_size}], got {tensor.shape}"
            )
        return self.computed(tensor, whole_leaves(self.variables, values))

    def computed(self, tensor: Tensor, leaves: Sequence[Tensor]) -> Tensor:
        """Returns the output for ``tensor``; ``leaves``: kernel, and bias if there is one."""
        output = Tensor(buffers.empty((len(tensor), self.units)))
        np.matmul(tensor.value, leaves[0].value, out=output.value)
        bias = leaves[1].value if self.use_bias else np.zeros(self.units, dtype=np.float32)
        if self.activation == "relu":
            network.add_bias_relu(output.value, bias)
        elif self.use_bias:
            network.add_bias(output.value, bias)
        if self.activation == "sigmoid":
            flat = output.value.reshape(-1)
            losses.sigmoid(flat, flat)
        return record(output, (tensor, *leaves), _Backward(self, tensor, leaves[0], output))


@dataclass(frozen=True, slots=True)
class _Backward:
    """The backward function of one call; computes no gradient of inputs that are not tracked."""

    layer: Dense
    inputs: Tensor
    kernel: Tensor
    output: Tensor

    def __call__(self, gradient: NDArray[np.float32]) -> list[NDArray[np.float32] | None]:
        bias_gradient = np.zeros(self.layer.units, dtype=np.float32)
        if self.layer.activation is not None:
            upstream, gradient = gradient, buffers.empty(gradient.shape)
            through = _GRADIENTS[self.layer.activation]
            through(upstream, self.output.value, gradient, bias_gradient)
        elif self.layer.use_bias:
            network.column_sums(gradient, bias_gradient)
        to_inputs = None
        if self.inputs.tracked:
            to_inputs = buffers.empty(self.inputs.shape)
            if self.layer.units == 1:
                # For an outer product BLAS takes several times as long.
                column, row = gradient.reshape(-1), self.kernel.value.reshape(-1)
                network.outer_product(column, row, to_inputs)
            else:
                np.matmul(gradient, self.kernel.value.T, out=to_inputs)
        to_kernel = self.inputs.value.T @ gradient
        found: list[NDArray[np.float32] | None] = [to_inputs, to_kernel]
        return [*found, bias_gradient] if self.layer.use_bias else found
