"""Drawn seeds: seeds that no user gave, drawn when a node is made and stored in saved positions.

A node that needs randomness has the fields `seed` and `drawn_seed`, one of which is None. Drawn
seeds and fingerprint are the identity of a dataset in saved positions. Invariant: a plan whose
drawn seeds are replaced by those of another run yields that run's rows.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from dataservice.dataset.node import Node, rewrite, walk
from dataservice.dataset.plan import fingerprint
from dataservice.errors import InvalidArgumentError, InvalidTypeError
from dataservice.sharding import order_key


def check_seeds(node: Any) -> None:
    """Converts the seeds of a node to int; raises InvalidArgumentError for other values or none."""
    for name in ("seed", "drawn_seed"):
        value = getattr(node, name)
        if isinstance(value, np.integer):
            object.__setattr__(node, name, int(value))
        elif value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise InvalidTypeError(f"{node.kind} seed must be an integer, got {value!r}")
    if node.seed is None and node.drawn_seed is None:
        raise InvalidArgumentError(f"{node.kind} needs a seed or one that was drawn")


def effective_seed(node: Any) -> int:
    """Returns the given seed, or the drawn one."""
    seed = node.seed if node.seed is not None else node.drawn_seed
    assert isinstance(seed, int)
    return seed


def drawn_seeds(node: Node) -> list[int]:
    """Returns the drawn seeds of a plan, in the order of its nodes."""
    return [seed for n in walk(node) if (seed := getattr(n, "drawn_seed", None)) is not None]


def with_drawn_seeds(node: Node, seeds: Any) -> Node:
    """Returns the plan with `seeds` in place of its drawn seeds.

    Raises InvalidArgumentError unless `seeds` is a list of as many integers.
    """
    count = len(drawn_seeds(node))
    integers = isinstance(seeds, list) and all(isinstance(seed, int) for seed in seeds)
    if not integers or len(seeds) != count:
        raise InvalidArgumentError(
            f"malformed iterator state: it needs {count} drawn seeds, got {seeds!r}"
        )
    left = iter(seeds)

    def change(inner: Node) -> Node:
        if getattr(inner, "drawn_seed", None) is not None:
            return dataclasses.replace(inner, drawn_seed=next(left))  # type: ignore[call-arg]
        return inner

    return rewrite(node, change)


def varied_seeds(node: Node, variant: str) -> Node:
    """Returns a variant of the plan, whose drawn seeds follow from `variant`.

    Passes that run beside each other have different variants; "" is the plan itself. Seeds below a
    cache stay as they are, so that the cache keeps the same elements in all variants.
    """
    if not variant:
        return node
    kept = {id(n) for cache in walk(node) if cache.kind == "cache" for n in walk(cache)}
    key = int.from_bytes(hashlib.blake2b(variant.encode(), digest_size=8).digest(), "little")
    seeds = [
        seed if id(n) in kept else order_key(seed, key) >> 1
        for n in walk(node)
        if (seed := getattr(n, "drawn_seed", None)) is not None
    ]
    return with_drawn_seeds(node, seeds)


def settle_seeds(node: Node, *key: int) -> Node:
    """Returns the plan with seeds derived from `key` in place of its drawn seeds.

    A plan that a user's function makes anew whenever a position is restored then stays the same.
    """
    count = len(drawn_seeds(node))
    if not count:
        return node
    return with_drawn_seeds(node, [order_key(*key, n) >> 1 for n in range(count)])


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
