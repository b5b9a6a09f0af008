"""What must hold of the rules of consistency besides what holds of all training.

C1, in rounds: a round is made with the same closures everywhere, in the order of closures, none in
two rounds, and the mean is over just those that gave a gradient; rounds are made in their order.
With no trainer to spare and none lost, the closures of a round ran on the trainers in their order,
whenever they came: the same program then deals the same work to the same places. C2, with bounded
staleness: nobody starts a closure while the slowest live trainer has ended so many fewer. C3: what
servers hold is exactly what the rounds come to, each a step with the mean of its gradients; and
where no trainer was lost and all change something, the rounds are those of a life without faults,
although servers were lost and everything went back.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pstrain.consistency import Ssp, Sync
from pstrain.coordinator import events as ev
from pstrain.coordinator.scheduler import Scheduler
from tests.simulation.shadow import Violation
from tests.simulation.training_cancels import HearingScheduler, OrderedCore
from tests.simulation.training_checker import TrainingChecker
from tests.simulation.training_values import check_values
from tests.simulation.world import STAGE


class ConsistencyChecker(TrainingChecker):
    """Watches what servers are told of rounds, and what the coordinator starts."""

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

    def books(self) -> dict[str, Any]:
        names = ("_gradients", "_members", "_round_of", "_newest")
        return {**super().books(), **{name: getattr(self, name) for name in names}}

    def use_up(self, rows: Iterable[int]) -> None:
        # What a round that is being undone would have used up goes back with everything else.
        if not STAGE.world.coordinator.recovery.is_restoring:
            super().use_up(rows)

    # Rounds, as servers make them

    def round_made(self, ps: int, request: dict[str, Any]) -> None:
        """A server obeyed an order, not for the first time perhaps."""
        number, gradients = request["round"], request["gradients"]
        closures = [key[0] for _, key in request["parts"]]
        if closures != sorted(set(closures)):
            raise Violation(f"C1: round {number} is made in the order {closures}")
        if self._gradients.setdefault(number, gradients) != gradients:
            raise Violation(f"C1: round {number} is the mean of several numbers of gradients")
        if number > self._newest.get(ps, -1):
            self._newest[ps] = number
        elif not set(closures) <= self._members.get(number, set()):
            # A late repeat has nothing that was not made.
            raise Violation(f"C1: server {ps} makes round {number} after {self._newest[ps]}")
        for closure in closures:
            if self._round_of.setdefault(closure, number) != number:
                known = self._round_of[closure]
                raise Violation(f"C1: closure {closure} is in rounds {known} and {number}")
        self._members.setdefault(number, set()).update(closures)

    def rounds_over(self, scheduler: Scheduler) -> None:
        """All is over: whoever was in a round with a gradient is counted in its mean."""
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
        # One that is lost when all is over is not put back.
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
        """For all that it has scheduled: a round that it left short is made as it is."""
        self._seals.add(len(self._queued))

    def decided(self, event: ev.Event) -> None:
        """A fact of the scheduler, before it holds."""
        match event:
            case ev.TrainerJoined():
                self._clocks[event.trainer] = min(self._clocks.values(), default=0)
            case ev.TrainerSilenced():
                self._clocks.pop(event.trainer, None)
                # When a server is lost, all trainers are let go, and some go by themselves.
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
                # Another closure takes its place, on whichever trainer is free.
                self._has_all &= self._running.pop(event.closure, None) is None
            case ev.ClosureCancelled() | ev.ClosureReturned() | ev.ClosureDropped():
                self._running.pop(event.closure, None)
            case ev.EndMet():
                self._meet_end(event)

    def _meet_end(self, event: ev.EndMet) -> None:
        """Another trainer takes its place, and nobody waits for its own, which may stand still."""
        trainer = self._running.pop(event.closure)
        self._has_all = False
        others = [clock for each, clock in self._clocks.items() if each != trainer]
        self._clocks[trainer] = max(self._clocks[trainer], min(others, default=0))

    def _start(self, event: ev.ClosureStarted) -> None:
        trainer = event.trainer
        begun = self._clocks[trainer] + sum(t == trainer for t in self._running.values())
        at_end: set[int] = set().union(*STAGE.world.coordinator.core.state.ends.values())
        waited_for = (clock for each, clock in self._clocks.items() if each not in at_end)
        ahead = begun - min(waited_for, default=begun)
        self.ran_on[event.closure] = trainer
        self._running[event.closure] = trainer
        if isinstance(self.rule, Ssp) and ahead > self.rule.staleness:
            raise Violation(f"C2: trainer {trainer} starts {ahead} closures ahead of the slowest")


class WatchedCore(OrderedCore):
    """The real one, with a witness."""

    def apply(self, decision: Any) -> None:
        for event in decision.events:
            STAGE.world.checker.decided(event)
        super().apply(decision)


class WatchedScheduler(HearingScheduler):
    """The real one, with a witness."""

    def wait_idle(self, timeout_s: float | None, *options: Any) -> None:
        STAGE.world.checker.program_waits()
        super().wait_idle(timeout_s, *options)


def rule_of(seed: int, kind: str, trainers: int) -> Any:
    """The rule that a seed is played under."""
    if kind == "ssp":
        return Ssp((0, 1, 3)[seed // 2 % 3])
    return Sync(min((0, 0, 1, 1, 2)[seed // 2 % 5], trainers - 1))
