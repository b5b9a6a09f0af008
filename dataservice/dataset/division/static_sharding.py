"""Rewrites a plan into the share that one worker of a fixed list runs.

The semantics are those of tf.data service: FILE divides the files of every file source by worker
index, below any shuffle of them; DATA keeps every N-th element, before a trailing prefetch; HINT
fills in `shard(SHARD_HINT, ...)`. Operators that count (take, skip, enumerate) and `batch` run on
each worker's share under FILE. The rewrites are pure; files are listed apart from them. Invariant:
given one listing, the shares of workers 0 to N-1 are disjoint and together the whole, for a plan
that yields the same elements each time.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from typing import Any, TypeAlias

from dataservice.dataset.node import Node, rewrite, walk
from dataservice.dataset.operators import Cache, Prefetch, Shard
from dataservice.dataset.sources import FileListSource, Source
from dataservice.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
)
from dataservice.vocabulary import ShardingPolicy

# The paths of each file source, in the order in which `walk` visits the sources.
Listing: TypeAlias = tuple[tuple[str, ...], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Share:
    """Share `index` of `count`.

    `listing` is the result of `list_sources` when the division was made, or "" to check nothing.
    """

    policy: ShardingPolicy
    index: int
    count: int
    listing: str = ""


def check_policy(root: Node, policy: ShardingPolicy) -> None:
    """Raises an error if the policy cannot divide the plan, as far as is known without reading.

    NotFoundError if a source has no files under FILE, FailedPreconditionError for a SHARD_HINT
    under another policy than HINT.
    """
    hinted = any(isinstance(node, Shard) and node.is_hint for node in walk(root))
    if hinted and policy is not ShardingPolicy.HINT:
        raise FailedPreconditionError(
            f"the dataset has shard(SHARD_HINT, ...), which only ShardingPolicy.HINT fills in; it "
            f"is distributed with ShardingPolicy.{policy.name}: use ShardingPolicy.HINT, or remove "
            "the shard"
        )
    if policy is ShardingPolicy.FILE:
        unshardable = _sources_without_files(root)
        if unshardable:
            kinds = ", ".join(sorted({source.kind for source in unshardable}))
            raise NotFoundError(
                f"Found an unshardable source dataset: {kinds}. ShardingPolicy.FILE divides files; "
                "use ShardingPolicy.FILE_OR_DATA or DATA to divide elements, or DYNAMIC"
            )


def effective_policy(root: Node, policy: ShardingPolicy) -> ShardingPolicy:
    """Returns FILE or DATA in place of FILE_OR_DATA, and any other policy unchanged."""
    if policy is not ShardingPolicy.FILE_OR_DATA:
        return policy
    return ShardingPolicy.DATA if _sources_without_files(root) else ShardingPolicy.FILE


def list_sources(root: Node, policy: ShardingPolicy, count: int) -> str:
    """Returns a digest of the files that `count` workers divide, or "" if no files are divided.

    Workers compare it, so that all divide the same files. Raises InvalidArgumentError for a source
    with fewer files than workers, and SourceError for a source that cannot be listed.
    """
    check_policy(root, policy)
    if effective_policy(root, policy) is not ShardingPolicy.FILE or count == 1:
        return ""
    return _checked_digest(_list_files(root), count)


def share_of(root: Node, share: Share) -> Node:
    """Returns the plan that a worker runs; lists the files under FILE.

    Raises FailedPreconditionError if the files differ from those when the division was made.
    """
    check_policy(root, share.policy)
    policy = effective_policy(root, share.policy)
    if policy is ShardingPolicy.HINT:
        return fill_hints(root, share.index, share.count)
    if share.count == 1:
        return root
    if policy is ShardingPolicy.DATA:
        return keep_every_nth(root, share.index, share.count)
    listing = _list_files(root)
    if _checked_digest(listing, share.count) != share.listing and share.listing:
        raise FailedPreconditionError(
            "other files match the paths of the dataset than when this repetition was divided; "
            "workers would leave out or repeat files. Start a new repetition, do not add files "
            "while they are read, and let all workers and the dispatcher see the same files"
        )
    return deal_files(root, listing, share.index, share.count)


def fill_hints(root: Node, index: int, count: int) -> Node:
    """Returns the plan with shard(count, index) in place of every shard(SHARD_HINT, ...)."""

    def fill(node: Node) -> Node:
        if isinstance(node, Shard) and node.is_hint:
            return Shard(node.input, count, index)
        return _with_own_cache(node, index, count)

    return rewrite(root, fill)


def keep_every_nth(root: Node, index: int, count: int) -> Node:
    """Returns the plan with shard(count, index) at its end, before trailing prefetches."""
    if isinstance(root, Prefetch):
        return root.with_inputs(keep_every_nth(root.input, index, count))
    return Shard(root, count, index)


def deal_files(root: Node, listing: Listing, index: int, count: int) -> Node:
    """Returns the plan with files index, index + count, ... of each source; all have files."""
    dealt = iter(listing)

    def deal(node: Node) -> Node:
        if not isinstance(node, Source):
            return _with_own_cache(node, index, count)
        mine = next(dealt)[index::count]
        return _with_paths(node, mine)

    return rewrite(root, deal)


def _with_own_cache(node: Node, index: int, count: int) -> Node:
    """Gives a cache of a share its own path and memory: its elements differ from other shares'."""
    if not isinstance(node, Cache):
        return node
    path = None if node.path is None else f"{node.path}.{index}-of-{count}"
    return dataclasses.replace(node, path=path)


def _with_paths(source: Source, paths: Sequence[str]) -> Node:
    """Returns the source with other files and the columns of the first file of the whole source.

    The first file of the share may have other columns, no rows to infer types from, or be
    unreadable.
    """
    name = "patterns" if isinstance(source, FileListSource) else "paths"
    changes: dict[str, Any] = {name: tuple(paths)}
    source.empty()  # finds the columns, unless they were given
    return source.narrowed(**changes)


def _list_files(root: Node) -> Listing:
    sources = (node for node in walk(root) if isinstance(node, Source))
    return tuple(tuple(file.path for file in source.files()) for source in sources)


def _checked_digest(listing: Listing, count: int) -> str:
    for paths in listing:
        if len(paths) < count:
            raise InvalidArgumentError(
                f"Found {len(paths)} files ({', '.join(map(repr, paths[:3]))}), not enough for the "
                f"required {count} shards/workers; write at least one file per worker for every "
                "source, or use ShardingPolicy.DATA or DYNAMIC"
            )
    return hashlib.sha256(json.dumps(listing).encode()).hexdigest()[:32]


def _has_files(node: Node) -> bool:
    return isinstance(node, FileListSource) or (isinstance(node, Source) and node.reads_files)


def _sources_without_files(root: Node) -> list[Node]:
    """Returns the sources without files, which every worker would read whole under FILE."""
    return [node for node in walk(root) if not node.inputs and not _has_files(node)]
