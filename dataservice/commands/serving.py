"""Running a server as a command: starts and announces it, and stops it on a signal.

The server also ends when its parent process does. Knows only `start`, `join` and `stop` of a
server. Invariant: the first SIGTERM or SIGINT ends the command in bounded time, even while the
server waits in `start`.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from dataservice.errors import CancelledError
from dataservice.runtime.process.signals import StopSignals

POLL_S: Final = 0.5
_STOP_TIMEOUT_S: Final = 5.0


class Server(Protocol):
    """A server; its `start` may block, until `stop` is called on another thread."""

    def start(self) -> None: ...

    def join(self) -> None: ...

    def stop(self) -> None: ...


def add_listener(command: argparse.ArgumentParser) -> None:
    listener = command.add_argument_group("network and encryption")
    listener.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)"
    )
    listener.add_argument(
        "--port",
        type=int,
        default=0,
        help="port to listen on; 0 chooses a free one (default: 0)",
    )
    listener.add_argument(
        "--tls-cert", metavar="PEM", help="file of the certificate to present; turns on TLS"
    )
    listener.add_argument("--tls-key", metavar="PEM", help="file of that certificate's private key")
    listener.add_argument(
        "--tls-ca",
        metavar="PEM",
        help="file of the CA certificates that a worker or a monitor trusts when it connects to "
        "its dispatcher (default: the file in $DATASERVICE_TLS_CA, else those of the system); a "
        "dispatcher makes no use of it",
    )
    listener.add_argument(
        "--insecure-network",
        action="store_true",
        help="listen without TLS on an address that other hosts can reach",
    )
    command.add_argument(
        "--ready-json",
        action="store_true",
        help="print the address as one line of JSON when the server is ready",
    )


def add_times(command: argparse.ArgumentParser, meanings: Mapping[str, str]) -> None:
    """Adds an option in milliseconds for each name of a time, with its meaning."""
    times = command.add_argument_group("times, in milliseconds")
    for name, meaning in meanings.items():
        times.add_argument(f"--{name}-ms", type=int, metavar="MS", help=meaning)


def security(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "tls_cert_path": options.tls_cert,
        "tls_key_path": options.tls_key,
        "tls_ca_path": options.tls_ca,
        "insecure_network": options.insecure_network,
    }


def serve(options: argparse.Namespace, server: Server, address_of: Callable[[Any], str]) -> None:
    """Runs a server until a signal comes or it stops by itself; raises the error that stopped it.

    Otherwise ends the process.
    """
    from dataservice.runtime.machine.open_files import allow_most_files
    from dataservice.runtime.process.children import exit_with_parent

    allow_most_files()
    stopping = StopSignals(once=True)
    exit_with_parent()
    ended = threading.Event()
    failures: list[BaseException] = []

    def live() -> None:
        try:
            server.start()
            announce(options, address_of(server))
            server.join()
        except BaseException as error:
            failures.append(error)
        ended.set()

    threading.Thread(target=live, name="server", daemon=True).start()
    while not ended.is_set() and not stopping.is_set():
        # A wait without a time-out would not wake for a signal that another thread received.
        ended.wait(POLL_S)
    server.stop()
    # A server that is stopped while it starts raises CancelledError, which is not worth showing.
    ended.wait(_STOP_TIMEOUT_S)
    if failures and not (stopping.is_set() and isinstance(failures[0], CancelledError)):
        raise failures[0]
    leave_process()


def leave_process() -> None:
    """Ends the process of a server that has stopped, without shutting down the interpreter.

    A shutdown takes seconds on a busy machine, and threads left by the transports can abort it.
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def announce(options: argparse.Namespace, *addresses: str) -> None:
    """Prints that everything serves; `address` in the JSON line is the first of `addresses`."""
    from dataservice.runtime.process.children import announce_ready

    if options.ready_json:
        announce_ready(address=addresses[0], addresses=addresses)
        return
    for address in addresses:
        print(f"{options.command} serves at {address}", flush=True)
