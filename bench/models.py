"""How much CPU time does a step of each model take in one process, and in TensorFlow?

A step without servers: a tape and `apply_gradients` of Adagrad, on batches from memory with 13
dense and 26 categorical columns, whose ids are rows of a table of 10^5. `bench.peers.tf_models`
does the same work; with `--peer` its forms and ours take turns, and a ratio is the median of the
turns' ratios. Each computes on one thread unless `--threads` says otherwise (0: as many as each
takes by itself). Prints JSON lines: one for each batch size, model and kind of ids.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
from typing import Any

import pstrain as ps
from bench import model_batches as work
from bench.columns import CATEGORICAL, DENSE
from bench.options import add_common, add_peer, add_peer_forms, new_parser
from bench.peers import children, turns
from pstrain.features.schema import Category, Features, FeatureSchema
from pstrain.models.base import Model

_PEER_FORMS = ("plain", "compiled")


def schema() -> FeatureSchema:
    """Returns the schema of the batches; each field has its own part of the table's rows."""
    category = Category(work.ROWS_OF_FIELD - 1, hashed=False)
    return FeatureSchema(dense=DENSE, categorical=dict.fromkeys(CATEGORICAL, category))


def make(kind: str, width: int) -> Model:
    """Returns a model of ``kind`` for the batches."""
    given = {} if kind == "LogisticRegression" else {"dim": width}
    model: Model = getattr(ps.models, kind)(schema(), **given)
    return model


def serve(kind: str, batch: int, ids: str, width: int) -> None:
    """Runs the training process, which trains when it is its turn."""
    model = make(kind, width)
    rule = ps.optimizers.Adagrad(work.LEARNING_RATE, work.INITIAL_ACCUMULATOR, work.EPSILON)
    drawn = work.batches(batch, ids)
    data = itertools.cycle([Features(dense, rows, labels) for labels, dense, rows in drawn])

    def step() -> float:
        with ps.GradientTape() as tape:
            loss = model.loss(next(data))
        rule.apply_gradients(tape.gradients(loss))
        return float(loss)

    turns.serve(step)


def measure(kind: str, batch: int, ids: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measures turns of ours and of the peer's forms."""
    common = ["--batch", str(batch), "--ids", ids, "--width", str(options.width)]
    with (
        children.Children(options.deadline_s) as ours,
        children.Children(options.deadline_s, options.peer_python) as theirs,
    ):
        group = {"ours": ours.start("bench.models", ["--serve", kind, *common])}
        for form in options.peer_forms if options.peer else ():
            arguments = ["--kind", kind, "--form", form, "--threads", str(options.threads)]
            group[form] = theirs.start("bench.peers.tf_models", [*arguments, *common])
        for child in group.values():
            turns.cpu_ms_of_step(child, options.warm_up_s)
        rounds = [
            {name: turns.cpu_ms_of_step(child, options.turn_s) for name, child in group.items()}
            for _ in range(options.turns)
        ]
    sizes = {"model": kind, "batch": batch, "ids": ids, "width": options.width}
    return {"bench": "models", **sizes, "threads": options.threads, **summary(rounds)}


def summary(rounds: list[dict[str, float]]) -> dict[str, Any]:
    """Returns the CPU time of a step of each, and the ratio of the peer's fastest form to ours."""
    found: dict[str, Any] = {"turns": len(rounds)}
    for name in rounds[0]:
        found[f"{name}_cpu_ms"] = round(statistics.median(turn[name] for turn in rounds), 3)
    ratios = {
        name: [turn[name] / turn["ours"] for turn in rounds] for name in rounds[0] if name != "ours"
    }
    if ratios:
        form = min(ratios, key=lambda name: statistics.median(ratios[name]))
        found |= {
            "peer_form": form,
            "ratio": round(statistics.median(ratios[form]), 2),
            "ratio_min": round(min(ratios[form]), 2),
            "ratio_max": round(max(ratios[form]), 2),
        }
    return found


def _parser() -> argparse.ArgumentParser:
    parser = new_parser("bench.models", __doc__)
    parser.add_argument(
        "--models",
        nargs="+",
        choices=work.KINDS,
        default=work.KINDS,
        help="models to measure (default: %(default)s)",
    )
    add_common(parser, batches=[1_024, 4_096])
    parser.add_argument(
        "--ids",
        nargs="+",
        choices=work.IDS,
        default=["zipf"],
        help="distribution of the categorical ids (default: %(default)s)",
    )
    parser.add_argument(
        "--width", type=int, default=16, help="size of an embedding (default: %(default)s)"
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=1,
        help="threads of each process; 0 leaves the choice to each system (default: %(default)s)",
    )
    parser.add_argument(
        "--turns",
        type=int,
        default=10,
        help="number of turns that each system takes (default: %(default)s)",
    )
    parser.add_argument(
        "--turn-s", type=float, default=0.5, help="CPU seconds of each turn (default: %(default)s)"
    )
    parser.add_argument(
        "--warm-up-s",
        type=float,
        default=1.0,
        help="CPU seconds before the first turn that do not count (default: %(default)s)",
    )
    parser.add_argument(
        "--deadline-s",
        type=float,
        default=600.0,
        help="seconds after which one model and batch size is given up (default: %(default)s)",
    )
    parser.add_argument("--serve", choices=work.KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=int, help=argparse.SUPPRESS)
    add_peer(parser, "TensorFlow")
    add_peer_forms(
        parser,
        _PEER_FORMS,
        _PEER_FORMS,
        "ways in which the TensorFlow program is written",
    )
    return parser


def main(argv: list[str] | None = None) -> None:
    """Runs the command line."""
    options = _parser().parse_args(argv)
    if options.serve:
        serve(options.serve, options.batch, options.ids[0], options.width)
        return
    if options.threads:
        # Our training process inherits it.
        os.environ["OPENBLAS_NUM_THREADS"] = str(options.threads)
    if options.smoke:
        options.turns, options.turn_s, options.warm_up_s, options.batches = 2, 0.05, 0.01, [256]
    if options.peer:
        options.peer_python = children.find_interpreter(options.peer_python)
    for batch, kind, ids in itertools.product(options.batches, options.models, options.ids):
        children.say(**measure(kind, batch, ids, options))


if __name__ == "__main__":
    main()
