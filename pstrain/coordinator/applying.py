"""Has the parameter servers apply the rounds that were decided.

One thread, which takes orders as the scheduler decides and tells it when all servers have done
their part. Decides nothing. Invariant: rounds are applied in their order, each at every server that
holds a part of it, before anybody hears that it ended; an order may be repeated, a server obeys it
once. One whose round was undone, because a server was lost, comes to nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Protocol

from dataservice.errors import DataServiceError
from pstrain.coordinator.orders import RoundOrder
from pstrain.coordinator.scheduler import Scheduler


class RoundServers(Protocol):
    """The parameter servers, as far as rounds go."""

    def exchange(
        self, messages_by_ps: Mapping[int, tuple[dict[str, Any], Any]]
    ) -> Mapping[int, dict[str, Any]]:
        """One message to each of some servers, sent again where its reply may be lost."""


class Recovery(Protocol):
    """What is done about lost parameter servers."""

    def notice(self, error: Exception) -> bool:
        """Tells of an error; True if it is of a lost server, and is seen to."""


class RoundApplier:
    """Owns one thread from ``start`` until the scheduler has stopped."""

    def __init__(self, scheduler: Scheduler, servers: RoundServers, recovery: Recovery) -> None:
        self._scheduler = scheduler
        self._servers = servers
        self._recovery = recovery
        self._thread = threading.Thread(target=self._run, name="round-applier", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 2.0) -> None:
        """After the scheduler was stopped; waits at most ``timeout_s``."""
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while (order := self._scheduler.next_order()) is not None:
            if not self._scheduler.is_ordered(order):
                continue
            try:
                self._servers.exchange(messages_of(order))
            except DataServiceError as error:
                if not self._scheduler.is_ordered(order) or self._recovery.notice(error):
                    continue
                error.add_note(f"round {order.number} could not be applied at all servers")
                self._scheduler.stop(error)
                return
            self._scheduler.round_applied(order)


def messages_of(order: RoundOrder) -> dict[int, tuple[dict[str, Any], None]]:
    """What each server that holds parts of the round is told."""
    gradients = sum(part.has_gradient for _, _, part in order.parts)
    held: dict[int, list[list[Any]]] = {}
    for closure, attempt, part in order.parts:
        for ps in part.servers:
            held.setdefault(ps, []).append([part.trainer_name, [closure, attempt, 0]])
    header = {"kind": "apply_round", "round": order.number, "gradients": gradients}
    return {ps: ({**header, "parts": parts}, None) for ps, parts in held.items()}
