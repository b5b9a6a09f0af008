"""How long does a user wait: for the import, for the first batch, for the end of an epoch?

Import: `import dataservice` in a new interpreter, without the interpreter's own start. First batch:
from `iter()` of a distributed dataset to its first batch, with workers that have served another
job. End: from the last row of a finite epoch to the end of the iteration. With `--peer`
`bench.peers.tfdata_splits` measures the end with tf.data service in the same way. Prints one JSON
line each, with medians of `--rounds` runs.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

import dataservice as ds
from bench import systems
from bench.options import add_common, add_peer, new_parser
from bench.peers import children

_BATCH = 1_024


def import_s(statement: str = "import dataservice") -> float:
    """Returns the seconds that a statement takes in a new interpreter."""
    program = f"import time; t = time.perf_counter(); {statement}; print(time.perf_counter() - t)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    return float(done.stdout)


def epoch_s(target: str, rows: int) -> tuple[float, float]:
    """Returns the seconds from `iter()` to the first batch, and from the last batch to the end."""
    numbers = ds.Dataset.range(rows).batch(_BATCH)
    began = time.perf_counter()
    with iter(numbers.distribute(ds.ShardingPolicy.DYNAMIC, target)) as batches:
        next(batches)
        first = last = time.perf_counter()
        for _ in batches:
            last = time.perf_counter()
        end = time.perf_counter()
    return first - began, end - last


def say(what: str, system: str, seconds: list[float], target_s: float | None = None) -> None:
    """Prints one JSON line."""
    children.say(
        bench="latency",
        what=what,
        system=system,
        median_ms=round(statistics.median(seconds) * 1_000, 2),
        worst_ms=round(max(seconds) * 1_000, 2),
        rounds=len(seconds),
        **({} if target_s is None else {"target_ms": target_s * 1_000}),
    )


def run(options: argparse.Namespace) -> None:
    """Measures the three waits, and the peer's end of an epoch."""
    say("import", "dataservice", [import_s() for _ in range(options.rounds)], 0.3)
    with systems.service(options.workers) as target:
        epoch_s(target, options.rows)
        waits = [epoch_s(target, options.rows) for _ in range(options.rounds)]
    say("first batch", "dataservice", [first for first, _ in waits], 0.5)
    say("end of an epoch", "dataservice", [end for _, end in waits], 0.02)
    if options.peer:
        theirs = [
            children.run_peer(
                "bench.peers.tfdata_splits", ["--smoke"], peer_python=options.peer_python
            )["end_of_epoch_ms"]
            for _ in range(options.rounds)
        ]
        say("end of an epoch", "tf.data service", [end_ms / 1_000 for end_ms in theirs])


def main(argv: list[str] | None = None) -> None:
    """Runs the command line."""
    parser = new_parser("bench.latency", __doc__)
    parser.add_argument(
        "--rows", type=int, default=100_000, help="rows of the dataset (default: %(default)s)"
    )
    parser.add_argument(
        "--workers", type=int, default=1, help="number of data workers (default: %(default)s)"
    )
    add_common(parser, rounds=7)
    add_peer(parser, "tf.data service")
    options = parser.parse_args(argv)
    if options.smoke:
        options.rounds, options.rows = 1, 10_000
    if options.peer:
        options.peer_python = children.find_interpreter(options.peer_python)
    run(options)


if __name__ == "__main__":
    main()
