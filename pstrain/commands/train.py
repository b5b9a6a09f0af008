"""``pstrain train``: trains a model on Parquet, CSV, JSON or Arrow files, and keeps it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pstrain.commands.options import (
    add_cluster,
    add_data,
    add_number,
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
from pstrain.tabular.choices import LOSSES, MODELS, OPTIMIZERS

if TYPE_CHECKING:
    from pstrain.output.console import Console
    from pstrain.tabular.program import Outcome, TrainConfig


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "train",
        help="train a model on your own Parquet, CSV, JSON or Arrow files",
        description=__doc__,
        epilog="example: pstrain train --data 'clicks/*.parquet' --label clicked --out model",
    )
    _add_files(parser)
    _add_columns(parser)
    _add_model(parser)
    parser.add_argument("--json", action="store_true", help="print the result as one line of JSON")
    parser.add_argument(
        "--local", action="store_true", help="train in this process, without a cluster"
    )
    add_cluster(parser)
    parser.set_defaults(run=run)


def _add_files(parser: argparse.ArgumentParser) -> None:
    add_data(parser, "files to train on")
    parser.add_argument(
        "--label",
        required=True,
        metavar="COLUMN",
        help="column to predict: of two values or, with --loss mse, mae or huber, of numbers",
    )
    parser.add_argument(
        "--out",
        type=local_path,
        default=Path("pstrain-model"),
        metavar="DIR",
        help="folder for the trained model (default: pstrain-model)",
    )
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="replace the model that is in --out, once the new one is saved",
    )
    held_out = parser.add_mutually_exclusive_group()
    held_out.add_argument(
        "--validation",
        type=share,
        default=0.1,
        metavar="SHARE",
        help="share of the rows to hold out for validation (default: 0.1)",
    )
    held_out.add_argument(
        "--validation-data", metavar="GLOB", help="files to validate on, instead of held-out rows"
    )


def _add_columns(parser: argparse.ArgumentParser) -> None:
    columns = parser.add_argument_group(
        "columns",
        description="The kinds of the columns are inferred from a sample and shown; --dense, "
        "--categorical and --ignore correct them.",
    )
    for option, meaning in (
        ("--dense", "columns to use as numbers"),
        ("--categorical", "columns to use as categories"),
        ("--ignore", "columns to leave out"),
    ):
        columns.add_argument(option, type=names, default=(), metavar="COLUMN,...", help=meaning)
    columns.add_argument(
        "--weights",
        metavar="COLUMN",
        help="column that says how much each row counts in training (default: all rows count "
        "alike); validation scores do not use it",
    )
    add_types(columns)
    columns.add_argument(
        "--pooling",
        type=poolings,
        default={},
        metavar="RULE|COLUMN=RULE,...",
        help="rule by which the embeddings of the values of a list become one, in Parquet columns "
        "of lists of integers, text or booleans: sum, mean or sqrtn (the sum divided by the square "
        "root of the count); a RULE without a column holds for all columns that are not named "
        "(default: mean)",
    )


def _add_model(parser: argparse.ArgumentParser) -> None:
    model = parser.add_argument_group("model")
    model.add_argument(
        "--model",
        choices=MODELS,
        help="kind of model (default: wide_deep, or logistic_regression without categorical "
        "columns)",
    )
    add_number(model, "--dim", 16, "size of an embedding")
    model.add_argument(
        "--hidden",
        type=_layers,
        default=(64, 32),
        metavar="UNITS,...",
        help="sizes of the hidden layers (default: 64,32)",
    )
    model.add_argument(
        "--loss",
        choices=LOSSES,
        default=LOSSES[0],
        help="what training makes small: binary_crossentropy, of a label with two values, or, to "
        "predict numbers, an error: squared (mse), absolute (mae), or squared near the label and "
        "absolute beyond one standard deviation of the labels (huber) (default: "
        f"{LOSSES[0]})",
    )
    model.add_argument(
        "--optimizer",
        choices=tuple(OPTIMIZERS),
        default="adagrad",
        help="rule that updates the weights (default: adagrad)",
    )
    model.add_argument(
        "--learning-rate",
        type=rate,
        metavar="RATE",
        help="learning rate of the first epoch, which falls to a tenth of it in the last (default: "
        f"{_usual_rates()})",
    )
    add_number(model, "--batch-size", 1024, "rows in each batch")
    add_number(model, "--epochs", 3, "passes over the data")
    seeded = "seed of the initial weights, the shuffle and the held-out rows"
    add_number(model, "--seed", 0, seeded, seed)


def run(args: argparse.Namespace) -> int:
    from pstrain.output.console import Console
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
            "loss", "optimizer", "learning_rate", "batch_size", "epochs", "seed", "local",
            "workers", "ps", "data_workers", "delimiter")  # fmt: skip
    columns = ColumnOptions(
        label=args.label,
        dense=args.dense,
        categorical=args.categorical,
        ignore=args.ignore,
        pooling={name: rule for name, rule in args.pooling.items() if name},
        pool=args.pooling.get("", "mean"),
        types=args.types,
        weights=args.weights,
        predict_numbers=args.loss != LOSSES[0],
    )
    return TrainConfig(columns=columns, **{name: getattr(args, name) for name in same})


def _show(outcome: Outcome, out: Path, console: Console) -> None:
    if outcome.roles:
        console.table("Processes of the cluster", role_rows(outcome.roles))
    console.table(
        "Result",
        [
            *((f"{score.title} on the validation rows", score.text) for score in outcome.scores),
            ("training rows, validation rows", f"{outcome.rows_train:,}, "
             f"{outcome.rows_validation:,}"),
            ("examples per second", f"{outcome.examples_per_s:,.0f}"),
            ("total seconds", f"{console.elapsed_s:.1f}"),
            ("checkpoint", outcome.checkpoint),
            ("next command", f"pstrain predict {out} --data ... --output predictions.csv"),
        ],
    )  # fmt: skip


def _finish(outcome: Outcome, console: Console) -> None:
    console.print_result(
        {
            **{f"validation_{score.key}": score.rounded for score in outcome.scores},
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
    return ", ".join(f"{usual:g} for {name}" for name, (usual, _) in OPTIMIZERS.items())
