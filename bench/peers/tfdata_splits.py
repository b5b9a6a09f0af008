"""How many DYNAMIC splits does tf.data service hand out per second?

Real processes on loopback: a dispatcher that journals (`fault_tolerant_mode`), the workers, and a
reader of `range(splits)`, in which every number is a split that a worker gets by a call of its own.
A batch carries 1,024 splits to the reader as one element, so that most of the time goes to handing
out splits. The second that an epoch needs to end is left out: the clock stops at the last element.
Run it with an interpreter that has TensorFlow; prints one JSON line.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from typing import Any

from bench.options import add_common, new_parser
from bench.peers import children

_MODULE = "bench.peers.tfdata_splits"
BATCH = 1_024


def _serve_dispatcher(options: argparse.Namespace) -> None:
    import tensorflow as tf

    service = tf.data.experimental.service
    config = service.DispatcherConfig(
        work_dir=options.work_dir, fault_tolerant_mode=bool(options.work_dir)
    )
    server = service.DispatchServer(config)
    children.say(service=server.target)
    threading.Event().wait()


def _serve_worker(options: argparse.Namespace) -> None:
    import tensorflow as tf

    service = tf.data.experimental.service
    address = options.service.split("://")[1]
    server = service.WorkerServer(service.WorkerConfig(dispatcher_address=address))
    children.say(ready=True)
    threading.Event().wait()
    del server


def _read(options: argparse.Namespace) -> None:
    import tensorflow as tf

    service = tf.data.experimental.service
    numbers = tf.data.Dataset.range(options.splits).batch(BATCH)
    distributed = numbers.apply(
        service.distribute(service.ShardingPolicy.DYNAMIC, options.service, compression=None)
    )
    count, last, began = 0, 0.0, time.perf_counter()
    for batch in distributed:
        count += int(batch.shape[0])
        last = time.perf_counter()
    children.say(splits=count, seconds=last - began, end_s=time.perf_counter() - last)


_ROLES = {"dispatcher": _serve_dispatcher, "worker": _serve_worker, "reader": _read}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Runs the whole service once; returns the fields of the JSON line."""
    with (
        tempfile.TemporaryDirectory(prefix="tfdata-splits-") as folder,
        children.Children(options.deadline_s) as group,
    ):
        journal = ["--work-dir", folder] if options.journal else []
        service = group.start(_MODULE, ["--role", "dispatcher", *journal]).line()["service"]
        joined = ["--service", service, "--splits", str(options.splits)]
        workers = [
            group.start(_MODULE, ["--role", "worker", *joined]) for _ in range(options.workers)
        ]
        for worker in workers:
            worker.line()
        result = group.start(_MODULE, ["--role", "reader", *joined]).line()
    return {
        "bench": "leases",
        "system": "tf.data service",
        "journal": options.journal,
        "workers": options.workers,
        "splits": result["splits"],
        "seconds": round(result["seconds"], 4),
        "splits_per_s": round(result["splits"] / result["seconds"]),
        "end_of_epoch_ms": round(result["end_s"] * 1_000, 1),
    }


def main(argv: list[str] | None = None) -> None:
    """Runs the command line; without `--role` as the parent that starts the other processes."""
    parser = new_parser(_MODULE, __doc__)
    parser.add_argument(
        "--splits", type=int, default=20_000, help="number of splits (default: %(default)s)"
    )
    parser.add_argument(
        "--workers", type=int, default=1, help="number of workers (default: %(default)s)"
    )
    parser.add_argument(
        "--journal",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="whether the dispatcher keeps a journal",
    )
    add_common(parser, deadline_s=180.0)
    parser.add_argument("--role", choices=sorted(_ROLES), help=argparse.SUPPRESS)
    parser.add_argument("--service", help=argparse.SUPPRESS)
    parser.add_argument("--work-dir", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    children.end_with_parent()
    if options.role:
        _ROLES[options.role](options)
        return
    if options.smoke:
        options.splits = 2_000
    children.say(**measure(options))


if __name__ == "__main__":
    main()
