"""Free slots of trainers: the order of their use while trainers join, leave and work."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pstrain.coordinator.free_slots import FreeSlots

SLOTS_MAX = 4


class FreeSlotsMachine(RuleBasedStateMachine):
    """A comparison of ``FreeSlots`` with a dict of the slots that each trainer has and uses."""

    def __init__(self) -> None:
        super().__init__()
        self.free = FreeSlots()
        self.trainers: dict[int, tuple[int, int]] = {}
        self.views: list[tuple[FreeSlots, set[int]]] = []
        self.joined = 0

    @rule(slots=st.integers(1, SLOTS_MAX))
    def join(self, slots: int) -> None:
        self.free.add(self.joined, slots)
        self.trainers[self.joined] = (slots, 0)
        self.joined += 1

    @precondition(lambda self: self.joined)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """Removes a trainer, which may have left already."""
        trainer = data.draw(st.integers(0, self.joined - 1))
        self.free.discard(trainer)
        self.trainers.pop(trainer, None)

    @precondition(lambda self: len(self.free))
    @rule()
    def start_on_first(self) -> None:
        trainer = next(iter(self.free))
        assert self.trainers[trainer][1] == min(used for used, _ in self._free())
        self._use(trainer, 1)

    @precondition(lambda self: self.trainers)
    @rule(data=st.data())
    def start_anywhere(self, data: st.DataObject) -> None:
        """Also on a trainer without a free slot, where closures then wait."""
        self._use(data.draw(st.sampled_from(sorted(self.trainers))), 1)

    @precondition(lambda self: any(used for _, used in self.trainers.values()))
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        busy = [trainer for trainer, (_, used) in self.trainers.items() if used]
        self._use(data.draw(st.sampled_from(busy)), -1)

    @precondition(lambda self: self.trainers)
    @rule(data=st.data())
    def view(self, data: st.DataObject) -> None:
        left_out = data.draw(st.sets(st.sampled_from(sorted(self.trainers))))
        self.views.append((self.free.without(left_out), left_out))

    @precondition(lambda self: self.views)
    @rule(data=st.data())
    def drop_view(self, data: st.DataObject) -> None:
        view, _ = self.views.pop(data.draw(st.integers(0, len(self.views) - 1)))
        self.free.drop_view(view)
        assert view not in self.free._views

    @invariant()
    def views_follow(self) -> None:
        for view, left_out in self.views:
            expected = [t for _, t in self._free() if t not in left_out]
            assert sorted(view) == sorted(expected)
            assert len(view) == len(expected)
            used = [(used, t) for t, (_, used) in self.trainers.items() if t not in left_out]
            assert sorted(view.by_use()) == sorted(used)
            assert [t for t in range(self.joined) if view.has(t)] == sorted(t for _, t in used)

    def _use(self, trainer: int, by: int) -> None:
        (self.free.take if by > 0 else self.free.give_back)(trainer)
        slots, used = self.trainers[trainer]
        self.trainers[trainer] = (slots, used + by)

    def _free(self) -> list[tuple[int, int]]:
        """Returns for each free slot how many slots its trainer uses before it, and the trainer."""
        known = self.trainers.items()
        return [(used, t) for t, (slots, now) in known for used in range(now, slots)]

    @invariant()
    def each_free_slot_comes_once_least_busy_trainers_first(self) -> None:
        order, loads = list(self.free), []
        running = {trainer: used for trainer, (_, used) in self.trainers.items()}
        for trainer in order:
            loads.append((running[trainer], trainer))
            running[trainer] += 1
        assert sorted(loads) == sorted(self._free())
        assert [used for used, _ in loads] == sorted(used for used, _ in loads)
        assert len(self.free) == len(order)
        for trainer in range(self.joined):
            assert self.free.of(trainer) == order.count(trainer)
        for below in range(SLOTS_MAX + 1):
            now = [used for slots, used in self.trainers.values() if used < slots]
            assert self.free.has_below(below) == any(used < below for used in now)

    @invariant()
    def slots_of_some_trainers_are_those_among_all(self) -> None:
        for trainers in (set(range(0, self.joined, 2)), set(range(self.joined)), {0, self.joined}):
            among = self.free.among(trainers)
            assert sorted(among) == sorted(trainer for trainer in self.free if trainer in trainers)
            used = {trainer: used for trainer, (_, used) in self.trainers.items()}
            order = [used[trainer] + among[:at].count(trainer) for at, trainer in enumerate(among)]
            assert order == sorted(order)
            for below in range(SLOTS_MAX + 2):
                found = sorted(self.free.using_below(below, trainers))
                assert found == sorted(t for t in trainers if used.get(t, below) < below)

    @invariant()
    def each_trainer_comes_once_by_use_whether_it_has_free_slots_or_not(self) -> None:
        by_use = list(self.free.by_use())
        assert sorted(by_use) == sorted((used, t) for t, (_, used) in self.trainers.items())
        assert [used for used, _ in by_use] == sorted(used for used, _ in by_use)


TestFreeSlots = FreeSlotsMachine.TestCase


def test_longest_free_slot_among_equally_busy_trainers_comes_first() -> None:
    free = FreeSlots()
    for trainer in range(3):
        free.add(trainer, 2)
    assert list(free) == [0, 1, 2, 0, 1, 2]
    for trainer in (0, 1, 2, 1):
        free.take(trainer)
    free.give_back(0)
    free.give_back(2)
    assert list(free) == [0, 2, 0, 2]
    free.take(0)
    free.give_back(0)
    free.give_back(1)
    assert list(free) == [2, 0, 1, 2, 0]
