"""How fast do rows travel to and from a parameter server, and what does a large table take?

`exchange`: one process pulls rows of a table of 2^20 x 16 and pushes as many gradients back. Shared
memory, the network, and the network with bfloat16 take turns with a raw Flight exchange of the same
float32 bytes, which does nothing with them. `table`: a table of `--table-rows` x 16 is made, gets
its Adagrad slots and is trained, while a thread pulls rows from the server all the time; measured
are the server's memory at rest and at most, and how long those pulls waited. Prints JSON lines, and
one per ratio. On a network of 1 Gbit/s: `unshare -rn sh -c 'ip link set lo up; tc qdisc add dev
lo root tbf rate 1gbit burst 128k latency 100ms; python -m bench.parameters --table-rows 0'`.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

from bench.options import add_common, new_parser
from bench.peers import children
from dataservice.runtime.exchanges.flight import FlightClient, FlightServer
from dataservice.runtime.exchanges.flight_exchange import FlightChannel
from dataservice.runtime.machine.allocator import keep_freed_memory
from dataservice.runtime.process.children import (
    ChildProcess,
    announce_ready,
    exit_with_parent,
    spawn_module,
)
from pstrain import initializers
from pstrain.config import ParameterConfig
from pstrain.sessions.ids import new_session
from pstrain.trainer.client import RemoteParameters
from pstrain.vocabulary import Fetch, OptimizerSpec, ShardSpec, Update, VariableSpec

WIDTH = 16
_TOKEN = "of-the-benchmark"
_READY_S = 60.0
_ADAGRAD = OptimizerSpec(
    name="adagrad", learning_rate=0.05, parameters={"epsilon": 1e-7}, slots=(0.1,)
)
_WAYS = ("shared memory", "network", "bfloat16 network", "raw flight")


def _table(rows: int) -> VariableSpec:
    return VariableSpec(
        id=1,
        name="table",
        shape=(rows, WIDTH),
        dtype="float32",
        trainable=True,
        initializer=initializers.uniform(seed=1),
        shards=(ShardSpec(ps=0, row_start=0, row_stop=rows),),
    )


@contextmanager
def _server() -> Iterator[ChildProcess]:
    child = spawn_module("pstrain.paramserver", ["--port", "0"], env={"DATASERVICE_TOKEN": _TOKEN})
    try:
        yield child
    finally:
        child.terminate()


@contextmanager
def _connected(address: str, session: str, way: str) -> Iterator[RemoteParameters]:
    config = ParameterConfig(share_memory=way == "shared memory", request_timeout_s=120.0)
    dtype = "bfloat16" if way.startswith("bfloat16") else "float32"
    parameters = RemoteParameters(
        [address], token=_TOKEN, session=session, config=config, transport_dtype=dtype
    )
    try:
        parameters.begin_session(0)
        yield parameters
    finally:
        parameters.close()


def _echo(_command: dict[str, Any], channel: FlightChannel) -> None:
    """Answers each message with as many bytes as its header says, from one buffer."""
    answer = pa.allocate_buffer(0)
    while (message := channel.recv()) is not None:
        size = int(message.header)
        if size and answer.size != size:
            answer = pa.py_buffer(np.ones(size, np.uint8))
        channel.send(b"ok", answer if size else None)


def serve_raw() -> None:
    """Runs the process of the raw exchange until it is terminated or its parent ends."""
    exit_with_parent()
    keep_freed_memory()
    server = FlightServer("127.0.0.1", 0, token=_TOKEN, exchanges={"echo": _echo}).start()
    announce_ready(address=server.address)
    try:
        signal.pause()
    finally:
        server.stop()


def measure_exchange(address: str, way: str, rows: int, seconds: float) -> dict[str, Any]:
    """Pulls and pushes `rows` rows for `seconds`; returns the fields of the JSON line."""
    spec = _table(1 << 20)
    random = np.random.default_rng(0)
    ids = [random.permutation(spec.rows)[:rows] for _ in range(4)]
    gradient = np.full((rows, WIDTH), 1e-3, np.float32)
    with _connected(address, new_session(), way) as parameters:
        parameters.create(spec)

        def step(number: int) -> None:
            lookup: Any = parameters.fetch([Fetch(spec, ids[number % len(ids)])])[0]
            parameters.apply([Update(spec, gradient, lookup)], _ADAGRAD)

        return _timed(step, way, rows, seconds)


def measure_raw(address: str, rows: int, seconds: float) -> dict[str, Any]:
    """Exchanges messages of the same sizes: ids for rows, then ids and gradients for nothing."""
    ids, values = np.zeros(rows, np.int64), np.zeros((rows, WIDTH), np.float32)
    push = pa.py_buffer(np.concatenate([ids.view(np.uint8), values.reshape(-1).view(np.uint8)]))
    client = FlightClient(address, token=_TOKEN)
    try:
        with client.exchange({"exchange": "echo"}, timeout_s=_READY_S) as exchange:

            def step(_number: int) -> None:
                for header, body in ((b"%d" % values.nbytes, pa.py_buffer(ids)), (b"0", push)):
                    exchange.send(header, body, timeout_s=_READY_S)
                    exchange.recv(_READY_S)

            return _timed(step, "raw flight", rows, seconds)
    finally:
        client.close()


def _timed(step: Any, way: str, rows: int, seconds: float) -> dict[str, Any]:
    """Times `step`; `gb_per_s` counts float32 values, in whatever type they travel."""
    for number in range(3):
        step(number)
    count, began = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - began) < seconds:
        step(count)
        count += 1
    size = 2 * rows * WIDTH * 4
    return {
        "bench": "parameters",
        "level": "exchange",
        "way": way,
        "rows": rows,
        "pulls_and_pushes": count,
        "ms_each": round(elapsed / count * 1e3, 3),
        "gb_per_s": round(size * count / elapsed / 1e9, 3),
    }


def measure_table(rows: int) -> dict[str, Any]:
    """Makes a table, its slots by a first push, then pushes, while another thread pulls rows."""
    spec = _table(rows)
    random = np.random.default_rng(0)
    with _server() as child:
        address = str(child.wait_ready(_READY_S)["address"])
        process = psutil.Process(child.pid)
        empty = process.memory_info().rss
        with _connected(address, new_session(), "shared memory") as parameters:
            with _Watch(process, parameters) as watch:
                began = time.perf_counter()
                parameters.create(spec)
                made_s = time.perf_counter() - began
                watch.pull_from(spec)
                ids = random.integers(0, rows, 10_000)
                lookup: Any = parameters.fetch([Fetch(spec, ids)])[0]
                update = Update(spec, np.full(lookup.rows.shape, 1e-3, np.float32), lookup)
                began = time.perf_counter()
                parameters.apply([update], _ADAGRAD)
                slots_s = time.perf_counter() - began
                for _ in range(100):
                    parameters.apply([update], _ADAGRAD)
            rest = process.memory_info().rss
    floats = rows * WIDTH * 2 * 4
    return {
        "bench": "parameters",
        "level": "table",
        "rows": rows,
        "floats_gb": round(floats / 1e9, 3),
        "rest_gb": round(rest / 1e9, 3),
        "most_gb": round(watch.most_bytes / 1e9, 3),
        "bytes_per_row_beyond_floats": round((rest - empty - floats) / rows, 2),
        "made_s": round(made_s, 2),
        "slots_s": round(slots_s, 2),
        "pulls": len(watch.waits_s),
        "p99_pull_ms": round(float(np.percentile(watch.waits_s or [0.0], 99)) * 1e3, 1),
        "worst_pull_ms": round(max(watch.waits_s, default=0.0) * 1e3, 1),
    }


class _Watch:
    """A context manager that samples the server's memory and pulls rows until its end."""

    def __init__(self, process: psutil.Process, parameters: RemoteParameters) -> None:
        self.most_bytes = 0
        self.waits_s: list[float] = []
        self._process = process
        self._parameters = parameters
        self._spec: VariableSpec | None = None
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def pull_from(self, spec: VariableSpec) -> None:
        self._spec = spec

    def _run(self) -> None:
        while not self._left.wait(0.005):
            self.most_bytes = max(self.most_bytes, self._process.memory_info().rss)
            began = time.perf_counter()
            if self._spec is None:
                self._parameters.status(0)
            else:
                self._parameters.fetch([Fetch(self._spec, np.arange(0, 100_000, 100))])
            self.waits_s.append(time.perf_counter() - began)

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self._thread.join()


