"""How fast do trainers and parameter servers train a click model with one large embedding table?

Real processes on loopback: this one is the coordinator, beside trainers and parameter servers. The
table, 2^20 rows of 16, is cut over the parameter servers; 26 fields look up in it, and a 64-32-1
network follows. The optimizer is Adagrad, sparse on the table. Batches come from memory, so nothing
but steady training is measured. `bench.peers.tf_parameter_server` does the same work; `--peer` runs
it between our own runs, so that a busy machine slows both. `--network` uses TCP, as between hosts.
Prints JSON lines: one per run, and with `--peer` one per ratio.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import pstrain as ps
from bench import click_model
from bench.options import add_common, add_peer, add_peer_forms, new_parser
from bench.peers import children
from pstrain.config import ParameterConfig
from pstrain.partition import MinSizePartitioner

_PEER_FORMS = ("tuned", "usual")
# The resolution of CPU time in /proc.
_TICK_S = 0.01


def measure(processes: int, batch: int, options: argparse.Namespace) -> dict[str, Any]:
    """Runs once with `processes` trainers and as many servers; 0: one process without either."""
    if processes:
        examples, seconds, cpu_s = train_cluster(processes, batch, options)
    else:
        alone = ["--alone", str(batch), "--rows", str(options.rows)]
        alone += ["--seconds", str(options.seconds), "--warm-up-s", str(options.warm_up_s)]
        alone += ["--width", str(options.width)]
        with children.Children(options.deadline_s) as group:
            result = group.start("bench.train", alone).line()
        examples, seconds, cpu_s = result["examples"], result["seconds"], result["cpu_s"]
    return {
        "bench": "train",
        "system": "pstrain" if processes else "pstrain, one process, no servers",
        "workers": processes,
        "ps": processes,
        "batch": batch,
        "width": options.width,
        "network": options.network,
        "examples": examples,
        "seconds": round(seconds, 4),
        "examples_per_s": round(examples / seconds),
        "cores_used": round(cpu_s / seconds, 2),
        "examples_per_cpu_s": round(examples / max(cpu_s, _TICK_S)),
    }


def _train_alone(batch: int, options: argparse.Namespace) -> tuple[int, float, float]:
    model, rule = click_model.ClickModel(options.width), click_model.optimizer()
    data = click_model.batches(batch, options.rows)
    warm_until = time.perf_counter() + options.warm_up_s
    click_model.step(model, rule, next(data))
    while time.perf_counter() < warm_until:
        click_model.step(model, rule, next(data))
    cpu_s = time.process_time()
    steps, began = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - began) < options.seconds:
        loss = click_model.step(model, rule, next(data))
        steps += 1
    check_loss(loss)
    return steps * batch, elapsed, time.process_time() - cpu_s


def train_cluster(
    processes: int, batch: int, options: argparse.Namespace
) -> tuple[int, float, float]:
    """Returns examples, seconds and CPU seconds of a run with `processes` trainers and servers."""
    with cluster_training(processes, batch, options) as training:
        training.warm_up(options.warm_up_s)
        return training.train_for(options.seconds)


@contextlib.contextmanager
def cluster_training(
    processes: int, batch: int, options: argparse.Namespace
) -> Iterator[ClusterTraining]:
    """Yields the training on `processes` trainers and servers, with the model and its data."""
    with ps.LocalCluster(workers=processes, ps=processes, data_workers=0) as cluster:
        partitioner = MinSizePartitioner(min_shard_bytes=1 << 20, max_shards=processes)
        strategy = ps.ParameterServerStrategy(
            cluster.resolver,
            variable_partitioner=partitioner,
            config=ParameterConfig(share_memory=not options.network),
        )
        coordinator = ps.ClusterCoordinator(strategy)
        pids = [os.getpid(), *(task["pid"] for task in cluster.status())]
        with contextlib.closing(coordinator):
            with strategy.scope():
                model, rule = click_model.ClickModel(options.width), click_model.optimizer()
            rows = options.rows
            yield ClusterTraining(
                coordinator,
                lambda features: click_model.step(model, rule, features),
                lambda: click_model.batches(batch, rows),
                batch,
                options,
                pids,
            )


class ClusterTraining:
    """A training by steps that are scheduled on a cluster's trainers.

    ``step`` trains on one of the ``batches``, of ``batch`` rows each, and returns its loss.
    ``pids``: the processes whose CPU time counts. ``trial``: steps to find out how fast it is, for
    each trainer.
    """

    def __init__(
        self,
        coordinator: ps.ClusterCoordinator,
        step: Callable[[Any], float],
        batches: Callable[[], Iterator[Any]],
        batch: int,
        options: argparse.Namespace,
        pids: list[int],
        trial: int = 16,
    ) -> None:
        self._coordinator, self._batch, self._pids = coordinator, batch, pids
        self._deadline_s, self._steps_each = options.deadline_s, options.steps_per_execution
        self._rate, self._trial = 0.0, trial
        self._iterator = iter(coordinator.create_per_worker_dataset(batches))

        def train_steps(drawn: Any, steps: int) -> float:
            for _ in range(steps):
                loss = step(next(drawn))
            return loss

        self._train_steps = train_steps

    def warm_up(self, seconds: float) -> None:
        """Trains for about `seconds`, and finds out how fast."""
        trial = self._trial * self._coordinator.num_trainers * self._steps_each
        self._train(trial // 2)
        self._train(max(int(trial / self._train(trial) * seconds), 1))
        self._rate = trial / self._train(trial)

    def train_for(self, seconds: float) -> tuple[int, float, float]:
        """Trains for about `seconds`; returns examples, seconds and all processes' CPU seconds."""
        steps = max(int(self._rate * seconds), 4)
        steps += -steps % self._steps_each
        cpu_s = _cpu_s(self._pids)
        took_s = self._train(steps)
        self._rate = steps / took_s
        return steps * self._batch, took_s, _cpu_s(self._pids) - cpu_s

    def _train(self, steps: int) -> float:
        began = time.perf_counter()
        for _ in range(-(-steps // self._steps_each)):
            given = self._iterator, self._steps_each
            loss = self._coordinator.schedule(self._train_steps, args=given)
        self._coordinator.join(timeout=self._deadline_s)
        seconds = time.perf_counter() - began
        check_loss(loss.fetch())
        return seconds


def _cpu_s(pids: list[int]) -> float:
    """Returns the CPU seconds that these processes have used so far, from /proc."""
    ticks = 0
    for pid in pids:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
            fields = stat.read().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def check_loss(loss: float) -> None:
    if not math.isfinite(loss):
        raise ArithmeticError(f"the loss became {loss}: the run is no measurement")


def measure_peer(processes: int, batch: int, form: str, options: argparse.Namespace) -> Any:
    """Runs ParameterServerStrategy once on the same model and rows."""
    arguments = ["--workers", str(processes), "--ps", str(processes), "--batch", str(batch)]
    arguments += ["--form", form, "--seconds", str(options.seconds)]
    return children.run_peer(
        "bench.peers.tf_parameter_server", arguments, peer_python=options.peer_python
    )


def run(options: argparse.Namespace) -> None:
    """Does all runs in rounds, ours and theirs in turn, then prints the ratios of the medians."""
    forms = options.peer_forms if options.peer else []
    rates: dict[tuple[str, int, int], list[int]] = {}
    runs = itertools.product(range(options.rounds), options.batches, options.processes)
    for _, batch, processes in runs:
        result = measure(processes, batch, options)
        rates.setdefault(("", processes, batch), []).append(result["examples_per_s"])
        children.say(**result)
        for form in forms if processes else ():
            result = measure_peer(processes, batch, form, options)
            rates.setdefault((form, processes, batch), []).append(result["examples_per_s"])
            children.say(**result)
    for (form, processes, batch), measured in rates.items():
        if form:
            say_ratio(form, processes, batch, rates["", processes, batch], measured)


def say_ratio(form: str, processes: int, batch: int, ours: list[int], theirs: list[int]) -> None:
    """Prints one JSON line with both medians and their ratio."""
    mine, other = statistics.median(ours), statistics.median(theirs)
    children.say(
        bench="train",
        ratio=round(mine / other, 2),
        peer_form=form,
        workers=processes,
        ps=processes,
        batch=batch,
        rounds=len(theirs),
        examples_per_s=round(mine),
        peer_examples_per_s=round(other),
    )


def add_cluster_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of :func:`cluster_training` that are about its data and its closures."""
    parser.add_argument(
        "--rows",
        type=int,
        default=click_model.ROWS_IN_MEMORY,
        help="rows in memory (default: %(default)s)",
    )
    parser.add_argument(
        "--network", action="store_true", help="use TCP with the servers instead of shared memory"
    )
    parser.add_argument(
        "--steps-per-execution",
        type=int,
        default=1,
        help="training steps in each closure (default: %(default)s)",
    )


def _parser() -> argparse.ArgumentParser:
    parser = new_parser("bench.train", __doc__)
    parser.add_argument(
        "--processes",
        type=int,
        nargs="+",
        default=[0, 1, 2],
        help="numbers of trainers to measure, each with as many parameter servers; 0 is one "
        "process without servers (default: %(default)s)",
    )
    add_common(
        parser, batches=[1_024, 4_096], rounds=1, seconds=8.0, warm_up_s=2.0, deadline_s=120.0
    )
    add_cluster_options(parser)
    parser.add_argument(
        "--width",
        type=int,
        default=click_model.WIDTH,
        help="size of an embedding (default: %(default)s)",
    )
    parser.add_argument("--alone", type=int, metavar="BATCH", help=argparse.SUPPRESS)
    add_peer(parser, "TensorFlow")
    add_peer_forms(
        parser,
        _PEER_FORMS,
        ["tuned"],
        "ways in which the TensorFlow program is written",
    )
    return parser


def main(argv: list[str] | None = None) -> None:
    """Runs the command line."""
    options = _parser().parse_args(argv)
    children.end_with_parent()
    if options.alone:
        examples, seconds, cpu_s = _train_alone(options.alone, options)
        children.say(examples=examples, seconds=seconds, cpu_s=cpu_s)
        return
    # The process without servers inherits it, so that BLAS uses one core, as in a trainer.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    if options.smoke:
        options.seconds, options.warm_up_s = 0.3, 0.1
        options.rows, options.batches = 2_048, [256]
    if options.peer:
        if options.width != click_model.WIDTH:
            raise SystemExit(f"the peer's embeddings have width {click_model.WIDTH}")
        options.peer_python = children.find_interpreter(options.peer_python)
    run(options)


if __name__ == "__main__":
    main()
