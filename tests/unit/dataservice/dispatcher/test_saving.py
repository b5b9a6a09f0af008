"""Decisions and events of saving: leases of windows, markers, failures, and what is kept."""

from __future__ import annotations

import functools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataservice.dispatcher import decide, saving
from dataservice.dispatcher import events as ev
from dataservice.dispatcher import snapshot_events as facts
from dataservice.dispatcher import snapshots as snapshots_module
from dataservice.dispatcher.invariants import check_invariants
from dataservice.dispatcher.journal_frames import decode_frame, encode_frame
from dataservice.dispatcher.requests import Decision, Lease
from dataservice.dispatcher.snapshot_requests import (
    Chunk,
    Marker,
    StartSnapshot,
    WorkOnSnapshot,
    WrittenWindow,
)
from dataservice.dispatcher.state import DispatcherState
from dataservice.errors import (
    AlreadyExistsError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
)
from tests.unit.dataservice.dispatcher import dispatcher_facts
from tests.unit.dataservice.dispatcher.dispatcher_facts import compacted, replayed

ROWS = 10
plan_of = functools.partial(dispatcher_facts.plan_of, rows=ROWS)
ERROR = json.dumps({"code": "INTERNAL", "message": "no luck"})


def dataset(name: str = "1000", fingerprint: str = "f") -> ev.DatasetRegistered:
    return ev.DatasetRegistered(
        dataset_id=name,
        plan=b"plan",
        schema=b"s",
        cardinality=-2,
        compression="NONE",
        fingerprint=fingerprint,
    )


def worker(name: str) -> ev.WorkerRegistered:
    return ev.WorkerRegistered(worker_id=name, address=f"{name}:1", host="h", pid=1)


STARTED = facts.SnapshotStarted(
    snapshot_id="s1",
    dataset_id="1000",
    path="/data/s",
    compression="LZ4",
    storage_options='{"key":"k"}',
    is_whole=False,
    plan=plan_of(4, rounds=2),
)
SCRIPT: tuple[ev.Event, ...] = (
    dataset(),
    worker("w1"),
    worker("w2"),
    STARTED,
    facts.SnapshotRoundOpened(snapshot_id="s1"),
    facts.SnapshotWindowsLeased(snapshot_id="s1", worker_id="w1", windows=(0, 1)),
    facts.SnapshotWindowsLeased(snapshot_id="s1", worker_id="w2", windows=(2, 3)),
    facts.SnapshotWindowsFinished(
        snapshot_id="s1", windows=(0,), rows=(10,), chunks=((0, 10, 99, 1, "t"),)
    ),
    facts.SnapshotRoundOpened(snapshot_id="s1"),
    ev.WorkerLost(worker_id="w1"),
    facts.SnapshotWindowsLeased(snapshot_id="s1", worker_id="w2", windows=(1, 4)),
    facts.SnapshotWindowsFinished(snapshot_id="s1", windows=(3, 4), rows=(0, 0), chunks=()),
    facts.SnapshotFailed(snapshot_id="s1", error=ERROR),
    facts.SnapshotMarkerLeased(snapshot_id="s1", worker_id="w2"),
    facts.SnapshotDone(snapshot_id="s1"),
)


@pytest.mark.parametrize("cut", range(len(SCRIPT) + 1))
def test_snapshots_survive_replay_and_compaction_at_every_event(cut: int) -> None:
    state = replayed(SCRIPT[:cut])
    frames = [encode_frame([event]) for event in SCRIPT[:cut]]
    assert replayed(tuple(event for frame in frames for event in decode_frame(frame))) == state
    short = compacted(state)
    assert short == state
    for event in SCRIPT[cut:]:
        short.apply(event)
    assert short == replayed(SCRIPT), "and go on alike"


def test_snapshot_windows_of_lost_worker_are_leasable_at_once() -> None:
    state = replayed(SCRIPT[:10])
    snapshot = state.snapshots.by_id["s1"]
    assert snapshot.windows is not None
    assert snapshot.windows.candidates(snapshot.reader, 3) == (1, 4, 5)
    assert snapshot.totals == (1, 8, 10, 99, 1)


def test_closed_snapshot_keeps_totals_and_no_storage_options() -> None:
    snapshot = replayed(SCRIPT).snapshots.by_id["s1"]
    assert (snapshot.storage_options, snapshot.chunks) == ("{}", {})
    assert snapshot.totals == (3, 8, 10, 99, 1)


