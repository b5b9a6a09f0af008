"""How much does a core train in a cluster, against one process with the same kernels, no servers?

The work is that of `bench.train`. The process without servers and the cluster take turns of a
second, so that a change of the machine's speed affects both. The ratio of a turn compares the
examples per CPU second (of coordinator, trainers and servers together); the figure is the median of
the turns. Prints JSON lines: one for each number of trainers and servers and each batch size. A
closure is one step unless ``--steps-per-execution`` says more; ``Model.fit`` gives it eight.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import time
from typing import Any

from bench import click_model, train
from bench.options import add_common, new_parser
from bench.peers import children

# The resolution of CPU time in /proc.
_TICK_S = 0.01


class Alone:
    """A process that trains without servers, one turn at a time, when it is told to."""

    def __init__(self, group: children.Children, batch: int, options: argparse.Namespace) -> None:
        arguments = ["--alone", str(batch), "--rows", str(options.rows)]
        self._child = group.start("bench.train_cores", arguments)

    def train_for(self, seconds: float) -> tuple[int, float, float]:
        """Lets it train for `seconds`; returns examples, seconds and CPU seconds."""
        self._child.tell(str(seconds))
        result = self._child.line()
        return result["examples"], result["seconds"], result["cpu_s"]


def serve_turns(batch: int, rows: int) -> None:
    """Serves turns in the other process: reads how long to train, prints what that gave."""
    model, rule = click_model.ClickModel(), click_model.optimizer()
    data = click_model.batches(batch, rows)
    for line in sys.stdin:
        seconds = float(line)
        examples, cpu_s, began = 0, time.process_time(), time.perf_counter()
        while (elapsed := time.perf_counter() - began) < seconds:
            loss = click_model.step(model, rule, next(data))
            examples += batch
        train.check_loss(loss)
        cpu_s = time.process_time() - cpu_s
        children.say(examples=examples, seconds=elapsed, cpu_s=cpu_s)


def measure(processes: int, batch: int, options: argparse.Namespace) -> dict[str, Any]:
    """Measures turns of the one process and of a cluster of `processes` trainers and servers."""
    with (
        children.Children(options.deadline_s) as group,
        train.cluster_training(processes, batch, options) as training,
    ):
        alone = Alone(group, batch, options)
        alone.train_for(options.warm_up_s)
        training.warm_up(options.warm_up_s)
        turns = [
            (per_cpu_s(alone.train_for(options.turn_s)), training.train_for(options.turn_s))
            for _ in range(options.turns)
        ]
    served = [per_cpu_s(result) for _, result in turns]
    ratios = [mine / other for mine, (other, _) in zip(served, turns, strict=True)]
    return {
        "bench": "train_cores",
        "workers": processes,
        "ps": processes,
        "batch": batch,
        "network": options.network,
        "steps_per_execution": options.steps_per_execution,
        "turns": len(turns),
        "examples_per_s": round(statistics.median(n / s for _, (n, s, _) in turns)),
        "examples_per_cpu_s": round(statistics.median(served)),
        "alone_examples_per_cpu_s": round(statistics.median(other for other, _ in turns)),
        "ratio": round(statistics.median(ratios), 3),
        "ratio_min": round(min(ratios), 3),
        "ratio_max": round(max(ratios), 3),
    }


def per_cpu_s(result: tuple[int, float, float]) -> float:
    """Returns the examples per CPU second."""
    examples, _, cpu_s = result
    return examples / max(cpu_s, _TICK_S)


def _parser() -> argparse.ArgumentParser:
    parser = new_parser("bench.train_cores", __doc__)
    parser.add_argument(
        "--processes",
        type=int,
        nargs="+",
        default=[1, 2],
        help="numbers of trainers to measure, each with as many parameter servers (default: "
        "%(default)s)",
    )
    add_common(parser, batches=[1_024, 4_096], warm_up_s=2.0, deadline_s=120.0)
    train.add_cluster_options(parser)
    parser.add_argument(
        "--turns",
        type=int,
        default=15,
        help="number of turns that each side takes (default: %(default)s)",
    )
    parser.add_argument(
        "--turn-s", type=float, default=1.0, help="seconds of each turn (default: %(default)s)"
    )
    parser.add_argument("--alone", type=int, metavar="BATCH", help=argparse.SUPPRESS)
    return parser


def main(argv: list[str] | None = None) -> None:
    """Runs the command line."""
    options = _parser().parse_args(argv)
    options.width = click_model.WIDTH
    if options.alone:
        serve_turns(options.alone, options.rows)
        return
    # The process without servers inherits it, so that BLAS uses one core, as in a trainer.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    if options.smoke:
        options.turns, options.turn_s, options.warm_up_s = 2, 0.2, 0.1
        options.rows, options.batches, options.processes = 2_048, [256], [1]
    for batch, processes in itertools.product(options.batches, options.processes):
        children.say(**measure(processes, batch, options))


if __name__ == "__main__":
    main()
