"""Plays many seeds on several cores: `python -m tests.simulation --seeds 20000 --processes 2`.

Plays the protocols one after the other: the delivery of rows with `--seeds` seeds; coordinated
reads, saving datasets, and training in rounds (sync) and with bounded staleness (ssp) with a
hundredth as many each, unless `--coordinated-seeds`, `--snapshot-seeds` or `--consistency-seeds`
is given; training with a tenth as many, unless `--training-seeds` is given. Loops to the end of
their data take `--restore-seeds` seeds, and so does training that loses parameter servers: under
each consistency rule, with failing closures, and with further losses and saves during a restore.
Losses of a second server while rounds are made again take a quarter of that.
`--protocols delivery training` plays only these two. With `--within-s` no protocol takes much
longer than that, as a slow machine leaves out the later seeds.
Prints how many schedules it played per second and, if one failed, the first failing seed with the
command that replays it; the exit status is 1 then.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from concurrent.futures import Executor

from dataservice.runtime.machine.cores import available_cores
from tests.simulation.runner import PROTOCOLS, players, run_seeds


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--seeds",
        type=int,
        default=20_000,
        metavar="N",
        help="number of seeds of the protocol `delivery`, from which the other numbers follow "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--first",
        type=int,
        default=0,
        metavar="SEED",
        help="first seed of every protocol (default: %(default)s)",
    )
    parser.add_argument(
        "--processes",
        type=int,
        default=available_cores(),
        metavar="N",
        help="number of processes to play in (default: the cores that are available)",
    )
    parser.add_argument(
        "--protocols",
        nargs="+",
        choices=PROTOCOLS,
        metavar="PROTOCOL",
        help=f"protocols to play, of {', '.join(PROTOCOLS)} (default: all)",
    )
    parser.add_argument(
        "--coordinated-seeds",
        type=int,
        metavar="N",
        help="number of seeds of `coordinated` (default: a hundredth of --seeds)",
    )
    parser.add_argument(
        "--snapshot-seeds",
        type=int,
        metavar="N",
        help="number of seeds of `snapshots` (default: a hundredth of --seeds)",
    )
    parser.add_argument(
        "--consistency-seeds",
        type=int,
        metavar="N",
        help="number of seeds of `sync`, and as many of `ssp` (default: a hundredth of --seeds)",
    )
    parser.add_argument(
        "--training-seeds",
        type=int,
        metavar="N",
        help="number of seeds of `training` (default: a tenth of --seeds)",
    )
    parser.add_argument(
        "--restore-seeds",
        type=int,
        default=0,
        metavar="N",
        help="number of seeds of `loops` and of each protocol with restores; a quarter of it for "
        "`second-losses` (default: %(default)s)",
    )
    parser.add_argument(
        "--within-s",
        type=float,
        default=math.inf,
        metavar="SECONDS",
        help="seconds that each protocol may take; the seeds that are left then are not played "
        "(default: no limit)",
    )
    options = parser.parse_args()
    if options.seeds < 0 or options.processes < 1 or not options.within_s > 0:
        parser.error("--processes must be at least 1, --seeds at least 0, --within-s above 0")
    counts = {
        "delivery": options.seeds,
        "coordinated": options.coordinated_seeds,
        "snapshots": options.snapshot_seeds,
        "sync": options.consistency_seeds,
        "ssp": options.consistency_seeds,
        "loops": options.restore_seeds,
        "training": options.training_seeds,
        "sync-restores": options.restore_seeds,
        "ssp-restores": options.restore_seeds,
        "restores": options.restore_seeds,
        "failing-restores": options.restore_seeds,
        "second-losses": options.restore_seeds // 4,
        "hard-restores": options.restore_seeds,
    }
    parts = {"coordinated": 100, "snapshots": 100, "sync": 100, "ssp": 100, "training": 10}
    for protocol, part in parts.items():
        if counts[protocol] is None:
            counts[protocol] = options.seeds // part
    wanted = options.protocols or [protocol for protocol in PROTOCOLS if counts[protocol]]
    idle = [protocol for protocol in wanted if not counts[protocol]]
    if idle or not wanted:
        protocol = idle[0] if idle else "delivery"
        least = " 4 or more" if protocol == "second-losses" else ""
        parser.error(f"no seeds of {protocol} to play: give {_options_of(protocol)}{least}")
    with players(options.processes) as pool:
        return max(
            _play(protocol, range(options.first, options.first + count), options, pool)
            for protocol, count in counts.items()
            if protocol in wanted
        )


def _options_of(protocol: str) -> str:
    """Returns the option that says how many seeds of a protocol are played."""
    kinds = {"coordinated": "coordinated-", "snapshots": "snapshot-", "training": "training-"}
    kinds |= {"delivery": "", "sync": "consistency-", "ssp": "consistency-"}
    return f"--{kinds.get(protocol, 'restore-')}seeds"


def _play(protocol: str, seeds: range, options: argparse.Namespace, pool: Executor | None) -> int:
    started_s = time.perf_counter()
    report = run_seeds(seeds, pool, protocol, options.within_s)
    seconds = time.perf_counter() - started_s
    is_cut = report.first is None and report.played < len(seeds)
    planned = f" of {len(seeds)}" if is_cut else ""
    print(
        f"{protocol}: {report.played}{planned} schedules in {seconds:.1f} s on "
        f"{options.processes} processes, {report.played / seconds:.0f} per second",
        flush=True,
    )
    if report.first is not None:
        print(f"first failure: {report.first}")
    return int(report.first is not None)


if __name__ == "__main__":
    sys.exit(main())
