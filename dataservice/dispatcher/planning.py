"""From an encoded plan to the windows of an iteration: lists sources, reads footers, runs nothing.

The only part of the dispatcher that touches users' files. Plans are decoded, never unpickled: a
user's function stays bytes here.
"""

from __future__ import annotations

import importlib

from dataservice.dispatcher.plans import WindowPlan
from dataservice.vocabulary import ShardingPolicy


def preload() -> None:
    """Imports what planning needs, which takes half a second, so that a restart need not wait."""
    importlib.import_module("dataservice.dataset.splits")


def list_files(plan: bytes, policy: ShardingPolicy, num_shards: int) -> str:
    """What stands for the files that a static policy deals out; "" when it deals out none.

    InvalidArgumentError for fewer files than workers, SourceError for what cannot be listed.
    """
    from dataservice.dataset.plan import decode_plan
    from dataservice.dataset.static_sharding import list_sources

    return list_sources(decode_plan(plan), policy, num_shards)


def plan_windows(plan: bytes, repetition: int) -> WindowPlan:
    """How a repetition of the plan is cut.

    Blocks while sources are listed. UnsplittableError when rows cannot be divided among workers,
    SourceError for files that cannot be read.
    """
    from dataservice.dataset.plan import decode_plan
    from dataservice.dataset.splits import linearise, plan_splits, target_rows

    linear = linearise(decode_plan(plan))
    splits = tuple(plan_splits(linear))
    return WindowPlan(
        splits=splits,
        target_rows=target_rows(linear, splits),
        rounds=linear.repeat,
        shuffle_seed=linear.shuffle_seed,
        reshuffles=linear.reshuffles,
        repetition=repetition,
    )
