"""How do rates change with batch size, number of workers, number of splits? PNG plots of each.

Measures as `bench.stream` and `bench.leases` do, one run per point, on Parquet files of click rows
that are only read and batched. Writes three files into `--out` and prints one JSON line per plot
with its points. Needs matplotlib (extra `demo`), and ends with a message before it measures if that
is missing.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import dataservice as ds
from bench import leases, stream, systems
from bench.options import add_common, new_parser
from bench.peers import children

_MODULE = "bench.plots"
_BATCH = 4_096


class Plot(NamedTuple):
    """One plot: its file's name, its axes' labels, the values, and the rate at a value."""

    name: str
    x_label: str
    y_label: str
    rate_at: Callable[[int], float]
    values: list[int]


def rows_per_s(paths: list[str], batch: int, workers: int, options: argparse.Namespace) -> float:
    """Returns the rate of plain reading through a service of `workers` workers."""
    with systems.service(workers) as target:
        rows = ds.Dataset.from_parquet(paths).repeat().batch(batch)
        served = rows.distribute(ds.ShardingPolicy.DYNAMIC, target)
        count, seconds = systems.count_rows(served, options.warm_up_s, options.seconds)
    return count / seconds


def plots_of(paths: list[str], options: argparse.Namespace) -> list[Plot]:
    """Returns all plots; they measure when they are drawn."""
    return [
        Plot(
            "rows-by-batch-size",
            "rows in a batch",
            "rows/s, one worker",
            lambda batch: rows_per_s(paths, batch, 1, options),
            options.batches,
        ),
        Plot(
            "rows-by-workers",
            "data workers",
            f"rows/s in batches of {_BATCH:,}",
            lambda workers: rows_per_s(paths, _BATCH, workers, options),
            options.workers,
        ),
        Plot(
            "leases-by-splits",
            "files in the job",
            "files leased per second, two workers",
            lambda splits: leases.measure("files", splits, 2)["splits_per_s"],
            options.splits,
        ),
    ]


def draw(plot: Plot, rates: list[float], folder: Path) -> Path:
    """Writes the plot as a PNG file; returns its path."""
    # Not pyplot, which chooses a window system and keeps every figure.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.plot(plot.values, rates, marker="o")
    axes.set(xlabel=plot.x_label, ylabel=plot.y_label, ylim=(0, None))
    if max(plot.values) >= 16 * min(plot.values):
        axes.set_xscale("log", base=2)
    axes.set_xticks(plot.values, [f"{value:,}" for value in plot.values])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.grid(alpha=0.3)
    file = folder / f"{plot.name}.png"
    figure.savefig(file, dpi=120)
    return file


def run(options: argparse.Namespace, folder: Path) -> None:
    """Measures and draws one plot after another."""
    paths = [str(path) for path in stream.prepare(folder, options.rows, "parquet")]
    draw_all(plots_of(paths, options), options.out)


def need_matplotlib(module: str) -> None:
    """Ends the program, saying what to install, if matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        raise SystemExit(f"{module} needs matplotlib: pip install 'pstrain[demo]'")


def draw_all(plots: list[Plot], out: Path) -> None:
    """Measures each point and draws each plot; prints one JSON line per plot."""
    out.mkdir(parents=True, exist_ok=True)
    for plot in plots:
        rates = [plot.rate_at(value) for value in plot.values]
        file = draw(plot, rates, out)
        points = [[value, round(rate)] for value, rate in zip(plot.values, rates, strict=True)]
        children.say(bench="plots", plot=plot.name, file=str(file), points=points)


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
        "--rows", type=int, default=1 << 21, help="rows in the files (default: %(default)s)"
    )
    add_common(parser, batches=[256, 1_024, 4_096, 16_384], seconds=3.0, warm_up_s=1.0)
    parser.add_argument(
        "--workers",
        type=int,
        nargs="+",
        default=[1, 2],
        help="numbers of data workers to measure (default: %(default)s)",
    )
    parser.add_argument(
        "--splits",
        type=int,
        nargs="+",
        default=[1_000, 10_000, 50_000, 200_000],
        help="numbers of splits to measure (default: %(default)s)",
    )
    options = parser.parse_args(argv)
    need_matplotlib(_MODULE)
    if options.smoke:
        options.rows, options.seconds, options.warm_up_s = 1 << 15, 0.1, 0.0
        options.batches, options.workers, options.splits = [1_024], [1], [500]
    with tempfile.TemporaryDirectory(prefix="bench-plots-") as folder:
        run(options, Path(folder))


if __name__ == "__main__":
    main()
