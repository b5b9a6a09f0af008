"""How much memory does a reader hold while its consumer pauses?

A data worker has far more rows than fit into memory. A process of its own reads some elements, so
that everything is loaded and warm, then takes no more. The most that its memory grows until it is
steady ("grown"; "held": the growth once it is steady) is compared with the buffers that it declares
plus 24 MiB per stream. The process's own pages count, and each segment that it maps counts as a
whole, touched or not, as if the worker had no part in it. Workers in the reader's process
("in_process") declare buffers of their own, and each of their threads holds a chunk when there is
no room left. Rows have one column, or forty that come from Parquet in chunks of 21 MB; then frames
hold several elements, and elements cross the borders of chunks. Prints a JSON line per protocol.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import dataservice as ds
from bench import systems
from bench.options import new_parser
from bench.peers import children
from dataservice.client.read_spec import DEFAULT_BUFFERED_ELEMENTS
from dataservice.config import DEFAULT_BUFFER_BYTES
from dataservice.runtime.machine.cores import available_cores
from dataservice.runtime.process.children import announce_ready, exit_with_parent, spawn_module

_OWN = "in_process"
PROTOCOLS = (_OWN, "shared_memory", "flight")
ALLOWANCE_BYTES = 24 << 20
CHUNK_BYTES = 24 << 20
_READY_S = 120.0
# A worker returns freed memory to the system once it has waited for a second.
_STEADY_S = 1.5
_POLL_S = 0.1
_WARM_ELEMENTS = 4
_WIDE_COLUMNS = 40
_ROW_GROUP_ROWS, _ROW_GROUPS = 1 << 16, 8
_MANY, _FEW = "many.parquet", "few.parquet"


def resident_bytes() -> int:
    """Returns the size of this process's pages plus that of mapped segments in full. Linux only."""
    status = Path("/proc/self/status").read_text().splitlines()
    own = next(int(line.split()[1]) << 10 for line in status if line.startswith("RssAnon:"))
    return own + sum(
        int(end, 16) - int(first, 16)
        for first, end in (
            line.split()[0].split("-")
            for line in Path("/proc/self/maps").read_text().splitlines()
            if "/memfd:dataservice" in line
        )
    )


def write_wide(folder: Path) -> None:
    """Writes small files of many and of few wide rows: each column repeats one value."""
    for path, rows in ((folder / _MANY, _ROW_GROUP_ROWS * _ROW_GROUPS), (folder / _FEW, 1_000)):
        columns = {f"c{index}": np.full(rows, index) for index in range(_WIDE_COLUMNS)}
        pq.write_table(pa.table(columns), path, row_group_size=_ROW_GROUP_ROWS)


def rows_of(folder: Path | None) -> ds.Dataset:
    """Returns more rows than fit into memory: wide ones from a file, or rows of one column."""
    if folder is None:
        return ds.Dataset.range(1 << 40)
    return ds.Dataset.from_parquet(str(folder / _MANY)).repeat(64)


def few_rows_of(folder: Path | None) -> ds.Dataset:
    """Returns rows of the same kind, few enough to be read at once."""
    if folder is None:
        return ds.Dataset.range(1_000)
    return ds.Dataset.from_parquet(str(folder / _FEW))


def read(dataset: ds.Dataset, target: str, protocol: str) -> ds.Dataset:
    """Returns the dataset as read through the service."""
    asked = "local" if protocol == _OWN else protocol
    return dataset.distribute(ds.ShardingPolicy.DYNAMIC, target, data_transfer_protocol=asked)


def pause(dataset: ds.Dataset, target: str, protocol: str, limit_s: float) -> dict[str, int]:
    """Reads a little, pauses until memory is steady, and returns by how much it grew."""
    remote = read(dataset, target, protocol)
    before = resident_bytes()
    with iter(remote) as batches:
        for _ in range(_WARM_ELEMENTS):
            element_bytes = next(batches).nbytes
        peak = steady = before
        steady_since = time.monotonic()
        give_up_s = steady_since + limit_s
        while time.monotonic() < min(steady_since + _STEADY_S, give_up_s):
            time.sleep(_POLL_S)
            now = resident_bytes()
            if abs(now - steady) > 1 << 20:
                steady, steady_since = now, time.monotonic()
            peak = max(peak, now)
    return {
        "element_bytes": element_bytes,
        "grown_bytes": peak - before,
        "held_bytes": steady - before,
    }