def test_oldest_closed_snapshots_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots_module, "CLOSED_SNAPSHOTS_KEPT", 2)
    state = replayed((dataset(),))
    for number in range(5):
        name = f"s{number}"
        for event in (
            facts.SnapshotStarted(
                snapshot_id=name,
                dataset_id="1000",
                path=f"/{number % 3}",
                compression="NONE",
                storage_options="{}",
                is_whole=True,
                plan=saving.WHOLE,
            ),
            facts.SnapshotFailed(snapshot_id=name, error=ERROR),
            facts.SnapshotDone(snapshot_id=name),
        ):
            state.apply(event)
            check_invariants(state)
    assert list(state.snapshots.by_id) == ["s3", "s4"]
    assert compacted(state) == state


# Decisions


def run(state: DispatcherState, decision: Decision) -> object:
    for event in decision.events:
        state.apply(event)
        check_invariants(state)
    return decision.reply


def start_request(**more: object) -> StartSnapshot:
    fields: dict[str, object] = {
        "snapshot_id": "s1",
        "dataset_id": "1000",
        "path": "/data/s",
        "compression": "NONE",
    }
    return StartSnapshot(**{**fields, **more})


def started(windows: int = 4, rounds: int = 1, workers: int = 2) -> DispatcherState:
    names = (worker(f"w{number + 1}") for number in range(workers))
    state = replayed((dataset(), *names))
    assert run(state, saving.start(state, start_request(), plan_of(windows, rounds))) == "s1"
    return state


def request_work(
    state: DispatcherState, name: str = "w1", **more: object
) -> tuple[tuple[Lease, ...], Marker | None]:
    """Does with a request for work what the handlers do; returns the leases and the marker."""
    request = WorkOnSnapshot(worker_id=name, snapshot_id="s1", **{"count": 9, **more})
    run(state, saving.report(state, request))
    run(state, saving.open_round(state, "s1"))
    leases = run(state, saving.lease(state, request))
    marker = run(state, saving.lease_marker(state, request))
    return leases, marker  # type: ignore[return-value]


def written_windows(*windows: int) -> tuple[WrittenWindow, ...]:
    return tuple(WrittenWindow(w, (Chunk(w, ROWS, 100 + w, 2, f"t{w}"),)) for w in windows)


def test_snapshot_windows_are_shared_and_last_report_leases_marker() -> None:
    state = started(windows=8)
    first, _ = request_work(state, "w1")
    second, _ = request_work(state, "w2")
    assert [lease.window_index for lease in first] == [0, 1], "a fair part of what is left"
    assert [lease.window_index for lease in second] == [2, 3]
    assert [(lease.epoch, lease.window.index, lease.start_row) for lease in first] == [
        (0, 0, 0),
        (0, 1, 0),
    ]
    done: set[int] = set()
    held: dict[str, list[int]] = {"w1": [0, 1], "w2": [2, 3]}
    marker = None
    while marker is None:
        for name, windows in held.items():
            done.update(windows)
            leases, marker = request_work(state, name, written=written_windows(*windows))
            windows[:] = [lease.window_index for lease in leases]
            if marker is not None:
                break
    assert done == set(range(8))
    assert marker.name == "DONE"
    content = json.loads(marker.content)
    assert content["chunks"] == [[w, ROWS, 100 + w, 2, f"t{w}"] for w in range(8)]
    assert (content["rows"], content["size_bytes"]) == (80, 828)
    other = "w2" if state.snapshots.by_id["s1"].marker_worker == "w1" else "w1"
    assert request_work(state, other) == ((), None), "one worker writes it"
    state.apply(ev.WorkerLost(worker_id=state.snapshots.by_id["s1"].marker_worker))
    assert request_work(state, other)[1] == marker, "and another one when that is gone"
    request_work(state, other, marked=True)
    assert state.snapshots.by_id["s1"].is_closed
    assert saving.progress(state.snapshots.by_id["s1"])["state"] == "done"
    assert request_work(state, other, marked=True) == ((), None)


def test_window_unknown_to_its_worker_is_leased_again() -> None:
    state = started(windows=2, workers=1)
    lost, _ = request_work(state, count=1)
    again, _ = request_work(state, count=1)
    assert again == lost
    held, _ = request_work(state, count=1, holding=(0,))
    assert [lease.window_index for lease in held] == [1]
    assert request_work(state, count=0, holding=())[0] == ()


def test_each_pass_of_snapshot_has_its_own_windows() -> None:
    state = started(windows=2, rounds=3, workers=1)
    epochs = []
    for _ in range(6):
        ((lease,), marker) = request_work(state, count=1)
        epochs.append((lease.window_index, lease.epoch, lease.window.index))
        _, marker = request_work(state, count=0, written=written_windows(lease.window_index))
    assert epochs == [(0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 1, 1), (4, 2, 0), (5, 2, 1)]
    assert marker is not None


