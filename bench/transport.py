"""How much faster do batches reach a reader through shared memory than through Flight?

Two questions, each answered for both protocols in turn within one run. `channel`: one process sends
the same batch of 4,096 rows (640 KiB) repeatedly, and this one receives and decodes it. `service`:
a data worker reads an Arrow IPC file without any transform, and this process iterates over the
rows, which is the whole path. Prints a JSON line per run, and one per ratio of the medians.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import dataservice as ds
from bench import systems
from bench.options import add_common, new_parser
from bench.peers import children
from dataservice.runtime.checksum import aligned, checksum
from dataservice.runtime.exchanges.flight import FlightServer
from dataservice.runtime.exchanges.local_server import LocalServer
from dataservice.runtime.exchanges.transport import open_exchange
from dataservice.runtime.frames import decode_batch
from dataservice.runtime.process.children import announce_ready, exit_with_parent, spawn_module
from dataservice.wire.elements import NO_WINDOW, RowSpan, unpack
from dataservice.worker.outgoing import Channel, FrameSender, frame_of
from dataservice.worker.rebatch import Element

PROTOCOLS = ("shared_memory", "flight")
_COLUMNS = 20
_ROWS = 4_096
_TOKEN = "of-the-benchmark"
_READY_S = 60.0
_SILENCE_S = 30.0


def numbers(rows: int) -> pa.RecordBatch:
    """Returns rows of 20 int64 columns, 160 bytes each."""
    values = np.arange(rows, dtype=np.int64)
    return pa.RecordBatch.from_pydict({f"c{k}": values + k for k in range(_COLUMNS)})


def _send(command: dict[str, Any], channel: Channel) -> None:
    batch = numbers(command["rows"])
    spans = (RowSpan(NO_WINDOW, 0, 0, batch.num_rows),)
    sender = FrameSender(channel)
    frame = frame_of(Element(batch, spans, divisible=True), None)
    for _ in range(command["count"]):
        sender.send(frame)


def serve() -> None:
    """Runs the sending process, with both listeners, until it is terminated or its parent ends."""
    exit_with_parent()
    exchanges = {"batches": _send}
    flight = FlightServer("127.0.0.1", 0, token=_TOKEN, exchanges=exchanges).start()
    local = LocalServer(flight.address, token=_TOKEN, exchanges=exchanges).start()
    announce_ready(address=flight.address)
    try:
        signal.pause()
    finally:
        local.stop()
        flight.stop()


def measure_channel(address: str, protocol: str, rows: int, count: int) -> dict[str, Any]:
    """Receives `count` batches, and checks and decodes them as a reader does."""
    schema = numbers(1).schema
    command = {"exchange": "batches", "rows": rows, "count": count + count // 10}
    with open_exchange(
        address, command, protocol=protocol, token=_TOKEN, tls=None, timeout_s=_READY_S
    ) as exchange:
        received, began = -(count // 10), time.perf_counter()
        while (message := exchange.recv(_SILENCE_S)) is not None:
            body = aligned(message.body)
            if not exchange.shares_memory and checksum(body) != unpack(message.header).checksum:
                raise RuntimeError("a batch does not match its checksum")
            decode_batch(body, schema)
            received += 1
            if not received:
                began = time.perf_counter()
        seconds = time.perf_counter() - began
    return _result("channel", protocol, received, rows, seconds)


def measure_service(path: str, protocol: str, rows: int, seconds: float) -> dict[str, Any]:
    """Measures rows that come from a data worker to an iterator of this process."""
    pipeline = ds.Dataset.from_ipc(path).repeat().batch(rows)
    with systems.service(1) as target:
        remote = pipeline.distribute(
            ds.ShardingPolicy.DYNAMIC, target, data_transfer_protocol=protocol
        )
        counted, took_s = systems.count_rows(remote, seconds / 3, seconds)
    return _result("service", protocol, counted // rows, rows, took_s)


def _result(level: str, protocol: str, batches: int, rows: int, seconds: float) -> dict[str, Any]:
    size = rows * _COLUMNS * 8
    return {
        "bench": "transport",
        "level": level,
        "protocol": protocol,
        "batch_bytes": size,
        "batches": batches,
        "batches_per_s": round(batches / seconds, 1),
        "gb_per_s": round(batches * size / seconds / 1e9, 3),
    }


def run(options: argparse.Namespace, folder: Path) -> None:
    """Measures both levels, with the protocols in turn, then prints their ratios."""
    path = folder / "numbers.arrow"
    batch = numbers(options.file_rows)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_table(pa.Table.from_batches([batch]), max_chunksize=1 << 16)
    rates: dict[tuple[str, str], list[float]] = {}

    def note(result: dict[str, Any]) -> None:
        rates.setdefault((result["level"], result["protocol"]), []).append(result["gb_per_s"])
        children.say(**result)

    child = spawn_module("bench.transport", ["--serve"])
    try:
        address = str(child.wait_ready(_READY_S)["address"])
        for _ in range(options.rounds):
            for protocol in PROTOCOLS:
                note(measure_channel(address, protocol, options.batch, options.count))
    finally:
        child.terminate()
    for _ in range(options.rounds):
        for protocol in PROTOCOLS:
            note(measure_service(str(path), protocol, options.batch, options.seconds))
    for level in ("channel", "service"):
        mine, other = (statistics.median(rates[level, protocol]) for protocol in PROTOCOLS)
        children.say(bench="transport", level=level, ratio=round(mine / max(other, 1e-9), 2))


def main(argv: list[str] | None = None) -> None:
    """Runs the command line."""
    parser = new_parser("bench.transport", __doc__)
    parser.add_argument(
        "--batch",
        type=int,
        default=_ROWS,
        help="rows of 160 bytes in each batch (default: %(default)s)",
    )
    parser.add_argument(
        "--count",
        type=int,
        default=4_000,
        help="batches in each run of `channel` (default: %(default)s)",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=4.0,
        help="seconds of each run of `service` (default: %(default)s)",
    )
    parser.add_argument(
        "--file-rows",
        type=int,
        default=1 << 19,
        help="rows in the worker's file (default: %(default)s)",
    )
    add_common(parser, rounds=3)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.serve:
        serve()
        return
    if options.smoke:
        options.count, options.seconds, options.rounds = 50, 0.3, 1
        options.file_rows = 1 << 15
    with tempfile.TemporaryDirectory(prefix="bench-transport-") as temporary:
        run(options, Path(temporary))


if __name__ == "__main__":
    main()
