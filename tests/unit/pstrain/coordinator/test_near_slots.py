"""Trainers that `ssp` lets start closures, while they join, leave, work and catch up."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pstrain.coordinator.clocks import Clocks
from pstrain.coordinator.near_slots import NearSlots

STALENESS = 2
SLOTS_MAX = 4


class NearSlotsMachine(RuleBasedStateMachine):
    """A comparison of ``NearSlots`` with one that looks at all trainers."""

    def __init__(self) -> None:
        super().__init__()
        self.clocks = Clocks()
        self.free = NearSlots(self.clocks, STALENESS)
        self.trainers: dict[int, tuple[int, int]] = {}  # slots, used
        self.views: list[tuple[NearSlots, set[int]]] = []
        self.joined = 0

    @rule(slots=st.integers(1, SLOTS_MAX))
    def join(self, slots: int) -> None:
        self.clocks[self.joined] = self.clocks.slowest
        self.free.add(self.joined, slots)
        self.trainers[self.joined] = (slots, 0)
        self.joined += 1

    @precondition(lambda self: self.joined)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """Removes a trainer, which may have left already."""
        trainer = data.draw(st.integers(0, self.joined - 1))
        self.clocks.discard(trainer)
        self.free.discard(trainer)
        self.trainers.pop(trainer, None)

    @precondition(lambda self: self.trainers)
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        """Also on a trainer that is far, or without a free slot, as bound closures do."""
        self._use(data.draw(st.sampled_from(sorted(self.trainers))), 1)

    @precondition(lambda self: list(self.free.near))
    @rule()
    def start_near(self) -> None:
        self._use(next(iter(self.free.near)), 1)

    @precondition(lambda self: any(used for _, used in self.trainers.values()))
    @rule(data=st.data(), ticks=st.integers(0, 2))
    def end(self, data: st.DataObject, ticks: int) -> None:
        """Lifts the clock by 0, as for bound closures, by 1, or more, as at the end of data."""
        trainer = data.draw(st.sampled_from([t for t, (_, used) in self.trainers.items() if used]))
        self.clocks[trainer] += ticks
        self._use(trainer, -1)

    def _use(self, trainer: int, by: int) -> None:
        (self.free.take if by > 0 else self.free.give_back)(trainer)
        slots, used = self.trainers[trainer]
        self.trainers[trainer] = (slots, used + by)

    @invariant()
    def near_are_the_slots_of_all_trainers_that_are_not_too_far_ahead(self) -> None:
        limit = min((self.clocks[t] for t in self.trainers), default=0) + STALENESS
        loads = []
        for trainer, (slots, used) in self.trainers.items():
            if self.clocks[trainer] + used <= limit:
                loads += [(each, trainer) for each in range(used, slots)]
        order = list(self.free.near)
        assert sorted(order) == sorted(trainer for _, trainer in loads)
        used_by = {trainer: used for trainer, (_, used) in self.trainers.items()}
        assert [used_by[t] + order[:at].count(t) for at, t in enumerate(order)] == [
            used for used, _ in sorted(loads)
        ]

    @precondition(lambda self: self.trainers and not self.views)
    @rule(data=st.data())
    def view(self, data: st.DataObject) -> None:
        left_out = data.draw(st.sets(st.sampled_from(sorted(self.trainers))))
        self.views.append((self.free.without(left_out), left_out))

    @invariant()
    def views_have_the_near_slots_of_others(self) -> None:
        for view, left_out in self.views:
            assert sorted(view.near) == sorted(t for t in self.free.near if t not in left_out)

    @invariant()
    def all_free_slots_are_there_as_well(self) -> None:
        known = self.trainers.items()
        assert sorted(self.free) == [t for t, (slots, used) in known for _ in range(used, slots)]


TestNearSlots = NearSlotsMachine.TestCase
