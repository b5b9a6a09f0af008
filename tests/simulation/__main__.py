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
from typing import Final, NamedTuple

from dataservice.runtime.machine.cores import available_cores
from tests.simulation.runner import PROTOCOLS, players, run_seeds


class Seeds(NamedTuple):
    """How many seeds of a protocol are played: those of `option`, of which one in `one_in` counts.

    `share`: if the option is not given, one in so many of `--seeds`.
    """

    option: str
    share: int = 1
    one_in: int = 1


# In the order in which they are played.
_SEEDS: Final = {
    "delivery": Seeds("seeds"),
    "coordinated": Seeds("coordinated-seeds", share=100),
    "snapshots": Seeds("snapshot-seeds", share=100),
    "sync": Seeds("consistency-seeds", share=100),
    "ssp": Seeds("consistency-seeds", share=100),
    "loops": Seeds("restore-seeds"),
    "training": Seeds("training-seeds", share=10),
    "sync-restores": Seeds("restore-seeds"),
    "ssp-restores": Seeds("restore-seeds"),
    "restores": Seeds("restore-seeds"),
    "failing-restores": Seeds("restore-seeds"),
    "second-losses": Seeds("restore-seeds", one_in=4),
    "hard-restores": Seeds("restore-seeds"),
}


def main() -> int:
    parser = _parser()
    options = parser.parse_args()
    if options.seeds < 0 or options.processes < 1 or not options.within_s > 0:
        parser.error("--processes must be at least 1, --seeds at least 0, --within-s above 0")
    counts = {protocol: _count(seeds, options) for protocol, seeds in _SEEDS.items()}
    wanted = options.protocols or [protocol for protocol in PROTOCOLS if counts[protocol]]
    idle = [protocol for protocol in wanted if not counts[protocol]]
    if idle or not wanted:
        parser.error(_needs(idle[0] if idle else "delivery"))
    with players(options.processes) as pool:
        return max(
            _play(protocol, range(options.first, options.first + count), options, pool)
            for protocol, count in counts.items()
            if protocol in wanted
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    seeds = "number of seeds of the protocol `delivery`, from which the other numbers follow"
    _add_count(parser, "seeds", f"{seeds} (default: %(default)s)", 20_000)
    _add_count(parser, "first", "first seed of every protocol (default: %(default)s)", 0, "SEED")
    processes = "number of processes to play in (default: the cores that are available)"
    _add_count(parser, "processes", processes, available_cores())
    parser.add_argument(
        "--protocols",
        nargs="+",
        choices=PROTOCOLS,
        metavar="PROTOCOL",
        help=f"protocols to play, of {', '.join(PROTOCOLS)} (default: all)",
    )
    for option, what, share in (
        ("coordinated-seeds", "`coordinated`", "a hundredth"),
        ("snapshot-seeds", "`snapshots`", "a hundredth"),
        ("consistency-seeds", "`sync`, and as many of `ssp`", "a hundredth"),
        ("training-seeds", "`training`", "a tenth"),
    ):
        _add_count(parser, option, f"number of seeds of {what} (default: {share} of --seeds)", None)
    restores = (
        "number of seeds of `loops` and of each protocol with restores; a quarter of it for "
        "`second-losses` (default: %(default)s)"
    )
    _add_count(parser, "restore-seeds", restores, 0)
    parser.add_argument(
        "--within-s",
        type=float,
        default=math.inf,
        metavar="SECONDS",
        help="seconds that each protocol may take; the seeds that are left then are not played "
        "(default: no limit)",
    )
    return parser


def _add_count(
    parser: argparse.ArgumentParser, option: str, what: str, default: int | None, sign: str = "N"
) -> None:
    parser.add_argument(f"--{option}", type=int, default=default, metavar=sign, help=what)


def _count(seeds: Seeds, options: argparse.Namespace) -> int:
    given: int | None = getattr(options, seeds.option.replace("-", "_"))
    count = options.seeds // seeds.share if given is None else given
    return int(count // seeds.one_in)


def _needs(protocol: str) -> str:
    """Returns what to say of a protocol of which there are no seeds to play."""
    option, _, one_in = _SEEDS[protocol]
    least = f" {one_in} or more" if one_in > 1 else ""
    return f"no seeds of {protocol} to play: give --{option}{least}"


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
