"""`dataservice dispatcher`: runs a dispatcher."""

from __future__ import annotations

import argparse
from typing import Any, Final

from dataservice.commands.serving import add_listener, add_times, security, serve

_TIMES: Final = {
    "worker-timeout": "shortest silence after which a worker counts as lost (default: 10000)",
    "client-timeout": "shortest silence after which a reader counts as lost (default: 60000)",
    "owner-timeout": "how long the rows of a lost trainer wait for its coordinator to report which "
    "of them were used (default: 60000)",
    "job-gc-timeout": "how long a job may go unread before it is deleted; -1 keeps jobs for ever "
    "(default: 300000)",
    "job-gc-check-interval": "pause between two searches for unread jobs (default: 600000)",
    "workers-enough-stay": "how long the number of workers that would be enough must stay the same "
    "before --on-workers-enough runs (default: 30000)",
    "workers-enough-timeout": "run time after which the command of --on-workers-enough is killed "
    "(default: 60000)",
}


def add_parser(commands: Any) -> None:
    command = commands.add_parser(
        "dispatcher",
        help="run a dispatcher",
        description="Run a dispatcher, which hands out the work of each job to data workers. It "
        "serves until it gets SIGTERM or Ctrl-C.",
    )
    command.add_argument("--work-dir", metavar="DIR", help="folder to keep the journal in")
    command.add_argument(
        "--fault-tolerant",
        action="store_true",
        help="journal all decisions, and continue from the journal after a restart (needs "
        "--work-dir)",
    )
    command.add_argument(
        "--worker-addresses",
        nargs="+",
        metavar="HOST[:PORT]",
        help="fixed list of worker addresses, in order, among which static sharding divides the "
        "data; an address without a port, or with %%port%% as its port, stands for any port",
    )
    command.add_argument(
        "--on-workers-enough",
        metavar="CMD",
        help="shell command to run when another number of workers would be enough; it finds that "
        "number in $DATASERVICE_WORKERS_ENOUGH",
    )
    command.add_argument(
        "--worker-max-concurrent-snapshots",
        type=int,
        default=0,
        metavar="N",
        help="largest number of snapshots that one worker writes at a time (default: 3)",
    )
    add_listener(command)
    add_times(command, _TIMES)
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    from dataservice.runtime.process.children import collect_seldom, without_collection

    with without_collection():
        from dataservice.config import DispatcherConfig
        from dataservice.dispatcher.server import DispatchServer

    config = DispatcherConfig(
        port=options.port,
        host=options.host,
        work_dir=options.work_dir,
        fault_tolerant_mode=options.fault_tolerant,
        worker_addresses=options.worker_addresses,
        worker_max_concurrent_snapshots=options.worker_max_concurrent_snapshots,
        worker_timeout_ms=options.worker_timeout_ms,
        client_timeout_ms=options.client_timeout_ms,
        owner_timeout_ms=options.owner_timeout_ms,
        job_gc_timeout_ms=options.job_gc_timeout_ms,
        job_gc_check_interval_ms=options.job_gc_check_interval_ms,
        on_workers_enough=options.on_workers_enough,
        workers_enough_stay_ms=options.workers_enough_stay_ms,
        workers_enough_timeout_ms=options.workers_enough_timeout_ms,
        **security(options),
    )
    server = DispatchServer(config, start=False)
    collect_seldom()
    serve(options, server, lambda server: server.target)
