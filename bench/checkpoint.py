"""How long does a checkpoint of a large table stop training, and how fast is it written?

A parameter server in a process of its own holds a table with Adagrad slots. The table is saved once
while nobody trains, then several times while this process updates random rows, as a trainer does.
Saves take turns with a plain write of as many bytes, which gives the disk's own rate (through the
page cache and synced, and past the page cache; the better rate counts). A save is compared with the
disk just before and after it, because the rate of disks of virtual machines changes by half from
minute to minute; the median counts. The line also has the time of a step before and during saves,
and by how much the server's memory grows. Last comes a save, while training, of what some steps
changed (``incremental``). Prints a JSON line.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import shutil
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import pstrain as ps
from bench.options import new_parser
from dataservice.runtime.process.children import spawn_module
from pstrain.checkpoints.saving import SavedCheckpoint
from pstrain.variables.rows import look_up
from pstrain.vocabulary import Update

IDS_PER_STEP = 60_000
_READY_S = 120.0
_PIECE_BYTES = 16 << 20
_STEPS_BETWEEN = 20


def disk_rates(directory: str, size_bytes: int) -> dict[str, float]:
    """Returns bytes per second of writes to the disk: through the page cache, and past it."""
    piece = mmap.mmap(-1, _PIECE_BYTES)
    piece.write(np.random.default_rng(0).bytes(_PIECE_BYTES))
    rates = {"cached": _rate(directory, size_bytes, piece, 0)}
    with contextlib.suppress(OSError):
        rates["direct"] = _rate(directory, size_bytes, piece, os.O_DIRECT)
    return rates


def _rate(directory: str, size_bytes: int, piece: mmap.mmap, flags: int) -> float:
    path, pieces = os.path.join(directory, "plain"), max(1, size_bytes // _PIECE_BYTES)
    started_s = time.perf_counter()
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | flags)
    try:
        for _ in range(pieces):
            os.write(handle, piece)
        os.fsync(handle)
    finally:
        os.close(handle)
        os.unlink(path)
    return pieces * _PIECE_BYTES / (time.perf_counter() - started_s)


def resident_bytes(pid: int) -> int:
    """Returns the size of a process's own memory (without files and shared memory). Linux only."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))


class Stepper:
    """A context manager that updates random rows of the table, and records each step's time."""

    def __init__(self, table: Any, optimizer: Any, rows: int, width: int) -> None:
        self.seconds: list[float] = []
        self.before: list[float] = []
        self._table, self._optimizer = table, optimizer
        self._rows, self._width = rows, width
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._chance = np.random.default_rng(1)
        self._gradient = np.full((IDS_PER_STEP, width), 0.01, np.float32)

    def step(self) -> None:
        lookup = look_up(self._table.spec, self._chance.integers(0, self._rows, IDS_PER_STEP))
        update = Update(self._table.spec, self._gradient[: len(lookup.unique)], lookup)
        started_s = time.perf_counter()
        self._optimizer.apply_gradients([(update, self._table)])
        self.seconds.append(time.perf_counter() - started_s)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.step()

    def __enter__(self) -> Stepper:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(60)


def median_ms(seconds: list[float]) -> float:
    return round(1000 * float(np.median(seconds)), 2) if seconds else 0.0


