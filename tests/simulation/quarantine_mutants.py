"""Deliberate mistakes about windows that kill their workers, which the simulation must notice.

Importing this module adds them to those of `mutants`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dataservice.dispatcher import compaction, leasing, quarantine
from dataservice.dispatcher.service import DispatcherService
from dataservice.dispatcher.suspicion import Suspicions
from tests.simulation.mutants import Patch, mutant


@mutant("I10", "I11", poisoned=1.0)
def poisoned_windows_are_never_quarantined(patch: Patch) -> None:
    patch.setattr(Suspicions, "is_guilty", lambda _self, _window: False)


@mutant("I5", "I11", poisoned=1.0)
def suspect_windows_run_beside_others(patch: Patch) -> None:
    patch.setattr(Suspicions, "is_suspect", lambda _self, _window: False)


@mutant("I10", poisoned=1.0)
def workers_are_never_acquitted(patch: Patch) -> None:
    patch.setattr(quarantine, "acquit", lambda _state, _worker: leasing.Decision(()))


@mutant("I11", poisoned=1.0)
def any_call_of_a_worker_acquits_it(patch: Patch) -> None:
    original = DispatcherService._renew_worker

    def renew(self: Any, worker_id: Any) -> None:
        original(self, worker_id)
        self._commit(quarantine.acquit(self._state, worker_id))

    patch.setattr(DispatcherService, "_renew_worker", renew)


@mutant("I5", poisoned=1.0)
def compaction_forgets_suspicions(patch: Patch) -> None:
    original = compaction.image_of
    patch.setattr(compaction, "image_of", lambda table: replace(original(table), cases=()))
