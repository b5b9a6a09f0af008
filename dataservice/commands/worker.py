"""`dataservice worker`: runs a data worker, or with `--processes` several, a process for each."""

from __future__ import annotations

import argparse
import contextlib
from typing import Any, Final

from dataservice.commands.processes import run_processes
from dataservice.commands.serving import add_listener, add_times, security, serve
from dataservice.errors import InvalidArgumentError
from dataservice.runtime.machine.cores import limit_libraries
from dataservice.vocabulary import DATA_TRANSFER_PROTOCOLS

_TIMES: Final = {
    "heartbeat-interval": "shortest pause between two heartbeats (default: 1000)",
    "dispatcher-timeout": "how long to wait for a dispatcher that does not answer before giving up "
    "(default: 3600000)",
}


def add_parser(commands: Any) -> None:
    command = commands.add_parser(
        "worker",
        help="run a data worker",
        description="Run one or several data workers, which read and transform the rows that "
        "trainers read. They serve until the command gets SIGTERM or Ctrl-C.",
        allow_abbrev=False,
    )
    command.add_argument(
        "--dispatcher", required=True, metavar="HOST:PORT", help="address of the dispatcher"
    )
    command.add_argument(
        "--worker-address",
        metavar="HOST:PORT",
        help="address that readers connect to, where %%port%% stands for the port that is bound "
        "(default: the host and port that are bound; for 0.0.0.0 and ::, the name of this host)",
    )
    command.add_argument(
        "--processes",
        type=positive,
        default=1,
        metavar="N",
        help="number of workers, each in a process of its own; several speed up functions that "
        "hold Python's global interpreter lock (default: 1)",
    )
    command.add_argument(
        "--log-dir",
        metavar="DIR",
        help="folder for the logs of the workers of --processes, if there are several (default: "
        "no logs are kept)",
    )
    _add_pipelines(command)
    add_listener(command)
    add_times(command, _TIMES)
    command.set_defaults(run=run)


def _add_pipelines(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--threads",
        type=int,
        metavar="N",
        help="threads of each pipeline (default: the cores that this process may use)",
    )
    command.add_argument(
        "--data-transfer-protocol",
        choices=DATA_TRANSFER_PROTOCOLS,
        help="how readers on this host get elements (default: through shared memory where that is "
        "possible, else through Flight)",
    )
    command.add_argument(
        "--buffer-bytes",
        type=int,
        metavar="N",
        help="memory for elements that wait for readers (default: 67108864, which is 64 MiB)",
    )
    command.add_argument(
        "--cross-trainer-cache-size-bytes",
        type=int,
        metavar="N",
        help="memory for elements that a job with a cross-trainer cache keeps for slower trainers "
        "(default: 10 GiB, or a quarter of the memory if that is less)",
    )
    command.add_argument(
        "--no-functions",
        dest="functions",
        action="store_false",
        help="refuse datasets that carry pickled functions",
    )


def run(options: argparse.Namespace) -> int | None:
    if options.processes > 1:
        return run_processes(options)
    if options.log_dir is not None:
        raise InvalidArgumentError(
            f"--log-dir {options.log_dir} is for the logs of several workers: give --processes of "
            "2 or more, or redirect the output of this one"
        )
    limit_libraries()
    from dataservice.runtime.machine.allocator import keep_freed_memory
    from dataservice.runtime.process.children import without_collection

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