def measure(rows: int, width: int, directory: str, rounds: int) -> dict[str, Any]:
    server = spawn_module("pstrain.paramserver", [])
    try:
        ready = server.wait_ready(_READY_S)
        spec = ps.ClusterSpec({"ps": [ready["address"]], "worker": ["127.0.0.1:1"]})
        strategy = ps.ParameterServerStrategy(ps.SimpleClusterResolver(spec))
        with strategy.scope():
            table = ps.Variable(ps.initializers.uniform(seed=1)((rows, width)), name="table")
            optimizer = ps.optimizers.Adagrad(0.01)
        stepper = Stepper(table, optimizer, rows, width)
        for _ in range(20):
            stepper.step()
        table_bytes = 2 * rows * width * 4
        checkpoint = ps.Checkpoint(table=table)
        rates = [disk_rates(directory, table_bytes)]
        saves = [checkpoint.save(directory)]
        shutil.rmtree(saves[0])
        rates.append(disk_rates(directory, table_bytes))
        during: list[float] = []
        held = most = resident_bytes(server.pid)
        for _ in range(rounds):
            with Stepper(table, optimizer, rows, width) as trainer:
                saved, grown = _saved_while_training(checkpoint, directory, trainer, server.pid)
                during += trainer.seconds
            shutil.rmtree(saved)
            most = max(most, grown)
            saves.append(saved)
            rates.append(disk_rates(directory, table_bytes))
        increment = measure_increment(checkpoint, directory, stepper, server.pid)
    finally:
        server.terminate(5)
    speeds = [_speed(saved, rates[i : i + 2]) for i, saved in enumerate(saves)]
    return {
        "rows": rows,
        "width": width,
        "bytes": saved.size_bytes,
        "pause_ms": round(1000 * max(saved.pause_s for saved in saves[1:]), 2),
        "disk_mb_per_s": [{way: round(r / 1e6) for way, r in each.items()} for each in rates],
        "at_rest": speeds[0],
        "training": speeds[1:],
        "write_ratio_training": round(statistics.median(s["ratio"] for s in speeds[1:]), 3),
        "step_ms_before": median_ms(stepper.seconds[3:]),
        "step_ms_during": median_ms(during),
        "step_ms_longest": round(1000 * max(during, default=0.0), 1),
        "steps_during": len(during),
        "server_mb": round(held / 1e6),
        "grown_mb": round((most - held) / 1e6),
        "increment": increment,
    }


def measure_increment(
    checkpoint: ps.Checkpoint, directory: str, stepper: Stepper, pid: int
) -> dict[str, float]:
    """Measures a save of what ``_STEPS_BETWEEN`` steps and those just before the save changed."""
    whole = checkpoint.save(directory, incremental=True)
    stepper.seconds.clear()
    for _ in range(_STEPS_BETWEEN):
        stepper.step()
    with stepper:
        saved, _ = _saved_while_training(checkpoint, directory, stepper, pid, incremental=True)
    return {
        "bytes": saved.size_bytes,
        "part": round(saved.size_bytes / whole.size_bytes, 4),
        "pause_ms": round(1000 * saved.pause_s, 2),
        "write_s": round(saved.write_s or 0.0, 3),
        "whole_write_s": round(whole.write_s or 0.0, 3),
        "step_ms_noted": median_ms(stepper.before),
        "step_ms_during": median_ms(stepper.seconds),
    }


def _saved_while_training(
    checkpoint: ps.Checkpoint,
    directory: str,
    trainer: Stepper,
    pid: int,
    *,
    incremental: bool = False,
) -> tuple[SavedCheckpoint, int]:
    """Saves while ``trainer`` trains; returns the save and the most memory that the server had."""
    time.sleep(0.2)
    trainer.before, trainer.seconds = trainer.seconds, []
    saved, most = checkpoint.save(directory, asynchronous=True, incremental=incremental), 0
    while saved.write_s is None and not saved.has_ended:
        time.sleep(0.02)
        most = max(most, resident_bytes(pid))
    saved.wait(_READY_S)
    return saved, most


def _speed(saved: SavedCheckpoint, around: list[dict[str, float]]) -> dict[str, float]:
    rate = saved.size_bytes / (saved.write_s or 1.0)
    disk = statistics.mean(max(each.values()) for each in around)
    return {
        "write_s": round(saved.write_s or 0.0, 2),
        "mb_per_s": round(rate / 1e6, 1),
        "ratio": round(rate / disk, 3),
    }


def main(arguments: list[str] | None = None) -> None:
    parser = new_parser("bench.checkpoint", __doc__, has_smoke=False)
    parser.add_argument(
        "--smoke",
        action="store_true",
        help="save a table of 100,000 rows once, to check that the benchmark works",
    )
    parser.add_argument(
        "--rows", type=int, default=20_000_000, help="rows of the table (default: %(default)s)"
    )
    parser.add_argument(
        "--width", type=int, default=16, help="values in each row (default: %(default)s)"
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=3,
        help="number of saves while training (default: %(default)s)",
    )
    parser.add_argument(
        "--directory",
        default=None,
        help="folder on the disk to measure (default: the one for temporary files)",
    )
    args = parser.parse_args(arguments)
    if args.smoke:
        args.rows, args.rounds = 100_000, 1
    with tempfile.TemporaryDirectory(dir=args.directory) as directory:
        print(json.dumps(measure(args.rows, args.width, directory, args.rounds)))


if __name__ == "__main__":
    main()
