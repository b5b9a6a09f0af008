"""Plays schedules again: `python -m tests.chaos.replay NAME`, a seed, or a range of seeds A:B."""

from __future__ import annotations

import argparse
import pathlib
import sys
import tempfile

from tests.chaos.play import play
from tests.chaos.schedule import schedule_of


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.replay",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "names", help="name of a fixed schedule, a seed, or a range of seeds A:B; B is not played"
    )
    parser.add_argument(
        "--folder",
        type=pathlib.Path,
        help="folder for logs and journals (default: a new temporary one)",
    )
    options = parser.parse_args()
    folder = options.folder or pathlib.Path(tempfile.mkdtemp(prefix="chaos-"))
    first, colon, last = options.names.partition(":")
    names = [str(seed) for seed in range(int(first), int(last))] if colon else [first]
    failed = []
    for name in names:
        schedule = schedule_of(name)
        print(schedule, flush=True)
        result = play(schedule, folder / name)
        print(f"  {result.seconds:.1f} s, restarts {[round(s, 2) for s in result.recoveries_s]}")
        for fault in result.faults:
            print(f"  FAULT {fault}", flush=True)
        if result.faults:
            failed.append(name)
    print(f"{len(names)} schedules, failed: {' '.join(failed) or 'none'}; logs in {folder}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
