"""`dataservice snapshots`: lists the datasets being saved with their progress, and cancels one.

Prints what the dispatcher reports. Does not know how a call is made: the caller passes a function.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any


def add_snapshots(
    commands: Any,
    add_address: Callable[[argparse.ArgumentParser], None],
    call: Callable[..., Any],
) -> None:
    """Adds the command and its actions; `call(options, method, **fields)` calls the dispatcher."""
    actions = commands.add_parser(
        "snapshots", help="list or cancel datasets that are being saved"
    ).add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="list the snapshots and their progress")
    add_address(listing)
    listing.set_defaults(run=lambda options: _list(options, call))
    ending = actions.add_parser("cancel", help="cancel a snapshot that is being written")
    add_address(ending)
    ending.add_argument("snapshot_id", metavar="ID", help="id of the snapshot")
    ending.set_defaults(run=lambda options: _cancel(options, call))


def _list(options: argparse.Namespace, call: Callable[..., Any]) -> None:
    from dataservice.dispatcher.report import snapshots_text

    text = call(options, "ListSnapshots").json
    print(text if options.json else snapshots_text(text))


def _cancel(options: argparse.Namespace, call: Callable[..., Any]) -> None:
    call(options, "CancelSnapshot", snapshot_id=options.snapshot_id)
    done = {"snapshot_id": options.snapshot_id, "cancelled": True}
    print(json.dumps(done) if options.json else f"cancelled snapshot {options.snapshot_id}")
