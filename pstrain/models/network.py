"""Stacks of dense layers, as the models put them together, and their sizes. Holds no state."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from dataservice.runtime.arguments import integer_at_least, sizes_of
from pstrain import initializers
from pstrain.gradients.tensor import Tensor
from pstrain.layers.dense import Dense


def checked_sizes(model: str, dim: int, **layers: Sequence[int]) -> tuple[Any, ...]:
    """``dim`` and the units of each list of layers; InvalidArgumentError where one is no size."""
    sizes = (sizes_of(units, f"{model}: {name}") for name, units in layers.items())
    return integer_at_least(dim, 1, f"{model}: dim"), *sizes


def rectified(sizes: Sequence[int], name: str, seed: int) -> list[Dense]:
    """Rectified layers from each size to the next, named ``<name>_<k>``."""
    return [
        Dense(units, "relu", input_size=size, name=f"{name}_{k}", seed=seed)
        for k, (size, units) in enumerate(pairwise(sizes))
    ]


def logit(input_size: int, name: str, seed: int, *, use_bias: bool = False) -> Dense:
    """A layer to one number, for sums that have a bias already or with its own."""
    return Dense(1, input_size=input_size, use_bias=use_bias, name=name, seed=seed)


def linear(input_size: int, name: str, *, use_bias: bool = False) -> Dense:
    """The weights of dense columns, from 0: a random weight is an opinion to be unlearned first."""
    zeros = initializers.zeros()
    return Dense(1, input_size=input_size, use_bias=use_bias, kernel_initializer=zeros, name=name)


def run(layers: Sequence[Dense], values: Sequence[Sequence[Any]], inputs: Any) -> Any:
    """The output of the last layer; ``inputs`` where there are none."""
    output: Tensor | Any = inputs
    for layer, value in zip(layers, values, strict=True):
        output = layer.forward(value, output)
    return output
