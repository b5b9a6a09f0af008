"""Events add up to a state: what each one changes, and that a replay gives an equal state."""

from __future__ import annotations

import functools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataservice.dispatcher import events as ev
from dataservice.dispatcher import round_events as rounds
from dataservice.dispatcher.compaction import facts_of
from dataservice.dispatcher.images import image_from_json, image_of, image_to_json
from dataservice.dispatcher.images import table_of as table_from_image
from dataservice.dispatcher.invariants import check_windows
from dataservice.dispatcher.journal_frames import FACTS, decode_frame, encode_frame
from dataservice.dispatcher.plans import WindowPlan
from dataservice.dispatcher.state import DEPARTED_READERS_KEPT, DispatcherState
from dataservice.dispatcher.window_records import Phase
from dataservice.dispatcher.windows import WindowTable
from dataservice.errors import DataLossError
from dataservice.ranges import Consumed, Ranges, RowMark
from dataservice.sharding import Split
from dataservice.vocabulary import ShardingPolicy
from tests.unit.dataservice.dispatcher import dispatcher_facts
from tests.unit.dataservice.dispatcher.dispatcher_facts import compacted, replayed
from tests.unit.dataservice.dispatcher.test_saving import SCRIPT as SAVING_SCRIPT

ROWS = 10
plan_of = functools.partial(dispatcher_facts.plan_of, rows=ROWS)


def table_of(windows: int, rounds: int | None = 1, *, replays: bool = True) -> WindowTable:
    table = WindowTable(plan_of(windows, rounds), replays=replays)
    table.open_round()
    table.add_reader("r1")
    table.add_reader("r2")
    return table


DATASET = ev.DatasetRegistered(
    dataset_id="1000", plan=b"\x00plan", schema=b"schema", cardinality=-2, compression="AUTO"
)
JOB = ev.JobCreated(
    job_id="j1",
    name="train",
    dataset_id="1000",
    policy=ShardingPolicy.DYNAMIC,
    delivery="exactly_once",
)
SCRIPT: tuple[ev.Event, ...] = (
    DATASET,
    ev.WorkerRegistered(worker_id="w1", address="a:1", host="a", pid=7),
    ev.WorkerRegistered(worker_id="w2", address="a:2", host="a", pid=8),
    JOB,
    ev.IterationCreated(iteration_id="i1", job_id="j1", repetition=0),
    ev.WindowsPlanned(iteration_id="i1", plan=plan_of(4)),
    ev.RoundOpened(iteration_id="i1"),
    ev.ReaderJoined(reader_id="r1", iteration_id="i1", host="b", pid=9),
    ev.ReaderJoined(reader_id="r2", iteration_id="i1", host="b", pid=10),
    ev.WindowsLeased(iteration_id="i1", reader_id="r1", worker_id="w1", sequence=1, windows=(0, 1)),
    ev.WindowsLeased(iteration_id="i1", reader_id="r2", worker_id="w1", sequence=2, windows=(2,)),
    ev.RowsConsumed(
        iteration_id="i1", reader_id="r1", marks=(RowMark(0, 0, 10, True), RowMark(1, 0, 4, False))
    ),
    ev.WindowsAccused(iteration_id="i1", worker_id="w1", windows=(1,)),
    ev.WorkerLost(worker_id="w1"),
    ev.WindowsReleased(iteration_id="i1", reader_id="r1", marks=(RowMark(1, 0, 6, False),)),
    ev.ReaderLost(reader_id="r2"),
    ev.OwnerReleased(owner="trainer 2"),
)


def test_scripted_events_lead_to_expected_state() -> None:
    state = replayed(SCRIPT)
    windows = state.iterations["i1"].windows
    assert windows is not None
    assert (windows.done, windows.cursor, windows.rows_consumed) == (1, 3, 14)
    one, two = windows.records[1], windows.records[2]
    assert (one.phase, one.start_row, one.generation, one.owner) == (Phase.PENDING, 6, 1, "r1")
    assert (two.phase, two.start_row, two.generation, two.owner) == (Phase.PENDING, 0, 1, None)
    assert windows.candidates("r1", 9) == (1, 2, 3), "own, then given back, then fresh"


