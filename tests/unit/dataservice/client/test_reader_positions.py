"""Readers' positions: merging, refusing those that do not fit, and operators over a service."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

import dataservice as ds
from dataservice.client.positions import ReaderPosition, position_message, rewind
from dataservice.client.source import ServiceSource
from dataservice.client.tasks import TaskMark
from dataservice.dataset.positions import (
    LivePosition,
    check_saveable,
    goes_on_after_interrupt,
    without_live_positions,
)
from dataservice.dataset.stream import BatchStream, RunContext, State
from dataservice.errors import FailedPreconditionError, InvalidArgumentError, UnimplementedError
from dataservice.ranges import Consumed, Ranges
from dataservice.vocabulary import ANY_DIVISION
from dataservice.wire.elements import RowSpan


def position(**changes: Any) -> ReaderPosition:
    values: dict[str, Any] = {
        "plan": "p",
        "division": "d",
        "policy": "DYNAMIC",
        "delivery": "exactly_once",
        "ordered": False,
        "repetition": 0,
        "seeds": (5,),
        "consumed": Consumed(Ranges([(0, 2)]), {2: 7}),
        "origins": ("a",),
        "peers": ("a", "b"),
    }
    return ReaderPosition(**{**values, **changes})


def state_of(saved: ReaderPosition) -> dict[str, Any]:
    return {"version": 1, "plan": "x", "stream": {"input": saved.to_json(), "row": 0}}


def test_reader_position_survives_json() -> None:
    static = position(
        policy="DATA", ordered=True, repetition=3, varied=False, chunk_rows=64, shards=4,
        tasks=(TaskMark(1, ((0, 4),), 9), TaskMark(2, (), None)),
    )  # fmt: skip
    for saved in (position(), static):
        assert ReaderPosition.from_json(json.loads(json.dumps(saved.to_json()))) == saved
    added = {"varied", "shards", "tasks"}
    older = {key: value for key, value in position().to_json().items() if key not in added}
    assert ReaderPosition.from_json(older) == position(varied=False), "rows of passes in one order"


@pytest.mark.parametrize("state", [None, {}, {"service": 2}, {"service": 1, "plan": "p"}])
def test_malformed_reader_position_is_refused(state: object) -> None:
    with pytest.raises(InvalidArgumentError):
        ReaderPosition.from_json(state)


def test_reader_position_of_another_version_is_refused() -> None:
    with pytest.raises(
        InvalidArgumentError, match="position of a data service reader of version 1"
    ):
        ReaderPosition.from_json({**position().to_json(), "service": 2})


def test_dispatcher_is_sent_positions_in_windows_only() -> None:
    sent = position_message(position())
    assert sent is not None
    assert Consumed.from_json(json.loads(sent.consumed_json)) == position().consumed
    assert (list(sent.origins), list(sent.peers), sent.division) == (["a"], ["a", "b"], "d")
    assert position_message(position(policy="OFF")) is None
    assert position_message(None) is None


def test_rewound_state_has_nothing_consumed_and_awaits_no_other_reader() -> None:
    task = TaskMark(0, ((0, 4),), None)
    for policy, division in (("DYNAMIC", ANY_DIVISION), ("OFF", "d")):
        saved = position(policy=policy, tasks=(task,))
        rewound = position(policy=policy, consumed=Consumed(), peers=("a",), division=division)
        assert ds.rewound_state(state_of(saved)) == state_of(rewound)


def test_state_is_of_service_if_it_has_a_position_in_windows() -> None:
    windows, passes = position().to_json(), position(policy="OFF").to_json()
    assert ds.is_service_state({"first": passes, "second": {"input": windows}})
    assert not ds.is_service_state({"first": passes, "row": 3})


def test_merged_position_has_rows_consumed_by_all_readers() -> None:
    other = position(
        consumed=Consumed(Ranges([(3, 5)]), {2: 4, 6: 1}), origins=("b",), peers=("b", "c")
    )
    merged = ds.merge_states([state_of(position()), state_of(other)])
    found = ReaderPosition.from_json(merged["stream"]["input"])
    assert found.consumed == Consumed(Ranges([(0, 2), (3, 5)]), {2: 7, 6: 1})
    assert (found.origins, found.peers) == (("a", "b"), ("a", "b", "c"))
    assert merged["stream"]["row"] == 0


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (state_of(position()), "several of the states were saved by reader a"),
        (state_of(position(origins=("b",), division="e")), "another division"),
        (state_of(position(origins=("b",), seeds=(6,))), "another seeds"),
        ({**state_of(position(origins=("b",))), "plan": "y"}, "differ in state\\['plan'\\]"),
        ({"version": 1, "plan": "x"}, "differ in state"),
    ],
)
def test_states_that_do_not_belong_together_are_not_merged(other: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        ds.merge_states([state_of(position()), other])


def test_states_without_windows_are_merged_with_no_other() -> None:
    state = state_of(position(policy="OFF"))
    assert ds.merge_states([state]) == state
    with pytest.raises(UnimplementedError, match=r"ShardingPolicy\.OFF cannot be merged"):
        ds.merge_states([state, state_of(position(policy="OFF", origins=("b",)))])


@pytest.mark.parametrize(
    "states", [[], {}, [{"version": 1}], [3], [state_of(position()), 3], "x", None]
)
def test_merge_states_refuses_anything_but_reader_states(states: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="merge_states"):
        ds.merge_states(states)


def test_rewind_removes_rows_of_later_elements() -> None:
    consumed = Consumed(Ranges([(0, 3)]), {3: 9})
    ends = RowSpan(0, 0, 8, 8, True)
    rewind(
        consumed, [(RowSpan(1, 0, 4, 6), RowSpan(3, 0, 2, 9)), (ends, RowSpan(1, 0, 6, 8, True))]
    )
    assert consumed == Consumed(Ranges([(0, 1), (2, 3)]), {1: 4, 3: 2})


class RowCountPosition(LivePosition):
    """A position after a number of rows of a source without a known order."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def after(self, rows: int) -> RowCountPosition:
        return RowCountPosition(self.rows + rows)

    def to_json(self) -> State:
        return {"rows": self.rows}


