"""How fast does the data service deliver click-log rows, read, transformed and batched?

Real processes on loopback: a dispatcher, the data workers, and this process as the reader; in one
more system the data worker lives in this process too (`--own-worker`). DYNAMIC
sharding over Parquet or Arrow IPC files that repeat without end; a worker makes batches of 4,096
rows with log1p dense columns and ids hashed into 2^20. Without the service run in this process the
same pipeline, and the same work by hand (`bench.plain`), on one thread and on as many as there are
cores, each with files of its own. Each gives one epoch first, which must be the same rows. Then all
of them, open at once, take turns of about a second, so that a machine whose speed drifts drifts for
all: a ratio is the median of the turns' ratios, to the better number of threads.
`--peer` runs tf.data service (`bench.peers.tfdata_service`) on the same rows between our own runs.
Prints JSON lines: one per run, with the CPU seconds that a million rows cost each kind of process,
and one per ratio.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import dataservice as ds
from bench import data, plain, transform
from bench.peers import children
from dataservice.runtime.cores import available_cores
from dataservice.runtime.process import spawn_module

# Given a number of epochs, None for no end, opens the batches of one thread; they can be closed.
Open = Callable[[int | None], Any]

_READY_S = 60.0
_FILES = 8
_FORMATS = {"parquet": "parquet", "ipc": "arrow"}
_TURN_S = 1.0
# Until what a service has in store when its turn begins is read.
_REFILL_S = 0.3
# What runs without the service, by option.
_ALONE = {
    "pipeline": "one process, no service",
    "numpy": "one process, pyarrow and NumPy by hand",
    "blocks": "one process, pyarrow and NumPy by hand, a batch at a time",
    "function": "one process, pyarrow and the function by hand",
}
_PEER_FORMS = {"example": "tfrecord", "packed": "packed"}


_SERVED = "dataservice"
_OWN = "dataservice, worker in the reader's process"


class Slice(NamedTuple):
    """What one turn counted; CPU seconds by kind of process."""

    rows: int
    seconds: float
    cpu_s: dict[str, float]

    @property
    def rate(self) -> float:
        """Rows per second."""
        return self.rows / self.seconds


def start_service(stack: contextlib.ExitStack, workers: int) -> tuple[str, dict[str, list[int]]]:
    """Starts a dispatcher and data workers that end with `stack`.

    The dispatcher's address, and the process ids by kind.
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
    """A dispatcher and data workers as processes; the dispatcher's address."""
    with contextlib.ExitStack() as stack:
        yield start_service(stack, workers)[0]


def _cpu_s(pids: list[int]) -> float:
    """CPU seconds that these processes have used; Linux only."""
    stats = (Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids)
    return sum(int(stat[11]) + int(stat[12]) for stat in stats) / os.sysconf("SC_CLK_TCK")


class System:
    """One way to get the rows: iterators that stay open, each read by a thread of its own."""

    def __init__(
        self,
        stack: contextlib.ExitStack,
        name: str,
        opened: list[Open],
        threads: int,
        pids: dict[str, list[int]],
    ) -> None:
        """`threads` is how many work for it in this process."""
        self.name = name
        self.threads = threads
        self.slices: list[Slice] = []
        self.workers = len(pids.get("worker", ())) or int(name == _OWN)
        self._opened = opened
        self._pids = {**pids, "reader": [os.getpid()]}
        self._iterators = [stack.enter_context(contextlib.closing(begin(None))) for begin in opened]
        self._pool = stack.enter_context(ThreadPoolExecutor(len(opened)))

    def checksum(self) -> tuple[int, int]:
        """Rows of one epoch, and their checksum."""
        with contextlib.ExitStack() as stack:
            parts = [stack.enter_context(contextlib.closing(begin(1))) for begin in self._opened]
            return transform.checksum(itertools.chain.from_iterable(parts))

    @property
    def rate(self) -> float:
        """Median of its turns."""
        return statistics.median(turn.rate for turn in self.slices)

    def take_turn(self, warm_up_s: float, seconds: float) -> None:
        """Reads, and counts what comes after `warm_up_s`."""
        list(self._pool.map(lambda rows: count_slice(rows, warm_up_s), self._iterators))
        began = {kind: _cpu_s(pids) for kind, pids in self._pids.items()}
        counted = list(self._pool.map(lambda rows: count_slice(rows, seconds), self._iterators))
        cpu_s = {kind: _cpu_s(pids) - began[kind] for kind, pids in self._pids.items()}
        rows = sum(part for part, _ in counted)
        self.slices.append(Slice(rows, max(took for _, took in counted), cpu_s))

    def cpu_per_million_rows(self) -> dict[str, float]:
        """CPU seconds by kind of process, over all turns."""
        millions = sum(turn.rows for turn in self.slices) / 1e6
        return {
            kind: round(sum(turn.cpu_s[kind] for turn in self.slices) / millions, 4)
            for kind in self._pids
        }


