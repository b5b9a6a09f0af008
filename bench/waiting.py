"""What does it cost when many readers wait?

Real servers and readers, several to a process. Waits ``--wait-for`` one of two things, or for each
in turn: ``rows`` that workers do not finish making, so that the readers wait for workers; ``room``,
which readers do not make, so that the workers wait for readers. Nothing moves, so all that is
measured is the cost of waiting; there is no peer to compare it with, but nothing, which is what it
should cost. Prints a JSON line each: the share of a core that the dispatcher, all workers and all
readers take. Linux only.
"""

from __future__ import annotations

import argparse
import threading
import time
from typing import Any

import pyarrow as pa

import dataservice as ds
from bench.mesh import dealt
from bench.options import add_common, new_parser
from bench.peers import children
from dataservice.vocabulary import DATA_TRANSFER_PROTOCOLS

_MODULE = "bench.waiting"
_SERVERS = "bench.mesh"
WAITS = ("rows", "room")
_LONG_S = 3_600.0


def _read(target: str, readers: int, wait: str, protocol: str) -> None:
    data = ds.Dataset.range(1 << 16).repeat()
    if wait == "rows":
        data = data.map(_stall, schema=pa.schema({"id": pa.int64()}))
    data = data.batch(512)
    begun = threading.Barrier(readers + 1)

    def read() -> None:
        served = data.distribute(
            ds.ShardingPolicy.DYNAMIC,
            target,
            job_name="waiting",
            data_transfer_protocol=protocol,
        )
        with iter(served) as batches:
            if wait == "rows":
                begun.wait()
            next(batches)
            begun.wait()
            time.sleep(_LONG_S)

    for _ in range(readers):
        threading.Thread(target=read, daemon=True).start()
    begun.wait()
    children.say(readers=readers)
    threading.Event().wait()


def _stall(columns: dict[str, Any]) -> dict[str, Any]:
    time.sleep(_LONG_S)
    return columns


def measure(options: argparse.Namespace, wait: str) -> dict[str, Any]:
    """Measures the shares of a core that each kind of process takes."""
    with children.Children(options.deadline_s) as group:
        dispatcher = group.start(_SERVERS, ["dispatch"])
        target = dispatcher.line()["target"]
        counts = dealt(options.workers, options.processes)
        workers = [group.start(_SERVERS, ["work", target, str(count)]) for count in counts]
        for worker in workers:
            worker.line()
        counts = dealt(options.readers, options.processes)
        readers = [
            group.start(_MODULE, ["read", target, str(count), wait, options.protocol])
            for count in counts
        ]
        for reader in readers:
            reader.line()
        time.sleep(options.warm_up_s)
        kinds = {"dispatcher": [dispatcher], "worker": workers, "reader": readers}
        return {
            "bench": "waiting",
            "wait_for": wait,
            "protocol": options.protocol,
            "workers": options.workers,
            "readers": options.readers,
            **_cores(kinds, options.seconds),
        }


def _cores(kinds: dict[str, list[children.Child]], seconds: float) -> dict[str, float]:
    def cpu_s() -> dict[str, float]:
        return {kind: sum(each.cpu_s() for each in group) for kind, group in kinds.items()}

    began_s, before = time.perf_counter(), cpu_s()
    time.sleep(seconds)
    took_s, after = time.perf_counter() - began_s, cpu_s()
    return {f"{kind}_cores": round((after[kind] - before[kind]) / took_s, 4) for kind in kinds}


def _parser() -> argparse.ArgumentParser:
    parser = new_parser(_MODULE, __doc__)
    parser.add_argument("role", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument(
        "--workers", type=int, default=2, help="number of data workers (default: %(default)s)"
    )
    parser.add_argument(
        "--readers", type=int, default=100, help="number of readers (default: %(default)s)"
    )
    parser.add_argument(
        "--processes",
        type=int,
        default=2,
        help="number of processes for the workers, and as many for the readers (default: "
        "%(default)s)",
    )
    parser.add_argument(
        "--wait-for",
        choices=WAITS,
        nargs="*",
        default=WAITS,
        help="what is waited for (default: %(default)s)",
    )
    parser.add_argument(
        "--protocol",
        choices=DATA_TRANSFER_PROTOCOLS,
        default=DATA_TRANSFER_PROTOCOLS[0],
        help="how elements travel (default: %(default)s)",
    )
    add_common(parser, warm_up_s=10.0, seconds=20.0, deadline_s=300.0)
    return parser


def main(argv: list[str] | None = None) -> None:
    """Runs the command line."""
    options = _parser().parse_args(argv)
    if options.role:
        children.end_with_parent()
    match options.role:
        case ["read", target, readers, wait, protocol]:
            _read(target, int(readers), wait, protocol)
        case _:
            if options.smoke:
                options.workers, options.readers, options.processes = 2, 4, 1
                options.warm_up_s, options.seconds = 0.5, 1.0
            for wait in options.wait_for:
                children.say(**measure(options, wait))


if __name__ == "__main__":
    main()
