"""Does one dispatcher hold thousands of workers and readers, and a million files?

The dispatcher is a real one (`DispatchServer`, its journal on) in a process of its own. The files
are real: hard links to a few small CSV files, which the dispatcher lists and plans as for any job.
Workers and readers are simulated (`bench.simulated_clients`) in a second process.

Four figures. Joining: how long it takes until all have joined, and the latency of all calls
meanwhile. Replies: the latency of all calls while every worker sends heartbeats and every reader
syncs at the interval that the dispatcher asks for, and `--active` readers consume windows. Restart:
the time from the start of a new dispatcher process, on the journal of one that was killed, until a
worker gets its first lease, and until all active readers have a reply again. Memory: the largest
resident size of each of the two dispatcher processes. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import dataservice as ds
from bench.options import new_parser
from bench.peers import children
from dataservice.client.connection import DispatcherConnection
from dataservice.config import DispatcherConfig, WorkerConfig
from dataservice.dispatcher.server import DispatchServer
from dataservice.runtime.auth import resolve_token
from dataservice.runtime.process.children import collect_seldom
from dataservice.vocabulary import ShardingPolicy
from dataservice.wire import dispatcher_pb2 as pb
from dataservice.worker.dispatcher_link import DispatcherLink

_MODULE = "bench.dispatcher"
_JOB = "all-files"
_TIMEOUT_S = 300.0
_DEADLINE_S = 900.0
# File systems allow about twice as many links to one file.
_LINKS_PER_FILE = 30_000
_FILES_PER_FOLDER = 10_000


def make_files(folder: Path, count: int) -> str:
    """Makes `count` small CSV files, as hard links; returns the glob that finds them."""
    for number in range(count):
        if number % _LINKS_PER_FILE == 0:
            origin = folder / f"origin-{number:07}"
            origin.write_text("user,clicks\n1,2\n")
        if number % _FILES_PER_FOLDER == 0:
            day = folder / f"day-{number // _FILES_PER_FOLDER:04}"
            day.mkdir()
        os.link(origin, day / f"part-{number:07}.csv")
    # Otherwise the journal's first commit would wait until all files have reached the disk.
    os.sync()
    return str(folder / "day-*" / "*.csv")


def _serve(options: argparse.Namespace) -> None:
    config = DispatcherConfig(
        port=options.port, work_dir=options.work_dir, fault_tolerant_mode=True
    )
    # `dataservice dispatcher` does the same.
    collect_seldom()
    server = DispatchServer(config)
    children.say(address=server.target)
    threading.Event().wait()


def _dispatcher(group: children.Children, port: int, work_dir: str) -> children.Child:
    arguments = ["--role", "dispatcher", "--port", str(port), "--work-dir", work_dir]
    return group.start(_MODULE, arguments)


class Prober:
    """One worker and one reader with the real clients, to find out when leases come."""

    def __init__(self, target: str, dataset_id: str) -> None:
        self._connection = DispatcherConnection(target)
        request = pb.OpenIterationRequest(
            dataset_id=dataset_id,
            policy=int(ShardingPolicy.DYNAMIC),
            job_name=_JOB,
            reader_id="prober",
        )
        began = time.perf_counter()
        self._joined = self._connection.open_iteration(request, timeout_s=_TIMEOUT_S)
        self.open_s = time.perf_counter() - began
        # Registered only after that: while the files are planned, nobody sends its heartbeats.
        config = WorkerConfig(dispatcher_address=target)
        self._link = DispatcherLink(config, token=resolve_token(None), tls=None)
        self._worker_id = self._link.register("prober:1", lambda: False).worker_id

    @property
    def iteration_id(self) -> str:
        """The iteration that the prober reads."""
        return str(self._joined.iteration_id)

    def lease(self) -> int:
        """Leases one window and returns its number of files; waits if the dispatcher is away."""
        while True:
            grant = self._link.lease(
                *(self._worker_id, self._joined.iteration_id, self._joined.reader_id),
                *(1, 1.0, lambda: False),
            )
            if grant.leases:
                return len(grant.leases[0].splits)
            if grant.ended:
                raise SystemExit("all files were read before the end; give more --files")

    def keep_alive(self) -> None:
        """Sends one heartbeat and one sync."""
        beat = pb.WorkerHeartbeatRequest(worker_id=self._worker_id)
        self._link.heartbeat(beat, lambda: False)
        sync = pb.SyncRequest(
            reader_id=self._joined.reader_id, iteration_id=self._joined.iteration_id
        )
        self._connection.sync(sync, timeout_s=_TIMEOUT_S, should_stop=lambda: False)

    def heartbeats(self) -> dict[str, Any]:
        """Returns the intervals and time-outs that are in force."""
        described: dict[str, Any] = self._connection.status()["heartbeats"]
        return described

    def close(self) -> None:
        """Closes both connections."""
        self._link.close()
        self._connection.close()


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Does the whole run, with its files in `folder`; returns the fields of the JSON line."""
    began = time.perf_counter()
    files, work_dir = folder / "files", folder / "journal"
    files.mkdir()
    pattern = make_files(files, options.files)
    made_s = time.perf_counter() - began
    port = children.free_ports(1)[0]
    with children.Children(_DEADLINE_S) as group:
        first = _dispatcher(group, port, str(work_dir))
        target = first.line()["address"]
        dataset = ds.Dataset.from_csv([pattern]).batch(1_024)
        dataset_id = ds.register_dataset(target, dataset, timeout_s=_TIMEOUT_S)
        prober = Prober(target, dataset_id)
        try:
            load = _load(group, target, dataset_id, prober.iteration_id, options)
            joined = _line_while_alive(load, prober)
            replies = _line_while_alive(load, prober)
            heartbeats = prober.heartbeats()
            memory = first.peak_memory_bytes()
            journal_bytes = sum(file.stat().st_size for file in work_dir.iterdir())
            first.kill()
            began = time.perf_counter()
            second = _dispatcher(group, port, str(work_dir))
            prober.lease()
            restart_s = time.perf_counter() - began
            again = load.line()
            return {
                "bench": "dispatcher",
                "workers": options.workers,
                "readers": options.readers,
                "active_readers": options.active,
                "files": options.files,
                "files_made_s": round(made_s, 1),
                "open_s": round(prober.open_s, 2),
                **joined,
                **replies,
                "heartbeat_interval_s": heartbeats["interval_s"],
                "worker_timeout_s": heartbeats["worker_timeout_s"],
                "restart_to_first_lease_s": round(restart_s, 2),
                "restart_to_active_answered_s": round(time.perf_counter() - began, 2),
                "noticed_the_restart": again["noticed"],
                "unanswered_after_restart": again["unanswered"],
                "errors_while_away": again["errors"],
                "journal_bytes": journal_bytes,
                "memory_mib": round(memory / 2**20),
                "memory_after_restart_mib": round(second.peak_memory_bytes() / 2**20),
                "load_average": os.getloadavg()[0],
            }
        finally:
            prober.close()


