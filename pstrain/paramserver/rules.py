"""Update rules by name: their kernels, and the slots that they keep per value and per row.

Knows kernels and numbers, nothing of shards or variables. Invariant: a rule's kernels read and
write exactly the columns of the value and of the slots that the rule counts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pstrain.buffers import read_only
from pstrain.errors import InvalidArgumentError
from pstrain.kernels import adaptive, updates
from pstrain.paramserver.sharing import in_parts
from pstrain.vocabulary import OptimizerSpec

Array = NDArray[Any]


class Rule(NamedTuple):
    """The kernels of an optimizer, and the parameters that follow rate and l2 in ``hyper``.

    ``slots`` counts the numbers kept per value, ``row_slots`` those kept per row. ``all``, if not
    None, is the kernel for a gradient of every row.
    """

    rows: Callable[..., None]
    slots: int
    parameters: tuple[str, ...]
    row_slots: int = 0
    all: Callable[..., None] | None = None


RULES = {
    "sgd": Rule(updates.sgd_rows, 0, (), all=updates.sgd_all),
    "adagrad": Rule(updates.adagrad_rows, 1, ("epsilon",), all=updates.adagrad_all),
    "rowwise_adagrad": Rule(adaptive.rowwise_adagrad_rows, 0, ("epsilon",), row_slots=1),
    "momentum": Rule(adaptive.momentum_rows, 1, ("momentum", "nesterov")),
    "rmsprop": Rule(adaptive.rmsprop_rows, 1, ("rho", "epsilon")),
    "rmsprop_momentum": Rule(adaptive.rmsprop_momentum_rows, 2, ("rho", "epsilon", "momentum")),
    "adam": Rule(adaptive.adam_rows, 2, ("beta_1", "beta_2", "epsilon"), row_slots=1),
    "ftrl": Rule(adaptive.ftrl_rows, 2, ("power", "l1", "l2_own", "l2_shrinkage", "beta")),
}


def find_rule(optimizer: OptimizerSpec) -> Rule:
    """Returns the rule of an optimizer.

    Raises InvalidArgumentError if the rule is unknown, has other slots or lacks a parameter.
    """
    rule = RULES.get(optimizer.name)
    kept = (len(optimizer.slots), len(optimizer.row_slots))
    if rule is None or (rule.slots, rule.row_slots) != kept:
        raise InvalidArgumentError(
            f"no update rule {optimizer.name!r} with {kept[0]} slots per value and {kept[1]} per "
            f"row; known rules: {', '.join(sorted(RULES))}"
        )
    missing = [name for name in rule.parameters if name not in optimizer.parameters]
    if missing:
        raise InvalidArgumentError(
            f"update rule {optimizer.name!r} needs {', '.join(rule.parameters)}; missing: "
            f"{', '.join(missing)}"
        )
    return rule


class BoundRule(NamedTuple):
    """A rule with the numbers that its kernels take; serves all shards of a step."""

    rule: Rule
    hyper: NDArray[np.float32]

    @classmethod
    def of(cls, optimizer: OptimizerSpec) -> BoundRule:
        """Finds the rule as :func:`find_rule` does; cached for optimizers with the same text."""
        return _bound(optimizer.text)


@functools.lru_cache(maxsize=256)
def _bound(text: str) -> BoundRule:
    optimizer = OptimizerSpec.from_text(text)
    rule = find_rule(optimizer)
    rates = [optimizer.learning_rate, optimizer.l2]
    numbers = [*rates, *(optimizer.parameters[name] for name in rule.parameters)]
    return BoundRule(rule, np.array(numbers, np.float32))


def apply_rule(
    bound: BoundRule,
    slab: Array,
    width: int,
    row_start: int,
    ids: NDArray[np.int64] | None,
    gradient: Array,
) -> None:
    """Makes one step on rows ``ids`` (distinct, in range), or on all rows, of a slab with slots."""
    rule, hyper = bound
    if ids is None and rule.all is not None:
        rule.all(slab, width, gradient, hyper)
        return
    if ids is None:
        ids = np.arange(row_start, row_start + len(slab), dtype=np.int64)
    if rule.all is None:
        ids, gradient = read_only(ids), read_only(gradient)

    def update(start: int, stop: int) -> None:
        rule.rows(slab, width, row_start, ids[start:stop], gradient[start:stop], hyper)

    in_parts(len(ids), update)
