"""How many closures that do nothing are scheduled, run and finished per second?

One trainer (`--workers` for more) and one parameter server run in their own processes; this process
is the coordinator. The figure is what a step costs besides its own work. With `--peer` TensorFlow's
ClusterCoordinator does the same between our runs. Prints JSON lines: one per run, and one with the
ratio of the medians.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import pstrain as ps
from bench.options import add_common, add_peer, new_parser
from bench.peers import children

_DEADLINE_S = 120.0


def nothing() -> None:
    """Does nothing; it is the closure that is scheduled."""


def measure(trainers: int, seconds: float) -> dict[str, Any]:
    """Measures one run of about `seconds`."""
    with ps.LocalCluster(workers=trainers, ps=1, data_workers=0) as cluster:
        strategy = ps.ParameterServerStrategy(cluster.resolver)
        coordinator = ps.ClusterCoordinator(strategy)
        try:

            def run(count: int) -> float:
                began = time.perf_counter()
                for _ in range(count):
                    coordinator.schedule(nothing)
                coordinator.join(timeout=_DEADLINE_S)
                return time.perf_counter() - began

            run(50)
            trial = 500
            count = max(int(trial / run(trial) * seconds), trial)
            took_s = run(count)
        finally:
            coordinator.close()
    return {
        "bench": "closures",
        "system": "pstrain",
        "workers": trainers,
        "closures": count,
        "seconds": round(took_s, 4),
        "closures_per_s": round(count / took_s),
    }


def run(options: argparse.Namespace) -> None:
    """Runs ours and theirs in turn, then prints the ratio."""
    ours, theirs = [], []
    for _ in range(options.rounds):
        result = measure(options.workers, options.seconds)
        ours.append(result["closures_per_s"])
        children.say(**result)
        if options.peer:
            arguments = ["--form", "empty", "--seconds", str(options.seconds)]
            arguments += ["--workers", str(options.workers)]
            result = children.run_peer(
                "bench.peers.tf_parameter_server", arguments, peer_python=options.peer_python
            )
            theirs.append(result["closures_per_s"])
            children.say(**result)
    if theirs:
        ratio = statistics.median(ours) / statistics.median(theirs)
        children.say(bench="closures", ratio=round(ratio, 2), rounds=len(theirs))


def main(argv: list[str] | None = None) -> None:
    """Runs the command line."""
    parser = new_parser("bench.closures", __doc__)
    parser.add_argument(
        "--workers", type=int, default=1, help="number of trainers (default: %(default)s)"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=5.0,
        help="approximate seconds of each run (default: %(default)s)",
    )
    add_common(parser, rounds=1)
    add_peer(parser, "TensorFlow")
    options = parser.parse_args(argv)
    children.end_with_parent()
    if options.smoke:
        options.seconds = 0.1
    if options.peer:
        options.peer_python = children.find_interpreter(options.peer_python)
    run(options)


if __name__ == "__main__":
    main()
