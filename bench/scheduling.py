"""What does a coordinator compute for each closure, and does that grow with the trainers?

The scheduler of `ClusterCoordinator` gives closures to made-up trainers in this process, without
network or threads: a program schedules them ahead, and trainers in random order run what they were
sent and report it. Prints a JSON line for each rule of consistency and each number of trainers: CPU
time to schedule a closure and to take in its result. Both should stay the same under `async`.
"""

from __future__ import annotations

import argparse
import itertools
import random
import time
from typing import Any, Final

from bench.options import add_common, new_parser
from bench.peers import children
from pstrain.consistency import ASYNC, Consistency, ssp, sync
from pstrain.coordinator.core import Core
from pstrain.coordinator.orders import Outbox, RoundPart, RunResult, StartRun
from pstrain.coordinator.scheduler import Scheduler

# Each rule, and how many closures its trainers run side by side or take ahead.
_RULES: Final[dict[str, tuple[Consistency, int]]] = {
    "async": (ASYNC, 3),
    "ssp": (ssp(staleness=3), 6),
    "sync": (sync(), 1),
}
_WAITING: Final = 2_048
_CAPACITY: Final = 1 << 20
_REPORTED_MAX: Final = 8
_RUN_S: Final = 0.02


class Work:
    """Closures that made-up trainers run; ``slots``: how many each runs side by side."""

    def __init__(self, trainers: int, rule: Consistency, slots: int) -> None:
        self._in_rounds = rule == sync()
        core = Core(
            attempts_max=3,
            consistency=rule,
            trainer_indices=range(trainers),
            closures_in_flight=slots,
        )
        self._core = core
        self._scheduler = Scheduler(
            core, ids=itertools.count(), capacity=_CAPACITY, trainer_timeout_s=60.0
        )
        self._outboxes = [Outbox() for _ in range(trainers)]
        for index, outbox in enumerate(self._outboxes):
            self._scheduler.trainers.joined(index, slots, outbox)
        self.scheduled = self.reported = 0

    def schedule_ahead(self) -> float:
        """Fills the queue; returns the CPU seconds that this took."""
        began_s = time.thread_time()
        while len(self._core.state.queues) < _WAITING:
            self._scheduler.submit("step", b"", ((), {}))
            self.scheduled += 1
        return time.thread_time() - began_s

    def report(self, trainer: int) -> float:
        """Reports what a trainer was sent, some at a time; returns the CPU seconds."""
        part = RoundPart(f"trainer-{trainer}", (0,), True, ()) if self._in_rounds else None
        ended: list[RunResult] = []
        while len(ended) < _REPORTED_MAX and not self._outboxes[trainer].empty():
            order = self._outboxes[trainer].get()
            if isinstance(order, StartRun):
                ended.append(
                    RunResult(order.closure.id, order.attempt, 1.0, None, part=part, seconds=_RUN_S)
                )
        began_s = time.thread_time()
        if ended:
            self._scheduler.trainers.results(trainer, ended)
        while not self._core.orders.empty():
            decided = self._core.orders.get()
            assert decided is not None
            self._scheduler.rounds.applied(decided)
        self.reported += len(ended)
        return time.thread_time() - began_s


def measure(rule: str, trainers: int, closures: int) -> dict[str, Any]:
    """Runs about ``closures`` closures, after as many for the trainers to be known."""
    consistency, slots = _RULES[rule]
    work, rng = Work(trainers, consistency, slots), random.Random(0)
    for count in (max(closures, 6 * slots * trainers), closures):
        schedule_s = report_s = 0.0
        scheduled, reported = work.scheduled, work.reported
        while work.reported < reported + count:
            schedule_s += work.schedule_ahead()
            report_s += work.report(rng.randrange(trainers))
    return {
        "bench": "scheduling",
        "rule": rule,
        "trainers": trainers,
        "closures": work.reported - reported,
        "schedule_us": round(schedule_s / max(work.scheduled - scheduled, 1) * 1e6, 1),
        "result_us": round(report_s / (work.reported - reported) * 1e6, 1),
    }


def _parser() -> argparse.ArgumentParser:
    parser = new_parser("bench.scheduling", __doc__)
    parser.add_argument(
        "--rules",
        nargs="+",
        choices=_RULES,
        default=[*_RULES],
        help="rules of consistency to measure (default: %(default)s)",
    )
    add_common(parser, trainers=[10, 100, 1_000])
    parser.add_argument(
        "--closures",
        type=int,
        default=20_000,
        help="closures of each measurement (default: %(default)s)",
    )
    return parser


def main(argv: list[str] | None = None) -> None:
    """Runs the command line."""
    options = _parser().parse_args(argv)
    if options.smoke:
        options.trainers, options.closures = [2, 4], 50
    for rule, trainers in itertools.product(options.rules, options.trainers):
        children.say(**measure(rule, trainers, options.closures))


if __name__ == "__main__":
    main()
