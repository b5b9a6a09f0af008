"""Has the parameter servers apply the rounds that were decided.

Owns one thread, which takes orders from the scheduler and tells it when all servers have done their
part. Takes no decisions. Invariant: rounds are applied in their order, each at every server that
holds a part of it, before its end is reported; an order may be sent again, a server obeys it once.
An order whose round was undone, because a server was lost, has no effect.
"""

from __future__ import annotations

import threading
from typing import Any

from dataservice.errors import DataServiceError
from pstrain.coordinator.orders import RoundOrder
from pstrain.coordinator.scheduler import Scheduler
from pstrain.coordinator.server_recovery import ServerRecovery
from pstrain.trainer.client import RemoteParameters


class RoundApplier:
    """Applies rounds in a thread that it owns from ``start`` until the scheduler has stopped."""

    def __init__(
        self, scheduler: Scheduler, servers: RemoteParameters, recovery: ServerRecovery
    ) -> None:
        self._scheduler = scheduler
        self._servers = servers
        self._recovery = recovery
        self._thread = threading.Thread(target=self._run, name="round-applier", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 2.0) -> None:
        """Waits at most ``timeout_s`` for the thread; call it after the scheduler was stopped."""
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while (order := self._scheduler.rounds.next_order()) is not None:
            if not self._scheduler.rounds.is_ordered(order):
                continue
            try:
                self._servers.exchange(messages_of(order))
            except DataServiceError as error:
                if not self._scheduler.rounds.is_ordered(order) or self._recovery.notice(error):
                    continue
                error.add_note(f"round {order.number} could not be applied at all servers")
                self._scheduler.stop(error)
                return
            self._scheduler.rounds.applied(order)


def messages_of(order: RoundOrder) -> dict[int, tuple[dict[str, Any], None]]:
    """Returns the message to each server that holds parts of the round."""
    gradients = sum(part.has_gradient for _, _, part in order.parts)
    held: dict[int, list[list[Any]]] = {}
    for closure, attempt, part in order.parts:
        for ps in part.servers:
            held.setdefault(ps, []).append([part.trainer_name, [closure, attempt, 0]])
    header = {"kind": "apply_round", "round": order.number, "gradients": gradients}
    return {ps: ({**header, "parts": parts}, None) for ps, parts in held.items()}
