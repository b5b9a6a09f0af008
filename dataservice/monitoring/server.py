"""A monitor of a dispatcher: its status as a page, as JSON and as metrics, read over HTTP.

Responsible for asking the dispatcher; knows nothing of HTTP. Invariant: a dispatcher that does not
answer is shown as such, and is asked again.
"""

from __future__ import annotations

import json
from typing import Any, Final

from dataservice.monitoring.status_metrics import status_metrics
from dataservice.monitoring.status_text import status_report
from dataservice.runtime.arguments import path_of
from dataservice.runtime.auth import client_tls, resolve_token
from dataservice.runtime.monitoring.metrics import Metric
from dataservice.runtime.monitoring.monitor import HttpMonitor
from dataservice.runtime.monitoring.report import Block
from dataservice.runtime.rpc import RpcClient
from dataservice.vocabulary import parse_target
from dataservice.wire import dispatcher_pb2 as pb

# Shorter than the time after which monitoring systems give up on a request.
_CALL_TIMEOUT_S: Final = 5.0


class MonitorServer(HttpMonitor):
    """Shows a dispatcher over HTTP, read-only, from its start until :meth:`stop`.

    ``/`` is a page for people, ``/status.json`` what ``dataservice status --json`` prints,
    ``/metrics`` is for Prometheus (with the extra ``pstrain[metrics]``), ``/healthz`` answers 200
    while the dispatcher answers. All but ``/healthz`` ask for the token: as ``?token=`` once, or in
    the header ``Authorization: Bearer``. ``tls_cert_path`` and ``tls_key_path`` turn on TLS here,
    ``tls_ca_path`` on the way to the dispatcher. Thread-safe. Raises InvalidArgumentError for a
    host that the network can reach without TLS or ``insecure_network``.
    """

    def __init__(
        self,
        dispatcher_address: str,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        tls_cert_path: str | None = None,
        tls_key_path: str | None = None,
        tls_ca_path: str | None = None,
        insecure_network: bool = False,
        start: bool = True,
    ) -> None:
        if tls_ca_path is not None:
            path_of(tls_ca_path, "tls_ca_path")
        self._dispatcher = _Dispatcher(dispatcher_address, token, tls_ca_path)
        super().__init__(
            self._dispatcher,
            host=host,
            port=port,
            token=token,
            tls_cert_path=tls_cert_path,
            tls_key_path=tls_key_path,
            insecure_network=insecure_network,
            start=start,
        )

    def stop(self) -> None:
        """Ends running requests, refuses further ones and frees the port. Idempotent."""
        # First, so that no request waits for a dispatcher that does not answer.
        self._dispatcher.close()
        super().stop()


class _Dispatcher:
    """The dispatcher at an address, as the subject of a monitor."""

    is_remote = True

    def __init__(self, address: str, token: str | None, tls_ca_path: str | None) -> None:
        tls = client_tls(tls_ca_path)
        service = pb.DESCRIPTOR.services_by_name["Dispatcher"]
        self._rpc = RpcClient(parse_target(address), service, token=resolve_token(token), tls=tls)
        self.title = f"dataservice at {self._rpc.address}"

    def status(self) -> dict[str, Any]:
        reply = self._rpc.call("GetStatus", pb.GetStatusRequest(), timeout_s=_CALL_TIMEOUT_S)
        return dict(json.loads(reply.json))

    def report(self, status: dict[str, Any]) -> list[Block]:
        return status_report(status)

    def metrics(self, status: dict[str, Any] | None) -> list[Metric]:
        return status_metrics(status)

    def close(self) -> None:
        self._rpc.close()
