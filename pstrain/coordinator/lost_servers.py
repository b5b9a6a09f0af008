"""Detects lost parameter servers: those that are gone, or started anew (another incarnation).

Does nothing about a loss. Invariant: a server that is only slow is not lost, and a server that
another coordinator has taken over is never replaced.
"""

from __future__ import annotations

from pstrain.errors import (
    AbortedError,
    DeadlineExceededError,
    ServerLostError,
    ServerRestartedError,
    UnavailableError,
)
from pstrain.strategy.parameter_server import ParameterServerStrategy
from pstrain.trainer.server_identities import Identity, ServerIdentities


class LostServers:
    """Detects the lost servers of one strategy. Not thread-safe; owns connections until `close`."""

    def __init__(self, strategy: ParameterServerStrategy) -> None:
        self._strategy = strategy
        servers = strategy.parameters
        self._servers = ServerIdentities(servers.open_identity_stream, len(servers.addresses))
        self._incarnations: dict[int, str] = {}

    def forget(self) -> None:
        """Forgets known incarnations: the servers that run from now on are not lost."""
        self._incarnations.clear()
        self._servers.forget()

    def close(self) -> None:
        """Closes all connections. Idempotent."""
        self._servers.close()

    def find(self, noticed: bool) -> str | None:
        """Returns what is wrong with the servers; None if nothing is.

        Asks all servers, and raises AbortedError if another coordinator has taken one over, because
        its values must not be replaced. ``noticed``: a server's connection broke off.
        """
        found = [self._fault(ps, answer) for ps, answer in sorted(self._servers.ask().items())]
        lost = next((fault for fault in found if fault is not None), None)
        return lost or ("a parameter server broke off" if noticed else None)

    def _fault(self, ps: int, answer: Identity | Exception) -> str | None:
        place = f"parameter server {ps} at {self._strategy.parameters.addresses[ps]}"
        match answer:
            case DeadlineExceededError():
                return None  # slow or frozen, which is not lost
            case UnavailableError():
                return f"{place} is gone"
            case Exception():
                raise answer
        if answer.session not in (None, self._strategy.session):
            raise AbortedError(f"another coordinator has taken over {place}")
        known = self._incarnations.setdefault(ps, answer.incarnation)
        is_known = answer.session is not None and answer.incarnation == known
        return None if is_known else f"{place} was started anew"


def is_server_loss(error: BaseException) -> bool:
    """True if an error says that a parameter server is gone or was started anew."""
    return isinstance(error, ServerLostError | ServerRestartedError)