@pytest.mark.parametrize("cut", range(len(SCRIPT) + 1))
def test_state_survives_journal_at_every_event(cut: int) -> None:
    frames = [encode_frame([event]) for event in SCRIPT[:cut]]
    restored = tuple(event for frame in frames for event in decode_frame(frame))
    assert restored == SCRIPT[:cut]
    assert replayed(restored) == replayed(SCRIPT[:cut])


@pytest.mark.parametrize("cut", range(len(SCRIPT) + 1))
def test_compacted_facts_lead_to_same_state_at_every_event(cut: int) -> None:
    state = replayed(SCRIPT[:cut])
    short = compacted(state)
    assert short == state
    for event in SCRIPT[cut:]:
        short.apply(event)
    assert short == replayed(SCRIPT), "and go on alike"


@pytest.mark.parametrize(
    "fact",
    [
        ev.WorkerLost(worker_id="gone"),
        ev.JobDeleted(job_id="gone"),
        ev.IterationCollected(iteration_id="gone"),
        ev.IterationRetired(iteration_id="gone"),
        ev.ReaderReleased(reader_id="gone"),
        ev.ReaderLost(reader_id="gone"),
    ],
)
def test_end_of_what_is_gone_changes_nothing(fact: ev.Event) -> None:
    assert replayed((*SCRIPT, fact)) == replayed(SCRIPT)


def test_number_of_deleted_dataset_stays_used() -> None:
    state = DispatcherState()
    state.apply(DATASET)
    state.apply(ev.DatasetDeleted(dataset_id=DATASET.dataset_id))
    short = compacted(state)
    assert short == state
    assert (short.datasets, short.is_used(DATASET.dataset_id)) == ({}, True)
    assert not short.is_used(str(short.next_dataset_number))


ROUND_FACTS = (
    rounds.ConsumerJoined(iteration_id="i", reader_id="r", consumer_index=1, first_round=4),
    rounds.RoundsAssigned(iteration_id="i", parts=((0, 8, "w"), (8, 16, "v"))),
    rounds.RoundsReassigned(iteration_id="i", worker_id="w", suspect=True, parts=((3, 8, "v"),)),
    rounds.RoundsMarked(iteration_id="i", consumer_index=1, received=7, consumed=5),
    rounds.RollCalled(iteration_id="i"),
    rounds.RoundsAligned(iteration_id="i", begins=(6, 7)),
    rounds.WorkerTrusted(iteration_id="i", worker_id="w"),
)


def test_every_event_type_survives_journal() -> None:
    rest: tuple[ev.Event, ...] = (
        ev.JobDeleted(job_id="j"),
        ev.DatasetDeleted(dataset_id="d"),
        ev.IterationCollected(iteration_id="i"),
        ev.IterationRetired(iteration_id="i"),
        ev.IterationRecalled(iteration_id="i", job_id="j", repetition=3),
        ev.JobIdled(job_id="j", at_s=8.0),
        ev.JobHistoryRestored(
            job_id="j", idle_since_s=None, endings=((3, "process 1 on a"),), older=((0, 3),)
        ),
        ev.ReaderReleased(reader_id="r"),
        ev.WindowsFenced(iteration_id="i", windows=(3, 4)),
        ev.WorkerAcquitted(worker_id="w"),
        ev.TaskFinished(iteration_id="i", worker_id="w"),
        ev.WorkerListSet(addresses=("a:%port%", "b")),
        ev.PlaceBound(index=1, address="b:1"),
        ev.ShardFinished(iteration_id="i", index=1),
        *ROUND_FACTS,
        *SAVING_SCRIPT,
        *facts_of(replayed(SAVING_SCRIPT[:-1])),
        ev.IterationResumed(
            iteration_id="i",
            reader_id="r",
            origins=("a",),
            peers=("a", "b"),
            consumed=Consumed(Ranges([(0, 2)]), {3: 4}),
        ),
        *facts_of(replayed(SCRIPT)),
    )
    assert {type(event) for event in (*SCRIPT, *rest)} == set(FACTS.values())
    assert decode_frame(encode_frame(rest)) == rest


SPLITS = st.builds(
    Split,
    segment=st.integers(0, 3),
    path=st.none() | st.sampled_from(["a.parquet", "b.parquet"]),
    row_groups=st.none() | st.lists(st.integers(0, 9), max_size=3).map(tuple),
    start=st.integers(0, 99),
    stop=st.integers(0, 99),
    rows=st.none() | st.integers(0, 99),
    size_bytes=st.integers(0, 99),
    version=st.sampled_from(["", "17"]),
)


