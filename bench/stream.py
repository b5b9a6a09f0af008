"""How fast does the data service deliver click-log rows, read, transformed and batched?

Real processes on loopback: a dispatcher, the data workers, and this process as the reader. DYNAMIC
sharding over Parquet or Arrow IPC files that repeat without end; a worker makes batches of 4,096
rows with log1p dense columns and ids hashed into 2^20. Rows are counted once the stream runs
steadily, as in `bench.peers.tfdata_service`, which does the same work; `--peer` runs it between our
own runs, so that a busy machine slows both. The same pipeline without the service runs in this
process on one thread and on as many as there are cores, each with files of its own; the better rate
counts. Prints JSON lines: one per run, and one per ratio of medians to that rate and to a peer's.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dataservice as ds
from bench import data, transform
from bench.peers import children
from dataservice.dataset.iterator import usable_cores
from dataservice.runtime.process import spawn_module

_READY_S = 60.0
_FILES = 8
_FORMATS = {"parquet": "parquet", "ipc": "arrow"}
_PEER_FORMS = {"example": "tfrecord", "packed": "packed"}


@contextlib.contextmanager
def service(workers: int) -> Iterator[str]:
    """A dispatcher and data workers as processes; the dispatcher's address."""
    with contextlib.ExitStack() as stack:

        def start(*arguments: str) -> str:
            child = spawn_module("dataservice", [*arguments, "--ready-json"])
            stack.callback(child.terminate)
            return str(child.wait_ready(_READY_S)["address"])

        target = start("dispatcher", "--port", "0").rpartition("://")[2]
        for _ in range(workers):
            start("worker", "--dispatcher", target)
        yield target


def count_rows(dataset: ds.Dataset, warm_up_s: float, seconds: float) -> tuple[int, float]:
    """Rows that came in about `seconds`, and the exact time; nothing before `warm_up_s` counts."""
    with iter(dataset) as batches:
        warm_until = time.perf_counter() + warm_up_s
        next(batches)
        while time.perf_counter() < warm_until:
            next(batches)
        rows, began = 0, time.perf_counter()
        while (elapsed := time.perf_counter() - began) < seconds:
            rows += next(batches).num_rows
    return rows, elapsed


def _alone(paths: list[str], options: argparse.Namespace) -> tuple[int, float, int]:
    """The better of one iterator and one per core: rows, seconds and threads."""
    found = []
    for threads in sorted({1, min(usable_cores(), len(paths))}):
        pipelines = [
            transform.dataset(paths[k::threads], options.form, source=options.format)
            for k in range(threads)
        ]
        with ThreadPoolExecutor(threads) as pool:
            counted = list(
                pool.map(lambda p: count_rows(p, options.warm_up_s, options.seconds), pipelines)
            )
        rows = sum(part for part, _ in counted)
        found.append((rows, max(seconds for _, seconds in counted), threads))
    return max(found, key=lambda run: run[0] / run[1])


def measure(paths: list[str], workers: int, options: argparse.Namespace) -> dict[str, Any]:
    """One run; `workers` 0 is the same pipeline in this process, without the service."""
    threads = 1
    if workers:
        pipeline = transform.dataset(paths, options.form, source=options.format)
        with service(workers) as target:
            pipeline = pipeline.distribute(ds.ShardingPolicy.DYNAMIC, target)
            rows, seconds = count_rows(pipeline, options.warm_up_s, options.seconds)
    else:
        rows, seconds, threads = _alone(paths, options)
    return {
        "bench": "stream",
        "system": "dataservice" if workers else "dataservice, one process, no service",
        "form": options.form,
        "format": options.format,
        "reading_threads": threads,
        "workers": workers,
        "rows": rows,
        "seconds": round(seconds, 4),
        "rows_per_s": round(rows / seconds),
    }


