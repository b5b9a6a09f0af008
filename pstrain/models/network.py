"""Stacks of dense layers, from which models are built, and checks of their columns and sizes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from dataservice.runtime.arguments import integer_at_least, sizes_of
from pstrain import initializers
from pstrain.errors import InvalidArgumentError
from pstrain.features.schema import FeatureSchema
from pstrain.gradients.tensor import Tensor
from pstrain.layers.dense import Dense


def checked_fields(model: str, schema: FeatureSchema) -> int:
    """Returns the number of categorical columns; InvalidArgumentError if there are none."""
    if not schema.categorical:
        raise InvalidArgumentError(
            f"{model} needs at least one categorical column; use LogisticRegression"
        )
    return len(schema.categorical)


def checked_sizes(model: str, dim: int, **layers: Sequence[int]) -> tuple[Any, ...]:
    """Returns ``dim`` and each list of units, checked; InvalidArgumentError for a bad size."""
    sizes = (sizes_of(units, f"{model}: {name}") for name, units in layers.items())
    return integer_at_least(dim, 1, f"{model}: dim"), *sizes


def relu_layers(sizes: Sequence[int], name: str, seed: int) -> list[Dense]:
    """Returns ReLU layers from each size to the next, named ``<name>_<k>``."""
    return [
        Dense(units, "relu", input_size=size, name=f"{name}_{k}", seed=seed)
        for k, (size, units) in enumerate(pairwise(sizes))
    ]


def logit_layer(input_size: int, name: str, seed: int, *, use_bias: bool = False) -> Dense:
    """Returns a layer with one output, by default without bias, for sums that have one already."""
    return Dense(1, input_size=input_size, use_bias=use_bias, name=name, seed=seed)


def linear_layer(input_size: int, name: str, *, use_bias: bool = False) -> Dense:
    """Returns a linear layer for dense columns, which starts at 0.

    Random initial weights would have to be unlearned first.
    """
    zeros = initializers.zeros()
    return Dense(1, input_size=input_size, use_bias=use_bias, kernel_initializer=zeros, name=name)


def run(layers: Sequence[Dense], values: Sequence[Sequence[Any]], inputs: Any) -> Any:
    """Runs the layers in order; returns the last output, or ``inputs`` if there are no layers."""
    output: Tensor | Any = inputs
    for layer, value in zip(layers, values, strict=True):
        output = layer.forward(value, output)
    return output
