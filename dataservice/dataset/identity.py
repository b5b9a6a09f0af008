"""The identity of a dataset in saved positions: its plan's fingerprint and its drawn seeds.

Pure. Invariant: a plan that takes over an identity yields the elements of the plan it came from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dataservice.dataset.node import Node
from dataservice.dataset.plan import fingerprint
from dataservice.dataset.seeds import drawn_seeds, with_drawn_seeds
from dataservice.errors import InvalidArgumentError


def identity_of(node: Node) -> dict[str, Any]:
    """Returns the identity of a plan, JSON-able."""
    return {"plan": fingerprint(node), "seeds": drawn_seeds(node)}


def node_of_identity(node: Node, identity: Mapping[str, Any]) -> Node:
    """Returns the plan with the seeds of ``identity``.

    Raises InvalidArgumentError if the identity is of another plan.
    """
    mine = fingerprint(node)
    if identity.get("plan") != mine:
        raise InvalidArgumentError(
            f"the state was saved by another dataset (plan {identity.get('plan')}, this is "
            f"{mine}); build the dataset with the same sources, operators and arguments"
        )
    return with_drawn_seeds(node, identity.get("seeds"))