def measure_peer(files: str, form: str, workers: int, options: argparse.Namespace) -> Any:
    """One run of tf.data service on rows of the same seed."""
    arguments = ["--files", files, "--form", form, "--workers", str(workers)]
    arguments += ["--seconds", str(options.seconds), "--warm-up-s", str(options.warm_up_s)]
    return children.run_peer(
        "bench.peers.tfdata_service", arguments, peer_python=options.peer_python, deadline_s=180
    )


def prepare(folder: Path, rows: int, file_format: str) -> list[str]:
    """Paths of the files of a format under `folder`, written now unless they are there."""
    target = folder / f"{file_format}-{rows}"
    suffix = data.WRITERS[file_format][0]
    found = sorted(target.glob(f"*{suffix}"))
    if len(found) != len(data.file_ranges(rows, _FILES)):
        found = data.write_files(target, rows, file_format, files=_FILES)
    return [str(path) for path in found]


def run(options: argparse.Namespace, folder: Path) -> None:
    """All runs in rounds, ours and theirs in turn, then the ratios of the medians."""
    files = prepare(folder, options.rows, _FORMATS[options.format])
    forms = options.peer_forms if options.peer else []
    globs = {
        form: str(Path(prepare(folder, options.rows, _PEER_FORMS[form])[0]).parent / "*.tfrecord")
        for form in forms
    }
    rates: dict[tuple[str, int], list[int]] = {}
    for _, workers in itertools.product(range(options.rounds), options.workers):
        result = measure(files, workers, options)
        rates.setdefault(("", workers), []).append(result["rows_per_s"])
        children.say(**result)
        for form in forms if workers else ():
            result = measure_peer(globs[form], form, workers, options)
            rates.setdefault((form, workers), []).append(result["rows_per_s"])
            children.say(**result)
    for (form, workers), measured in rates.items():
        if form:
            say_ratio(form, workers, rates["", workers], measured)
        elif workers and ("", 0) in rates:
            say_ratio("one process, no service", workers, measured, rates["", 0])


def say_ratio(form: str, workers: int, ours: list[int], theirs: list[int]) -> None:
    """One JSON line with both medians and their ratio."""
    mine, other = statistics.median(ours), statistics.median(theirs)
    children.say(
        bench="stream",
        ratio=round(mine / other, 2),
        peer_form=form,
        workers=workers,
        rounds=len(theirs),
        rows_per_s=round(mine),
        peer_rows_per_s=round(other),
    )


def main(argv: list[str] | None = None) -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.stream", description=__doc__)
    parser.add_argument("--rows", type=int, default=1 << 21, help="in the files")
    parser.add_argument("--data-dir", type=Path, help="kept and reused; default: a temporary one")
    parser.add_argument(
        "--workers", type=int, nargs="+", default=[0, 1, 2], help="0: without the service"
    )
    parser.add_argument("--form", choices=sorted(transform.FORMS), default="function")
    parser.add_argument("--format", choices=sorted(_FORMATS), default="parquet")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=8.0, help="of one run, counted")
    parser.add_argument("--warm-up-s", type=float, default=3.0)
    parser.add_argument("--smoke", action="store_true", help="the shortest run that counts rows")
    parser.add_argument("--peer", action="store_true", help="run tf.data service too, and compare")
    parser.add_argument(
        "--peer-forms", nargs="+", choices=sorted(_PEER_FORMS), default=["example", "packed"]
    )
    parser.add_argument(
        "--peer-python",
        default=os.environ.get("PEER_PYTHON"),
        help="an interpreter with TensorFlow; default: $PEER_PYTHON, else this one",
    )
    options = parser.parse_args(argv)
    if options.smoke:
        options.rows, options.seconds, options.warm_up_s = 1 << 15, 0.3, 0.1
    if options.peer:
        options.peer_python = children.find_interpreter(options.peer_python)
    with tempfile.TemporaryDirectory(prefix="bench-stream-") as temporary:
        run(options, options.data_dir or Path(temporary))


if __name__ == "__main__":
    main()
