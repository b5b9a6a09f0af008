"""Checks the consistency rules, in addition to what must hold of all training.

C1, in rounds: every server makes a round with the same closures, in the order of closures; no
closure is in two rounds; the mean is over exactly the closures that gave a gradient; rounds are
made in order. With no backup trainers and none lost, the closures of a round ran on the trainers in
the order of these, whenever they joined, so the same program gives the same work to the same
places. C2, with bounded staleness: no trainer starts a closure while it is more than the staleness
ahead of the slowest live trainer. C3: servers hold exactly the result of the rounds, each a step
with the mean of its gradients. If no trainer was lost and all closures change something, the rounds
are those of a life without faults, although servers were lost and everything was restored.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pstrain.consistency import Ssp, Sync
from pstrain.coordinator import events as ev
from pstrain.coordinator.scheduler import Scheduler
from tests.simulation.shadow import Violation
from tests.simulation.training_cancels import OrderedCore
from tests.simulation.training_checker import TrainingChecker
from tests.simulation.training_values import check_values
from tests.simulation.world import STAGE


class ConsistencyChecker(TrainingChecker):
    """Watches the orders about rounds that servers get, and what the coordinator starts."""

    def __init__(self, seed: int, servers: int, rule: Any, trainers: int) -> None:
        super().__init__(seed, servers)
        self.rule, self.trainers = rule, trainers
        self.ran_on: dict[int, int] = {}
        self._gradients: dict[int, int] = {}
        self._members: dict[int, set[int]] = {}
        self._round_of: dict[int, int] = {}
        self._newest: dict[int, int] = {}
        self._queued: list[int] = []
        self._seals: set[int] = set()
        self._is_whole = self._has_all = True
        self._clocks: dict[int, int] = {}
        self._running: dict[int, int] = {}
        self._most = 0

    def books(self) -> dict[str, Any]:
        names = ("_gradients", "_members", "_round_of", "_newest")
        return {**super().books(), **{name: getattr(self, name) for name in names}}

    def use_up(self, rows: Iterable[int]) -> None:
        # During a restore, rows that a round would have used up are put back with everything else.
        if not STAGE.world.coordinator.recovery.is_restoring:
            super().use_up(rows)

    # Rounds, as servers make them

    def round_made(self, ps: int, request: dict[str, Any]) -> None:
        """Called when a server has made a round as ordered, perhaps not for the first time."""
        number, gradients = request["round"], request["gradients"]
        closures = [key[0] for _, key in request["parts"]]
        if closures != sorted(set(closures)):
            raise Violation(f"C1: round {number} is made in the order {closures}")
        if self._gradients.setdefault(number, gradients) != gradients:
            raise Violation(f"C1: round {number} is the mean of several numbers of gradients")
        if number > self._newest.get(ps, -1):
            self._newest[ps] = number
        elif not set(closures) <= self._members.get(number, set()):
            # A late repeat may hold only closures that were made before.
            raise Violation(f"C1: server {ps} makes round {number} after {self._newest[ps]}")
        for closure in closures:
            if self._round_of.setdefault(closure, number) != number:
                known = self._round_of[closure]
                raise Violation(f"C1: closure {closure} is in rounds {known} and {number}")
        self._members.setdefault(number, set()).update(closures)

    def rounds_over(self, scheduler: Scheduler) -> None:
        """Checks all rounds at the end: each mean counts exactly the closures with a gradient."""
        for number, members in self._members.items():
            if len(members) != self._gradients[number]:
                raise Violation(
                    f"C1: round {number} of {members} is a mean of {self._gradients[number]}"
                )
            if len(members) > self.trainers:
                raise Violation(f"C1: round {number} has {members}, of {self.trainers} trainers")
        made = {
            number: [(c, ps) for c in members for ps in self.places(("closure", c, 0))]
            for number, members in self._members.items()
        }
        session = STAGE.world.coordinator.parameters.session
        # A server that is lost after the end is not restored.
        stores = {
            ps: server.store
            for ps, server in enumerate(STAGE.world.servers)
            if server.session == session
        }
        check_values(stores, made, self._gradients)
        if self.rule.backup_workers:
            return
        if STAGE.world.coordinator.is_steady and self._is_whole:
            self._check_rounds()
        if scheduler.counts()["losses"] or not self._has_all:
            return
        for members in self._members.values():
            places = [self.ran_on[closure] for closure in sorted(members)]
            if places != sorted(set(places)):
                raise Violation(f"C1: the closures {sorted(members)} ran on {places}")

    def _check_rounds(self) -> None:
        made = [sorted(members) for _, members in sorted(self._members.items())]
        expected: list[list[int]] = [[]]
        for closure in self._queued:
            if len(expected[-1]) == self.trainers or (expected[-1] and closure in self._seals):
                expected.append([])
            expected[-1].append(closure)
        if made != expected:
            raise Violation(f"C3: the rounds are {made}, without faults they are {expected}")

    # What the program does, and what the coordinator decides

    def program_waits(self) -> None:
        """Called when the program waits for all that it has scheduled, which ends a short round."""
        self._seals.add(len(self._queued))

    def decided(self, event: ev.Event) -> None:
        """Called with a fact of the scheduler before it is applied."""
        self._most = max(self._most, *self._clocks.values(), 0)
        match event:
            case ev.TrainerJoined():
                self._clocks[event.trainer] = self._slowest()
            case ev.TrainerSilenced():
                self._clocks.pop(event.trainer, None)
                # When a server is lost, all trainers are released, and some leave by themselves.
                self._is_whole &= STAGE.world.coordinator.is_losing_server
            case ev.ClosureQueued():
                self._queued.append(event.closure)
            case ev.AbsentGivenUp():
                self._is_whole = self._has_all = False
            case ev.ClosureStarted():
                self._start(event)
            case ev.ClosureFinished() | ev.ClosureFailed():
                trainer = self._running.pop(event.closure, None)
                if trainer in self._clocks:
                    self._clocks[trainer] += 1
            case ev.ClosureCancelled() if event.reason is not ev.Reason.OTHERS:
                # Another closure takes its place in the round, on whichever trainer is free.
                self._has_all &= self._running.pop(event.closure, None) is None
            case ev.ClosureCancelled() | ev.ClosureReturned() | ev.ClosureDropped():
                self._running.pop(event.closure, None)
            case ev.EndMet():
                self._meet_end(event)
            case ev.TrainerLost() | ev.ErrorsReported():
                self._go_on(self._resting())

    def _resting(self) -> set[int]:
        """Returns trainers at the end of their data with nothing to run: nobody waits for them."""
        at_end = STAGE.world.coordinator.core.state.ends.trainers
        return at_end & self._clocks.keys() - set(self._running.values())

    def _slowest(self, but: int | None = None) -> int:
        left_out = {*self._resting(), but}
        counted = [clock for each, clock in self._clocks.items() if each not in left_out]
        return min(counted, default=self._most if self._clocks else 0)

    def _go_on(self, trainers: set[int]) -> None:
        """Handles resting trainers that may work again: they are not behind the others."""
        slowest = self._slowest()
        for trainer in trainers:
            self._clocks[trainer] = max(self._clocks[trainer], slowest)

    def _meet_end(self, event: ev.EndMet) -> None:
        """Handles a trainer without data: another takes its place, and no trainer waits for it."""
        trainer = self._running.pop(event.closure)
        self._has_all = False
        if self._clocks.keys() - self._resting() - {trainer}:
            self._clocks[trainer] = max(self._clocks[trainer], self._slowest(trainer))

    def _start(self, event: ev.ClosureStarted) -> None:
        trainer = event.trainer
        self._go_on({trainer} & self._resting())
        begun = self._clocks[trainer] + sum(t == trainer for t in self._running.values())
        ahead = begun - self._slowest()
        self.ran_on[event.closure] = trainer
        self._running[event.closure] = trainer
        if isinstance(self.rule, Ssp) and ahead > self.rule.staleness:
            raise Violation(f"C2: trainer {trainer} starts {ahead} closures ahead of the slowest")


class WatchedCore(OrderedCore):
    """The real core, which shows its facts to the checker."""

    def apply(self, events: ev.Events) -> None:
        for event in events:
            STAGE.world.checker.decided(event)
        super().apply(events)


class WatchedScheduler(Scheduler):
    """The real scheduler, which tells the checker when the program waits."""

    def wait_idle(self, timeout_s: float | None, *options: Any) -> None:
        STAGE.world.checker.program_waits()
        super().wait_idle(timeout_s, *options)


def rule_of(seed: int, kind: str, trainers: int) -> Any:
    """Returns the consistency rule of a seed."""
    if kind == "ssp":
        return Ssp((0, 1, 3)[seed // 2 % 3])
    return Sync(min((0, 0, 1, 1, 2)[seed // 2 % 5], trainers - 1))
