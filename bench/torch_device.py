"""How many examples/s does a trainer make with the network on a GPU, against its processor?

A trainer and a parameter server, as processes beside this one, train a `pstrain.torch.Model` on
batches from memory: 26 embeddings of 16 out of a table of 10^5 rows, 13 dense columns, and two
hidden layers of `--hidden` units, with Adagrad. The embeddings and the updates are computed on the
processor, the network on the processor with each number of `--threads`, and on `--device`. All of
these take turns, so that a change of the machine's speed affects them alike; a ratio is the median
of the turns' ratios, against the number of threads that is fastest. A trainer runs three closures
at a time, each with as many threads. Prints JSON lines: one for each batch size, number of units
and way to compute, and one per ratio; where the device is missing, a line that says so instead.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import statistics
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

import pstrain as ps
from bench import model_batches as work
from bench import models, train
from bench.options import add_common, new_parser
from bench.peers import children
from dataservice.runtime.machine.cores import available_cores
from pstrain.features.schema import Features
from pstrain.torch import devices

_TRIAL_STEPS = 4


class Way(NamedTuple):
    """A way to compute the network: on a device, by so many threads of the trainer."""

    device: str
    threads: int


def ways(options: argparse.Namespace) -> list[Way]:
    """Returns the ways to measure; prints a line if this machine lacks the device."""
    found = [Way("cpu", threads) for threads in options.threads]
    try:
        devices.found(options.device, "network")
    except ps.errors.FailedPreconditionError as error:
        children.say(bench="torch_device", skipped=options.device, why=str(error))
        return found
    return [*found, Way(options.device, 1)]


def measure(
    batch: int, hidden: int, measured: list[Way], options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Yields a line for each way to compute, and one for the device's ratio to the processor."""
    with ps.LocalCluster(workers=1, ps=1, data_workers=0) as cluster:
        strategy = ps.ParameterServerStrategy(cluster.resolver)
        (trainer,) = (task["pid"] for task in cluster.status() if task["role"] == "worker")
        with contextlib.closing(ps.ClusterCoordinator(strategy)) as coordinator:
            trainings = {
                way: _training(way, batch, hidden, coordinator, trainer, options)
                for way in measured
            }
            for training in trainings.values():
                training.warm_up(options.warm_up_s)
            rounds = [
                {way: training.train_for(options.seconds) for way, training in trainings.items()}
                for _ in range(options.rounds)
            ]
    sizes = {"bench": "torch_device", "batch": batch, "hidden": hidden, "rounds": len(rounds)}
    for way in measured:
        yield {**sizes, **way._asdict(), **summary([turn[way] for turn in rounds])}
    rates = [{way: turn[way][0] / turn[way][1] for way in measured} for turn in rounds]
    yield from ({**sizes, **ratio} for ratio in ratios(rates))


def _training(
    way: Way,
    batch: int,
    hidden: int,
    coordinator: ps.ClusterCoordinator,
    trainer: int,
    options: argparse.Namespace,
) -> train.ClusterTraining:
    with coordinator.strategy.scope():
        model = make(hidden, way.device)
        rule = ps.optimizers.Adagrad(work.LEARNING_RATE, work.INITIAL_ACCUMULATOR, work.EPSILON)

    threads = way.threads

    def step(features: Features) -> float:
        torch.set_num_threads(threads)
        with ps.GradientTape() as tape:
            loss = model.loss(features)
        rule.apply_gradients(tape.gradients(loss))
        return float(loss)

    return train.ClusterTraining(
        coordinator,
        step,
        functools.partial(batches, batch),
        batch,
        options,
        [trainer],
        _TRIAL_STEPS,
    )


def make(hidden: int, device: str) -> ps.torch.Model:
    """Returns the model, with two hidden layers of ``hidden`` units."""
    network = torch.nn.Sequential(
        torch.nn.LazyLinear(hidden),
        torch.nn.ReLU(),
        torch.nn.Linear(hidden, hidden),
        torch.nn.ReLU(),
        torch.nn.Linear(hidden, 1),
    )
    return ps.torch.Model(models.schema(), network, device=device)


def batches(batch: int) -> Iterator[Features]:
    """Returns endless batches, all drawn beforehand."""
    drawn = work.batches(batch, "zipf")
    return itertools.cycle([Features(dense, rows, labels) for labels, dense, rows in drawn])


def summary(turns: list[tuple[int, float, float]]) -> dict[str, Any]:
    """Returns the medians of turns, each of which is its examples, seconds and CPU seconds."""
    return {
        "examples_per_s": round(statistics.median(n / seconds for n, seconds, _ in turns)),
        "trainer_cores_used": round(statistics.median(cpu_s / s for _, s, cpu_s in turns), 2),
    }


def ratios(rounds: list[dict[Way, float]]) -> Iterator[dict[str, Any]]:
    """Yields each device's ratio to the fastest way on the processor, from examples/s by way."""
    rates = {way: statistics.median(turn[way] for turn in rounds) for way in rounds[0]}
    best = max((way for way in rates if way.device == "cpu"), key=rates.__getitem__)
    for way in rates:
        if way.device != "cpu":
            found = [turn[way] / turn[best] for turn in rounds]
            yield {
                "device": way.device,
                "against_threads": best.threads,
                "ratio": round(statistics.median(found), 2),
                "ratio_min": round(min(found), 2),
                "ratio_max": round(max(found), 2),
            }


def _parser() -> argparse.ArgumentParser:
    parser = new_parser("bench.torch_device", __doc__)
    add_common(
        parser, batches=[1_024, 8_192], rounds=3, seconds=2.0, warm_up_s=1.0, deadline_s=300.0
    )
    parser.add_argument(
        "--hidden",
        type=int,
        nargs="+",
        default=[256, 1_024],
        help="units of each hidden layer to measure (default: %(default)s)",
    )
    parser.add_argument(
        "--threads",
        type=int,
        nargs="+",
        default=sorted({1, available_cores()}),
        help="threads for the network on the processor to measure (default: %(default)s)",
    )
    parser.add_argument(
        "--device", default="cuda", help="device to measure, as torch names it (%(default)s)"
    )
    return parser


def main(argv: list[str] | None = None) -> None:
    """Runs the command line."""
    options = _parser().parse_args(argv)
    options.steps_per_execution = 1
    if options.smoke:
        options.rounds, options.seconds, options.warm_up_s = 2, 0.2, 0.1
        options.batches, options.hidden, options.threads = [256], [32], [1]
    measured = ways(options)
    for batch, hidden in itertools.product(options.batches, options.hidden):
        for line in measure(batch, hidden, measured, options):
            children.say(**line)


if __name__ == "__main__":
    main()
