"""Plays a range of seeds on several cores and finds the first that fails.

Hands out seeds in blocks, in order, so that the lowest failing seed is found although blocks end in
any order. Knows nothing of scenarios except that the `play` of a protocol raises Failure.
Invariant: `first` of the report is the lowest failing seed of those played, whatever the number of
processes.
"""

from __future__ import annotations

import gc
import math
import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

from tests.simulation import (
    coordinated_scenario,
    hard_restores,
    scenario,
    second_losses,
    snapshot_scenario,
    training_scenario,
)
from tests.simulation.base_scenario import Failure

# Large enough to make handing out cheap, small enough that all processes finish together.
BLOCK = 100
# The young objects of a schedule die with it, so more frequent collections would only cost time.
_GC_THRESHOLD = 50_000


class Protocol(NamedTuple):
    """A simulated protocol: `play` plays one seed inside the context `staged`."""

    staged: Callable[[], AbstractContextManager[None]]
    play: Callable[..., Any]


PROTOCOLS = {
    "delivery": Protocol(scenario.staged, scenario.play),
    "coordinated": Protocol(coordinated_scenario.staged, coordinated_scenario.play),
    "snapshots": Protocol(snapshot_scenario.staged, snapshot_scenario.play),
    "training": Protocol(training_scenario.staged, training_scenario.play),
    "sync": Protocol(training_scenario.staged, training_scenario.play_sync),
    "ssp": Protocol(training_scenario.staged, training_scenario.play_ssp),
    "loops": Protocol(training_scenario.staged, training_scenario.play_loops),
    "sync-restores": Protocol(training_scenario.staged, training_scenario.play_sync_restores),
    "ssp-restores": Protocol(training_scenario.staged, training_scenario.play_ssp_restores),
    "restores": Protocol(training_scenario.staged, training_scenario.play_restores),
    "failing-restores": Protocol(training_scenario.staged, training_scenario.play_failing_restores),
    "second-losses": Protocol(training_scenario.staged, second_losses.play_second_losses),
    "hard-restores": Protocol(training_scenario.staged, hard_restores.play_hard_restores),
}
"""The protocols of the data service, and those of trainers and parameter servers."""


class Report(NamedTuple):
    """The result of a range of seeds; `first` is the failure of the lowest seed that failed."""

    played: int
    first: str | None


class _Block(NamedTuple):
    played: int
    failure: tuple[int, str] | None


@contextmanager
def players(processes: int) -> Iterator[Executor | None]:
    """Provides a pool of processes for `run_seeds`; None if this process is to play alone."""
    if processes == 1:
        _prepare()
        yield None
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, _prepare) as pool:
        yield pool


def run_seeds(
    seeds: range, pool: Executor | None, protocol: str = "delivery", within_s: float = math.inf
) -> Report:
    """Plays the seeds, in this process if `pool` is None; stops soon after a failure.

    After ``within_s`` no further block of seeds begins, so a slow machine plays fewer.
    """
    # Processes of one machine share this clock.
    until_s = time.monotonic() + within_s
    if pool is None:
        return _report(_play_block(block, protocol, until_s) for block in _blocks(seeds))
    futures = [pool.submit(_play_block, block, protocol, until_s) for block in _blocks(seeds)]
    return _report(_until_failure(futures))


def _blocks(seeds: range) -> Iterator[range]:
    for start in range(0, len(seeds), BLOCK):
        yield seeds[start : start + BLOCK]


def _prepare() -> None:
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD)


def _play_block(seeds: range, protocol: str, until_s: float) -> _Block:
    if time.monotonic() >= until_s:
        return _Block(0, None)
    staged, play = PROTOCOLS[protocol]
    with staged():
        for count, seed in enumerate(seeds, 1):
            try:
                play(seed)
            except Failure as failure:
                return _Block(count, (seed, str(failure)))
    return _Block(len(seeds), None)


def _until_failure(futures: list[Future[_Block]]) -> Iterator[_Block]:
    """Yields finished blocks; cancels those after a failure, since earlier ones may still fail."""
    place = {future: index for index, future in enumerate(futures)}
    for future in as_completed(futures):
        if future.cancelled():
            continue
        block = future.result()
        if block.failure is not None:
            for later in futures[place[future] + 1 :]:
                later.cancel()
        yield block


def _report(blocks: Iterator[_Block]) -> Report:
    played = 0
    failures = []
    for block in blocks:
        played += block.played
        if block.failure is not None:
            failures.append(block.failure)
    return Report(played, min(failures)[1] if failures else None)
