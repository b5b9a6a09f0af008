"""Which delivery a dataset gets: exactly once, unless it was declared unrepeatable.

Responsible for the choice and for its warnings. Knows no network. Invariant: a dataset of which a
part was declared deterministic=False is never read exactly once, since exactly once means running
lost work again; its user is told so.
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import replace

from dataservice.client.read_arguments import ReadArguments
from dataservice.dataset.node import Node, unrepeatable
from dataservice.errors import DataServiceWarning, InvalidArgumentError
from dataservice.vocabulary import AT_MOST_ONCE, EXACTLY_ONCE, ShardingPolicy

_REMEDY = (
    "make it yield the same rows each time and leave deterministic=False out, or "
    "pass delivery='at_most_once'"
)


def with_delivery(arguments: ReadArguments, node: Node) -> ReadArguments:
    """Returns the arguments with `delivery` set to what `node` gets; they may leave it None.

    Warns if DYNAMIC reading becomes at-most-once without being asked for. Raises
    InvalidArgumentError if the dataset cannot be read as asked.
    """
    declared = unrepeatable(node)
    if not declared:
        return replace(arguments, delivery=arguments.delivery or EXACTLY_ONCE)
    if arguments.delivery == EXACTLY_ONCE or arguments.options.ordered:
        remedy = _REMEDY if arguments.policy is ShardingPolicy.DYNAMIC else "leave delivery out"
        asked = "ordered=True" if arguments.options.ordered else f"delivery={EXACTLY_ONCE!r}"
        raise InvalidArgumentError(
            f"{asked} needs a dataset that can be replayed, but {declared} was declared "
            f"deterministic=False; {remedy}"
        )
    if arguments.delivery is None and arguments.policy is ShardingPolicy.DYNAMIC:
        _warn(f"is read with delivery={AT_MOST_ONCE!r}", declared)
    return replace(arguments, delivery=AT_MOST_ONCE)


def warn_of_registered(node: Node) -> None:
    """Warns that the readers of a dataset being registered get it at most once, if that is so."""
    declared = unrepeatable(node)
    if declared:
        _warn(f"will be read with delivery={AT_MOST_ONCE!r}", declared)


def _warn(what: str, declared: str) -> None:
    warnings.warn(
        f"the dataset {what}: {declared} was declared deterministic=False, so the rows "
        "that a data worker has in flight are lost if it fails, and positions cannot be "
        f"saved; to silence this warning, {_REMEDY}",
        DataServiceWarning,
        stacklevel=_depth_of_user(),
    )


def _depth_of_user() -> int:
    """Returns the `stacklevel` at which the caller's warning shows the line of the user's code."""
    depth, frame = 1, sys._getframe(1)
    own = __name__.partition(".")[0]
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(f"{own}."):
        depth, frame = depth + 1, frame.f_back
    return depth
