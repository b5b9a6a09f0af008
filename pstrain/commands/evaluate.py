"""``pstrain evaluate``: scores of a trained model on files with labels."""

from __future__ import annotations

import argparse

from pstrain.commands.options import CORRECT, add_types, local_path, positive


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "evaluate",
        help="score a trained model on labelled files",
        description=__doc__,
        epilog="example: pstrain evaluate model --data 'new/*.parquet'",
    )
    parser.add_argument(
        "folder", type=local_path, metavar="DIR", help="folder that pstrain train --out wrote"
    )
    parser.add_argument(
        "--data",
        required=True,
        metavar="GLOB",
        help="files with the label column: a path, a folder, or a glob in quotes",
    )
    add_types(parser)
    parser.add_argument(
        "--batch-size",
        type=positive,
        default=4096,
        metavar="N",
        help="rows in each batch (default: 4096)",
    )
    parser.add_argument("--json", action="store_true", help="print the scores as one line of JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from pstrain.narration import Narrator
    from pstrain.tabular.files import advised
    from pstrain.tabular.scoring import evaluate

    narrator = Narrator(as_json=args.json)
    narrator.say(f"evaluating {args.folder} on {args.data}")
    with advised(CORRECT):
        scores = evaluate(args.folder, args.data, args.batch_size, args.types, args.delimiter)
    narrator.table(
        "Result",
        [
            ("AUC", f"{scores['auc']:.4f}"),
            ("log loss", f"{scores['loss']:.4f}"),
            ("accuracy", f"{scores['accuracy']:.4f}"),
            ("rows", f"{scores['examples']:,.0f}"),
            ("examples per second", f"{scores['examples_per_s']:,.0f}"),
        ],
    )
    narrator.finish(
        {
            "auc": round(scores["auc"], 5),
            "logloss": round(scores["loss"], 5),
            "accuracy": round(scores["accuracy"], 5),
            "rows": int(scores["examples"]),
        }
    )
    return 0
