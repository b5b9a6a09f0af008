"""Detects lost parameter servers: those that are gone, or started anew (another incarnation).

Does nothing about a loss. Invariant: a server that is only slow is not lost, and a server that
another coordinator has taken over is never replaced.
"""

from __future__ import annotations

from typing import Final

from pstrain.errors import (
    AbortedError,
    DeadlineExceededError,
    ServerLostError,
    ServerRestartedError,
    UnavailableError,
)
from pstrain.strategy import ParameterServerStrategy

_STATUS_TIMEOUT_S: Final = 5.0


class LostServers:
    """Detects the lost servers of one strategy. Not thread-safe."""

    def __init__(self, strategy: ParameterServerStrategy) -> None:
        self._strategy = strategy
        self._incarnations: dict[int, str] = {}

    def forget(self) -> None:
        """Forgets known incarnations: the servers that run from now on are not lost."""
        self._incarnations.clear()

    def find(self, noticed: bool) -> str | None:
        """Returns what is wrong with the servers; None if nothing is.

        Asks all servers, and raises AbortedError if another coordinator has taken one over, because
        its values must not be replaced. ``noticed``: a server's connection broke off.
        """
        lost = None
        for ps, address in enumerate(self._strategy.parameters.addresses):
            try:
                status = self._strategy.parameters.status(ps, timeout_s=_STATUS_TIMEOUT_S)
            except DeadlineExceededError:
                continue  # slow or frozen, which is not lost
            except UnavailableError:
                lost = lost or f"parameter server {ps} at {address} is gone"
                continue
            if status["session"] not in (None, self._strategy.session):
                raise AbortedError(
                    f"another coordinator has taken over parameter server {ps} at {address}"
                )
            known = self._incarnations.setdefault(ps, status["incarnation"])
            if status["session"] is None or status["incarnation"] != known:
                lost = lost or f"parameter server {ps} at {address} was started anew"
        return lost or ("a parameter server broke off" if noticed else None)


def is_server_loss(error: BaseException) -> bool:
    """True if an error says that a parameter server is gone or was started anew."""
    return isinstance(error, ServerLostError | ServerRestartedError)
