"""``pstrain evaluate``: scores of a trained model on files with labels."""

from __future__ import annotations

import argparse

from pstrain.commands.options import TYPES_REMEDY, add_data, add_number, add_types, local_path


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
    add_data(parser, "files with the label column")
    add_types(parser)
    add_number(parser, "--batch-size", 4096, "rows in each batch")
    parser.add_argument(
        "--group",
        metavar="COL",
        help="also rank the rows of each value of this column, such as a user: GAUC, NDCG at 10",
    )
    parser.add_argument("--json", action="store_true", help="print the scores as one line of JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from pstrain.output.console import Console
    from pstrain.tabular.files import replacing_remedy
    from pstrain.tabular.measures import scores_of
    from pstrain.tabular.scoring import evaluate

    console = Console(as_json=args.json)
    console.log(f"evaluating {args.folder} on {args.data}")
    with replacing_remedy(TYPES_REMEDY):
        scores = evaluate(
            args.folder, args.data, args.batch_size, args.types, args.delimiter, args.group
        )
    shown = scores_of(scores)
    console.table(
        "Result",
        [
            *((score.title, score.text) for score in shown),
            ("rows", f"{scores['examples']:,.0f}"),
            ("examples per second", f"{scores['examples_per_s']:,.0f}"),
        ],
    )
    console.print_result(
        {
            **{score.key: score.rounded for score in shown},
            "rows": int(scores["examples"]),
        }
    )
    return 0
