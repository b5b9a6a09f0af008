"""Replays one seed step by step: `python -m tests.simulation.replay SEED`; or judges a range A:B.

The options choose the protocol, which is the delivery of rows by default: `--coordinated` is
coordinated reads, `--snapshots` saving datasets, `--training` the training protocol, `--sync` and
`--ssp` training under these rules, `--loops` loops to the end of their data; `--restores`,
`--sync-restores`, `--ssp-restores`, `--failing-restores`, `--second-losses` and `--hard-restores`
are training that loses parameter servers.
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.simulation.base_scenario import Failure
from tests.simulation.runner import PROTOCOLS


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation.replay",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "seeds",
        help="a seed, to play step by step, or a range A:B, to play without showing the "
        "steps; B is not played",
    )
    protocols = parser.add_argument_group("protocol to play, instead of the delivery of rows")
    for protocol, what in (
        ("coordinated", "coordinated reads"),
        ("snapshots", "saving of datasets"),
        ("training", "training"),
        ("sync", "training in rounds"),
        ("ssp", "training with bounded staleness"),
        ("loops", "loops to the end of the data"),
        ("restores", "training that loses parameter servers"),
        ("sync-restores", "training in rounds that loses parameter servers"),
        ("ssp-restores", "training with bounded staleness that loses parameter servers"),
        ("failing-restores", "training that loses parameter servers, with closures that fail"),
        ("second-losses", "training that loses a second server while rounds are made again"),
        ("hard-restores", "training with further losses, and ends of saves, during a restore"),
    ):
        protocols.add_argument(
            f"--{protocol}", action="store_const", dest="protocol", const=protocol, help=what
        )
    parser.set_defaults(protocol="delivery")
    arguments = parser.parse_args()
    staged, play = PROTOCOLS[arguments.protocol]
    first, _, last = arguments.seeds.partition(":")
    seeds = range(int(first), int(last) if last else int(first) + 1)
    failures, started_s = 0, time.perf_counter()
    with staged():
        for seed in seeds:
            try:
                outcome = play(seed, verbose=not last)
                if not last:
                    print(outcome)
            except Failure as failure:
                failures += 1
                print(failure)
                if not last:
                    raise
    seconds = time.perf_counter() - started_s
    print(f"{len(seeds)} schedules, {failures} failed, {len(seeds) / seconds:.0f} per second")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
