"""The command line of the data service: run its servers, look at them, tidy up.

Parses arguments and prints; everything else is done by the parts it calls. Errors that a user can
act on end with one line on standard error and exit status 2.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, Final

from dataservice.commands.snapshots import add_snapshots
from dataservice.errors import DataServiceError, InvalidArgumentError

EXIT_ERROR: Final = 2
_CALL_TIMEOUT_S: Final = 10.0
_READY_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.5
_ACTIONS: Final = ("list", "delete", "cancel")
_GROUPS: Final = ("jobs", "datasets", "snapshots")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = _parser().parse_args(_action_first(arguments))
    options.arguments = arguments
    logging.basicConfig(
        level=options.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    try:
        return int(options.run(options) or 0)
    except DataServiceError as error:
        print(f"dataservice: {error}", file=sys.stderr)
        return EXIT_ERROR
    except KeyboardInterrupt:
        return 0
    except BrokenPipeError:
        # The reader of a pipe, such as `head`, has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _action_first(arguments: Sequence[str]) -> list[str]:
    """Also `jobs HOST:PORT list` is understood, as `jobs list HOST:PORT`."""
    words = list(arguments)
    for index, (group, first, second) in enumerate(zip(words, words[1:], words[2:], strict=False)):
        if group in _GROUPS and second in _ACTIONS and ":" in first:
            words[index + 1 : index + 3] = second, first
            break
    return words


# Servers


def _run_dispatcher(options: argparse.Namespace) -> None:
    from dataservice.config import DispatcherConfig
    from dataservice.dispatcher.server import DispatchServer

    config = DispatcherConfig(
        port=options.port,
        host=options.host,
        work_dir=options.work_dir,
        fault_tolerant_mode=options.fault_tolerant,
        worker_addresses=options.worker_addresses,
        worker_timeout_ms=options.worker_timeout_ms,
        client_timeout_ms=options.client_timeout_ms,
        job_gc_timeout_ms=options.job_gc_timeout_ms,
        job_gc_check_interval_ms=options.job_gc_check_interval_ms,
        on_workers_enough=options.on_workers_enough,
        workers_enough_stay_ms=options.workers_enough_stay_ms,
        workers_enough_timeout_ms=options.workers_enough_timeout_ms,
        **_security(options),
    )
    _serve(options, lambda: DispatchServer(config), lambda server: server.target)


def _run_worker(options: argparse.Namespace) -> int | None:
    if options.processes > 1:
        return _run_worker_processes(options)
    from dataservice.config import WorkerConfig
    from dataservice.worker.server import WorkerServer

    config = WorkerConfig(
        dispatcher_address=options.dispatcher,
        worker_address=options.worker_address,
        port=options.port,
        host=options.host,
        heartbeat_interval_ms=options.heartbeat_interval_ms,
        dispatcher_timeout_ms=options.dispatcher_timeout_ms,
        threads=options.threads,
        allow_functions=options.functions,
        cross_trainer_cache_size_bytes=options.cross_trainer_cache_size_bytes,
        **({} if options.buffer_bytes is None else {"buffer_bytes": options.buffer_bytes}),
        **_security(options),
    )
    _serve(options, lambda: WorkerServer(config), lambda server: server.address)
    return None


def _security(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "tls_cert_path": options.tls_cert,
        "tls_key_path": options.tls_key,
        "tls_ca_path": options.tls_ca,
        "insecure_network": options.insecure_network,
    }


def _serve(
    options: argparse.Namespace, make: Callable[[], Any], address_of: Callable[[Any], str]
) -> None:
    """Runs a server until a signal comes or it stops by itself."""
    from dataservice.runtime.process import exit_with_parent

    stopping = _catch_signals()
    exit_with_parent()
    with make() as server:
        _announce(options, address_of(server))
        # `join` raises what a server stopped for, which the context would hide.
        joined = threading.Event()
        failure: list[DataServiceError] = []
        threading.Thread(
            target=_join, args=(server, joined, failure), name="join", daemon=True
        ).start()
        while not stopping.wait(_POLL_S) and not joined.is_set():
            pass
    if failure:
        raise failure[0]
    _leave_process()


def _leave_process() -> None:
    """Ends a server's process that has stopped, without taking the interpreter down.

    That takes seconds on a busy machine, and threads that the transports keep can abort it.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _join(server: Any, joined: threading.Event, failure: list[DataServiceError]) -> None:
    try:
        server.join()
    except DataServiceError as error:
        failure.append(error)
    joined.set()