def count_slice(batches: Iterator[Any], seconds: float) -> tuple[int, float]:
    """Rows that an iterator gives in about `seconds`, and the exact time."""
    rows, began = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - began) < seconds:
        rows += next(batches).num_rows
    return rows, elapsed


def count_rows(dataset: ds.Dataset, warm_up_s: float, seconds: float) -> tuple[int, float]:
    """Rows that came in about `seconds`, and the exact time; nothing before `warm_up_s` counts."""
    with iter(dataset) as batches:
        next(batches)
        count_slice(batches, warm_up_s)
        return count_slice(batches, seconds)


def open_systems(
    stack: contextlib.ExitStack, paths: list[str], options: argparse.Namespace
) -> tuple[list[System], list[System]]:
    """Without the service, on one thread and on several; and with it. Open until `stack` ends."""

    def pipeline(part: list[str], epochs: int | None) -> ds.Dataset:
        return transform.dataset(part, options.form, epochs=epochs, source=options.format)

    alone, served = [], []

    def serve(name: str, workers: int) -> System:
        target, pids = start_service(stack, workers)
        if name == _OWN:
            stack.enter_context(ds.WorkerServer(ds.WorkerConfig(target)))

        def begin(epochs: int | None) -> Any:
            return iter(pipeline(paths, epochs).distribute(ds.ShardingPolicy.DYNAMIC, target))

        return System(stack, name, [begin], 1, pids)

    for workers in options.workers:
        if workers:
            served.append(serve(_SERVED, workers))
        else:
            for form, threads in itertools.product(
                options.alone, sorted({1, min(available_cores(), len(paths))})
            ):
                opened = _without_service(form, paths, threads, options.format, pipeline)
                alone.append(System(stack, _ALONE[form], opened, threads, {}))
    if options.own_worker:
        served.append(serve(_OWN, 0))
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


def measure(paths: list[str], options: argparse.Namespace) -> tuple[list[System], list[System]]:
    """One run of all systems, which take turns."""
    with contextlib.ExitStack() as stack:
        alone, served = open_systems(stack, paths, options)
        check_equal(alone + served)
        for system in alone + served:
            system.take_turn(0.0, options.warm_up_s)
            system.slices.clear()
        turns = max(1, round(options.seconds / _TURN_S))
        for _, system in itertools.product(range(turns), alone + served):
            system.take_turn(min(options.warm_up_s, _REFILL_S), options.seconds / turns)
        return alone, served


def check_equal(systems: list[System]) -> None:
    """Ends the program unless all give the same rows."""
    found = [system.checksum() for system in systems]
    if len(set(found)) > 1:
        listed = zip((system.name for system in systems), found, strict=True)
        raise SystemExit(f"the rows differ, or their number: {list(listed)}")
    children.say(bench="stream", rows_of_an_epoch=found[0][0], checksum=f"{found[0][1]:016x}")


def measure_peer(files: str, form: str, workers: int, options: argparse.Namespace) -> Any:
    """One run of tf.data service on rows of the same seed."""
    arguments = ["--files", files, "--form", form, "--workers", str(workers)]
    arguments += ["--seconds", str(options.seconds), "--warm-up-s", str(options.warm_up_s)]
    return children.run_peer(
        "bench.peers.tfdata_service", arguments, peer_python=options.peer_python, deadline_s=180
    )


def prepare(folder: Path, rows: int, file_format: str) -> list[str]:
    """Paths of the files of a format under `folder`, written now unless they are there."""
    target = folder / f"{file_format}-{rows}"
    suffix = data.WRITERS[file_format][0]
    found = sorted(target.glob(f"*{suffix}"))
    if len(found) != len(data.file_ranges(rows, _FILES)):
        found = data.write_files(target, rows, file_format, files=_FILES)
    return [str(path) for path in found]