@given(st.lists(SPLITS, max_size=6), st.none() | st.integers(1, 9), st.none() | st.integers(0))
def test_any_window_plan_survives_journal(
    splits: list[Split], rounds: int | None, seed: int | None
) -> None:
    plan = WindowPlan(splits=tuple(splits), target_rows=7, rounds=rounds, shuffle_seed=seed)
    event = ev.WindowsPlanned(iteration_id="i", plan=plan)
    assert decode_frame(encode_frame([event])) == (event,)


@pytest.mark.parametrize(
    "frame", [b"{", b'[["NoSuchFact",{}]]', b'[["JobDeleted",{}]]', b"[1]", b'[["JobDeleted",[]]]']
)
def test_malformed_journal_frame_is_data_loss(frame: bytes) -> None:
    with pytest.raises(DataLossError, match="journal"):
        decode_frame(frame)


def test_window_of_lost_worker_is_fenced_until_its_reader_releases_it() -> None:
    table = table_of(2)
    table.lease("w1", "r1", 1, (0,))
    table.fence_worker("w1")
    assert table.records[0].phase is Phase.FENCING
    assert table.candidates("r1", 5) == (1,), "not claimable before the owner answered"
    table.release("r1", [RowMark(0, 0, 3, False)])
    assert table.candidates("r1", 5) == (0, 1)
    assert table.candidates("r2", 5) == (1,), "the owner keeps what it has part of"


def test_release_of_older_generation_changes_nothing() -> None:
    table = table_of(1)
    table.lease("w1", "r1", 1, (0,))
    table.release("r1", [RowMark(0, 0, 3, False)])
    table.lease("w2", "r1", 2, (0,))
    table.release("r1", [RowMark(0, 0, 5, False)])
    record = table.records[0]
    assert (record.phase, record.generation, record.start_row) == (Phase.LEASED, 1, 3)


def test_window_received_whole_finishes_once_consumed() -> None:
    table = table_of(1)
    table.lease("w1", "r1", 1, (0,))
    table.fence_worker("w1")
    table.release("r1", [RowMark(0, 0, 10, True)])
    assert table.is_over_for("r1")
    assert not table.is_finished()
    table.consume("r1", [RowMark(0, 0, 10, True)])
    assert table.is_finished()


def test_rows_unconsumed_by_lost_reader_are_pending_again() -> None:
    table = table_of(1)
    table.lease("w1", "r1", 1, (0,))
    table.consume("r1", [RowMark(0, 0, 4, False)])
    table.fence_worker("w1")
    table.release("r1", [RowMark(0, 0, 10, True)])
    table.forget_reader("r1")
    record = table.records[0]
    assert (record.phase, record.start_row, record.owner) == (Phase.PENDING, 4, None)
    assert table.candidates("r2", 1) == (0,)


def test_marks_of_window_of_other_reader_change_nothing() -> None:
    table = table_of(1)
    table.lease("w1", "r1", 1, (0,))
    table.consume("r2", [RowMark(0, 0, 10, True)])
    table.release("r2", [RowMark(0, 0, 10, True)])
    assert table.records[0].consumed_row == 0
    assert table.records[0].phase is Phase.LEASED


def test_at_most_once_never_leases_window_twice() -> None:
    table = table_of(3, replays=False)
    table.lease("w1", "r1", 1, (0, 1))
    table.lease("w2", "r2", 1, (2,))
    table.fence_worker("w1")
    check_windows(table)
    table.forget_reader("r2")
    assert table.is_finished()
    assert table.candidates("r1", 9) == ()
    assert (table.lost_windows, table.lost_uncounted) == (3, 0)


@pytest.mark.parametrize(
    ("rows", "consumed", "lost"), [(4, 1, (1, 0, 3)), (4, 9, (1, 0, 0)), (None, 1, (1, 1, 0))]
)
def test_window_given_back_under_at_most_once_is_lost(
    rows: int | None, consumed: int, lost: tuple[int, int, int]
) -> None:
    plan = WindowPlan(splits=(Split(path="f", rows=rows),), target_rows=4)
    table = WindowTable(plan, replays=False)
    table.open_round()
    table.add_reader("r1")
    table.lease("w1", "r1", 1, (0,))
    mark = RowMark(0, 0, consumed, False)
    table.consume("r1", [mark])
    table.release("r1", [mark])
    assert (table.lost_windows, table.lost_uncounted, table.lost_rows) == lost
    assert table.is_finished()
    check_windows(table)