def _load(
    group: children.Children,
    target: str,
    dataset_id: str,
    iteration_id: str,
    options: argparse.Namespace,
) -> children.Child:
    arguments = ["--target", target.removeprefix("grpc://"), "--dataset-id", dataset_id]
    arguments += ["--iteration-id", iteration_id]
    for name in ("workers", "readers", "active", "seconds"):
        arguments += [f"--{name}", str(getattr(options, name))]
    return group.start("bench.simulated_clients", [*arguments, "--job-name", _JOB])


def _line_while_alive(child: children.Child, prober: Prober) -> dict[str, Any]:
    """Returns the child's next line; meanwhile the prober's worker and reader stay alive."""
    found: list[dict[str, Any]] = []
    waiting = threading.Thread(target=lambda: found.append(child.line()))
    waiting.start()
    while waiting.is_alive():
        prober.keep_alive()
        waiting.join(1.0)
    if not found:
        raise SystemExit("the simulated clients failed")
    return found[0]


def _parser() -> argparse.ArgumentParser:
    parser = new_parser(_MODULE, __doc__)
    parser.add_argument(
        "--workers",
        type=int,
        default=2_000,
        help="number of simulated workers (default: %(default)s)",
    )
    parser.add_argument(
        "--readers",
        type=int,
        default=2_000,
        help="number of simulated readers (default: %(default)s)",
    )
    parser.add_argument(
        "--active",
        type=int,
        default=100,
        help="number of readers that consume windows (default: %(default)s)",
    )
    parser.add_argument(
        "--files",
        type=int,
        default=1_000_000,
        help="number of files of the dataset (default: %(default)s)",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=20.0,
        help="seconds to measure replies for (default: %(default)s)",
    )
    parser.add_argument(
        "--dir", help="folder to make the files and the journal in (default: a temporary one)"
    )
    parser.add_argument("--role", choices=["dispatcher"], help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--work-dir", help=argparse.SUPPRESS)
    return parser


def main(argv: list[str] | None = None) -> None:
    """Runs the command line."""
    options = _parser().parse_args(argv)
    if options.role:
        children.end_with_parent()
        _serve(options)
        return
    if options.smoke:
        options.workers = options.readers = 20
        options.active, options.files, options.seconds = 5, 1_000, 0.5
    with tempfile.TemporaryDirectory(prefix="bench-dispatcher-", dir=options.dir) as folder:
        children.say(**measure(options, Path(folder)))


if __name__ == "__main__":
    main()
