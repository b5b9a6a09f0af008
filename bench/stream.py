"""How fast does the data service deliver click-log rows, read, transformed and batched?

Real processes on loopback: a dispatcher, the data workers, and this process as the reader; in one
more system the data worker is in this process too (`--own-worker`). DYNAMIC sharding over Parquet
or Arrow IPC files that repeat without end; a worker makes batches of 4,096 rows with log1p dense
columns and ids hashed into 2^20. Two systems run in this process without the service: the same
pipeline, and the same work by hand (`bench.plain`); both on one thread and on as many as there are
cores, each thread with its own files. First each system gives one epoch; all must give the same
rows. Then all systems stay open and take turns of about a second, so that a change of the machine's
speed affects all of them. A ratio is the median of the turns' ratios, to the better number of
threads. `--peer` runs tf.data service (`bench.peers.tfdata_service`) on the same rows between our
own runs. Prints JSON lines: one per run, with the CPU seconds that a million rows cost each kind of
process, and one per ratio.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import statistics
import tempfile
from pathlib import Path
from typing import Any

from bench import data, transform
from bench.options import add_common, add_peer, add_peer_forms, new_parser
from bench.peers import children
from bench.systems import ALONE, SERVED, System, open_systems

_FILES = 8
_FORMATS = {"parquet": "parquet", "ipc": "arrow"}
_TURN_S = 1.0
# How long it takes to read the rows that a service has buffered when its turn begins.
_REFILL_S = 0.3
_PEER_FORMS = {"example": "tfrecord", "packed": "packed"}


def measure(paths: list[str], options: argparse.Namespace) -> tuple[list[System], list[System]]:
    """Runs all systems once, in turns; returns those without the service, and those with it."""
    with contextlib.ExitStack() as stack:
        alone, served = open_systems(stack, paths, options)
        check_equal(alone + served)
        for system in alone + served:
            system.take_turn(0.0, options.warm_up_s)
            system.slices.clear()
        turns = max(1, round(options.seconds / _TURN_S))
        for _, system in itertools.product(range(turns), alone + served):
            system.take_turn(min(options.warm_up_s, _REFILL_S), options.seconds / turns)
        return alone, served


def check_equal(systems: list[System]) -> None:
    """Ends the program unless all systems give the same rows."""
    found = [system.checksum() for system in systems]
    if len(set(found)) > 1:
        listed = zip((system.name for system in systems), found, strict=True)
        raise SystemExit(f"the rows differ, or their number: {list(listed)}")
    children.say(bench="stream", rows_of_an_epoch=found[0][0], checksum=f"{found[0][1]:016x}")


def measure_peer(files: str, form: str, workers: int, options: argparse.Namespace) -> Any:
    """Runs tf.data service once on rows of the same seed."""
    arguments = ["--files", files, "--form", form, "--workers", str(workers)]
    arguments += ["--seconds", str(options.seconds), "--warm-up-s", str(options.warm_up_s)]
    return children.run_peer(
        "bench.peers.tfdata_service", arguments, peer_python=options.peer_python, deadline_s=180
    )


def prepare(folder: Path, rows: int, file_format: str) -> list[str]:
    """Returns the paths of a format's files under `folder`; writes them if they are missing."""
    target = folder / f"{file_format}-{rows}"
    suffix = data.WRITERS[file_format][0]
    found = sorted(target.glob(f"*{suffix}"))
    if len(found) != len(data.file_ranges(rows, _FILES)):
        found = data.write_files(target, rows, file_format, files=_FILES)
    return [str(path) for path in found]


