"""`dataservice status`, `jobs`, `datasets`, `snapshots`: show what a dispatcher holds, and end it.

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
    """Adds the four commands."""
    _add_status(commands)
    _add_jobs(commands)
    _add_datasets(commands)
    _add_snapshots(commands)


def _add_status(commands: Any) -> None:
    command = commands.add_parser(
        "status",
        help="show workers, jobs and their progress",
        description="Show the workers, jobs, readers and snapshots of a dispatcher, how far each "
        "job is, and how many workers would be enough.",
    )
    _add_address(command)
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
    actions = _add_actions(commands, "jobs", "list or delete jobs")
    _add_list(actions, "list the jobs and their progress", "ListJobs", "jobs_text")
    deletion = actions.add_parser("delete", help="delete a job, which frees its name")
    _add_address(deletion)
    deletion.add_argument("name", metavar="NAME", help="name or id of the job")
    deletion.set_defaults(run=_delete_job)


def _add_datasets(commands: Any) -> None:
    actions = _add_actions(commands, "datasets", "list or delete datasets")
    _add_list(actions, "list the registered datasets", "ListDatasets", "datasets_text")
    deletion = actions.add_parser("delete", help="delete a dataset that no job reads")
    _add_address(deletion)
    deletion.add_argument("dataset_id", metavar="ID", help="id of the dataset")
    deletion.set_defaults(run=_delete_dataset)


def _add_snapshots(commands: Any) -> None:
    actions = _add_actions(commands, "snapshots", "list or cancel datasets that are being saved")
    _add_list(actions, "list the snapshots and their progress", "ListSnapshots", "snapshots_text")
    ending = actions.add_parser("cancel", help="cancel a snapshot that is being written")
    _add_address(ending)
    ending.add_argument("snapshot_id", metavar="ID", help="id of the snapshot")
    ending.set_defaults(run=_cancel_snapshot)


def _add_actions(commands: Any, name: str, meaning: str) -> Any:
    return commands.add_parser(name, help=meaning).add_subparsers(
        dest="action", required=True, metavar="ACTION"
    )


def _add_list(actions: Any, meaning: str, method: str, form: str) -> None:
    """Adds the action "list": calls `method` and prints what it tells by `status_text.form`."""
    listing = actions.add_parser("list", help=meaning)
    _add_address(listing)
    listing.set_defaults(run=lambda options: _list(options, method, form))


def _add_address(command: argparse.ArgumentParser) -> None:
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
    from dataservice.runtime.auth import client_tls, resolve_token
    from dataservice.runtime.rpc import RpcClient
    from dataservice.wire import dispatcher_pb2 as pb

    tls = client_tls(options.tls_ca)
    service = pb.DESCRIPTOR.services_by_name["Dispatcher"]
    request = getattr(pb, f"{method}Request")(**fields)
    with RpcClient(options.address, service, token=resolve_token(), tls=tls) as client:
        return client.call(method, request, timeout_s=_CALL_TIMEOUT_S)


def _status(options: argparse.Namespace) -> None:
    from dataservice.monitoring.status_text import status_text

    while True:
        text = call(options, "GetStatus").json
        print(text if options.json else status_text(text), flush=True)
        if options.watch is None:
            return
        time.sleep(options.watch)
        if not options.json:
            print(flush=True)


def _list(options: argparse.Namespace, method: str, form: str) -> None:
    from dataservice.monitoring import status_text

    text = call(options, method).json
    print(text if options.json else getattr(status_text, form)(text))


def _delete_job(options: argparse.Namespace) -> None:
    call(options, "DeleteJob", job_name=options.name)
    done = {"job": options.name, "deleted": True}
    print(json.dumps(done) if options.json else f"deleted job {options.name}")


def _delete_dataset(options: argparse.Namespace) -> None:
    call(options, "DeleteDataset", dataset_id=options.dataset_id)
    done = {"dataset_id": options.dataset_id, "deleted": True}
    print(json.dumps(done) if options.json else f"deleted dataset {options.dataset_id}")


def _cancel_snapshot(options: argparse.Namespace) -> None:
    call(options, "CancelSnapshot", snapshot_id=options.snapshot_id)
    done = {"snapshot_id": options.snapshot_id, "cancelled": True}
    print(json.dumps(done) if options.json else f"cancelled snapshot {options.snapshot_id}")
