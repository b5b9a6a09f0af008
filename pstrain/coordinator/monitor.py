"""A monitor of a training cluster: its status as a page, as JSON and as metrics, read over HTTP.

Responsible for asking the coordinator and the parameter servers; knows nothing of HTTP. Invariant:
training never waits for a monitor, and a monitor waits a few seconds for the servers altogether.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from dataservice.runtime.monitoring.metrics import Metric
from dataservice.runtime.monitoring.monitor import HttpMonitor
from dataservice.runtime.monitoring.report import Block
from pstrain.coordinator.status import status_metrics, status_report
from pstrain.errors import DataServiceError, InvalidTypeError
from pstrain.strategy.parameter_server import ParameterServerStrategy

# Shorter than the time after which monitoring systems give up on a request.
_STATUS_TIMEOUT_S: Final = 3.0
# What a server gets at least, if others have used up that time.
_CALL_MIN_S: Final = 0.1
_MAX_CALLS: Final = 16


class MonitorServer(HttpMonitor):
    """Shows a strategy's cluster over HTTP, read-only, from its start until :meth:`stop`.

    ``/`` is a page for people, ``/status.json`` the same for scripts, ``/metrics`` is for
    Prometheus (with the extra ``pstrain[metrics]``), ``/healthz`` answers 200 while this program
    lives. All but ``/healthz`` ask for the token, by default the cluster's: as ``?token=`` once, or
    in the header ``Authorization: Bearer``. Shows closures and trainers once there is a
    coordinator. Thread-safe. Raises InvalidArgumentError for a host that the network can reach
    without TLS or ``insecure_network``.
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
            token=getattr(strategy.cluster_resolver, "token", None) if token is None else token,
            tls_cert_path=tls_cert_path,
            tls_key_path=tls_key_path,
            insecure_network=insecure_network,
            start=start,
        )


class _Cluster:
    """The cluster of a strategy, as the subject of a monitor."""

    title = "pstrain"
    is_remote = False

    def __init__(self, strategy: ParameterServerStrategy) -> None:
        self._strategy = strategy

    def status(self) -> dict[str, Any]:
        strategy, coordinator = self._strategy, self._strategy.coordinator
        addresses = strategy.parameters.addresses
        deadline_s = time.monotonic() + _STATUS_TIMEOUT_S

        def server(ps: int) -> dict[str, Any]:
            left_s = max(deadline_s - time.monotonic(), _CALL_MIN_S)
            return {"ps": ps, "address": addresses[ps], **self._holdings(ps, left_s)}

        with ThreadPoolExecutor(min(len(addresses), _MAX_CALLS), "monitor-asks") as pool:
            servers = list(pool.map(server, range(len(addresses))))
        return {
            "session": strategy.session,
            "consistency": str(strategy.consistency),
            "closures": None if coordinator is None else coordinator.stats(),
            "trainers": []
            if coordinator is None
            else [each._asdict() for each in coordinator.trainer_stats()],
            "servers": servers,
        }

    def _holdings(self, ps: int, timeout_s: float) -> dict[str, Any]:
        try:
            holds = self._strategy.parameters.status(ps, timeout_s=timeout_s)
        except DataServiceError as error:
            return {"holds": None, "error": str(error)}
        return {"holds": holds, "error": None}

    def report(self, status: dict[str, Any]) -> list[Block]:
        return status_report(status)

    def metrics(self, status: dict[str, Any] | None) -> list[Metric]:
        return [] if status is None else status_metrics(status)