def test_written_window_counts_once_and_only_from_its_holder() -> None:
    state = started(windows=2)
    request_work(state, "w1", count=1)
    for _ in range(2):
        request_work(state, "w1", count=0, written=written_windows(0))
    request_work(state, "w2", count=0, written=written_windows(1))
    assert state.snapshots.by_id["s1"].totals == (1, 2, 10, 100, 1)


def test_empty_window_has_no_chunk_in_snapshot() -> None:
    state = started(windows=1)
    request_work(state, "w1")
    _, marker = request_work(state, "w1", written=(WrittenWindow(0, ()),))
    assert marker is not None
    assert json.loads(marker.content)["chunks"] == []


def test_snapshot_without_windows_is_done_at_once() -> None:
    state = started(windows=0)
    assert saving.work_for(state, "w1", (), 3) == ("s1",)
    assert request_work(state)[1] is not None


def test_first_worker_error_ends_snapshot() -> None:
    state = started()
    request_work(state, "w1")
    request_work(state, "w2", error=ERROR)
    _, marker = request_work(state, "w1", error=json.dumps({"code": "X", "message": "later"}))
    assert marker is None, "whoever failed first writes it"
    _, marker = request_work(state, "w2")
    assert marker == ("ERROR", json.dumps({"snapshot_id": "s1", "error": json.loads(ERROR)}))
    assert saving.progress(state.snapshots.by_id["s1"])["error"] == "no luck"
    assert request_work(state, "w1", written=written_windows(0))[0] == ()


def test_window_that_loses_workers_repeatedly_ends_snapshot() -> None:
    state = started(windows=2, workers=0)
    for number in range(saving.MAX_TAKEOVERS):
        name = f"w{number}"
        state.apply(worker(name))
        ((lease,), _) = request_work(state, name, count=1)
        assert lease.window_index == 0
        state.apply(ev.WorkerLost(worker_id=name))
    state.apply(worker("last"))
    leases, marker = request_work(state, "last", count=1)
    assert leases == ()
    assert marker is not None
    assert "window 0 lost its data worker 10 times" in marker.content


def test_failure_to_write_done_marker_is_marked_as_error() -> None:
    state = started(windows=1)
    request_work(state)
    assert request_work(state, written=written_windows(0))[1].name == "DONE"  # type: ignore[union-attr]
    assert request_work(state, error=ERROR)[1].name == "ERROR"  # type: ignore[union-attr]


def test_undivided_snapshot_has_one_window_of_many_chunks() -> None:
    state = replayed((dataset(), worker("w1")))
    run(state, saving.start(state, start_request(), None))
    ((lease,), _) = request_work(state)
    assert lease.window_index == 0
    chunks = (Chunk(0, 70, 1, 7), Chunk(1, 30, 1, 3))
    _, marker = request_work(state, written=(WrittenWindow(0, chunks),))
    assert marker is not None
    assert json.loads(marker.content)["rows"] == 100
    assert saving.task_of(state.snapshots.by_id["s1"]).windows is None


def test_snapshot_start_attaches_or_is_refused_by_contents_of_path() -> None:
    state = started()
    again = start_request(snapshot_id="s2")
    assert saving.attach(state, again).snapshot_id == "s1"  # type: ignore[union-attr]
    assert run(state, saving.start(state, again, plan_of(9))) == "s1"
    with pytest.raises(AlreadyExistsError, match="with another compression"):
        saving.attach(state, start_request(snapshot_id="s3", compression="LZ4"))
    with pytest.raises(AlreadyExistsError, match="already holds snapshot s9, of another service"):
        saving.attach(state, start_request(snapshot_id="s3", found_id="s9"))
    state.apply(dataset("1001", fingerprint="g"))
    with pytest.raises(AlreadyExistsError, match="being written to /data/s, with another plan"):
        saving.attach(state, start_request(snapshot_id="s3", dataset_id="1001"))
    with pytest.raises(NotFoundError, match="1002"):
        saving.attach(state, start_request(snapshot_id="s3", dataset_id="1002"))
    run(state, saving.cancel(state, "s1"))
    with pytest.raises(AlreadyExistsError, match="snapshot s1, which failed"):
        saving.attach(state, again)
    state.apply(facts.SnapshotDone(snapshot_id="s1"))
    with pytest.raises(AlreadyExistsError, match="snapshot s1, which failed"):
        saving.attach(state, start_request(snapshot_id="s3", found_id="s1"))
    assert saving.attach(state, again) is None, "the folder was deleted"
    run(state, saving.start(state, again, plan_of(1)))
    assert state.snapshots.at("/data/s").snapshot_id == "s2"  # type: ignore[union-attr]
    with pytest.raises(InvalidArgumentError, match="infinite"):
        saving.start(state, start_request(snapshot_id="s3", path="/b"), plan_of(1, rounds=None))


