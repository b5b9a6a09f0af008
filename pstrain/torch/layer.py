"""A PyTorch module as a layer: its parameters are variables, its gradients go to the tape.

Knows nothing of features or models. Invariant: torch gets the values for one call only, and nothing
that it computed outlives the tape that recorded the call.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pstrain.errors import InvalidArgumentError
from pstrain.gradients.recording import record, recording
from pstrain.gradients.tensor import Tensor, as_tensor, cast
from pstrain.initializers import seed_for
from pstrain.layers import base
from pstrain.torch import devices, modules
from pstrain.trainer.context import current_position
from pstrain.variables.joint_access import read_together
from pstrain.variables.parameters import current_step
from pstrain.variables.variable import create_variable


class Layer(base.Layer):
    """A layer that applies ``module`` to an input or a tuple of inputs; returns float32.

    The module's parameters become variables named ``<name>/<path>``, with the values they have. A
    parameter that does not require gradients is not trained; a shared parameter is one variable.
    ``module`` itself is not changed later: :meth:`to_module` returns one with the trained values.

    Under a tape each submodule is in the mode (train or eval) in which it was given; without a tape
    all are in eval mode. Buffers are constants that travel with the layer; a module that changes
    its buffers, as BatchNorm does, is refused. Dropout draws from torch's generator, which a
    trainer seeds by ``seed`` and its own index; in one process call ``torch.manual_seed`` yourself.
    Threads: as many as OMP_NUM_THREADS says; one in trainers of a LocalCluster.

    ``device``: where a trainer, or a process that computes by itself, runs the module; None is the
    processor, any other is a name as torch takes it ("cuda", "cuda:1", "mps"). Inputs, parameters
    and buffers are copied there, outputs and gradients come back as NumPy arrays. "cuda" is GPU i
    modulo the number of GPUs that trainer i sees, so the trainers of a host share its GPUs evenly;
    in a process without a trainer it is torch's current GPU. The program that makes the layer and
    gives it to trainers needs no GPU. Where the device is missing, calls raise
    FailedPreconditionError.
    """

    def __init__(
        self,
        module: Any,
        *,
        name: str = "torch",
        seed: int = 0,
        device: str | torch.device | None = None,
    ) -> None:
        super().__init__(name)
        self.device = devices.checked(device, name)
        modules.check(module, name)
        values = modules.initial_values(module, name)
        self.seed = seed
        self._skeleton = modules.skeleton(module, name)
        self._paths = tuple(values)
        self.variables = [
            create_variable(value, name=f"{name}/{path}", trainable=trainable)
            for path, (value, trainable) in values.items()
        ]

    def to_module(self) -> Any:
        """Returns a separate ``torch.nn.Module`` with the current values, on the processor."""
        values = read_together(self.variables)
        return modules.with_values(self._skeleton, dict(zip(self._paths, values, strict=True)))

    def forward(self, values: Sequence[NDArray[np.float32]], inputs: Any) -> Tensor:
        several = inputs if isinstance(inputs, tuple | list) else (inputs,)
        given = [_as_float32(as_tensor(each)) for each in several]
        given += base.whole_leaves(self.variables, values)
        training = recording()
        if training and current_step() is not None:
            _begin_random_numbers(self.seed, current_position() or 0)
        device = devices.found(self.device, self.name)
        tensors = [modules.as_tensor(each.value, device) for each in given]
        for each, tensor in zip(given, tensors, strict=True):
            tensor.requires_grad_(each.tracked)
        parameters = dict(zip(self._paths, tensors[len(several) :], strict=True))
        with torch.set_grad_enabled(training):
            arguments = tensors[: len(several)]
            output = modules.call(
                self, self._skeleton, parameters, arguments, training=training, device=device
            )
        result = Tensor(modules.as_array(self._checked(output)))
        # An output that depends on nothing tracked has no gradient to record.
        return record(result, given, _Backward(output, tensors)) if output.requires_grad else result

    def _checked(self, output: Any) -> Any:
        if not isinstance(output, torch.Tensor):
            raise InvalidArgumentError(
                f"layer {self.name!r}: the module must return one tensor, got "
                f"{type(output).__name__}: wrap it in a module that returns one"
            )
        if output.dtype != torch.float32:
            raise InvalidArgumentError(
                f"layer {self.name!r}: the module must return float32, got {output.dtype}"
            )
        return output


def _as_float32(value: Tensor) -> Tensor:
    """Casts floats to float32, since torch multiplies no mixed types; leaves others alone."""
    return cast(value, np.dtype(np.float32)) if value.dtype.kind == "f" else value


class _Backward:
    """The gradients of one call, for tensors that require one; may be called repeatedly."""

    def __init__(self, output: Any, tensors: Sequence[Any]) -> None:
        self._output, self._tensors = output, tensors

    def __call__(self, gradient: NDArray[np.float32]) -> list[NDArray[np.float32] | None]:
        wanted = [tensor for tensor in self._tensors if tensor.requires_grad]
        upstream = modules.as_tensor(np.asarray(gradient, np.float32), self._output.device)
        found = iter(
            torch.autograd.grad(
                self._output,
                wanted,
                upstream.reshape(self._output.shape),
                retain_graph=True,
                allow_unused=True,
            )
        )
        each = [next(found) if tensor.requires_grad else None for tensor in self._tensors]
        return [None if tensor is None else modules.as_array(tensor) for tensor in each]


@functools.cache
def _begin_random_numbers(seed: int, trainer: int) -> None:
    """Seeds torch's generator once in a trainer; torch's own seed is the same in all processes."""
    torch.manual_seed(seed_for(f"torch/trainer/{trainer}", seed))
