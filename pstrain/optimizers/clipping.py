"""Bounds for gradients before they are applied. Pure: new arrays out, none changed.

Invariant: a gradient within the bounds passes through as the same object.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dataservice.runtime.arguments import positive
from pstrain.errors import InvalidArgumentError
from pstrain.vocabulary import Update


@dataclass(frozen=True, slots=True, kw_only=True)
class Clipping:
    """At most one of: each number to [-value, value]; each variable's norm; the norm of all.

    The gradient of looked-up rows is that of these rows, each id's repeats summed up.
    """

    value: float | None = None
    norm: float | None = None
    global_norm: float | None = None

    def __post_init__(self) -> None:
        given = {
            "clipvalue": self.value,
            "clipnorm": self.norm,
            "global_clipnorm": self.global_norm,
        }
        chosen = {name: bound for name, bound in given.items() if bound is not None}
        if len(chosen) > 1:
            raise InvalidArgumentError(
                f"at most one of clipvalue, clipnorm and global_clipnorm can be set, got {chosen}"
            )
        for name, bound in chosen.items():
            positive(bound, name)

    def clip(self, updates: tuple[Update, ...]) -> tuple[Update, ...]:
        """The updates of one step with bounded gradients."""
        if self.value is not None:
            bound = self.value
            return tuple(u._replace(gradient=np.clip(u.gradient, -bound, bound)) for u in updates)
        if self.norm is not None:
            return tuple(_scaled(u, _square_sum(u), self.norm) for u in updates)
        if self.global_norm is not None:
            total = sum(_square_sum(u) for u in updates)
            return tuple(_scaled(u, total, self.global_norm) for u in updates)
        return updates


def _square_sum(update: Update) -> float:
    if update.lookup is None:
        flat = update.gradient.reshape(-1)
        return float(np.dot(flat, flat))
    # Rows come shard by shard: sorted, their sum does not depend on how many shards there are.
    of_rows = np.einsum("ij,ij->i", update.gradient, update.gradient)
    return float(np.sum(np.sort(of_rows), dtype=np.float64))


def _scaled(update: Update, square_sum: float, bound: float) -> Update:
    norm = square_sum**0.5
    if norm <= bound:
        return update
    return update._replace(gradient=update.gradient * np.float32(bound / norm))