def run(options: argparse.Namespace, folder: Path) -> None:
    """Does all runs in rounds, ours and theirs in turn, then prints the medians of the ratios."""
    files = prepare(folder, options.rows, _FORMATS[options.format])
    forms = options.peer_forms if options.peer else []
    globs = {
        form: str(Path(prepare(folder, options.rows, _PEER_FORMS[form])[0]).parent / "*.tfrecord")
        for form in forms
    }
    ratios: dict[tuple[str, str, int], list[float]] = {}
    for _ in range(options.rounds):
        alone, served = measure(files, options)
        for system in [*alone, *served]:
            children.say(**line_of(system, options))
        for system in served:
            for form in options.alone:
                others = [other for other in alone if other.name == ALONE[form]]
                found = against(system, others)
                key = (system.name, ALONE[form], system.workers)
                ratios.setdefault(key, []).extend(found)
            for form in forms if system.name == SERVED else ():
                theirs = measure_peer(globs[form], form, system.workers, options)
                children.say(**theirs)
                ratio = system.rate / theirs["rows_per_s"]
                ratios.setdefault((system.name, form, system.workers), []).append(ratio)
    for (name, form, workers), found in ratios.items():
        if found:
            say_ratio(name, form, workers, found)


def against(system: System, alone: list[System]) -> list[float]:
    """Returns the ratio of each turn to the same turn of the fastest system in `alone`."""
    if not alone:
        return []
    best = max(alone, key=lambda other: other.rate)
    return [
        ours.rate / theirs.rate for ours, theirs in zip(system.slices, best.slices, strict=True)
    ]


def line_of(system: System, options: argparse.Namespace) -> dict[str, Any]:
    """Returns the fields of the JSON line of a run."""
    return {
        "bench": "stream",
        "system": system.name,
        "form": options.form,
        "format": options.format,
        "reading_threads": system.threads,
        "workers": system.workers,
        "rows": sum(turn.rows for turn in system.slices),
        "seconds": round(sum(turn.seconds for turn in system.slices), 4),
        "rows_per_s": round(system.rate),
        "cpu_s_per_million_rows": system.cpu_per_million_rows(),
    }


def say_ratio(name: str, form: str, workers: int, ratios: list[float]) -> None:
    """Prints one JSON line with the median, least and largest of the ratios."""
    children.say(
        bench="stream",
        system=name,
        ratio=round(statistics.median(ratios), 2),
        peer_form=form,
        workers=workers,
        ratios=len(ratios),
        least=round(min(ratios), 2),
        largest=round(max(ratios), 2),
    )


def _parser() -> argparse.ArgumentParser:
    parser = new_parser("bench.stream", __doc__)
    parser.add_argument(
        "--rows", type=int, default=1 << 21, help="rows in the files (default: %(default)s)"
    )
    parser.add_argument(
        "--data-dir",
        type=Path,
        help="folder for the files, which are kept and used again (default: a temporary one)",
    )
    parser.add_argument(
        "--workers",
        type=int,
        nargs="+",
        default=[0, 1, 2],
        help="numbers of data workers to measure; 0 is without the service (default: %(default)s)",
    )
    parser.add_argument(
        "--own-worker",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="also measure a data worker in the reader's process (default: %(default)s)",
    )
    parser.add_argument(
        "--alone",
        nargs="+",
        choices=sorted(ALONE),
        default=["pipeline", "numpy"],
        help="what to measure without the service: pipeline (the same pipeline), numpy or blocks "
        "(pyarrow and NumPy by hand, in large chunks or one batch at a time), or function "
        "(pyarrow and the pipeline's function) (default: %(default)s)",
    )
    parser.add_argument(
        "--form",
        choices=sorted(transform.FORMS),
        default="function",
        help="how the transformation is written (default: %(default)s)",
    )
    parser.add_argument(
        "--format",
        choices=sorted(_FORMATS),
        default="parquet",
        help="format of the files (default: %(default)s)",
    )
    add_common(parser, rounds=1, seconds=8.0, warm_up_s=3.0)
    add_peer(parser, "tf.data service")
    add_peer_forms(
        parser,
        sorted(_PEER_FORMS),
        ["example", "packed"],
        "forms of the rows that tf.data service reads: tf.train.Example, or rows packed by hand",
    )
    return parser


def main(argv: list[str] | None = None) -> None:
    """Runs the command line."""
    options = _parser().parse_args(argv)
    if options.smoke:
        options.rows, options.seconds, options.warm_up_s = 1 << 15, 0.3, 0.1
    if options.peer:
        options.peer_python = children.find_interpreter(options.peer_python)
    with tempfile.TemporaryDirectory(prefix="bench-stream-") as temporary:
        run(options, options.data_dir or Path(temporary))


if __name__ == "__main__":
    main()
