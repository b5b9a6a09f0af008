"""``pstrain server``: runs one task of a cluster, named by TF_CONFIG or by options."""

from __future__ import annotations

import argparse
import logging
import os
import threading
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Final

from dataservice.runtime.machine.allocator import keep_freed_memory
from dataservice.runtime.machine.cores import limit_libraries
from dataservice.runtime.process.children import (
    announce_ready,
    exit_with_parent,
    without_collection,
)
from dataservice.runtime.process.signals import StopSignals
from pstrain.cluster import ClusterResolver, ClusterSpec, SimpleClusterResolver
from pstrain.config import COORDINATOR_GRACE_S
from pstrain.errors import InvalidArgumentError
from pstrain.resolvers.tf_config import TFConfigClusterResolver

if TYPE_CHECKING:
    from pstrain.server import Server

_POLL_S: Final = 0.5


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "server", help="run a trainer or a parameter server", description=__doc__
    )
    parser.add_argument(
        "--job",
        choices=("worker", "ps"),
        help="what to run: a trainer (worker) or a parameter server (ps) (default: from TF_CONFIG)",
    )
    parser.add_argument(
        "--index",
        type=int,
        metavar="N",
        help="index of the task in its job (default: from TF_CONFIG, or 0)",
    )
    parser.add_argument(
        "--host", help="address to listen on (default: the task's host in TF_CONFIG, or 127.0.0.1)"
    )
    parser.add_argument(
        "--port",
        type=int,
        help="port to listen on; 0 chooses a free one (default: the task's port in TF_CONFIG)",
    )
    _add_encryption(parser)
    parser.add_argument(
        "--exit-with-coordinator",
        nargs="?",
        type=float,
        const=COORDINATOR_GRACE_S,
        metavar="SECONDS",
        help="end with the coordinator's program: at once if the program ends without an error, "
        "otherwise when no program has been connected for SECONDS (default: "
        f"{COORDINATOR_GRACE_S:.0f}); give it to all servers of a cluster",
    )
    parser.add_argument(
        "--ready-json",
        action="store_true",
        help="print the address and pid as one line of JSON when the server is ready",
    )
    parser.set_defaults(run=run)


def _add_encryption(parser: argparse.ArgumentParser) -> None:
    tls = parser.add_argument_group("encryption, for all servers of a cluster or for none")
    tls.add_argument(
        "--tls-cert", metavar="PEM", help="file of the certificate to present; turns on TLS"
    )
    tls.add_argument("--tls-key", metavar="PEM", help="file of that certificate's private key")
    tls.add_argument(
        "--tls-ca",
        metavar="PEM",
        help="file of the CA certificates to trust in connections to parameter servers (default: "
        "the file in PSTRAIN_TLS_CA, or else those of the system)",
    )
    tls.add_argument(
        "--insecure-network",
        action="store_true",
        help="listen without TLS on an address that other hosts can reach",
    )


def run(args: argparse.Namespace) -> int:
    exit_with_parent()
    limit_libraries()
    keep_freed_memory()
    resolver = _resolver(args)
    with without_collection():
        server = _server(resolver, args)
    stop = StopSignals(once=True)
    if _has_started(server, stop):
        if args.ready_json:
            announce_ready(address=server.address, pid=os.getpid())
        else:
            print(f"{server.job_name}:{server.task_index} serves at {server.address}", flush=True)
        # A wait without a time-out would not wake for a signal that another thread received.
        while not stop.wait(_POLL_S) and not server.has_stopped:
            pass
        server.stop()
    # Threads of the transports can make the interpreter's shutdown slow, or abort it.
    logging.shutdown()
    os._exit(0)


def _has_started(server: Server, stop: StopSignals) -> bool:
    """Starts the server; False if a signal came first. Raises the error if it cannot start.

    The start has its own thread: callbacks from C load kernels, and Ctrl-C cannot interrupt them.
    """
    outcome: Future[None] = Future()

    def start() -> None:
        try:
            server.start()
        except BaseException as error:
            outcome.set_exception(error)
        else:
            outcome.set_result(None)

    threading.Thread(target=start, name="start", daemon=True).start()
    while not stop.is_set():
        if wait([outcome], timeout=_POLL_S).done:
            outcome.result()
            return True
    return False


def _server(resolver: ClusterResolver, args: argparse.Namespace) -> Server:
    # Importing kernels and transports takes a second, for which no other command should wait.
    from pstrain.server import Server

    return Server(
        resolver,
        args.job,
        args.index,
        host=args.host,
        port=args.port,
        insecure_network=args.insecure_network,
        tls_cert_path=args.tls_cert,
        tls_key_path=args.tls_key,
        tls_ca_path=args.tls_ca,
        exit_with_coordinator=(
            False if args.exit_with_coordinator is None else args.exit_with_coordinator
        ),
        start=False,
    )


def _resolver(args: argparse.Namespace) -> ClusterResolver:
    resolver = TFConfigClusterResolver()
    if resolver.cluster_spec():
        return resolver
    if args.job is None or args.port is None:
        raise InvalidArgumentError(
            "which task is this? set TF_CONFIG, or give --job, --port and, if not 0, --index"
        )
    address = f"{args.host or '127.0.0.1'}:{args.port}"
    return SimpleClusterResolver(
        ClusterSpec({args.job: {args.index or 0: address}}),
        task_type=args.job,
        task_id=args.index or 0,
    )