def _announce(options: argparse.Namespace, *addresses: str) -> None:
    """Says that all is up; `address` in the JSON line is the first of `addresses`."""
    from dataservice.runtime.process import announce_ready

    if options.ready_json:
        announce_ready(address=addresses[0], addresses=addresses)
        return
    for address in addresses:
        print(f"{options.command} serves at {address}", flush=True)


def _catch_signals() -> threading.Event:
    """An event that SIGTERM and SIGINT set; a second signal ends the process at once."""
    stopping = threading.Event()

    def on_signal(number: int, _frame: FrameType | None) -> None:
        stopping.set()
        signal.signal(number, signal.SIG_DFL)

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    return stopping


def _run_worker_processes(options: argparse.Namespace) -> int:
    """Runs several workers, each a process of its own, until one ends or a signal comes."""
    from dataservice.runtime.process import exit_with_parent, spawn_module

    if options.port:
        raise InvalidArgumentError(
            f"--port {options.port} cannot be shared by {options.processes} processes; leave it "
            "out, or start the workers one by one"
        )
    stopping = _catch_signals()
    exit_with_parent()
    arguments = [*_without_processes(options.arguments), "--ready-json"]
    children = []
    try:
        for index in range(options.processes):
            log_path = options.log_dir and os.path.join(options.log_dir, f"worker-{index}.log")
            children.append(spawn_module("dataservice", arguments, log_path=log_path))
        _announce(options, *(child.wait_ready(_READY_TIMEOUT_S)["address"] for child in children))
        while not stopping.wait(_POLL_S):
            ended = [child for child in children if child.returncode is not None]
            if ended:
                print(f"dataservice: worker process {ended[0].pid} ended", file=sys.stderr)
                return EXIT_ERROR
        return 0
    finally:
        for child in children:
            child.request_stop()
        for child in children:
            child.terminate()


def _without_processes(arguments: Sequence[str]) -> list[str]:
    """The same command line for one worker."""
    kept: list[str] = []
    skip = False
    for argument in arguments:
        if not skip and argument not in ("--processes", "--ready-json"):
            kept.extend([] if argument.startswith("--processes=") else [argument])
        skip = not skip and argument == "--processes"
    return kept


# Looking at a dispatcher


def _call(options: argparse.Namespace, method: str, **fields: Any) -> Any:
    """One call to the dispatcher that the options name."""
    from dataservice.client.connection import tls_from_environment
    from dataservice.runtime.auth import TlsConfig, resolve_token
    from dataservice.runtime.rpc import RpcClient
    from dataservice.wire import dispatcher_pb2 as pb

    tls = TlsConfig.of(None, None, options.tls_ca) or tls_from_environment()
    service = pb.DESCRIPTOR.services_by_name["Dispatcher"]
    request = getattr(pb, f"{method}Request")(**fields)
    with RpcClient(options.address, service, token=resolve_token(), tls=tls) as client:
        return client.call(method, request, timeout_s=_CALL_TIMEOUT_S)


def _status(options: argparse.Namespace) -> None:
    from dataservice.dispatcher.report import status_text

    while True:
        text = _call(options, "GetStatus").json
        print(text if options.json else status_text(text), flush=True)
        if options.watch is None:
            return
        time.sleep(options.watch)
        if not options.json:
            print(flush=True)


def _list_jobs(options: argparse.Namespace) -> None:
    from dataservice.dispatcher.report import jobs_text

    text = _call(options, "ListJobs").json
    print(text if options.json else jobs_text(text))


def _delete_job(options: argparse.Namespace) -> None:
    _call(options, "DeleteJob", job_name=options.name)
    print(f"deleted job {options.name}")


def _list_datasets(options: argparse.Namespace) -> None:
    from dataservice.dispatcher.report import datasets_text

    text = _call(options, "ListDatasets").json
    print(text if options.json else datasets_text(text))


def _delete_dataset(options: argparse.Namespace) -> None:
    _call(options, "DeleteDataset", dataset_id=options.dataset_id)
    print(f"deleted dataset {options.dataset_id}")


