"""A monitor of a training cluster: its status as a page, as JSON and as metrics, read over HTTP.

Responsible for asking the coordinator and the parameter servers; knows nothing of HTTP. Invariant:
training never waits for a monitor, and no server is waited for longer than a few seconds.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from dataservice.runtime.metrics import Metric
from dataservice.runtime.monitor import HttpMonitor
from dataservice.runtime.report import Block
from pstrain.coordinator.status import status_metrics, status_report
from pstrain.errors import DataServiceError, InvalidTypeError
from pstrain.strategy import ParameterServerStrategy

# Shorter than the time after which monitoring systems give up on a request.
_CALL_TIMEOUT_S: Final = 3.0
_MAX_CALLS: Final = 16


class MonitorServer(HttpMonitor):
    """Shows a strategy's cluster over HTTP, read-only, from its start until :meth:`stop`.

    ``/`` is a page for people, ``/status.json`` the same for scripts, ``/metrics`` is for
    Prometheus (with the extra ``pstrain[metrics]``), ``/healthz`` answers 200 while this program
    lives. All but ``/healthz`` ask for the token: as ``?token=`` once, or in the header
    ``Authorization: Bearer``. Shows closures and trainers once there is a coordinator. Thread-safe.
    Raises InvalidArgumentError for a host that the network can reach without TLS or
    ``insecure_network``.
    """

    def __init__(
        self,
        strategy: ParameterServerStrategy,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        tls_cert_path: str | None = None,
        tls_key_path: str | None = None,
        insecure_network: bool = False,
        start: bool = True,
    ) -> None:
        if not isinstance(strategy, ParameterServerStrategy):
            raise InvalidTypeError(
                "a MonitorServer shows the cluster of a pstrain.ParameterServerStrategy, got "
                f"{type(strategy).__name__}"
            )
        super().__init__(
            _Cluster(strategy),
            host=host,
            port=port,
            token=token,
            tls_cert_path=tls_cert_path,
            tls_key_path=tls_key_path,
            insecure_network=insecure_network,
            start=start,
        )


class _Cluster:
    """The cluster of a strategy, as the subject of a monitor."""

    title = "pstrain"

    def __init__(self, strategy: ParameterServerStrategy) -> None:
        self._strategy = strategy

    def status(self) -> dict[str, Any]:
        strategy, coordinator = self._strategy, self._strategy.coordinator
        addresses = strategy.parameters.addresses
        with ThreadPoolExecutor(min(len(addresses), _MAX_CALLS), "monitor-asks") as pool:
            servers = list(pool.map(self._server, range(len(addresses)), addresses))
        return {
            "session": strategy.session,
            "consistency": str(strategy.consistency),
            "closures": None if coordinator is None else coordinator.stats(),
            "trainers": []
            if coordinator is None
            else [each._asdict() for each in coordinator.trainer_stats()],
            "servers": servers,
        }

    def _server(self, ps: int, address: str) -> dict[str, Any]:
        described: dict[str, Any] = {"ps": ps, "address": address, "holds": None, "error": None}
        try:
            described["holds"] = self._strategy.parameters.status(ps, timeout_s=_CALL_TIMEOUT_S)
        except DataServiceError as error:
            described["error"] = str(error)
        return described

    def report(self, status: dict[str, Any]) -> list[Block]:
        return status_report(status)

    def metrics(self, status: dict[str, Any] | None) -> list[Metric]:
        return [] if status is None else status_metrics(status)
