"""`dataservice status`, `jobs` and `datasets`: show what a dispatcher holds, and delete from it.

Prints what the dispatcher reports; knows none of its state.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import threading
import time
from typing import Any, Final

_CALL_TIMEOUT_S: Final = 10.0


def add_parsers(commands: Any) -> None:
    """Adds the three commands."""
    _add_status(commands)
    _add_jobs(commands)
    _add_datasets(commands)


def _add_status(commands: Any) -> None:
    command = commands.add_parser(
        "status",
        help="show workers, jobs and their progress",
        description="Show the workers, jobs, readers and snapshots of a dispatcher, how far each "
        "job is, and how many workers would be enough.",
    )
    add_address(command)
    command.add_argument(
        "--watch",
        type=pause,
        nargs="?",
        const=2.0,
        metavar="SECONDS",
        help="show the status again every SECONDS, until Ctrl-C (default: 2)",
    )
    command.set_defaults(run=_status)


def pause(text: str) -> float:
    """Parses the seconds between two reports, an argument of the command line."""
    with contextlib.suppress(ValueError):
        if 0 < (value := float(text)) < threading.TIMEOUT_MAX:
            return value
    raise argparse.ArgumentTypeError(f"must be a number of seconds above 0, got {text!r}")


def _add_jobs(commands: Any) -> None:
    actions = commands.add_parser("jobs", help="list or delete jobs").add_subparsers(
        dest="action", required=True, metavar="ACTION"
    )
    listing = actions.add_parser("list", help="list the jobs and their progress")
    add_address(listing)
    listing.set_defaults(run=_list_jobs)
    deletion = actions.add_parser("delete", help="delete a job, which frees its name")
    add_address(deletion)
    deletion.add_argument("name", metavar="NAME", help="name or id of the job")
    deletion.set_defaults(run=_delete_job)


def _add_datasets(commands: Any) -> None:
    actions = commands.add_parser("datasets", help="list or delete datasets").add_subparsers(
        dest="action", required=True, metavar="ACTION"
    )
    listing = actions.add_parser("list", help="list the registered datasets")
    add_address(listing)
    listing.set_defaults(run=_list_datasets)
    deletion = actions.add_parser("delete", help="delete a dataset that no job reads")
    add_address(deletion)
    deletion.add_argument("dataset_id", metavar="ID", help="id of the dataset")
    deletion.set_defaults(run=_delete_dataset)


def add_address(command: argparse.ArgumentParser) -> None:
    """Adds the arguments of a command that calls a dispatcher."""
    command.add_argument("address", metavar="HOST:PORT", help="address of the dispatcher")
    command.add_argument("--json", action="store_true", help="print JSON, for scripts")
    command.add_argument(
        "--tls-ca",
        metavar="PEM",
        help="file of the CA certificates to trust; turns on TLS (default: the file in "
        "$DATASERVICE_TLS_CA)",
    )


def call(options: argparse.Namespace, method: str, **fields: Any) -> Any:
    """Makes one call to the dispatcher that the options name, and returns its reply."""
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
        text = call(options, "GetStatus").json
        print(text if options.json else status_text(text), flush=True)
        if options.watch is None:
            return
        time.sleep(options.watch)
        if not options.json:
            print(flush=True)


def _list_jobs(options: argparse.Namespace) -> None:
    from dataservice.dispatcher.report import jobs_text

    text = call(options, "ListJobs").json
    print(text if options.json else jobs_text(text))


def _delete_job(options: argparse.Namespace) -> None:
    call(options, "DeleteJob", job_name=options.name)
    done = {"job": options.name, "deleted": True}
    print(json.dumps(done) if options.json else f"deleted job {options.name}")


def _list_datasets(options: argparse.Namespace) -> None:
    from dataservice.dispatcher.report import datasets_text

    text = call(options, "ListDatasets").json
    print(text if options.json else datasets_text(text))


def _delete_dataset(options: argparse.Namespace) -> None:
    call(options, "DeleteDataset", dataset_id=options.dataset_id)
    done = {"dataset_id": options.dataset_id, "deleted": True}
    print(json.dumps(done) if options.json else f"deleted dataset {options.dataset_id}")
