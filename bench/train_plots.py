"""How does the rate of training change with batch size, trainers and embedding size? PNG plots.

Measures as `bench.train` does, one run per point, with as many parameter servers as trainers.
Writes three files into `--out` and prints one JSON line per plot with its points. Needs matplotlib
(extra `demo`), and ends with a message before it measures if that is missing.
"""

from __future__ import annotations

import argparse
import functools
import os
from pathlib import Path

from bench import click_model, plots, train
from bench.options import add_common, new_parser
from bench.peers import children

_MODULE = "bench.train_plots"
_BATCH = 4_096


def plots_of(options: argparse.Namespace) -> list[plots.Plot]:
    """Returns all plots; they measure when they are drawn, and no point twice."""

    @functools.cache
    def rate(trainers: int, batch: int, width: int) -> float:
        given = {"width": width, "network": False, "steps_per_execution": 1}
        at = argparse.Namespace(**{**vars(options), **given})
        examples, seconds, _ = train.train_cluster(trainers, batch, at)
        return examples / seconds

    width = click_model.WIDTH
    batch = options.batches[-1] if options.smoke else _BATCH
    per_s = "examples/s"
    return [
        plots.Plot(
            "training-by-batch-size",
            "examples in a batch",
            f"{per_s}, one trainer and server",
            lambda size: rate(1, size, width),
            options.batches,
        ),
        plots.Plot(
            "training-by-trainers",
            "trainers, and as many servers",
            f"{per_s} in batches of {batch:,}",
            lambda trainers: rate(trainers, batch, width),
            options.trainers,
        ),
        plots.Plot(
            "training-by-embedding-size",
            "floats in an embedding",
            f"{per_s}, one trainer and server, batches of {batch:,}",
            lambda floats: rate(1, batch, floats),
            options.widths,
        ),
    ]


def main(argv: list[str] | None = None) -> None:
    """Runs the command line."""
    parser = new_parser(_MODULE, __doc__)
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("bench/out"),
        help="folder to write the PNG files to (default: %(default)s)",
    )
    parser.add_argument(
        "--rows",
        type=int,
        default=click_model.ROWS_IN_MEMORY,
        help="rows in memory (default: %(default)s)",
    )
    add_common(
        parser, batches=[256, 1_024, 4_096, 16_384], seconds=3.0, warm_up_s=1.0, deadline_s=120.0
    )
    parser.add_argument(
        "--trainers",
        type=int,
        nargs="+",
        default=[1, 2, 4],
        help="numbers of trainers to measure, each with as many parameter servers (default: "
        "%(default)s)",
    )
    parser.add_argument(
        "--widths",
        type=int,
        nargs="+",
        default=[8, 16, 32, 64],
        help="sizes of an embedding to measure (default: %(default)s)",
    )
    options = parser.parse_args(argv)
    plots.need_matplotlib(_MODULE)
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    if options.smoke:
        options.rows, options.seconds, options.warm_up_s = 1_024, 0.05, 0.0
        options.batches, options.trainers, options.widths = [128], [1], [click_model.WIDTH]
    children.end_with_parent()
    plots.draw_all(plots_of(options), options.out)


if __name__ == "__main__":
    main()
