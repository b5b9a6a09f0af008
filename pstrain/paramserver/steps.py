"""Optimizer steps on shards: one closure's, or one with the mean gradient of a round.

No lock but the shards' own, no session. Invariant: what a round does depends on its closures and
their order alone, not on when they arrived: each sum runs in the closures' order. No Python per
row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pstrain.errors import InvalidArgumentError
from pstrain.paramserver.rules import BoundRule
from pstrain.paramserver.shard import Shard
from pstrain.vocabulary import OptimizerSpec

Change = Callable[[], None]

_ONE: Final = np.ones((1, 1), np.int64)


class ShardUpdate(NamedTuple):
    """Gradient of a shard: of all its rows, or (``ids``, int64, distinct) of some of them."""

    shard: Shard
    ids: NDArray[np.int64] | None
    gradient: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class GradientStep:
    """A step that was checked; calling it makes it. ``iterations``, if here, grows by 1.

    ``owner`` tells optimizers apart: the id of their counter, wherever that is.
    """

    updates: list[ShardUpdate]
    optimizer: OptimizerSpec
    iterations: Shard | None
    owner: int | None = None

    def __call__(self) -> None:
        rule = BoundRule.of(self.optimizer)
        for shard, ids, gradient in self.updates:
            shard.update(self.optimizer, ids, gradient, rule)
        if self.iterations is not None:
            self.iterations.assign("add", self.iterations.row_start, _ONE)


def check_round(parts: Sequence[Sequence[Change]], gradients: int) -> None:
    """InvalidArgumentError where the parts of a round have more gradients than it is said to have.

    It may have others elsewhere.
    """
    count = sum(any(isinstance(change, GradientStep) for change in part) for part in parts)
    if gradients < count:
        raise InvalidArgumentError(
            f"a round of gradients={gradients} has {count} closures with a gradient here: what is "
            "made of it would be no mean"
        )


def changes_of_round(parts: Sequence[Sequence[Change]], gradients: int) -> list[Change]:
    """Changes of the closures of a round, each in its order, as those of one step.

    First the steps, each optimizer's once with the mean over ``gradients`` closures; then whatever
    else was changed, closure by closure. Steps of different closures are one where they are the
    same optimizer's and come in the same place in each closure.
    """
    steps: dict[tuple[Any, ...], list[GradientStep]] = {}
    others: list[Change] = []
    for part in parts:
        places: dict[tuple[Any, ...], int] = {}
        for change in part:
            if not isinstance(change, GradientStep):
                others.append(change)
                continue
            kind = (change.optimizer.name, change.owner)
            place = places[kind] = places.get(kind, 0) + 1
            steps.setdefault((*kind, place), []).append(change)
    means: list[Change] = [_mean_step(same, gradients) for same in steps.values()]
    return means + others


def _mean_step(steps: Sequence[GradientStep], gradients: int) -> GradientStep:
    updates: dict[tuple[int, int], list[ShardUpdate]] = {}
    for step in steps:
        for update in step.updates:
            key = (update.shard.spec.id, update.shard.index)
            updates.setdefault(key, []).append(update)
    means = [_mean_update(same, gradients) for same in updates.values()]
    return GradientStep(means, steps[0].optimizer, steps[0].iterations)


def _mean_update(updates: Sequence[ShardUpdate], gradients: int) -> ShardUpdate:
    """The sum, in order, divided by ``gradients``."""
    shard = updates[0].shard
    ids: NDArray[np.int64] | None = None
    first, rows = shard.row_start, shard.row_stop - shard.row_start
    sparse = [update.ids for update in updates if update.ids is not None]
    if len(sparse) == len(updates):
        ids = np.unique(np.concatenate(sparse))
        rows = len(ids)
    total = np.zeros((rows, shard.width), np.float32)
    for update in updates:
        if update.ids is None:
            total += update.gradient
        else:
            total[update.ids - first if ids is None else np.searchsorted(ids, update.ids)] += (
                update.gradient
            )
    total /= np.float32(gradients)
    return ShardUpdate(shard, ids, total)