# Arguments


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="dataservice",
        allow_abbrev=False,
        description="A distributed input service: one dispatcher, many data workers.",
        epilog="Servers and clients of one user find their token by themselves; across users or "
        "machines, set DATASERVICE_TOKEN or DATASERVICE_TOKEN_FILE.",
    )
    parser.add_argument(
        "--log-level", default="info", choices=["debug", "info", "warning", "error"]
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_dispatcher(commands)
    _add_worker(commands)
    _add_status(commands)
    _add_jobs(commands)
    _add_datasets(commands)
    add_snapshots(commands, _add_address, _call)
    return parser


def _add_dispatcher(commands: Any) -> None:
    command = commands.add_parser("dispatcher", help="run a dispatcher")
    _add_listener(command)
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
    for name in (
        "--worker-timeout-ms",
        "--client-timeout-ms",
        "--job-gc-timeout-ms",
        "--job-gc-check-interval-ms",
        "--workers-enough-stay-ms",
        "--workers-enough-timeout-ms",
    ):
        command.add_argument(name, type=int, metavar="MS")
    command.set_defaults(run=_run_dispatcher)


def _add_worker(commands: Any) -> None:
    command = commands.add_parser("worker", help="run a data worker", allow_abbrev=False)
    _add_listener(command)
    command.add_argument("--dispatcher", required=True, metavar="HOST:PORT")
    command.add_argument(
        "--worker-address",
        metavar="HOST:PORT",
        help="what readers connect to; %%port%% is the port",
    )
    command.add_argument("--processes", type=_positive, default=1, metavar="N")
    command.add_argument("--log-dir", help="folder for the logs of --processes")
    command.add_argument("--threads", type=int, metavar="N", help="per pipeline")
    command.add_argument("--buffer-bytes", type=int, metavar="N")
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
    command.add_argument("--heartbeat-interval-ms", type=int, metavar="MS")
    command.add_argument("--dispatcher-timeout-ms", type=int, metavar="MS")
    command.set_defaults(run=_run_worker)


def _add_listener(command: argparse.ArgumentParser) -> None:
    command.add_argument("--host", default="127.0.0.1")
    command.add_argument("--port", type=int, default=0, help="0 takes a free one")
    command.add_argument("--tls-cert", metavar="PEM")
    command.add_argument("--tls-key", metavar="PEM")
    command.add_argument("--tls-ca", metavar="PEM", help="trusted for connections to others")
    command.add_argument(
        "--insecure-network",
        action="store_true",
        help="allow a host that others can reach, without TLS",
    )
    command.add_argument(
        "--ready-json", action="store_true", help="print one JSON line once it serves"
    )


def _add_status(commands: Any) -> None:
    command = commands.add_parser("status", help="show workers, jobs and progress")
    _add_address(command)
    command.add_argument(
        "--watch",
        type=float,
        nargs="?",
        const=2.0,
        metavar="SECONDS",
        help="again every SECONDS (2)",
    )
    command.set_defaults(run=_status)


def _add_jobs(commands: Any) -> None:
    actions = commands.add_parser("jobs", help="list or delete jobs").add_subparsers(
        dest="action", required=True, metavar="ACTION"
    )
    listing = actions.add_parser("list", help="list jobs")
    _add_address(listing)
    listing.set_defaults(run=_list_jobs)
    deletion = actions.add_parser("delete", help="delete a job, so that its name is free again")
    _add_address(deletion)
    deletion.add_argument("name", help="name or id of the job")
    deletion.set_defaults(run=_delete_job)


def _add_datasets(commands: Any) -> None:
    actions = commands.add_parser("datasets", help="list or delete datasets").add_subparsers(
        dest="action", required=True, metavar="ACTION"
    )
    listing = actions.add_parser("list", help="list datasets")
    _add_address(listing)
    listing.set_defaults(run=_list_datasets)
    deletion = actions.add_parser("delete", help="delete a dataset that no job reads")
    _add_address(deletion)
    deletion.add_argument("dataset_id", help="id of the dataset")
    deletion.set_defaults(run=_delete_dataset)


def _add_address(command: argparse.ArgumentParser) -> None:
    command.add_argument("address", metavar="HOST:PORT", help="of the dispatcher")
    command.add_argument("--json", action="store_true", help="for scripts")
    command.add_argument("--tls-ca", metavar="PEM", help="trusted for the connection")


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


if __name__ == "__main__":
    sys.exit(main())
