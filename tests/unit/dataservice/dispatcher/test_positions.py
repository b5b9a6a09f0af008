"""Saved positions at the dispatcher: their base, loading them, and the peers that must join."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataservice.dispatcher import decide, leasing, lifecycle, opening, positions
from dataservice.dispatcher import events as ev
from dataservice.dispatcher.images import image_of
from dataservice.dispatcher.images import table_of as table_from
from dataservice.dispatcher.invariants import check_invariants, check_windows
from dataservice.dispatcher.journal_frames import decode_frame, encode_frame
from dataservice.dispatcher.plans import WindowPlan, with_division
from dataservice.dispatcher.requests import LeaseWindows, OpenIteration, RegisterDataset, Sync
from dataservice.dispatcher.resumption import SavedPosition
from dataservice.dispatcher.state import DispatcherState
from dataservice.dispatcher.windows import WindowTable
from dataservice.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    UnavailableError,
    UnimplementedError,
)
from dataservice.ranges import Consumed, Ranges, RowMark
from dataservice.sharding import Split
from dataservice.vocabulary import ANY_DIVISION, ShardingPolicy
from tests.unit.dataservice.dispatcher.dispatcher_facts import compacted

ROWS = 4
DONE = 99


def plan_of(windows: int, rounds: int | None = 1) -> WindowPlan:
    splits = tuple(
        Split(path=f"f{i}", stop=ROWS, rows=ROWS, size_bytes=9, version="1") for i in range(windows)
    )
    return with_division(WindowPlan(splits=splits, target_rows=ROWS, rounds=rounds))


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["lease", "use", "use", "use", "leave", "join", "fence"]),
        st.integers(0, 2),
        st.integers(1, ROWS),
    ),
    max_size=60,
)


class Model:
    """A window table, and a model of the rows used of each window, in all and by each reader."""

    def __init__(self) -> None:
        self.table = WindowTable(plan_of(3, rounds=3))
        self.table.open_round()
        self.used: dict[int, int] = {}
        self.mine: dict[str, dict[int, int]] = {}
        self.sequence = 0

    def step(self, what: str, number: int, rows: int) -> None:
        reader, table = f"r{number}", self.table
        if what == "join":
            table.add_reader(reader)
            self.mine.setdefault(reader, {})
        elif reader not in self.mine:
            return
        elif what == "lease":
            if table.needs_round():
                table.open_round()
            self.sequence += 1
            table.lease("w", reader, self.sequence, table.candidates(reader, 1))
        elif what == "use":
            self.use(reader, rows)
        elif what == "fence":
            table.fence_worker("w")
            for live, mine in table.readers.items():
                marks = [
                    RowMark(i, table.records[i].generation, self.used.get(i, 0), False)
                    for i in sorted(mine.fencing)
                ]
                table.release(live, marks)
        else:
            table.forget_reader(reader)
            del self.mine[reader]

    def use(self, reader: str, rows: int) -> None:
        for index in list(self.table.leased_to("w", reader))[:1]:
            record = self.table.records[index]
            row = min(ROWS, max(record.start_row, self.used.get(index, 0)) + rows)
            self.table.consume(reader, [RowMark(index, record.generation, row, row == ROWS)])
            self.used[index] = DONE if row == ROWS else row
            self.mine[reader][index] = self.used[index]

    def own(self, reader: str) -> Consumed:
        consumed = Consumed()
        for index, row in self.mine[reader].items():
            if row == DONE:
                consumed.finish(index, index + 1)
            else:
                consumed.record(index, row)
        return consumed


def rows_of(consumed: Consumed) -> dict[int, int]:
    found = dict.fromkeys(consumed.done, DONE)
    return {**found, **consumed.rows}


@given(STEPS)
def test_base_merged_with_live_readers_equals_all_rows_used(
    steps: list[tuple[str, int, int]],
) -> None:
    model = Model()
    for step in steps:
        model.step(*step)
        check_windows(model.table)
        together = model.table.base()
        for reader in model.mine:
            together.merge(model.own(reader))
        assert rows_of(together) == model.used
        again = table_from(image_of(model.table))
        for reader in model.mine:
            again.add_reader(reader)
        assert again == model.table
    resumed = WindowTable(plan_of(3, rounds=3))
    resumed.resume(together if steps else Consumed())
    check_windows(resumed)
    assert _due(resumed) == _due_in_model(model.used)


def _due(table: WindowTable) -> dict[int, int]:
    """Leases all windows that are left; returns the first row of each."""
    table.add_reader("new")
    due: dict[int, int] = {}
    while not table.is_finished():
        if table.needs_round():
            table.open_round()
        indices = table.candidates("new", 2)
        for index in indices:
            record = table.records.get(index)
            due[index] = record.start_row if record else 0
        table.lease("w", "new", 1, indices)
        table.consume("new", [RowMark(i, 0, ROWS, True) for i in indices])
        check_windows(table)
    assert table.done == table.planned
    return due


def _due_in_model(used: dict[int, int]) -> dict[int, int]:
    return {index: used.get(index, 0) for index in range(9) if used.get(index, 0) != DONE}


@pytest.mark.parametrize(
    ("windows", "rounds", "done", "left"),
    [
        (3, 3, [(0, 6)], [6, 7, 8]),
        (3, 3, [(3, 6)], [0, 1, 2, 6, 7, 8]),
        (3, 3, [(0, 4), (6, 9)], [4, 5]),
        (3, 3, [(0, 20)], []),
        (0, None, [(0, 2)], []),
    ],
)
def test_resumed_table_has_the_windows_that_are_left(
    windows: int, rounds: int | None, done: list[tuple[int, int]], left: list[int]
) -> None:
    table = WindowTable(plan_of(windows, rounds))
    table.resume(Consumed(Ranges(done)))
    check_windows(table)
    assert list(_due(table)) == left


def test_windows_finished_by_reader_are_forgotten_with_their_round() -> None:
    table = WindowTable(plan_of(2, rounds=None))
    for reader in ("a", "b"):
        table.add_reader(reader)
    for number in range(50):
        table.open_round()
        for reader, index in (("a", 2 * number), ("b", 2 * number + 1)):
            table.lease("w", reader, number, (index,))
            table.consume(reader, [RowMark(index, 0, ROWS, True)])
    assert not table.readers["a"].finished
    assert table.base() == Consumed(Ranges([(0, 100)]))


# Loading


def state_with_dataset() -> DispatcherState:
    state = DispatcherState()
    request = RegisterDataset(plan=b"p", schema=b"s", cardinality=-2, compression="NONE")
    apply(state, decide.register_dataset(state, request))
    state.apply(ev.WorkerRegistered(worker_id="w", address="w:1", host="h", pid=1))
    return state


def apply(state: DispatcherState, decision: Any) -> Any:
    for event in decision.events:
        state.apply(decode_frame(encode_frame([event]))[0])
    check_invariants(state)
    assert compacted(state) == state
    return decision.reply


def saved(
    *origins: str, peers: tuple[str, ...] = (), done: int = 0, rows: dict[int, int] | None = None
) -> SavedPosition:
    return SavedPosition(
        consumed=Consumed(Ranges([(0, done)]), dict(rows or {})),
        origins=origins,
        peers=peers or origins,
        division=plan_of(4).division,
    )


def open_(
    state: DispatcherState,
    reader: str,
    position: SavedPosition | None = None,
    *,
    plan: WindowPlan | None = None,
    name: str | None = "job",
    policy: ShardingPolicy = ShardingPolicy.DYNAMIC,
    repetition: int = 0,
    restores: bool = False,
) -> Any:
    request = OpenIteration(
        dataset_id="1000",
        policy=policy,
        job_name=name,
        repetition=repetition,
        delivery="exactly_once",
        reader_id=reader,
        job_id=f"j-{reader}",
        iteration_id=f"i-{reader}",
        position=position,
        restores=restores,
    )
    needed = opening.dataset_to_plan(state, request)
    given = plan or plan_of(4) if needed is not None else None
    notice = apply(state, opening.open_iteration(state, request, given))
    return opening.answer_open(state, reader, notice)


def lease(state: DispatcherState, reader: str, count: int = 9) -> list[tuple[int, int]]:
    iteration = state.iteration_of_reader[reader]
    apply(state, leasing.open_round(state, iteration))
    request = LeaseWindows(
        worker_id="w", iteration_id=iteration, reader_id=reader, count=count, sequence=0
    )
    answer = apply(state, leasing.lease_windows(state, request))
    return [(item.window_index, item.start_row) for item in answer.leases]


def use(state: DispatcherState, reader: str, window: int, row: int, *, final: bool = False) -> None:
    request = Sync(
        reader_id=reader,
        iteration_id=state.iteration_of_reader[reader],
        consumed=(RowMark(window, 0, row, final),),
    )
    apply(state, leasing.sync(state, request))


def awaited(state: DispatcherState, reader: str) -> tuple[str, ...]:
    iteration = state.iteration_of_reader[reader]
    answer = leasing.answer_sync(state, Sync(reader_id=reader, iteration_id=iteration))
    assert not answer.ended
    return answer.awaited


def test_anonymous_job_resumes_at_loaded_position() -> None:
    state = state_with_dataset()
    open_(state, "new", saved("old", done=1, rows={1: 3, 3: 2}), name=None)
    assert lease(state, "new", 1) == [(1, 3)]
    assert {*lease(state, "new"), *lease(state, "new"), *lease(state, "new")} == {(2, 0), (3, 2)}


def test_loaded_finished_position_finishes_iteration() -> None:
    state = state_with_dataset()
    open_(state, "new", saved("old", done=4), name=None)
    assert state.iterations["i-new"].finished
    assert lease(state, "new") == []


def test_no_window_is_leased_before_positions_of_all_peers_are_loaded() -> None:
    state = state_with_dataset()
    open_(state, "a2", saved("a", peers=("a", "b"), done=1))
    assert lease(state, "a2") == []
    assert awaited(state, "a2") == ("b",)
    with pytest.raises(UnavailableError, match=r"before those of b are loaded.*merge_states"):
        positions.describe(state.iterations["i-a2"])
    open_(state, "b2", saved("b", peers=("a", "b"), rows={1: 2}))
    assert awaited(state, "a2") == ()
    assert lease(state, "b2", 1) == [(1, 2)]


def test_merged_position_stands_for_all_its_origins() -> None:
    state = state_with_dataset()
    open_(state, "c", saved("a", "b", done=2))
    assert lease(state, "c", 1) == [(2, 0)]


def test_loaded_position_replaces_unread_iteration_of_earlier_run() -> None:
    state = state_with_dataset()
    open_(state, "old")
    lease(state, "old")
    use(state, "old", 0, ROWS, final=True)
    use(state, "old", 1, 3)
    apply(state, decide.release_reader(state, "old", ()))
    open_(state, "new", saved("old", done=1))
    assert state.jobs["j-new"].iterations == {0: "i-new"}
    assert lease(state, "new", 1) == [(1, 0)], "what came after the position comes again"


@pytest.mark.parametrize("row", [2, ROWS])
def test_loaded_position_does_not_replace_iteration_being_read(row: int) -> None:
    state = state_with_dataset()
    open_(state, "old")
    lease(state, "old")
    use(state, "old", 0, row, final=row == ROWS)
    with pytest.raises(UnavailableError, match="job job is still read by old"):
        open_(state, "new", saved("old", done=1))


def test_loaded_position_replaces_unused_iteration_despite_waiting_readers() -> None:
    state = state_with_dataset()
    open_(state, "a2")
    open_(state, "b2")
    lease(state, "b2")
    apply(state, decide.release_reader(state, "a2", ()))
    open_(state, "a3", saved("a", peers=("a", "b"), done=1))
    assert "loaded a saved position" in state.departed["b2"]
    open_(state, "b3", saved("b", peers=("a", "b")))
    assert lease(state, "b3", 1) == [(1, 0)]


def test_loaded_position_keeps_other_repetitions_of_job() -> None:
    state = state_with_dataset()
    open_(state, "other", repetition=1)
    open_(state, "old")
    open_(state, "new", saved("a", done=1))
    assert state.jobs["j-other"].iterations == {0: "i-new", 1: "i-other"}
    assert "loaded a saved position" in state.departed["old"]


def test_position_of_each_origin_is_loaded_once() -> None:
    state = state_with_dataset()
    open_(state, "a2", saved("a", peers=("a", "b"), done=1))
    with pytest.raises(UnavailableError, match="still read by a2"):
        open_(state, "a3", saved("a", peers=("a", "b"), done=1))
    open_(state, "b2", saved("b", peers=("a", "b")))
    use_first = lease(state, "b2", 1)
    assert use_first == [(1, 0)]
    apply(state, decide.lose_reader(state, "a2"))
    open_(state, "a3", saved("a", peers=("a", "b"), done=1))
    assert lease(state, "a3", 1) == [(2, 0)], "a position that is there already changes nothing"
    with pytest.raises(UnavailableError, match="still read by a3"):
        open_(state, "a4", saved("a", peers=("a", "b"), done=1))
    with pytest.raises(UnavailableError, match="still read by b2"):
        open_(state, "c2", saved("c"))
    apply(state, decide.lose_reader(state, "a3"))
    with pytest.raises(FailedPreconditionError, match="each once"):
        open_(state, "d2", saved("a", "d"))


def test_earlier_position_of_reader_whose_rows_another_position_counts_is_refused() -> None:
    """Reader a left before b saved its position; what followed a's position has to come again."""
    state = state_with_dataset()
    open_(state, "b2", saved("b", done=3))
    with pytest.raises(UnavailableError, match="still read by b2"):
        open_(state, "a2", saved("a", peers=("a", "b"), done=1))