def test_windows_and_rows_lost_under_at_most_once_are_counted() -> None:
    table = table_of(4, replays=False)
    rows = [table.locate(index)[1].rows or 0 for index in range(4)]
    table.lease("w1", "r1", 1, (0, 1, 2, 3))
    table.consume("r1", [RowMark(0, 0, 3, False), RowMark(1, 0, rows[1], True)])
    table.release("r1", [RowMark(2, 0, rows[2], True)])
    table.fence_worker("w1")
    assert (table.lost_windows, table.lost_rows) == (2, rows[0] - 3 + rows[3])
    table.forget_reader("r1")
    assert (table.lost_windows, table.lost_rows) == (3, rows[0] - 3 + rows[3] + rows[2])
    check_windows(table)
    image = image_from_json(json.loads(json.dumps(image_to_json(image_of(table)))))
    assert image is not None
    restored = table_from_image(image)
    assert (restored.lost_windows, restored.lost_rows) == (3, table.lost_rows)


def test_suspicions_of_old_journal_without_worker_names_are_dropped() -> None:
    values = image_to_json(image_of(table_of(4)))
    assert values is not None
    values["cases"] = [[0, 2, False, []], [1, [["w1", False]], []]]
    image = image_from_json(json.loads(json.dumps(values)))
    assert image is not None
    assert image.cases == ((1, [["w1", False]], []),)


def test_rounds_open_one_by_one_and_continue_window_numbers() -> None:
    table = table_of(2, rounds=None)
    table.lease("w1", "r1", 1, (0, 1))
    assert table.needs_round()
    table.open_round()
    assert table.candidates("r1", 5) == (2, 3)
    round_number, window = table.locate(3)
    assert (round_number, window.index) == (1, 1)
    assert not table.is_exhausted


def test_finished_rounds_of_endless_plan_take_no_memory() -> None:
    table = table_of(2, rounds=None)
    for round_number in range(50):
        windows = table.candidates("r1", 2)
        table.lease("w1", "r1", round_number + 1, windows)
        table.consume("r1", [RowMark(window, 0, 10, True) for window in windows])
        table.open_round()
    assert (table.done, len(table.records), len(table.rounds)) == (100, 0, 1)


@pytest.mark.parametrize("rounds", [0, 1, 5, None])
def test_empty_source_ends_even_when_repeated_forever(rounds: int | None) -> None:
    table = table_of(0, rounds)
    assert table.is_finished()
    assert table.is_over_for("r1")


def test_oldest_departed_readers_are_forgotten() -> None:
    state = replayed((*SCRIPT[:7],))
    for number in range(DEPARTED_READERS_KEPT + 5):
        name = f"reader-{number}"
        state.apply(ev.ReaderJoined(reader_id=name, iteration_id="i1", host="", pid=0))
        state.apply(ev.ReaderReleased(reader_id=name))
    assert len(state.departed) == DEPARTED_READERS_KEPT
    assert next(iter(state.departed)) == "reader-5"


def test_new_worker_gets_task_and_lost_worker_ends_its_task() -> None:
    off = ev.JobCreated(
        job_id="j1",
        name="all",
        dataset_id="1000",
        policy=ShardingPolicy.OFF,
        delivery="exactly_once",
    )
    created = ev.IterationCreated(iteration_id="i1", job_id="j1", repetition=0)
    first = ev.WorkerRegistered(worker_id="w1", address="a:1", host="a", pid=7)
    second = ev.WorkerRegistered(worker_id="w2", address="a:2", host="a", pid=8)
    state = replayed((DATASET, off, created))
    assert not state.iterations["i1"].finished, "no worker yet is not the end"
    state.apply(first)
    state.apply(second)
    state.apply(ev.TaskFinished(iteration_id="i1", worker_id="w1"))
    assert state.iterations["i1"].tasks == {"w1": True, "w2": False}
    state.apply(ev.WorkerLost(worker_id="w2"))
    assert state.iterations["i1"].finished
    state.apply(ev.WorkerRegistered(worker_id="w3", address="a:3", host="a", pid=9))
    assert "w3" not in state.iterations["i1"].tasks, "what is finished stays finished"
