"""Many seeds on several cores: `python -m tests.simulation --seeds 20000 --processes 2`.

Prints how many schedules it played per second and, where one failed, the first failing seed with
the command that replays it. The exit status is 1 then.
"""

from __future__ import annotations

import argparse
import sys
import time

from dataservice.config import available_cores
from tests.simulation.runner import run_seeds


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20_000, metavar="N", help="how many")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="where to begin")
    parser.add_argument("--processes", type=int, default=available_cores(), metavar="N")
    options = parser.parse_args()
    if options.seeds < 1 or options.processes < 1:
        parser.error("--seeds and --processes must be at least 1")
    started_s = time.perf_counter()
    report = run_seeds(range(options.first, options.first + options.seeds), options.processes)
    seconds = time.perf_counter() - started_s
    print(
        f"{report.played} schedules in {seconds:.1f} s on {options.processes} processes, "
        f"{report.played / seconds:.0f} per second"
    )
    if report.first is not None:
        print(f"the first that fails: {report.first}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