def test_position_of_other_division_is_refused() -> None:
    state = state_with_dataset()
    with pytest.raises(InvalidArgumentError, match="counts other windows"):
        open_(state, "new", saved("old", done=1), plan=plan_of(5))
    assert not state.jobs


def test_empty_position_fits_any_division() -> None:
    state = state_with_dataset()
    beginning = replace(saved("old"), division=ANY_DIVISION)
    open_(state, "new", beginning, plan=plan_of(5))
    assert lease(state, "new", 1) == [(0, 0)]


def test_loaded_position_replaces_recalled_ended_repetition() -> None:
    state = state_with_dataset()
    for repetition, reader in enumerate(("a", "b")):
        open_(state, reader, repetition=repetition)
        for window in range(4):
            lease(state, reader, 1)
            use(state, reader, window, ROWS, final=True)
        apply(state, decide.release_reader(state, reader, ()))
    apply(state, lifecycle.retire_finished(state, "j-a", 1.0))
    open_(state, "asking", restores=True)
    assert state.iterations["i-asking"].windows is None
    with pytest.raises(UnavailableError, match="is still read by asking"):
        open_(state, "early", replace(saved("old"), division=ANY_DIVISION))
    apply(state, decide.release_reader(state, "asking", ()))
    open_(state, "new", replace(saved("old"), division=ANY_DIVISION))
    assert lease(state, "new", 1) == [(0, 0)]


def test_positions_without_windows_are_unimplemented() -> None:
    state = state_with_dataset()
    with pytest.raises(UnimplementedError, match=r"under ShardingPolicy\.OFF"):
        open_(state, "new", saved("old", done=1), policy=ShardingPolicy.OFF)
    open_(state, "off", policy=ShardingPolicy.OFF)
    with pytest.raises(UnimplementedError, match=r"only ShardingPolicy\.DYNAMIC"):
        positions.describe(state.iterations["i-off"])


def test_position_base_has_rows_used_by_departed_readers() -> None:
    state = state_with_dataset()
    for reader in ("a", "b", "c"):
        open_(state, reader)
    lease(state, "a", 1)
    use(state, "a", 0, ROWS, final=True)
    lease(state, "b", 1)
    use(state, "b", 1, 2)
    apply(state, decide.release_reader(state, "b", ()))
    answer = positions.describe(state.iterations["i-a"])
    assert answer.base == Consumed(Ranges(), {1: 2})
    assert answer.readers == ("a", "c")