class FortyRowStream(BatchStream):
    """A stream of 40 rows, in chunks of 5."""

    def __init__(self) -> None:
        self.rows = 0

    def __next__(self) -> pa.RecordBatch:
        if self.rows >= 40:
            raise StopIteration
        self.rows += 5
        return pa.record_batch({"x": list(range(self.rows - 5, self.rows))})

    def state(self) -> Any:
        return RowCountPosition(self.rows)

    def state_after(self, state: Any, rows: int) -> Any:
        return state.after(rows)

    def restore(self, state: State) -> None:
        raise AssertionError(f"nothing restores {state}")

    def close(self) -> None:
        pass


def remote(*, ordered: bool = False, batched: bool = False) -> ds.Dataset:
    return ds.Dataset(
        ServiceSource(
            target="127.0.0.1:1",
            dataset_id="1",
            policy=1,
            schema=pa.schema({"x": pa.int64()}),
            ordered=ordered,
            is_batched=batched,
        )
    )


def opened(dataset: ds.Dataset, monkeypatch: pytest.MonkeyPatch) -> BatchStream:
    monkeypatch.setattr(ServiceSource, "open", lambda _self, _context: FortyRowStream())
    return dataset.node.open(RunContext())


def rows_in(state: Any) -> int:
    while "rows" not in state:
        assert not state.get("row")
        state = state["input"]
    return int(state["rows"])


