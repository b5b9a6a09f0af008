"""Requests to a dispatcher, and functions that change its state by decisions and events."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dataservice.dispatcher import events as ev
from dataservice.dispatcher import opening
from dataservice.dispatcher.compaction import facts_of
from dataservice.dispatcher.invariants import check_invariants
from dataservice.dispatcher.journal_frames import decode_frame, encode_frame
from dataservice.dispatcher.plans import WindowPlan
from dataservice.dispatcher.requests import Decision, OpenAnswer, OpenIteration
from dataservice.dispatcher.state import DispatcherState
from dataservice.sharding import Split
from dataservice.vocabulary import ShardingPolicy

OPEN = OpenIteration(
    dataset_id="1000",
    policy=ShardingPolicy.DYNAMIC,
    job_name="train",
    repetition=0,
    delivery="exactly_once",
    reader_id="r1",
    job_id="j1",
    iteration_id="i1",
)


def plan_of(windows: int, rounds: int | None = 1, *, rows: int = 1) -> WindowPlan:
    """Returns a plan of windows with `rows` rows each."""
    splits = tuple(Split(start=i * rows, stop=(i + 1) * rows, rows=rows) for i in range(windows))
    return WindowPlan(splits=splits, target_rows=rows, rounds=rounds)


def apply(state: DispatcherState, decision: Decision) -> Any:
    """Applies the events of a decision; returns its reply."""
    for event in decision.events:
        state.apply(event)
    return decision.reply


def commit(state: DispatcherState, decision: Decision) -> Any:
    """Does what `apply` does and checks all invariants: too slow for thousands of windows."""
    reply = apply(state, decision)
    check_invariants(state)
    return reply


def opened(
    state: DispatcherState, request: OpenIteration, plan: WindowPlan | str | None
) -> OpenAnswer:
    """Joins a reader, as `commit` does; returns its answer."""
    notice = commit(state, opening.open_iteration(state, request, plan))
    return opening.answer_open(state, request.reader_id, notice)


def replayed(events: Iterable[ev.Event]) -> DispatcherState:
    """Returns the state that events lead to, with the invariants checked after each."""
    state = DispatcherState()
    for event in events:
        state.apply(event)
        check_invariants(state)
    return state


def compacted(state: DispatcherState) -> DispatcherState:
    """Returns the state that is read again from its compacted journal."""
    short = DispatcherState()
    for fact in facts_of(state):
        for event in decode_frame(encode_frame([fact])):
            short.apply(event)
    return short
