"""``pstrain train``: trains a model on Parquet, CSV, JSON or Arrow files, and keeps it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pstrain.commands.options import (
    add_cluster,
    add_types,
    local_path,
    names,
    poolings,
    positive,
    rate,
    role_rows,
    seed,
    share,
)
from pstrain.tabular.choices import MODELS, OPTIMIZERS

if TYPE_CHECKING:
    from pstrain.console import Console
    from pstrain.tabular.program import Outcome, TrainConfig


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "train",
        help="train a model on your own Parquet, CSV, JSON or Arrow files",
        description=__doc__,
    )
    parser.add_argument("--data", required=True, metavar="GLOB", help="files, in quotes")
    parser.add_argument("--label", required=True, metavar="COLUMN", help="has two values")
    parser.add_argument("--out", type=local_path, default=Path("pstrain-model"), metavar="DIR")
    parser.add_argument("--overwrite", action="store_true", help="replace the model in --out")
    held_out = parser.add_mutually_exclusive_group()
    held_out.add_argument(
        "--validation", type=share, default=0.1, metavar="SHARE", help="of the rows (default 0.1)"
    )
    held_out.add_argument("--validation-data", metavar="GLOB", help="files to validate on instead")
    columns = parser.add_argument_group("columns, where what is found out is wrong")
    for option in ("--dense", "--categorical", "--ignore"):
        columns.add_argument(option, type=names, default=(), metavar="COLUMN,...")
    columns.add_argument(
        "--weights",
        metavar="COLUMN",
        help="how much each row counts in training, where rows count differently; scores on the "
        "validation rows, which need none, count them alike",
    )
    add_types(columns)
    columns.add_argument(
        "--pooling",
        type=poolings,
        default={},
        metavar="RULE|COLUMN=RULE,...",
        help="how the embeddings of a list's values become one, in Parquet columns of lists of "
        "integers, text or booleans: sum, mean (default) or sqrtn (the sum over the root of the "
        "count); a rule alone is that of all lists that are not named",
    )
    model = parser.add_argument_group("model")
    model.add_argument("--model", choices=MODELS, help="default wide_deep")
    model.add_argument("--dim", type=positive, default=16, help="embedding size (default 16)")
    model.add_argument(
        "--hidden", type=_layers, default=(64, 32), metavar="UNITS,...", help="default 64,32"
    )
    model.add_argument("--optimizer", choices=tuple(OPTIMIZERS), default="adagrad")
    model.add_argument("--learning-rate", type=rate, help=f"default {_usual_rates()}")
    model.add_argument("--batch-size", type=positive, default=1024, help="default 1024")
    model.add_argument("--epochs", type=positive, default=3, help="default 3")
    model.add_argument("--seed", type=seed, default=0)
    parser.add_argument("--json", action="store_true", help="close with one line of JSON")
    parser.add_argument("--local", action="store_true", help="in this process, without a cluster")
    add_cluster(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from pstrain.console import Console
    from pstrain.tabular.files import replacing_remedy
    from pstrain.tabular.program import train

    console = Console(as_json=args.json)
    config = _config(args)
    remedy = "correct the file, or state the type of the column with --types COLUMN=TYPE"
    with replacing_remedy(remedy):
        outcome = train(config, console)
    _show(outcome, args.out, console)
    _finish(outcome, console)
    return 0


def _config(args: argparse.Namespace) -> TrainConfig:
    from pstrain.tabular.inspection import ColumnOptions
    from pstrain.tabular.program import TrainConfig

    same = ("data", "out", "validation", "validation_data", "overwrite", "model", "dim", "hidden",
            "optimizer", "learning_rate", "batch_size", "epochs", "seed", "local", "workers", "ps",
            "data_workers", "delimiter")  # fmt: skip
    columns = ColumnOptions(
        label=args.label,
        dense=args.dense,
        categorical=args.categorical,
        ignore=args.ignore,
        pooling={name: rule for name, rule in args.pooling.items() if name},
        pool=args.pooling.get("", "mean"),
        types=args.types,
        weights=args.weights,
    )
    return TrainConfig(columns=columns, **{name: getattr(args, name) for name in same})


def _show(outcome: Outcome, out: Path, console: Console) -> None:
    if outcome.roles:
        console.table("What every process did", role_rows(outcome.roles))
    console.table(
        "Result",
        [
            ("AUC on the validation rows", f"{outcome.auc:.4f}"),
            ("log loss on them", f"{outcome.logloss:.4f}"),
            ("rows to train on, to validate on", f"{outcome.rows_train:,}, "
             f"{outcome.rows_validation:,}"),
            ("examples per second", f"{outcome.examples_per_s:,.0f}"),
            ("seconds in all", f"{console.elapsed_s:.1f}"),
            ("checkpoint", outcome.checkpoint),
            ("next", f"pstrain predict {out} --data ... --output predictions.csv"),
        ],
    )  # fmt: skip


def _finish(outcome: Outcome, console: Console) -> None:
    console.print_result(
        {
            "validation_auc": round(outcome.auc, 5),
            "validation_logloss": round(outcome.logloss, 5),
            "examples_per_s": round(outcome.examples_per_s, 1),
            "seconds": round(console.elapsed_s, 2),
            "rows_train": outcome.rows_train,
            "rows_validation": outcome.rows_validation,
            "checkpoint": outcome.checkpoint,
        }
    )


def _layers(text: str) -> tuple[int, ...]:
    return tuple(positive(part) for part in text.split(",") if part)


def _usual_rates() -> str:
    return ", ".join(f"{usual:g} ({name})" for name, (usual, _) in OPTIMIZERS.items())