@pytest.mark.parametrize(
    ("build", "rows"),
    [
        (lambda d: d.batch(3), [0, 3, 6, 9]),
        (lambda d: d.batch(7), [0, 7, 14, 21]),
        (lambda d: d.map(lambda c: c).batch(3).map(lambda c: c), [0, 3, 6, 9]),
        (lambda d: d.skip(4).batch(3), [0, 7, 10, 13]),
        (lambda d: d.take(13).batch(4), [0, 4, 8, 12, 13]),
        (lambda d: d.enumerate().batch(4), [0, 4, 8]),
        (lambda d: d.batch(4).unbatch().batch(6), [0, 6, 12]),
        (lambda d: d.batch(4).take(2), [0, 4, 8]),
        (lambda d: d.batch(4).filter(ds.col("x") > 1), [0, 4]),
    ],
)
def test_position_counts_rows_used_by_operators(
    build: Any, rows: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = build(remote())
    check_saveable(dataset.node)
    with opened(dataset, monkeypatch) as stream:
        for wanted in rows:
            assert rows_in(without_live_positions(stream.state())) == wanted
            next(stream, None)


def test_position_has_counters_of_take_and_enumerate(monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(remote().take(11).enumerate().batch(4), monkeypatch) as stream:
        next(stream)
        taken = {"input": {"input": {"rows": 4}, "row": 0}, "left": 7}
        assert without_live_positions(stream.state()) == {
            "input": {"input": taken, "next": 4},
            "row": 0,
        }


def test_prefetched_rows_are_not_counted_in_position(monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(remote().batch(3).prefetch(2), monkeypatch) as stream:
        for number in range(5):
            assert rows_in(without_live_positions(stream.state())) == 3 * number
            next(stream)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda d: d.shuffle(10), "position of shuffle after distribute"),
        (lambda d: d.filter(ds.col("x") > 1).batch(3), "filter, followed by batch, after"),
        (lambda d: d.repeat(2).batch(3), "repeat, followed by batch, after"),
        (lambda d: d.batch(3).shuffle(4).prefetch(2), "position of shuffle"),
        (lambda d: d.shard(2, 0), "position of shard"),
        (lambda d: d.concatenate(remote()), "position of concatenate"),
    ],
)
def test_inexact_position_after_distribute_is_refused_naming_operator(
    build: Any, message: str
) -> None:
    with pytest.raises(UnimplementedError, match=message):
        check_saveable(build(remote()).node)
    if "concatenate" not in message:
        check_saveable(build(remote(ordered=True)).node)


@pytest.mark.parametrize(
    "build",
    [
        lambda d: d.filter(ds.col("x") > 1).map(lambda c: c).prefetch(2),
        lambda d: d.repeat(2),
        lambda d: d.batch(3).filter(ds.col("x") > 1),
    ],
)
def test_row_operators_after_distribute_keep_position_saveable(build: Any) -> None:
    check_saveable(build(remote()).node)


def test_position_inside_unknown_operator_state_is_refused() -> None:
    with pytest.raises(FailedPreconditionError, match="another cut or order"):
        without_live_positions({"input": {"input": RowCountPosition(3), "left": 2}, "row": 1})


def test_position_in_unknown_operator_state_is_saved_if_rows_are_repeated() -> None:
    class Repeatable(RowCountPosition):
        has_fixed_order = True

    state = {"inputs": [Repeatable(3), None], "input": {"input": Repeatable(4)}, "row": 1}
    saved = {"inputs": [{"rows": 3}, None], "input": {"input": {"rows": 4}}, "row": 1}
    assert without_live_positions(state) == saved


@pytest.mark.parametrize(
    ("build", "goes_on"),
    [
        (lambda d: d, True),
        (lambda d: d.map(lambda c: c).batch(3).unbatch().prefetch(2), True),
        (lambda d: d.repeat(2).skip(1).take(9).enumerate(), True),
        (lambda d: d.shuffle(4).batch(3), False),
        (lambda d: d.concatenate(remote()), False),
        (lambda _: ds.Dataset.range(9).batch(3), False),
    ],
)
def test_only_service_read_without_holding_rows_goes_on_after_interrupt(
    build: Any, goes_on: bool
) -> None:
    assert goes_on_after_interrupt(build(remote()).node) is goes_on
