"""How many DYNAMIC splits are leased per second, with the journal on, as their number grows?

Ours: a dispatcher process with its SQLite journal and, in a second process, workers that lease
through their real feeds (`LeaseFeed`, over gRPC) and readers that report every window as consumed.
The workers run no pipeline, so the figure is the rate at which the control plane gives out work
and records, durably, that it was done. There are two forms. With `files` the splits are small files
of unknown length, of which a plan puts up to 64 into one window. With `windows` every split is a
window of its own, the worst case. The splits are made up in the plan; no file is listed or opened.

Theirs (`--peer`, `bench.peers.tfdata_splits`): tf.data service, journal on, `range(n).batch(1024)`,
the lightest program in which every element is a split; a file name would cost it the same call. Its
worker runs a pipeline that only counts, and sends one element per 1,024 splits, so that handing out
splits takes most of the time there too. The second that an epoch takes to end is not counted.
Theirs records that splits were given out, ours also that they were consumed.

`--program` also runs the peer's program on ours, with a real worker and reader: the rows per second
of `range(n).batch(1024)`, for which ours leases windows of many rows.
Prints JSON lines: one per run, and with `--peer` one per ratio.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import dataservice as ds
from bench import systems
from bench.options import add_peer, new_parser
from bench.peers import children
from bench.peers.tfdata_splits import BATCH
from dataservice.client.connection import DispatcherConnection
from dataservice.client.pacing import GROUP_S
from dataservice.config import WorkerConfig
from dataservice.dispatcher.endpoint import DispatcherEndpoint
from dataservice.dispatcher.plans import WindowPlan
from dataservice.dispatcher.service import DispatcherService
from dataservice.runtime.auth import resolve_token
from dataservice.runtime.journal import SqliteJournal
from dataservice.runtime.rpc import RpcServer
from dataservice.sharding import Split, window_target_bytes, window_target_rows
from dataservice.split_table import SplitTable
from dataservice.vocabulary import ShardingPolicy
from dataservice.wire import dispatcher_pb2 as pb
from dataservice.worker.dispatcher_link import DispatcherLink, StreamLeases
from dataservice.worker.leases import Lease, LeaseFeed

_MODULE = "bench.leases"
_FORMS = ("files", "windows")
_TIMEOUT_S = 60.0
_AHEAD = 3
_DEADLINE_S = 180.0


def plan(form: str, count: int) -> WindowPlan:
    """Returns a plan of `count` splits."""
    if form == "windows":
        ranges = tuple(Split(start=row, stop=row + 1, rows=1) for row in range(count))
        return WindowPlan(splits=ranges, target_rows=1)
    files = SplitTable.of(
        Split(path=f"/data/clicks/day-01/part-{number:07}.csv", size_bytes=1_000, version="1")
        for number in range(count)
    )
    return WindowPlan(
        splits=files,
        target_rows=window_target_rows(None),
        target_bytes=window_target_bytes(files.total_unknown_bytes()),
    )


def _serve(options: argparse.Namespace) -> None:
    """Runs the dispatcher process: a whole dispatcher but for the listing of files."""
    splits = plan(options.forms, options.splits)
    service = DispatcherService(
        planner=lambda *_: splits,
        journal=SqliteJournal(Path(options.work_dir) / "journal.sqlite"),
    )
    server = RpcServer("127.0.0.1", 0, token=resolve_token(None))
    server.add_service(pb.DESCRIPTOR.services_by_name["Dispatcher"], DispatcherEndpoint(service))
    server.start()
    children.say(address=f"127.0.0.1:{server.port}")
    threading.Event().wait()


class Stream:
    """One worker's stream to one reader; it leases on one thread and reports on another."""

    def __init__(self, target: str, dataset_id: str, number: int) -> None:
        self.leased = 0
        self._link = DispatcherLink(
            WorkerConfig(dispatcher_address=target), token=resolve_token(None), tls=None
        )
        worker = self._link.register(f"worker-{number}:1", lambda: False).worker_id
        self._connection = DispatcherConnection(target)
        request = pb.OpenIterationRequest(
            dataset_id=dataset_id,
            policy=int(ShardingPolicy.DYNAMIC),
            job_name="leases",
            reader_id=f"reader-{number}",
        )
        self._joined = self._connection.open_iteration(request, timeout_s=_TIMEOUT_S)
        key = (self._joined.iteration_id, self._joined.reader_id)
        leases = StreamLeases(self._link, worker, *key)
        self._feed = LeaseFeed(
            lambda count, wait_s: leases.ask(count, wait_s, lambda: False),
            leases.give_back,
            ahead=_AHEAD,
            name="bench",
        )
        self._done: list[Lease] = []
        self._over = False
        self._lock = threading.Lock()

    def run(self) -> None:
        """Leases until nothing is left, and reports all windows as consumed."""
        reporter = threading.Thread(target=self._report)
        self._feed.start()
        reporter.start()
        while (lease := self._next()) is not None:
            self.leased += len(lease.splits)
            with self._lock:
                self._done.append(lease)
        self._over = True
        reporter.join(_TIMEOUT_S)
        self._link.close()
        self._connection.close()

    def _next(self) -> Lease | None:
        with self._feed.lock:
            while not self._feed.is_over_locked():
                lease = self._feed.take_locked()
                if lease is not None:
                    return lease
                self._feed.changed.wait(1.0)
            self._feed.raise_failure_locked()
            return None

    def _report(self) -> None:
        """Tells the dispatcher which windows were consumed, more often than a real reader does."""
        finished = False
        while not finished:
            with self._lock:
                done, self._done = self._done, []
            request = pb.SyncRequest(
                reader_id=self._joined.reader_id,
                iteration_id=self._joined.iteration_id,
                consumed=[
                    pb.Mark(window=lease.window, generation=lease.generation, row=1, final=True)
                    for lease in done
                ],
            )
            reply = self._connection.sync(request, timeout_s=_TIMEOUT_S, should_stop=lambda: False)
            finished = reply.iteration_finished or (self._over and not self._done)
            if not finished:
                time.sleep(GROUP_S / 10)