def test_repeated_start_returns_same_snapshot_at_any_stage() -> None:
    state = started()
    for _ in range(2):
        assert run(state, saving.start(state, start_request(found_id="s0"), plan_of(4))) == "s1"
        run(state, saving.cancel(state, "s1"))
        state.apply(facts.SnapshotDone(snapshot_id="s1"))


def test_dataset_being_saved_cannot_be_deleted() -> None:
    state = started()
    with pytest.raises(FailedPreconditionError, match=r"is being saved to /data/s.*cancel"):
        decide.delete_dataset(state, "1000")
    state.apply(dataset("1001"))
    assert decide.delete_dataset(state, "1001").events
    run(state, saving.cancel(state, "s1"))
    state.apply(facts.SnapshotDone(snapshot_id="s1"))
    assert decide.delete_dataset(state, "1000").events


def test_worker_gets_few_snapshots_and_those_with_fewest_workers_first() -> None:
    state = started()
    for name in ("s2", "s3"):
        request = start_request(snapshot_id=name, path=f"/{name}")
        run(state, saving.start(state, request, plan_of(4)))
    request_work(state, "w2", count=1)
    assert saving.work_for(state, "w1", (), 2) == ("s2", "s3")
    assert saving.work_for(state, "w1", ("s2",), 2) == ("s3",)
    assert saving.work_for(state, "w1", ("s2", "s3"), 2) == ()
    request_work(state, "w1", count=9)
    request_work(state, "w1", count=9, holding=(1,))
    request_work(state, "w1", count=9, holding=(1, 2))
    assert saving.work_for(state, "w1", ("s2", "s3"), 9) == ("s1",), "its own windows"
    state.apply(worker("w3"))
    assert saving.work_for(state, "w3", ("s2", "s3"), 9) == (), "others write all of it"


class Cluster:
    """A dispatcher's state, workers that may die, replies that may be lost, and the disk."""

    def __init__(self, windows: int, rounds: int) -> None:
        self.state = started(windows, rounds, workers=0)
        self.held: dict[str, set[int]] = {}
        self.disk: set[int] = set()
        self.number = 0

    def step(self, action: str, pick: int, is_lost: bool) -> None:
        names = sorted(self.held)
        if action == "join" or not names:
            self.number += 1
            name = f"w{self.number}"
            self.state.apply(worker(name))
            self.held[name] = set()
            return
        name = names[pick % len(names)]
        if action == "die":
            self.state.apply(ev.WorkerLost(worker_id=name))
            del self.held[name]
        elif action == "forget":
            self.state = compacted(self.state)
        else:
            self._work(name, pick % 4, is_lost)
        check_invariants(self.state)

    def _work(self, name: str, count: int, is_lost: bool) -> None:
        ready = sorted(self.held[name])[: count + 1]
        self.disk.update(ready)
        holding = tuple(self.held[name] - set(ready))
        leases, marker = request_work(
            self.state, name, count=count, holding=holding, written=written_windows(*ready)
        )
        if is_lost:
            return
        self.held[name] -= set(ready)
        self.held[name] |= {lease.window_index for lease in leases}
        if marker is not None:
            request_work(self.state, name, marked=True)


@settings(max_examples=100, deadline=None)
@given(
    windows=st.integers(0, 7),
    rounds=st.integers(0, 3),
    steps=st.lists(
        st.tuples(
            st.sampled_from(["join", "die", "work", "work", "work", "forget"]),
            st.integers(0, 9),
            st.booleans(),
        ),
        max_size=40,
    ),
)
def test_every_window_is_written_under_any_failures(
    windows: int, rounds: int, steps: list[tuple[str, int, bool]]
) -> None:
    cluster = Cluster(windows, rounds)
    for action, pick, is_lost in steps:
        cluster.step(action, pick, is_lost)
    cluster.step("join", 0, False)
    snapshot = cluster.state.snapshots.by_id["s1"]
    for _ in range(100):
        if snapshot.is_closed:
            break
        # Every worker asks: windows whose lease was lost with a reply are handed out only then.
        for name in sorted(cluster.held):
            cluster._work(name, 3, False)
        snapshot = cluster.state.snapshots.by_id["s1"]
    assert snapshot.is_closed, "somebody can always go on"
    if sum(action == "die" for action, _, _ in steps) >= saving.MAX_TAKEOVERS and snapshot.error:
        assert "lost its data worker" in snapshot.error
        return
    assert snapshot.totals.windows_done == windows * rounds
    assert snapshot.totals.rows == ROWS * windows * rounds
    assert cluster.disk == set(range(windows * rounds))
