"""Optimizer steps on shards: the step of one closure, or one with the mean gradient of a round.

Takes no lock but those of the shards; knows no session. Invariant: the result of a round depends
only on its closures and their order, not on when they arrived, because each sum runs in the order
of the closures. Runs no Python per row.
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
    """The gradient of a shard: of all its rows, or of rows ``ids`` (int64, distinct)."""

    shard: Shard
    ids: NDArray[np.int64] | None
    gradient: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class GradientStep:
    """A checked optimizer step; calling it makes the step, and adds 1 to ``iterations`` if given.

    ``owner`` tells optimizers apart: it is the id of their counter, on whichever server that is.
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
    """Raises InvalidArgumentError if more parts of the round have gradients than ``gradients``.

    They may be fewer, because other parts may have their gradients on other servers.
    """
    count = sum(any(isinstance(change, GradientStep) for change in part) for part in parts)
    if gradients < count:
        raise InvalidArgumentError(
            f"a round of gradients={gradients} has {count} closures with a gradient here: what is "
            "made of it would be no mean"
        )


def changes_of_round(parts: Sequence[Sequence[Change]], gradients: int) -> list[Change]:
    """Merges the changes of a round's closures, each list in order, into those of one step.

    Returns the optimizer steps first, each with the mean over ``gradients`` closures, and then all
    other changes, closure by closure. Steps of different closures are merged if they are steps of
    the same optimizer and have the same position among its steps in their closures.
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
    """Sums the gradients in order, and divides the sum by ``gradients``."""
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
