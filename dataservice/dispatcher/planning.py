"""From an encoded plan to the windows of an iteration: lists sources, reads footers, runs nothing.

The only part of the dispatcher that touches users' files. Invariant: plans are decoded, never
unpickled; a user's function stays bytes here.
"""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING

from dataservice.dispatcher.plans import WindowPlan, with_division
from dataservice.errors import UnsplittableError
from dataservice.job_options import JobOptions
from dataservice.public_names import load_datasets
from dataservice.vocabulary import ShardingPolicy

if TYPE_CHECKING:
    from dataservice.dataset.node import Node

logger = logging.getLogger(__name__)

_PLAIN = JobOptions()


def preload() -> None:
    """Imports the planning code ahead (half a second), so that the first plan need not wait."""
    load_datasets()
    importlib.import_module("dataservice.dataset.division.splits")


def list_files(plan: bytes, policy: ShardingPolicy, num_shards: int, options: JobOptions) -> str:
    """Returns a digest of the files that a static policy deals out; "" if it deals out none.

    InvalidArgumentError for fewer files than workers, SourceError for sources that cannot be
    listed.
    """
    load_datasets()
    from dataservice.dataset.division.static_sharding import list_sources

    return list_sources(_decoded(plan, options), policy, num_shards)


def plan_windows(plan: bytes, repetition: int, options: JobOptions) -> WindowPlan:
    """Returns how a repetition of the plan is cut into windows.

    Blocks while sources are listed. UnsplittableError if the rows cannot be divided among workers,
    SourceError for files that cannot be read.
    """
    load_datasets()
    from dataservice.dataset.division.linearise import linearise
    from dataservice.dataset.division.splits import plan_splits, window_sizes

    linear = linearise(_decoded(plan, options))
    splits = plan_splits(linear)
    windows = WindowPlan(
        splits=splits,
        **window_sizes(linear, splits)._asdict(),
        rounds=linear.repeat,
        shuffle_seed=linear.shuffle_seed,
        reshuffles=linear.reshuffles,
        repetition=repetition,
    )
    return with_division(windows)


def plan_snapshot(plan: bytes) -> WindowPlan | None:
    """Returns how a plan is cut to be saved; None if a single worker must run all of it.

    That is so if its rows cannot be divided, and if it has operators on batches, since batches form
    only after the division. Blocks while sources are listed.
    """
    load_datasets()
    from dataservice.dataset.division.linearise import linearise

    try:
        linear = linearise(_decoded(plan, _PLAIN))
        if linear.batch_operators:
            kind = linear.batch_operators[0].kind
            raise UnsplittableError(
                f"{kind} works on whole batches, which form only after the division; write batch "
                "last, unless the function has to see whole batches"
            )
        if linear.ends_passes or linear.forms_elements:
            raise UnsplittableError("its batches are of one pass, or of similar rows")
        return plan_windows(plan, 0, _PLAIN)
    except UnsplittableError as error:
        logger.info("a snapshot is written by one worker at a time: %s", error)
        return None


def _decoded(plan: bytes, options: JobOptions) -> Node:
    from dataservice.dataset.plan import decode_plan
    from dataservice.dataset.tolerance import as_run

    # With on_error="skip", files that cannot be planned are left for workers to count and report.
    return as_run(decode_plan(plan), options.on_error)
