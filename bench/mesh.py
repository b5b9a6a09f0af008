"""What does it cost when many readers share the windows of many workers?

Real servers and readers, several to a process, over rows that cost next to nothing, so that the
figure is the cost of each pair of a reader and a worker. It is measured twice: readers read from
some of the workers, as they do by default, and from all of them (``--pairs some`` or ``all`` for
only one of both). Prints a JSON line each: the seconds from the start of the readers to the end of
the last one, the CPU seconds of all processes meanwhile, how long the slowest reader waited for its
first batch, and whether all rows came.
"""

from __future__ import annotations

import argparse
import threading
import time
from typing import Any

import numpy as np

import dataservice as ds
from bench.options import new_parser
from bench.peers import children
from dataservice import stream_counts

_MODULE = "bench.mesh"
_DEADLINE_S = 400.0


def _dispatch() -> None:
    server = ds.DispatchServer(ds.DispatcherConfig(port=0))
    children.say(target=server.target)
    threading.Event().wait()


def _work(target: str, workers: int) -> None:
    servers = [ds.WorkerServer(ds.WorkerConfig(dispatcher_address=target)) for _ in range(workers)]
    children.say(workers=len(servers))
    threading.Event().wait()


def _read(target: str, readers: int, rows: int, pairs: str) -> None:
    if pairs == "all":
        stream_counts.LEAST_WORKERS = 1 << 30  # type: ignore[misc]
    data = ds.Dataset.range(rows).map(_double).batch(512)
    sums, counts, first_s = np.zeros(readers), np.zeros(readers, int), np.zeros(readers)
    started_s = time.perf_counter()

    def read(reader: int) -> None:
        # Each reader distributes anew: passes of one distributed dataset follow one another.
        for batch in data.distribute(ds.ShardingPolicy.DYNAMIC, target, job_name="mesh"):
            if not counts[reader]:
                first_s[reader] = time.perf_counter() - started_s
            counts[reader] += batch.num_rows
            sums[reader] += np.asarray(batch.column("x")).sum()

    threads = [threading.Thread(target=read, args=(reader,)) for reader in range(readers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    children.say(
        rows=int(counts.sum()),
        sum=float(sums.sum()),
        first_s=float(first_s.max()),
        cpu_s=time.process_time(),
    )


def _double(columns: dict[str, Any]) -> dict[str, Any]:
    return {"x": columns["id"] * 2.0}


def measure(options: argparse.Namespace, pairs: str) -> dict[str, Any]:
    with children.Children(_DEADLINE_S) as group:
        dispatcher = group.start(_MODULE, ["dispatch"])
        target = dispatcher.line()["target"]
        workers = [
            group.start(_MODULE, ["work", target, str(count)])
            for count in dealt(options.workers, options.processes)
        ]
        for worker in workers:
            worker.line()
        of_all = [dispatcher, *workers]
        before_s = sum(child.cpu_s() for child in of_all)
        started_s = time.perf_counter()
        readers = [
            group.start(_MODULE, ["read", target, str(count), str(options.rows), pairs])
            for count in dealt(options.readers, options.processes)
        ]
        found = [reader.line() for reader in readers]
        seconds = time.perf_counter() - started_s
        cpu_s = sum(child.cpu_s() for child in of_all) - before_s
    expected = options.rows * (options.rows - 1)
    return {
        "pairs": pairs,
        "workers": options.workers,
        "readers": options.readers,
        "seconds": round(seconds, 2),
        "cpu_s": round(cpu_s + sum(one["cpu_s"] for one in found), 2),
        "first_batch_s": round(max(one["first_s"] for one in found), 2),
        "is_exact": sum(one["sum"] for one in found) == expected,
        "rows": sum(one["rows"] for one in found),
    }


def dealt(count: int, processes: int) -> list[int]:
    """Returns how many of ``count`` each process gets; no process gets none."""
    return [len(part) for part in np.array_split(np.arange(count), processes) if len(part)]


def main(argv: list[str] | None = None) -> None:
    parser = new_parser("bench.mesh", __doc__)
    parser.add_argument("role", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument(
        "--workers", type=int, default=30, help="number of data workers (default: %(default)s)"
    )
    parser.add_argument(
        "--readers", type=int, default=32, help="number of readers (default: %(default)s)"
    )
    parser.add_argument(
        "--processes",
        type=int,
        default=4,
        help="number of processes for the workers, and as many for the readers (default: "
        "%(default)s)",
    )
    parser.add_argument(
        "--rows", type=int, default=20_000_000, help="rows of the dataset (default: %(default)s)"
    )
    parser.add_argument(
        "--pairs",
        choices=("some", "all"),
        nargs="*",
        default=["some", "all"],
        help="whether each reader reads from some of the workers or from all (default: "
        "%(default)s)",
    )
    options = parser.parse_args(argv)
    if options.role:
        children.end_with_parent()
    match options.role:
        case ["dispatch"]:
            _dispatch()
        case ["work", target, workers]:
            _work(target, int(workers))
        case ["read", target, readers, rows, pairs]:
            _read(target, int(readers), int(rows), pairs)
        case _:
            if options.smoke:
                options.workers, options.readers, options.rows = 9, 9, 50_000
                options.processes = 2
            for pairs in options.pairs:
                children.say(**measure(options, pairs))


if __name__ == "__main__":
    main()