def run(options: argparse.Namespace, folder: Path) -> None:
    """All runs in rounds, ours and theirs in turn, then the medians of the ratios."""
    files = prepare(folder, options.rows, _FORMATS[options.format])
    forms = options.peer_forms if options.peer else []
    globs = {
        form: str(Path(prepare(folder, options.rows, _PEER_FORMS[form])[0]).parent / "*.tfrecord")
        for form in forms
    }
    ratios: dict[tuple[str, str, int], list[float]] = {}
    for _ in range(options.rounds):
        alone, served = measure(files, options)
        for system in [*alone, *served]:
            children.say(**line_of(system, options))
        for system in served:
            for form in options.alone:
                others = [other for other in alone if other.name == _ALONE[form]]
                found = against(system, others)
                key = (system.name, _ALONE[form], system.workers)
                ratios.setdefault(key, []).extend(found)
            for form in forms if system.name == _SERVED else ():
                theirs = measure_peer(globs[form], form, system.workers, options)
                children.say(**theirs)
                ratio = system.rate / theirs["rows_per_s"]
                ratios.setdefault((system.name, form, system.workers), []).append(ratio)
    for (name, form, workers), found in ratios.items():
        if found:
            say_ratio(name, form, workers, found)


def against(system: System, alone: list[System]) -> list[float]:
    """The ratio of each turn to the turn beside it of the best of `alone`."""
    if not alone:
        return []
    best = max(alone, key=lambda other: other.rate)
    return [
        ours.rate / theirs.rate for ours, theirs in zip(system.slices, best.slices, strict=True)
    ]


def line_of(system: System, options: argparse.Namespace) -> dict[str, Any]:
    """What is printed of a run."""
    return {
        "bench": "stream",
        "system": system.name,
        "form": options.form,
        "format": options.format,
        "reading_threads": system.threads,
        "workers": system.workers,
        "rows": sum(turn.rows for turn in system.slices),
        "seconds": round(sum(turn.seconds for turn in system.slices), 4),
        "rows_per_s": round(system.rate),
        "cpu_s_per_million_rows": system.cpu_per_million_rows(),
    }


def say_ratio(name: str, form: str, workers: int, ratios: list[float]) -> None:
    """One JSON line with the median, and the least and the largest."""
    children.say(
        bench="stream",
        system=name,
        ratio=round(statistics.median(ratios), 2),
        peer_form=form,
        workers=workers,
        ratios=len(ratios),
        least=round(min(ratios), 2),
        largest=round(max(ratios), 2),
    )


def main(argv: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.stream", description=__doc__)
    parser.add_argument("--rows", type=int, default=1 << 21, help="in the files")
    parser.add_argument("--data-dir", type=Path, help="kept and reused; default: a temporary one")
    parser.add_argument(
        "--workers", type=int, nargs="+", default=[0, 1, 2], help="0: without the service"
    )
    parser.add_argument(
        "--own-worker",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="besides, a data worker in the reader's process",
    )
    parser.add_argument(
        "--alone",
        nargs="+",
        choices=sorted(_ALONE),
        default=["pipeline", "numpy"],
        help="what runs without the service: the same pipeline, or by hand with pyarrow and NumPy, "
        "in large chunks or in the blocks of a batch, or pyarrow and the pipeline's function",
    )
    parser.add_argument("--form", choices=sorted(transform.FORMS), default="function")
    parser.add_argument("--format", choices=sorted(_FORMATS), default="parquet")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=8.0, help="of one run, counted")
    parser.add_argument("--warm-up-s", type=float, default=3.0)
    parser.add_argument("--smoke", action="store_true", help="the shortest run that counts rows")
    parser.add_argument("--peer", action="store_true", help="run tf.data service too, and compare")
    parser.add_argument(
        "--peer-forms", nargs="+", choices=sorted(_PEER_FORMS), default=["example", "packed"]
    )
    parser.add_argument(
        "--peer-python",
        default=os.environ.get("PEER_PYTHON"),
        help="an interpreter with TensorFlow; default: $PEER_PYTHON, else this one",
    )
    options = parser.parse_args(argv)
    if options.smoke:
        options.rows, options.seconds, options.warm_up_s = 1 << 15, 0.3, 0.1
    if options.peer:
        options.peer_python = children.find_interpreter(options.peer_python)
    with tempfile.TemporaryDirectory(prefix="bench-stream-") as temporary:
        run(options, options.data_dir or Path(temporary))


if __name__ == "__main__":
    main()
