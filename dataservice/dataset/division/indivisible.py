"""Why a plan cannot be divided among data workers, and what to do instead.

Knows the kinds of operators, nothing of how divisible ones are divided. Invariant: a refusal names
the operator, the reason and a remedy that serves the purpose of the operator.
"""

from __future__ import annotations

from typing import Final, NoReturn

from dataservice.dataset.node import Node
from dataservice.errors import UnsplittableError

_AS_ONE: Final = "it reads its input as one sequence"
_MIXED: Final = (
    "it takes rows of several datasets by turns",
    "distribute each of the datasets and mix the distributed ones",
)
# For operators that are never divided: the reason, a remedy besides applying the operator later,
# and what it may be applied after.
_ALWAYS: Final[dict[str, tuple[str, ...]]] = {
    "enumerate": (
        "the number of an element depends on all elements before it",
        "number the rows of the source itself: zip(data, Dataset.range(n)) comes before all else",
    ),
    "cache": (
        "no worker sees all elements",
        "keep what is costly to make with dataservice.save() and read it with Dataset.load(path)",
    ),
    "shard": (
        "every row goes to one reader anyway",
        "leave it out: the readers of one job_name divide the rows among them",
        # Rows arrive at each reader in another order, so shard after distribute() divides nothing.
        "distribute(..., ordered=True)",
    ),
    "sample_from_datasets": _MIXED,
    "choose_from_datasets": _MIXED,
}


def refuse(node: Node, reason: str, remedy: str = "", after: str = "distribute()") -> NoReturn:
    """Raises UnsplittableError for this operator."""
    instead = f"{remedy}, " if remedy else ""
    raise UnsplittableError(
        f"a dataset with {node.kind} cannot be divided among data workers, since {reason}; "
        f"{instead}apply {node.kind} after {after}, or distribute with ShardingPolicy.OFF"
    )


def refuse_operator(node: Node) -> NoReturn:
    """Raises UnsplittableError for an operator that is never divided."""
    refuse(node, *_ALWAYS.get(node.kind, (_AS_ONE, "")))
