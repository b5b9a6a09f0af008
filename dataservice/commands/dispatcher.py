"""`dataservice dispatcher`: runs a dispatcher."""

from __future__ import annotations

import argparse
from typing import Any, Final

from dataservice.commands.serving import add_listener, security, serve

_TIMES: Final = {
    "worker-timeout": "silence after which a worker is taken for lost (10 s)",
    "client-timeout": "and a reader (60 s)",
    "owner-timeout": "how long a lost trainer's rows wait for its coordinator (60 s)",
    "job-gc-timeout": "jobs that nobody read for so long are deleted (300 s; -1: never)",
    "job-gc-check-interval": "how often such jobs are looked for (600 s)",
    "workers-enough-stay": "how long a number stays before --on-workers-enough is run (30 s)",
    "workers-enough-timeout": "after which that command is killed (60 s)",
}


def add_parser(commands: Any) -> None:
    command = commands.add_parser("dispatcher", help="run a dispatcher")
    add_listener(command)
    command.add_argument("--work-dir", help="folder of the journal")
    command.add_argument(
        "--fault-tolerant", action="store_true", help="survive restarts (needs --work-dir)"
    )
    command.add_argument(
        "--worker-addresses",
        nargs="+",
        metavar="HOST[:PORT]",
        help="fixed list of workers, in order, for static sharding; %%port%% is any port",
    )
    command.add_argument(
        "--on-workers-enough",
        metavar="CMD",
        help="run when another number of workers would be enough; $DATASERVICE_WORKERS_ENOUGH",
    )
    command.add_argument(
        "--worker-max-concurrent-snapshots",
        type=int,
        default=0,
        metavar="N",
        help="snapshots that one worker writes at a time (3)",
    )
    for name, meaning in _TIMES.items():
        command.add_argument(f"--{name}-ms", type=int, metavar="MS", help=meaning)
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    from dataservice.runtime.process import collect_seldom, without_collection

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
