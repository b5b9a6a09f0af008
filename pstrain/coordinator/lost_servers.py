"""Whether a parameter server is lost: gone, or started anew, which its incarnation tells.

Does nothing about it. Invariant: a server that is only slow is not lost, and one that another
coordinator has taken over is nobody's to replace.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from pstrain.errors import (
    AbortedError,
    DeadlineExceededError,
    ServerLostError,
    ServerRestartedError,
    UnavailableError,
)

_STATUS_TIMEOUT_S: Final = 5.0


class Asked(Protocol):
    """The strategy: its session and its servers."""

    session: str
    parameters: Any


class LostServers:
    """Those of one strategy. Not thread-safe."""

    def __init__(self, strategy: Asked) -> None:
        self._strategy = strategy
        self._incarnations: dict[int, str] = {}

    def forget(self) -> None:
        """Who is there from now on is not lost."""
        self._incarnations.clear()

    def find(self, noticed: bool) -> str | None:
        """What is wrong with the servers; None if nothing is.

        All are asked: where one was lost after another coordinator had taken over, that one's
        values are not to be replaced.
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
    """Whether an error says that a parameter server is not what it was."""
    return isinstance(error, ServerLostError | ServerRestartedError)
