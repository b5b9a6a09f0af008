"""`dataservice monitor`: shows a dispatcher over HTTP, to browsers and to Prometheus."""

from __future__ import annotations

import argparse
from typing import Any

from dataservice.commands.serving import add_listener, security, serve


def add_parser(commands: Any) -> None:
    command = commands.add_parser(
        "monitor",
        help="serve the status as a page and as metrics",
        description="Serve the status of a dispatcher over HTTP, read-only: / is a page, "
        "/status.json is for scripts, /metrics for Prometheus, /healthz for probes. All but "
        "/healthz ask for the token: as ?token= in the address, once, or as a bearer token.",
    )
    command.add_argument("address", metavar="HOST:PORT", help="address of the dispatcher")
    add_listener(command)
    command.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> None:
    from dataservice.monitoring.server import MonitorServer

    monitor = MonitorServer(
        options.address, host=options.host, port=options.port, start=False, **security(options)
    )
    serve(options, monitor, lambda server: server.url)
