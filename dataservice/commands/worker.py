"""`dataservice worker`: runs a data worker, or with `--processes` several, a process for each."""

from __future__ import annotations

import argparse
import contextlib
from typing import Any, Final

from dataservice.commands.processes import run_processes
from dataservice.commands.serving import add_listener, security, serve
from dataservice.runtime.cores import limit_libraries
from dataservice.vocabulary import DATA_TRANSFER_PROTOCOLS

_TIMES: Final = {
    "heartbeat-interval": "least time between heartbeats (1 s)",
    "dispatcher-timeout": "how long it waits for a dispatcher that is down (3600 s)",
}


def add_parser(commands: Any) -> None:
    command = commands.add_parser("worker", help="run a data worker", allow_abbrev=False)
    add_listener(command)
    command.add_argument("--dispatcher", required=True, metavar="HOST:PORT", help="where it is")
    command.add_argument(
        "--worker-address",
        metavar="HOST:PORT",
        help="what readers connect to; %%port%% is the port",
    )
    command.add_argument(
        "--processes",
        type=positive,
        default=1,
        metavar="N",
        help="so many workers, for pipelines that hold Python's global lock",
    )
    command.add_argument("--log-dir", help="folder for the logs of --processes")
    command.add_argument("--threads", type=int, metavar="N", help="per pipeline")
    command.add_argument(
        "--data-transfer-protocol",
        choices=DATA_TRANSFER_PROTOCOLS,
        help="how readers on this host get elements (shared memory where that is possible)",
    )
    command.add_argument(
        "--buffer-bytes", type=int, metavar="N", help="of elements that wait for readers (64 MiB)"
    )
    command.add_argument(
        "--cross-trainer-cache-size-bytes",
        type=int,
        metavar="N",
        help="what a job keeps for slower trainers (10 GiB, or a quarter of the memory)",
    )
    command.add_argument(
        "--no-functions",
        dest="functions",
        action="store_false",
        help="refuse datasets that carry pickled functions",
    )
    for name, meaning in _TIMES.items():
        command.add_argument(f"--{name}-ms", type=int, metavar="MS", help=meaning)
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int | None:
    if options.processes > 1:
        return run_processes(options)
    limit_libraries()
    from dataservice.runtime.allocator import keep_freed_memory
    from dataservice.runtime.process import without_collection

    with without_collection():
        from dataservice.config import WorkerConfig
        from dataservice.worker.server import WorkerServer

    keep_freed_memory()
    config = WorkerConfig(
        dispatcher_address=options.dispatcher,
        worker_address=options.worker_address,
        port=options.port,
        host=options.host,
        heartbeat_interval_ms=options.heartbeat_interval_ms,
        dispatcher_timeout_ms=options.dispatcher_timeout_ms,
        data_transfer_protocol=options.data_transfer_protocol,
        threads=options.threads,
        allow_functions=options.functions,
        cross_trainer_cache_size_bytes=options.cross_trainer_cache_size_bytes,
        **({} if options.buffer_bytes is None else {"buffer_bytes": options.buffer_bytes}),
        **security(options),
    )
    serve(options, WorkerServer(config, start=False), lambda server: server.address)
    return None


def positive(text: str) -> int:
    with contextlib.suppress(ValueError):
        if (value := int(text)) >= 1:
            return value
    raise argparse.ArgumentTypeError(f"must be an integer of at least 1, got {text!r}")
