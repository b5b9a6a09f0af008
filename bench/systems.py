"""Ways to get the rows of a click log, with the data service and without, to be timed in turns.

Responsible for starting the systems, and for counting the rows and CPU seconds of a turn. Knows
nothing of how systems are compared or printed. Invariant: a turn reads from iterators that stay
open, so no turn pays for a start.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import os
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import dataservice as ds
from bench import plain, transform
from dataservice.runtime.machine.cores import available_cores
from dataservice.runtime.process.children import spawn_module

# Takes a number of epochs (None: no end); opens the batches of one thread, which can be closed.
Open = Callable[[int | None], Any]
_READY_S = 60.0
# The names of the systems without the service, by the value of the option `--alone`.
ALONE = {
    "pipeline": "one process, no service",
    "numpy": "one process, pyarrow and NumPy by hand",
    "blocks": "one process, pyarrow and NumPy by hand, a batch at a time",
    "function": "one process, pyarrow and the function by hand",
}
SERVED = "dataservice"
OWN = "dataservice, worker in the reader's process"


class Slice(NamedTuple):
    """The counts of one turn; CPU seconds by kind of process."""

    rows: int
    seconds: float
    cpu_s: dict[str, float]

    @property
    def rate(self) -> float:
        """The rows per second."""
        return self.rows / self.seconds


def start_service(stack: contextlib.ExitStack, workers: int) -> tuple[str, dict[str, list[int]]]:
    """Starts a dispatcher and data workers that end with `stack`.

    Returns the dispatcher's address, and the process ids by kind.
    """

    def start(*arguments: str) -> tuple[str, int]:
        child = spawn_module("dataservice", [*arguments, "--ready-json"])
        stack.callback(child.terminate)
        return str(child.wait_ready(_READY_S)["address"]), child.pid

    address, dispatcher = start("dispatcher", "--port", "0")
    target = address.rpartition("://")[2]
    started = [start("worker", "--dispatcher", target) for _ in range(workers)]
    return target, {"dispatcher": [dispatcher], "worker": [pid for _, pid in started]}


@contextlib.contextmanager
def service(workers: int) -> Iterator[str]:
    """Runs a dispatcher and data workers as processes; yields the dispatcher's address."""
    with contextlib.ExitStack() as stack:
        yield start_service(stack, workers)[0]


def _cpu_s(pids: list[int]) -> float:
    """Returns the CPU seconds that these processes have used; Linux only."""
    stats = (Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids)
    return sum(int(stat[11]) + int(stat[12]) for stat in stats) / os.sysconf("SC_CLK_TCK")


class System:
    """One way to get the rows: iterators that stay open, each read by its own thread."""

    def __init__(
        self,
        stack: contextlib.ExitStack,
        name: str,
        opened: list[Open],
        threads: int,
        pids: dict[str, list[int]],
    ) -> None:
        """Opens the iterators. `threads`: how many threads work for the system in this process."""
        self.name = name
        self.threads = threads
        self.slices: list[Slice] = []
        self.workers = len(pids.get("worker", ())) or int(name == OWN)
        self._opened = opened
        self._pids = {**pids, "reader": [os.getpid()]}
        self._iterators = [stack.enter_context(contextlib.closing(begin(None))) for begin in opened]
        self._pool = stack.enter_context(ThreadPoolExecutor(len(opened)))

    def checksum(self) -> tuple[int, int]:
        """Returns the number of rows of one epoch, and their checksum."""
        with contextlib.ExitStack() as stack:
            parts = [stack.enter_context(contextlib.closing(begin(1))) for begin in self._opened]
            return transform.checksum(itertools.chain.from_iterable(parts))

    @property
    def rate(self) -> float:
        """The median rate of the turns."""
        return statistics.median(turn.rate for turn in self.slices)

    def take_turn(self, warm_up_s: float, seconds: float) -> None:
        """Reads for `warm_up_s`, then reads and counts for `seconds`."""
        list(self._pool.map(lambda rows: count_slice(rows, warm_up_s), self._iterators))
        began = {kind: _cpu_s(pids) for kind, pids in self._pids.items()}
        counted = list(self._pool.map(lambda rows: count_slice(rows, seconds), self._iterators))
        cpu_s = {kind: _cpu_s(pids) - began[kind] for kind, pids in self._pids.items()}
        rows = sum(part for part, _ in counted)
        self.slices.append(Slice(rows, max(took for _, took in counted), cpu_s))

    def cpu_per_million_rows(self) -> dict[str, float]:
        """Returns the CPU seconds per million rows by kind of process, over all turns."""
        millions = sum(turn.rows for turn in self.slices) / 1e6
        return {
            kind: round(sum(turn.cpu_s[kind] for turn in self.slices) / millions, 4)
            for kind in self._pids
        }


def count_slice(batches: Iterator[Any], seconds: float) -> tuple[int, float]:
    """Returns the rows that an iterator gives in about `seconds`, and the exact time."""
    rows, began = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - began) < seconds:
        rows += next(batches).num_rows
    return rows, elapsed


def count_rows(dataset: ds.Dataset, warm_up_s: float, seconds: float) -> tuple[int, float]:
    """Returns the rows that come in about `seconds` after `warm_up_s`, and the exact time."""
    with iter(dataset) as batches:
        next(batches)
        count_slice(batches, warm_up_s)
        return count_slice(batches, seconds)


def open_systems(
    stack: contextlib.ExitStack, paths: list[str], options: argparse.Namespace
) -> tuple[list[System], list[System]]:
    """Opens systems until `stack` ends; returns those without the service, and those with it.

    A system without the service is opened on one thread and on several.
    """

    def pipeline(part: list[str], epochs: int | None) -> ds.Dataset:
        return transform.dataset(part, options.form, epochs=epochs, source=options.format)

    alone, served = [], []

    def serve(name: str, workers: int) -> System:
        target, pids = start_service(stack, workers)
        if name == OWN:
            stack.enter_context(ds.WorkerServer(ds.WorkerConfig(target)))

        def begin(epochs: int | None) -> Any:
            return iter(pipeline(paths, epochs).distribute(ds.ShardingPolicy.DYNAMIC, target))

        return System(stack, name, [begin], 1, pids)

    for workers in options.workers:
        if workers:
            served.append(serve(SERVED, workers))
        else:
            for form, threads in itertools.product(
                options.alone, sorted({1, min(available_cores(), len(paths))})
            ):
                opened = _without_service(form, paths, threads, options.format, pipeline)
                alone.append(System(stack, ALONE[form], opened, threads, {}))
    if options.own_worker:
        served.append(serve(OWN, 0))
    return alone, served


def _without_service(
    form: str,
    paths: list[str],
    threads: int,
    source: str,
    pipeline: Callable[[list[str], int | None], ds.Dataset],
) -> list[Open]:
    def begin(part: list[str], epochs: int | None) -> Any:
        return iter(pipeline(part, epochs))

    if form != "pipeline":
        return [lambda epochs: plain.batches(paths, form, source, threads, epochs=epochs)]
    return [functools.partial(begin, paths[k::threads]) for k in range(threads)]