def measure(form: str, splits: int, workers: int) -> dict[str, Any]:
    """Runs ours once; returns the fields of the JSON line, with the size of the journal."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-leases-") as folder,
        children.Children(_DEADLINE_S) as group,
    ):
        arguments = ["--role", "dispatcher", "--work-dir", folder]
        arguments += ["--forms", form, "--splits", str(splits)]
        target = group.start(_MODULE, arguments).line()["address"]
        with DispatcherConnection(target) as connection:
            request = pb.RegisterDatasetRequest(plan=b"-", schema=b"-", compression="NONE")
            dataset_id = connection.register_dataset(request)
        streams = [Stream(target, dataset_id, number) for number in range(workers)]
        threads = [threading.Thread(target=each.run) for each in streams]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(_DEADLINE_S)
        seconds = time.perf_counter() - began
        journal_bytes = sum(file.stat().st_size for file in Path(folder).iterdir())
    leased = sum(each.leased for each in streams)
    if leased != splits:
        raise SystemExit(f"{leased} of {splits} splits were leased")
    return {
        "bench": "leases",
        "system": "dataservice",
        "form": form,
        "journal": True,
        "workers": workers,
        "splits": splits,
        "seconds": round(seconds, 4),
        "splits_per_s": round(splits / seconds),
        "journal_bytes": journal_bytes,
    }


def measure_program(rows: int, workers: int) -> dict[str, Any]:
    """Runs the peer's program on our whole service."""
    with systems.service(workers) as target:
        numbers = ds.Dataset.range(rows).batch(BATCH)
        began = time.perf_counter()
        with iter(numbers.distribute(ds.ShardingPolicy.DYNAMIC, target)) as batches:
            count = sum(batch.num_rows for batch in batches)
            seconds = time.perf_counter() - began
    return {
        "bench": "leases",
        "system": "dataservice, whole program",
        "workers": workers,
        "splits": count,
        "seconds": round(seconds, 4),
        "splits_per_s": round(count / seconds),
    }


def run(options: argparse.Namespace) -> None:
    """Runs all sizes, ours and theirs in turn."""
    for splits in options.splits:
        ours = {form: measure(form, splits, options.workers) for form in options.forms}
        for result in ours.values():
            children.say(**result)
        if options.program:
            children.say(**measure_program(splits, options.workers))
        if not options.peer:
            continue
        arguments = ["--splits", str(min(splits, options.peer_most))]
        arguments += ["--workers", str(options.workers)]
        theirs = children.run_peer(
            "bench.peers.tfdata_splits", arguments, peer_python=options.peer_python
        )
        children.say(**theirs)
        for form, result in ours.items():
            children.say(
                bench="leases",
                form=form,
                splits=splits,
                ratio=round(result["splits_per_s"] / theirs["splits_per_s"], 2),
                splits_per_s=result["splits_per_s"],
                peer_splits_per_s=theirs["splits_per_s"],
            )


def _parser() -> argparse.ArgumentParser:
    parser = new_parser(_MODULE, __doc__)
    parser.add_argument(
        "--splits",
        type=int,
        nargs="+",
        default=[1_000, 10_000, 50_000, 200_000],
        help="numbers of splits to measure (default: %(default)s)",
    )
    parser.add_argument(
        "--forms",
        nargs="+",
        choices=_FORMS,
        default=list(_FORMS),
        help="whether splits are small files, or windows of their own (default: %(default)s)",
    )
    parser.add_argument(
        "--workers", type=int, default=2, help="number of workers (default: %(default)s)"
    )
    parser.add_argument(
        "--program", action="store_true", help="also run the peer's program on our service"
    )
    add_peer(parser, "tf.data service")
    parser.add_argument(
        "--peer-most",
        type=int,
        default=50_000,
        help="largest number of splits to measure tf.data service with, which is slow (default: "
        "%(default)s)",
    )
    parser.add_argument("--role", choices=["dispatcher"], help=argparse.SUPPRESS)
    parser.add_argument("--work-dir", help=argparse.SUPPRESS)
    return parser


def main(argv: list[str] | None = None) -> None:
    """Runs the command line."""
    options = _parser().parse_args(argv)
    if options.role:
        children.end_with_parent()
        options.forms, options.splits = options.forms[0], options.splits[0]
        _serve(options)
        return
    if options.smoke:
        options.splits, options.peer_most = [500], 500
    if options.peer:
        options.peer_python = children.find_interpreter(options.peer_python)
    run(options)


if __name__ == "__main__":
    main()
