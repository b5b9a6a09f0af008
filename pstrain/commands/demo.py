"""``pstrain demo``: trains on real flight records, on a whole cluster of this machine."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pstrain.commands.options import add_cluster, add_number, local_path, role_rows, seed

if TYPE_CHECKING:
    from pstrain.demo.program import Outcome
    from pstrain.output.console import Console


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "demo", help="train on real flight records, from files to a model", description=__doc__
    )
    parser.add_argument("--json", action="store_true", help="print the result as one line of JSON")
    parser.add_argument(
        "--data-dir",
        type=local_path,
        metavar="DIR",
        help="folder of the Parquet files, which are written there unless they exist (default: in "
        "the user's cache)",
    )
    parser.add_argument(
        "--out",
        type=local_path,
        metavar="DIR",
        help="folder for the checkpoint and the plot (default: in the user's cache)",
    )
    add_number(parser, "--epochs", 5, "passes over the data")
    add_number(parser, "--batch-size", 1024, "rows in each batch")
    add_number(parser, "--seed", 0, "seed of the initial weights and of the shuffle", seed)
    parser.add_argument("--no-plot", action="store_true", help="draw no plot of the training")
    add_cluster(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from pstrain.demo.program import DemoConfig
    from pstrain.demo.program import run as run_demo
    from pstrain.output.console import Console

    console = Console(as_json=args.json)
    outcome = run_demo(
        DemoConfig(
            data_dir=args.data_dir,
            out=args.out,
            epochs=args.epochs,
            batch_size=args.batch_size,
            workers=args.workers,
            ps=args.ps,
            data_workers=args.data_workers,
            seed=args.seed,
            plot=not args.no_plot,
        ),
        console,
    )
    _show(outcome, console)
    console.print_result(
        {
            "test_auc": round(outcome.test_auc, 5),
            "test_logloss": round(outcome.test_logloss, 5),
            "examples_per_s": round(outcome.examples_per_s, 1),
            "seconds": round(console.elapsed_s, 2),
            "rows_train": outcome.files.rows_train,
            "rows_test": outcome.files.rows_test,
            "checkpoint": outcome.checkpoint,
        }
    )
    return 0


def _show(outcome: Outcome, console: Console) -> None:
    console.table("Processes of the cluster", role_rows(outcome.roles))
    rows = [
        ("AUC on the test flights", f"{outcome.test_auc:.4f}"),
        ("log loss on the test flights", f"{outcome.test_logloss:.4f}"),
        ("examples trained on", f"{outcome.examples:,}"),
        ("examples per second", f"{outcome.examples_per_s:,.0f}"),
        ("total seconds", f"{console.elapsed_s:.1f}"),
        ("data", str(Path(outcome.files.test).parent)),
        ("checkpoint", outcome.checkpoint),
    ]
    if outcome.picture is not None:
        rows.append(("plot", outcome.picture))
    console.table("Result", rows)