def warm_up(dataset: ds.Dataset, target: str, protocol: str) -> None:
    """Loads all code and makes all threads' memory arenas, so that they are not counted."""
    remote = read(dataset.batch(10), target, protocol)
    assert pa.Table.from_batches(remote).num_rows == 1_000


def measure(
    protocol: str, workers: int, values: int, limit_s: float, folder: Path | None = None
) -> dict[str, Any]:
    """Measures one reader process with `workers` workers and elements of `values` values."""
    rows = values if folder is None else values // _WIDE_COLUMNS
    with systems.service(0 if protocol == _OWN else workers) as target:
        arguments = ["--reader", target, "--protocol", protocol, "--workers", str(workers)]
        arguments += ["--batch", str(rows), "--limit-s", str(limit_s)]
        arguments += [] if folder is None else ["--folder", str(folder)]
        child = spawn_module("bench.memory", arguments)
        try:
            found = child.wait_ready(_READY_S + limit_s)
        finally:
            child.terminate()
    declared = min(DEFAULT_BUFFER_BYTES, DEFAULT_BUFFERED_ELEMENTS * found["element_bytes"])
    if protocol == _OWN:
        declared += workers * DEFAULT_BUFFER_BYTES
    allowed = declared + workers * ALLOWANCE_BYTES
    if protocol == _OWN:
        allowed += workers * available_cores() * CHUNK_BYTES
    return {
        "bench": "memory",
        "protocol": protocol,
        "workers": workers,
        "columns": 1 if folder is None else _WIDE_COLUMNS,
        "element_bytes": found["element_bytes"],
        "declared_bytes": declared,
        "allowed_bytes": allowed,
        "grown_bytes": found["grown_bytes"],
        "held_bytes": found["held_bytes"],
        "within": found["grown_bytes"] <= allowed,
    }


def be_reader(options: argparse.Namespace) -> None:
    """Runs the reader's process: pauses, and announces what it found."""
    exit_with_parent()
    with contextlib.ExitStack() as stack:
        for _ in range(options.workers[0] if options.protocol == _OWN else 0):
            stack.enter_context(ds.WorkerServer(ds.WorkerConfig(options.reader)))
        warm_up(few_rows_of(options.folder), options.reader, options.protocol)
        dataset = rows_of(options.folder).batch(options.batch[0])
        found = pause(dataset, options.reader, options.protocol, options.limit_s)
    announce_ready(**found)


def main(argv: list[str] | None = None) -> None:
    """Runs the command line."""
    parser = new_parser("bench.memory", __doc__, has_smoke=False)
    parser.add_argument(
        "--batch",
        type=int,
        nargs="+",
        default=[1 << 17, 1 << 19],
        help="batch sizes to measure, in values of 8 bytes (default: %(default)s)",
    )
    parser.add_argument(
        "--workers",
        type=int,
        nargs="+",
        default=[1, 2],
        help="numbers of data workers to measure (default: %(default)s)",
    )
    parser.add_argument(
        "--protocols",
        nargs="+",
        choices=PROTOCOLS,
        default=PROTOCOLS,
        help="ways in which elements travel (default: %(default)s)",
    )
    parser.add_argument(
        "--limit-s",
        type=float,
        default=15.0,
        help="longest pause of the consumer, in seconds (default: %(default)s)",
    )
    parser.add_argument(
        "--smoke",
        action="store_true",
        help="use one worker and short pauses, to check that the benchmark works",
    )
    parser.add_argument("--reader", help=argparse.SUPPRESS)
    parser.add_argument("--protocol", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.reader:
        be_reader(options)
        return
    if options.smoke:
        options.workers, options.limit_s = [1], 5.0
    with tempfile.TemporaryDirectory() as temporary:
        wide = Path(temporary)
        write_wide(wide)
        for values in options.batch[:1] if options.smoke else options.batch:
            for workers in options.workers:
                for folder in (None, wide):
                    for protocol in options.protocols:
                        children.say(**measure(protocol, workers, values, options.limit_s, folder))


if __name__ == "__main__":
    main()
