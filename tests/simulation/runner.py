"""Plays a range of seeds on several cores and finds the first that fails.

Seeds are handed out in blocks, in order, so that the lowest failing seed is found although blocks
end in any order. Knows nothing of scenarios but that `play` raises Failure. Invariant: `first` of
the report is the lowest failing seed, whatever the number of processes.
"""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from typing import NamedTuple

from tests.simulation.scenario import Failure, play
from tests.simulation.stage import staged

# Large enough that handing out costs nothing, small enough that processes end together.
BLOCK = 100
# The young objects of a schedule die with it: looking for cycles more often only costs time.
_GC_THRESHOLD = 50_000


class Report(NamedTuple):
    """What a range of seeds came to; `first` tells of the lowest seed that failed."""

    played: int
    first: str | None


class _Block(NamedTuple):
    played: int
    failure: tuple[int, str] | None


def run_seeds(seeds: range, processes: int) -> Report:
    """Plays the seeds, in this process when one is enough; stops soon after a failure."""
    if processes == 1:
        return _report(map(_play_block, _blocks(seeds)))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, _prepare) as pool:
        futures = [pool.submit(_play_block, block) for block in _blocks(seeds)]
        return _report(_until_failure(futures))


def _blocks(seeds: range) -> Iterator[range]:
    for start in range(0, len(seeds), BLOCK):
        yield seeds[start : start + BLOCK]


def _prepare() -> None:
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD)


def _play_block(seeds: range) -> _Block:
    with staged():
        for count, seed in enumerate(seeds, 1):
            try:
                play(seed)
            except Failure as failure:
                return _Block(count, (seed, str(failure)))
    return _Block(len(seeds), None)


def _until_failure(futures: list[Future[_Block]]) -> Iterator[_Block]:
    """What ran; blocks after a failure are called off, earlier ones still may fail earlier."""
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
