"""Seeds that no user gave: drawn when a node is made, carried by saved positions.

A node that needs randomness has the fields `seed` and `drawn_seed`, one of which is None.
Invariant: replacing the drawn seeds of a plan by those of another run makes it yield the same rows.
"""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

import numpy as np

from dataservice.dataset.node import Node, rewrite, walk
from dataservice.errors import InvalidArgumentError, InvalidTypeError
from dataservice.sharding import order_key


def check_seeds(node: Any) -> None:
    """Makes the seeds of a node plain integers; InvalidArgumentError for anything else."""
    for name in ("seed", "drawn_seed"):
        value = getattr(node, name)
        if isinstance(value, np.integer):
            object.__setattr__(node, name, int(value))
        elif value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise InvalidTypeError(f"{node.kind} seed must be an integer, got {value!r}")
    if node.seed is None and node.drawn_seed is None:
        raise InvalidArgumentError(f"{node.kind} needs a seed or one that was drawn")


def effective_seed(node: Any) -> int:
    """The given seed, or the one that was drawn."""
    seed = node.seed if node.seed is not None else node.drawn_seed
    assert isinstance(seed, int)
    return seed


def drawn_seeds(node: Node) -> list[int]:
    """The seeds that no user gave, in the order of the plan."""
    return [seed for n in walk(node) if (seed := getattr(n, "drawn_seed", None)) is not None]


def with_drawn_seeds(node: Node, seeds: Any) -> Node:
    """The plan with `seeds` in place of those that were drawn."""
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
    """The plan as another pass beside it makes it: with other seeds where none was given.

    "" is the plan itself. What a cache keeps is the same in all variants.
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
    """The plan with seeds made of `key` in place of those that were drawn.

    For plans that a function makes anew each time a position is restored.
    """
    count = len(drawn_seeds(node))
    if not count:
        return node
    return with_drawn_seeds(node, [order_key(*key, n) >> 1 for n in range(count)])
