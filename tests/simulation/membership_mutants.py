"""Deliberate mistakes about the liveness of clients, which the simulation must notice.

Importing this module adds them to those of `mutants`.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from dataservice.client.known_workers import KnownWorkers
from dataservice.dispatcher.presence import Presence
from dataservice.dispatcher.worker_set import WorkerSet
from tests.simulation.mutants import Patch, mutant


@mutant("I12", defences_off="intervals that fit into the configured time-outs")
def timeouts_ignore_heartbeat_intervals(patch: Patch) -> None:
    def interval_s(self: Presence) -> float:
        return 1.0 * (len(self._workers) + len(self._readers))

    patch.setattr(Presence, "interval_s", property(interval_s))
    for name in ("worker_timeout_s", "client_timeout_s"):
        patch.setattr(Presence, name, property(attrgetter(f"_{name}")))


@mutant("I10")
def worker_set_changes_omit_new_workers(patch: Patch) -> None:
    original = WorkerSet.since

    def since(self: WorkerSet, known: int, workers: Any) -> Any:
        update = original(self, known, workers)
        return update._replace(workers=()) if update.is_change else update

    patch.setattr(WorkerSet, "since", since)


@mutant("I10")
def readers_take_worker_set_changes_for_the_whole_set(patch: Patch) -> None:
    def apply(self: KnownWorkers, reply: Any) -> None:
        self.replace(reply.workers, reply.members_version)

    patch.setattr(KnownWorkers, "apply", apply)
