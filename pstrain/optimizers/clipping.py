"""Clips gradients before they are applied. Pure: makes new arrays and changes none.

Knows nothing of optimizers. Invariant: an update whose norm is within the bound is returned as the
same object.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dataservice.runtime.arguments import positive
from pstrain.errors import InvalidArgumentError
from pstrain.vocabulary import Update


@dataclass(frozen=True, slots=True, kw_only=True)
class Clipping:
    """A bound of gradients: ``value`` per number, ``norm`` per variable, or ``global_norm`` of all.

    At most one of the three is set. The gradient of looked-up rows counts as the gradient of these
    rows, in which repeated ids are summed.
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
        """Returns the updates of one step with clipped gradients."""
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
    # Rows are grouped by shard; the sum of sorted numbers does not depend on the number of shards.
    of_rows = np.einsum("ij,ij->i", update.gradient, update.gradient)
    return float(np.sum(np.sort(of_rows), dtype=np.float64))


def _scaled(update: Update, square_sum: float, bound: float) -> Update:
    norm = square_sum**0.5
    if norm <= bound:
        return update
    return update._replace(gradient=update.gradient * np.float32(bound / norm))
