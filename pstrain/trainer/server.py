"""The trainer's gRPC server.

Connects the rpcs of `service` to a port and to parameter servers; knows nothing of closures.
Invariant: once stopped, it holds neither its port nor a session.
"""

from __future__ import annotations

import dataclasses
import functools
import threading

from dataservice.runtime.addresses import format_address
from dataservice.runtime.auth import TlsConfig, resolve_token
from dataservice.runtime.rpc import RpcServer
from dataservice.runtime.threads import wait_until
from pstrain.compiling import prepare_kernels
from pstrain.config import ParameterConfig
from pstrain.sessions.presence import Presence
from pstrain.trainer.client import RemoteParameters
from pstrain.trainer.service import TrainerService
from pstrain.wire import trainer_pb2 as pb

_CONFIG_NAMES = tuple(field.name for field in dataclasses.fields(ParameterConfig))


class TrainerServer:
    """Serves one trainer at ``host:port`` (0: a free port). Idle until a coordinator connects.

    ``token`` None: the user's own token. ``tls``: the certificate that it shows to the coordinator,
    and the authority that it trusts for parameter servers. Raises AddressInUseError if the port is
    in use.
    """

    def __init__(
        self, host: str, port: int, *, token: str | None = None, tls: TlsConfig | None = None
    ) -> None:
        token = resolve_token(token)
        self.presence = Presence()
        self._service = TrainerService(functools.partial(_connect, token, tls), self.presence)
        self._server = RpcServer(host, port, token=token, tls=tls)
        self._server.add_service(pb.DESCRIPTOR.services_by_name["Trainer"], self._service)
        self._host = host
        self._stopped = threading.Event()

    @property
    def address(self) -> str:
        return format_address(self._host, self._server.port)

    def start(self) -> None:
        _import_packages()
        self._server.start()
        # The first step then finds its kernels compiled, or waits for the compilation under way.
        threading.Thread(target=prepare_kernels, name="kernel-warm-up", daemon=True).start()

    def join(self) -> None:
        """Blocks until :meth:`stop`."""
        wait_until(self._stopped.wait)

    def stop(self) -> None:
        """Frees the port; does not wait for a running closure. Idempotent."""
        self._service.close()
        self._server.stop()
        self._stopped.set()


def _import_packages() -> None:
    """Imports what closures are made of, while there are none.

    Closures that run at the same time would import parts of a package while others import the
    package, at which Python breaks one of the imports.
    """
    from pstrain import layers, metrics, models, optimizers  # noqa: F401


def _connect(token: str, tls: TlsConfig | None, request: pb.ConfigureRequest) -> RemoteParameters:
    given = request.parameters
    return RemoteParameters(
        list(request.ps_addresses),
        token=token,
        tls=tls,
        session=request.session,
        config=ParameterConfig(**{name: getattr(given, name) for name in _CONFIG_NAMES}),
        transport_dtype=request.transport_dtype,
    )