def run(options: argparse.Namespace) -> None:
    """Measures the ways in turn, then their ratios, then the table."""
    speeds: dict[str, list[float]] = {way: [] for way in _WAYS}
    raw = spawn_module("bench.parameters", ["--serve-raw"])
    try:
        raw_address = str(raw.wait_ready(_READY_S)["address"])
        with _server() as child:
            address = str(child.wait_ready(_READY_S)["address"])
            for _, way in ((n, way) for n in range(options.rounds) for way in _WAYS):
                if way == "raw flight":
                    result = measure_raw(raw_address, options.rows, options.seconds)
                else:
                    result = measure_exchange(address, way, options.rows, options.seconds)
                speeds[way].append(result["gb_per_s"])
                children.say(**result)
    finally:
        raw.terminate()
    shared, network, rounded, plain = (statistics.median(speeds[way]) for way in _WAYS)
    for of, ratio in (
        ("network to raw flight", network / plain),
        ("shared memory to raw flight", shared / plain),
        ("shared memory to network", shared / network),
        ("bfloat16 network to network", rounded / network),
    ):
        children.say(bench="parameters", ratio=round(ratio, 2), of=of)
    if options.table_rows:
        children.say(**measure_table(options.table_rows))


def main(argv: list[str] | None = None) -> None:
    """Runs the command line."""
    parser = new_parser("bench.parameters", __doc__)
    parser.add_argument(
        "--rows",
        type=int,
        default=60_000,
        help="rows of 16 values to pull and push at a time (default: %(default)s)",
    )
    parser.add_argument(
        "--seconds", type=float, default=4.0, help="seconds of each run (default: %(default)s)"
    )
    add_common(parser, rounds=2)
    parser.add_argument(
        "--table-rows",
        type=int,
        default=20_000_000,
        help="rows of the large table; 0 leaves it out (default: %(default)s)",
    )
    parser.add_argument("--serve-raw", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.serve_raw:
        serve_raw()
        return
    children.end_with_parent()
    # Trainers and parameter servers do the same, and it holds for all ways.
    keep_freed_memory()
    if options.smoke:
        options.seconds, options.rounds, options.table_rows = 0.1, 1, 100_000
        options.rows = 5_000
    run(options)


if __name__ == "__main__":
    main()
