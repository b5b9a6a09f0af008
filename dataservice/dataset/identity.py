"""Which dataset a saved position is of: a plan's fingerprint, and the seeds that no user gave.

Pure. Invariant: a plan that takes over an identity yields the elements of the one that gave it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dataservice.dataset.node import Node
from dataservice.dataset.plan import fingerprint
from dataservice.dataset.seeds import drawn_seeds, with_drawn_seeds
from dataservice.errors import InvalidArgumentError


def identity_of(node: Node) -> dict[str, Any]:
    """JSON-able."""
    return {"plan": fingerprint(node), "seeds": drawn_seeds(node)}


def node_of_identity(node: Node, identity: Mapping[str, Any]) -> Node:
    """The plan with the seeds of ``identity``; InvalidArgumentError for that of another plan."""
    mine = fingerprint(node)
    if identity.get("plan") != mine:
        raise InvalidArgumentError(
            f"the state was saved by another dataset (plan {identity.get('plan')}, this is "
            f"{mine}); build the dataset with the same sources, operators and arguments"
        )
    return with_drawn_seeds(node, identity.get("seeds"))
