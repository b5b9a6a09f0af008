"""Closures are committed with the next pull of their thread, or soon after, and then reported."""

from __future__ import annotations

import base64
import contextlib
import json
import threading
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pstrain.errors import AbortedError, CancelledError, InvalidArgumentError, UnavailableError
from pstrain.paramserver.commits import ENDED_KEPT, NOTES_MAX_BYTES, Commits, Entry, PartKey
from pstrain.paramserver.messages import LateBody, Message
from pstrain.serialization import results
from pstrain.trainer import committing, decisions, two_phase_commit
from pstrain.trainer.committing import HELD_S, Committer
from pstrain.trainer.outgoing import Answer, Answers, Pulls
from pstrain.trainer.result_queue import HOLD_MAX_S
from pstrain.trainer.staging import ClosureRun, PendingPart, note, notes_max_bytes
from pstrain.trainer.unreported import ENDS_MAX
from pstrain.variables.parameters import step_scope
from pstrain.vocabulary import StepToken
from pstrain.wire import trainer_pb2 as pb

VARIABLE = 1
MARK = {"reader": "r", "marks": []}
PULLS: Pulls = {ps: ({"kind": "pull", "ps": ps}, None) for ps in range(2)}


class Servers:
    """Parameter servers that record their requests and refuse those that the test names."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.tries: list[int] = []
        self.entries: list[list[Any]] = []
        self.refuse: dict[str, Exception] = {}
        self.refuse_changes = False

    def exchange(self, messages: Mapping[int, Message]) -> dict[int, Any]:
        for ps, (header, _) in messages.items():
            self._ask(f"{header['kind']} {ps}", header)
        return {ps: {} for ps in messages}

    def exchange_with(self, messages: Mapping[int, Message], pulls: Pulls) -> Answers:
        for ps, (header, _) in messages.items():
            commits = ",".join(str(closure) for closure, *_ in header.get("commits", ()))
            along = f"({commits})" if commits else ""
            self._ask(f"{header['kind']}{along}{' pull' if ps in pulls else ''} {ps}", header)
        return {ps: Answer({"ps": ps}, None) for ps in messages if ps in pulls}

    def _ask(self, what: str, header: dict[str, Any]) -> None:
        self.asked.append(what)
        self.tries += [header["try"]] if "try" in header else []
        self.entries += header.get("entries", ())
        if self.refuse_changes and any("bad" in change for change in header.get("changes", ())):
            raise InvalidArgumentError("refused")
        for kind, error in self.refuse.items():
            if what.startswith(kind):
                raise error


class Receipt:
    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def acknowledge(self) -> None:
        self._trainer.acknowledged += 1

    def marks(self) -> list[dict[str, Any]]:
        return [MARK]


class Trainer:
    """A committer; each of its threads is represented by the part that the thread holds."""

    def __init__(self, closures: int = 2) -> None:
        self.servers = Servers()
        self.acknowledged = 0
        self.sent: list[tuple[int, str | None]] = []
        self.results: list[pb.ClosureResult] = []
        self.lost: list[Exception] = []
        parameters: Any = self.servers
        common = (parameters, "t", self._send, self.lost.append, self._fail)
        self.committer = Committer(*common, closures)

    def run(self, closure: int, held: PendingPart | None = None) -> ClosureRun:
        return self.committer.new_run(StepToken("s", closure, 0), 0, held)

    def take(self, run: ClosureRun, source: int = 0) -> None:
        self.committer.take(run, source, Receipt(self))

    def end(self, run: ClosureRun, *servers: int) -> PendingPart | None:
        for ps in servers:
            run.touch([VARIABLE])
            run.add(ps, {"kind": "push"}, None)
        return self.committer.end(run, pb.ClosureResult(id=run.token.closure, value=b"1"))

    def _send(self, results: list[pb.ClosureResult]) -> None:
        assert results, "a message tells of no closure"
        self.results += results
        self.sent += [(result.id, result.WhichOneof("outcome")) for result in results]

    @staticmethod
    def _fail(result: pb.ClosureResult, error: Exception) -> pb.ClosureResult:
        return pb.ClosureResult(id=result.id, error_json=str(error))


def read_ahead(trainer: Trainer, closure: int, held: PendingPart | None) -> ClosureRun:
    """Begins a closure, whose first pull goes with the commit of what its thread held back."""
    run = trainer.run(closure, held)
    run.read_with([], PULLS)
    return run


@pytest.fixture
def trainer(monkeypatch: pytest.MonkeyPatch) -> Trainer:
    """Returns a trainer that commits overdue parts only when the test asks for it."""

    class TimerDrivenByTest:
        def __init__(self, _flush: Callable[[], bool], period_s: float) -> None:
            self._period_s = period_s
            self.waits_s: list[float] = []
            self.is_armed = False

        def arm(self) -> None:
            self.is_armed = True

        def close(self, timeout_s: float) -> None:
            self.waits_s.append(timeout_s)

    monkeypatch.setattr(committing, "FlushTimer", TimerDrivenByTest)
    return Trainer()


def test_pull_is_joined_to_prepare_and_decide_requests(trainer: Trainer) -> None:
    held = trainer.end(trainer.run(2), 0, 1)
    assert held is not None
    assert (trainer.servers.asked, trainer.sent) == ([], [])
    answers = trainer.run(3, held).read_with([9], PULLS)
    assert trainer.servers.asked == ["prepare pull 1", "decide pull 0"]
    assert [answers[ps].header["ps"] for ps in PULLS] == [0, 1]
    assert held.is_done


def test_commit_travels_with_next_message_to_its_server_and_is_reported_then(
    trainer: Trainer,
) -> None:
    held = trainer.end(trainer.run(2), 0, 1)
    held = trainer.end(read_ahead(trainer, 3, held), 0, 1)
    trainer.servers.asked.clear()
    assert trainer.sent == []
    held = trainer.end(read_ahead(trainer, 4, held), 0)
    # Closure 3 was decided on server 1, and closure 2 on server 0.
    assert trainer.servers.asked == ["prepare pull 0", "decide(2) pull 1"]
    assert trainer.sent == [(2, "value")]
    trainer.servers.asked.clear()
    trainer.committer.flush(held)
    assert trainer.servers.asked == ["decide(3) 0"]
    assert trainer.sent == [(2, "value"), (3, "value"), (4, "value")]


@pytest.mark.usefixtures("trainer")
def test_trainer_that_runs_one_closure_at_a_time_pulls_what_the_one_before_has_changed() -> None:
    trainer = Trainer(closures=1)
    answers = trainer.run(3, trainer.end(trainer.run(2), 0, 1)).read_with([], PULLS)
    assert trainer.servers.asked == ["prepare 1", "decide pull 0", "commit(2) pull 1"]
    assert (sorted(answers), trainer.sent) == ([0, 1], [(2, "value")])


def test_idle_thread_sends_commits_that_were_left(trainer: Trainer) -> None:
    held = trainer.end(trainer.run(2), 0, 1)
    following = read_ahead(trainer, 3, held)
    trainer.servers.asked.clear()
    assert trainer.end(following) is held
    trainer.committer.flush(held)
    assert trainer.servers.asked == ["commit(2) 1"]
    assert trainer.sent == [(3, "value"), (2, "value")]
    trainer.committer.flush(None)
    assert trainer.servers.asked == ["commit(2) 1"]


def test_commits_left_for_too_long_are_sent_by_timer(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now_s=0.0)
    for module in (committing, two_phase_commit):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    read_ahead(trainer, 3, trainer.end(trainer.run(2), 0, 1))
    trainer.servers.asked.clear()
    clock.now_s = HELD_S / 2
    assert trainer.committer._commit_overdue()
    assert (trainer.servers.asked, trainer.sent) == ([], [])
    clock.now_s = HELD_S
    assert not trainer.committer._commit_overdue()
    assert (trainer.servers.asked, trainer.sent) == (["commit(2) 1"], [(2, "value")])


def test_committer_that_closes_sends_commits_that_were_left(trainer: Trainer) -> None:
    read_ahead(trainer, 3, trainer.end(trainer.run(2), 0, 1))
    trainer.servers.asked.clear()
    for _ in range(2):
        trainer.committer.close()
    assert (trainer.servers.asked, trainer.sent) == (["commit(2) 1"], [(2, "value")])


@pytest.mark.parametrize("is_lost", [False, True])
def test_committer_that_closes_waits_for_commits_that_another_thread_has_sent(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    monkeypatch.setattr(committing, "_CLOSE_TIMEOUT_S", 200.0)
    read_ahead(trainer, 3, trainer.end(trainer.run(2), 0, 1))
    asked, answered = threading.Event(), threading.Event()
    ask, wait = trainer.servers._ask, trainer.committer._await_change

    def answer_late(what: str, header: dict[str, Any]) -> None:
        if what.startswith("commit") and not asked.is_set():
            asked.set()
            assert answered.wait(60)
            if is_lost:
                raise UnavailableError("gone")
        ask(what, header)

    def answer_once_waited_for(timeout_s: float) -> None:
        answered.set()
        wait(timeout_s)

    def flush() -> None:
        with contextlib.suppress(CancelledError):
            trainer.committer.flush(None)

    trainer.servers._ask = answer_late  # type: ignore[method-assign]
    trainer.committer._await_change = answer_once_waited_for  # type: ignore[method-assign]
    other = threading.Thread(target=flush)
    other.start()
    assert asked.wait(60)
    trainer.committer.close()
    assert answered.is_set(), "it did not wait"
    assert trainer.sent == ([] if is_lost else [(2, "value")])
    other.join(60)


def test_part_that_is_decided_as_committer_closes_is_committed_at_once(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def close(where: str) -> None:
        if where == "decided":
            trainer.committer.close()

    monkeypatch.setattr(committing, "_CLOSE_TIMEOUT_S", 0.0)
    monkeypatch.setattr(two_phase_commit, "reached", close)
    read_ahead(trainer, 3, trainer.end(trainer.run(2), 0, 1))
    assert trainer.servers.asked == ["prepare pull 1", "decide pull 0", "commit(2) pull 1"]
    assert trainer.sent == [(2, "value")]


@pytest.mark.parametrize("pulls", [{}, PULLS])
def test_closure_sees_its_own_changes_on_all_servers(trainer: Trainer, pulls: Pulls) -> None:
    run = trainer.run(2)
    for ps in (0, 1):
        run.touch([VARIABLE])
        run.add(ps, {"kind": "push"}, None)
    run.read_with([VARIABLE], pulls)
    pull = " pull" if pulls else ""
    assert trainer.servers.asked == ["prepare 1", f"decide{pull} 0", f"commit(2){pull} 1"]


def test_commits_are_not_left_before_a_read_without_pulls(trainer: Trainer) -> None:
    trainer.run(3, trainer.end(trainer.run(2), 0, 1)).before_read([VARIABLE])
    assert trainer.servers.asked == ["prepare 1", "decide 0", "commit(2) 1"]
    assert trainer.sent == [(2, "value")]


def test_timer_is_armed_for_commits_that_were_left_or_refused(trainer: Trainer) -> None:
    timer: Any = trainer.committer._flush_timer
    held = trainer.end(trainer.run(2), 0, 1)
    timer.is_armed = False
    run = read_ahead(trainer, 3, held)
    assert timer.is_armed
    timer.is_armed = False
    run.touch([VARIABLE])
    run.add(1, {"kind": "push"}, None)
    trainer.servers.refuse = {"decide(2)": InvalidArgumentError("no")}
    with pytest.raises(InvalidArgumentError, match="no"):
        run.read_with([VARIABLE], PULLS)
    assert timer.is_armed


def test_commits_of_refused_message_are_sent_again(trainer: Trainer) -> None:
    held = read_ahead(trainer, 3, trainer.end(trainer.run(2), 0, 1))
    trainer.servers.refuse = {"decide(2)": InvalidArgumentError("no")}
    following = trainer.run(4, trainer.end(held, 1))
    assert following.read_with([], PULLS) == {}
    assert trainer.sent == [(3, "error_json")]
    trainer.committer.flush(None)
    assert trainer.servers.asked[-2:] == ["decide(2) pull 1", "commit(2) 1"]
    assert trainer.sent == [(3, "error_json"), (2, "value")]


@pytest.mark.parametrize("error", [UnavailableError, AbortedError, InvalidArgumentError, OSError])
def test_commit_that_cannot_be_made_is_left_to_coordinator(
    trainer: Trainer, error: type[Exception]
) -> None:
    held = trainer.end(trainer.run(2), 0, 1)
    assert trainer.end(read_ahead(trainer, 3, held)) is held
    trainer.servers.refuse = {"commit": error("gone")}
    with pytest.raises(CancelledError, match="left to the coordinator"):
        trainer.committer.flush(held)
    assert [str(each) for each in trainer.lost] == ["gone"]
    assert trainer.sent == [(3, "value")]
    asked = list(trainer.servers.asked)
    trainer.committer.flush(None)
    trainer.committer.close()
    assert (trainer.servers.asked, len(trainer.lost)) == (asked, 1)


def test_timer_goes_on_after_a_commit_that_cannot_be_made(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committing, "HELD_S", 0.0)
    read_ahead(trainer, 3, trainer.end(trainer.run(2), 0, 1))
    trainer.servers.refuse = {"commit": UnavailableError("gone")}
    assert trainer.committer._commit_overdue()
    assert [str(each) for each in trainer.lost] == ["gone"]


def test_part_on_single_server_is_decided_there_without_prepare(trainer: Trainer) -> None:
    held = trainer.end(trainer.run(2), 1)
    assert list(trainer.run(3, held).read_with([], PULLS)) == [1]
    assert trainer.servers.asked == ["decide pull 1"]


def test_pull_within_closure_is_joined_to_decide_of_its_changes(trainer: Trainer) -> None:
    run = trainer.run(2)
    run.add(0, {"kind": "push"}, None)
    run.touch([VARIABLE])
    assert list(run.read_with([VARIABLE], PULLS)) == [0]
    assert (trainer.servers.asked, trainer.sent) == (["decide pull 0"], [])
    assert trainer.end(run) is None
    assert trainer.sent == [(2, "value")]


def test_decision_names_part_and_counts_parts_without_elements(trainer: Trainer) -> None:
    run = trainer.run(2)
    for takes in (False, True):
        if takes:
            trainer.take(run)
        run.add(0, {"kind": "push"}, None)
        run.before_take()
    held = trainer.end(run, 0)
    assert held is not None
    trainer.committer.flush(held)
    assert trainer.servers.entries == [
        [2, 0, 0, None, 1],
        [2, 0, 1, None, 1],
        [2, 0, 2, {"value": base64.b64encode(b"1").decode()}, 2],
    ]


def test_parts_that_an_earlier_run_committed_are_not_committed_again(trainer: Trainer) -> None:
    run = trainer.committer.new_run(StepToken("s", 2, 1), 1)
    for _ in range(2):
        run.add(0, {"kind": "push"}, None)
        run.touch([VARIABLE])
        run.before_read([VARIABLE])
    assert trainer.servers.entries == [[2, 1, 1, None, 2]]
    whole = trainer.committer.new_run(StepToken("s", 3, 1), 1)
    assert trainer.end(whole, 0) is None
    assert trainer.sent == [(3, "value")]
    assert len(trainer.servers.asked) == 1


@pytest.mark.parametrize(
    ("result", "outcome"),
    [
        (None, None),
        ({"value": b"1"}, {"value": "MQ=="}),
        ({"value": b"123" * 5}, {"value": "MTIzMTIzMTIzMTIzMTIz"}),
        ({"value": b"1" * 16}, {"bytes": 16}),
        ({"error_json": "no"}, {"error": "no"}),
        ({"error_json": "no", "ended_resource_ids": ["a"]}, {"error": "no", "met_end": True}),
    ],
)
def test_decision_has_outcome_of_closure_or_size_of_large_value(
    result: dict[str, Any] | None, outcome: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decisions, "OUTCOME_MAX_BYTES", 15)
    made = None if result is None else pb.ClosureResult(**result)
    run = ClosureRun(StepToken("s", 2, 0), Trainer().committer)
    member: Any = SimpleNamespace(run=run, result=made, note=None)
    assert decisions.decision({}, [member], [])["entries"] == [[2, 0, 0, outcome, 1]]


def test_end_without_changes_is_decided_by_its_arrival(trainer: Trainer) -> None:
    first, second = trainer.run(2), trainer.run(3)
    for run in (first, second):
        trainer.take(run)
    for run in (first, second):
        assert trainer.end(run) is None
    assert trainer.servers.asked == []
    told = [(each.id, each.needs_settling, json.loads(each.rows_json)) for each in trainer.results]
    assert told == [(2, True, [MARK]), (3, True, [MARK])]
    trainer.committer.settle([2])
    assert trainer.acknowledged == 1


def test_notes_are_sent_with_decided_part_unless_closure_ends(trainer: Trainer) -> None:
    run = trainer.run(2)
    for notes in (["a", "b"], [], ["c"]):
        run.add(0, {"kind": "push"}, None)
        run.touch([VARIABLE])
        run.notes += notes
        run.before_read([VARIABLE])
    run.notes.append("d")
    held = trainer.end(run, 0)
    assert held is not None
    trainer.committer.flush(held)
    told = [results.decode(base64.b64decode(note)) for *_, note in trainer.servers.entries[:3:2]]
    assert told == [["a", "b"], ["c"]]
    # The entry of a part without notes has no field for them.
    assert [len(entry) for entry in trainer.servers.entries] == [6, 5, 6, 5]


def test_note_returns_false_when_noted_bytes_reach_limit(trainer: Trainer) -> None:
    run, answers = trainer.run(2), []
    run.notes_max_bytes = 3_000
    with step_scope(run.token, run):
        for _ in range(3):
            run.add(0, {"kind": "push"}, None)
            answers.append(note(b"0" * 1_000))
            run.before_take()
    assert answers == [True, True, False]
    assert [len(entry) for entry in trainer.servers.entries] == [6, 6, 5]
    assert note("by no closure")


@pytest.mark.parametrize(
    "value",
    [
        np.zeros(3_000_000, np.uint8),
        (1, [{"x": b"0" * 1_600_000}]),
        "x" * 1_600_000,
        ("x" * 800_000, "x" * 800_000),
    ],
)
def test_note_larger_than_limit_is_refused(value: Any, trainer: Trainer) -> None:
    run = trainer.run(2)
    with step_scope(run.token, run):
        assert note("x" * 800_000)
        assert not note(value)
    assert run.notes == ["x" * 800_000]


def test_limit_keeps_notes_of_all_running_closures() -> None:
    for closures in (1, 3, 14, 64, 1_000):
        limit = notes_max_bytes(closures)
        # Twice as many may wait for their end to be committed.
        assert 3 * closures * limit <= NOTES_MAX_BYTES
        committer = Committer(None, "t", list, list, lambda result, _: result, closures)  # type: ignore[arg-type]
        assert committer.new_run(StepToken("s", 1, 0), 0).notes_max_bytes == limit


def test_thread_holds_at_most_one_part(trainer: Trainer) -> None:
    first = trainer.end(trainer.run(2), 0)
    second = trainer.end(trainer.run(3, first), 0)
    assert trainer.sent == [(2, "value")]
    third = trainer.run(4, second)
    assert trainer.end(third) is second
    assert trainer.sent == [(2, "value"), (4, "value")]
    assert second is not None
    trainer.committer.flush(second)
    assert trainer.sent[2:] == [(3, "value")]


def test_pull_after_taking_element_does_not_wait_for_earlier_runs(
    trainer: Trainer,
) -> None:
    slow, fast = trainer.run(2), trainer.run(3)
    trainer.take(slow)
    trainer.take(fast)
    held = trainer.end(fast, 0)
    following = trainer.run(4, held)
    trainer.take(following)
    assert following.read_with([], PULLS) == {}
    assert (trainer.servers.asked, trainer.sent) == ([], [])
    other = trainer.end(slow, 0)
    assert list(trainer.run(5, other).read_with([], PULLS)) == [0]
    assert trainer.run(6, held).read_with([], PULLS) == {}
    assert trainer.servers.asked == ["decide pull 0"]
    assert trainer.sent == [(2, "value"), (3, "value")]


def test_ends_that_wait_for_their_turn_commit_with_what_comes_before_them(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = trainer.run(2)
    trainer.take(slow)
    held, waited_for = None, list[PendingPart]()
    monkeypatch.setattr(trainer.committer, "_commit_held_alone", waited_for.append)
    for closure in range(3, 8):
        fast = trainer.run(closure, held)
        trainer.take(fast)
        assert fast.read_with([], PULLS) == {}
        earlier, held = held, trainer.end(fast, 0)
        # Two are held for each closure that the trainer runs at a time.
        assert waited_for == ([earlier] if closure == 7 else [])
    assert trainer.servers.asked == []
    assert list(trainer.run(8, trainer.end(slow, 0)).read_with([], PULLS)) == [0]
    assert trainer.servers.asked == ["decide pull 0"]
    assert [closure for closure, _ in trainer.sent] == [2, 3, 4, 5, 6, 7]
    assert trainer.acknowledged == 1


def test_pull_is_made_again_if_another_thread_committed_what_was_held_meanwhile(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, other, second = trainer.run(2), trainer.run(3), trainer.run(4)
    for run in (first, other, second):
        trainer.take(run)
    second.held = trainer.end(first, 0)
    held = trainer.end(second, 0)
    exchange_with = trainer.servers.exchange_with

    def commit_other_meanwhile(messages: Mapping[int, Message], pulls: Pulls) -> Answers:
        answers = exchange_with(messages, pulls)
        if pulls:
            ended = trainer.end(other, 0)
            assert ended is not None
            thread = threading.Thread(target=trainer.committer.flush, args=(ended,))
            thread.start()
            # It waits for the commit under way, after which its turn and that of closure 4 come.
            others.append(thread)
        return answers

    others: list[threading.Thread] = []
    monkeypatch.setattr(trainer.servers, "exchange_with", commit_other_meanwhile)
    commit_group = trainer.committer._commit_group

    def commit_then_wait(group: list[PendingPart], pulls: Pulls) -> Answers:
        answers = commit_group(group, pulls)
        if pulls:
            others[0].join(60)
        return answers

    monkeypatch.setattr(trainer.committer, "_commit_group", commit_then_wait)
    assert trainer.run(5, held).read_with([], PULLS) == {}
    assert trainer.servers.asked == ["decide pull 0", "decide 0"]
    assert [closure for closure, _ in trainer.sent] == [2, 3, 4]


@pytest.mark.parametrize(("rows", "commits"), [(1 << 20, 1), ((1 << 20) + 1, 2)])
def test_large_changes_do_not_commit_along_with_an_earlier_closure(
    trainer: Trainer, rows: int, commits: int
) -> None:
    first, second = trainer.run(2), trainer.run(3)
    for run in (first, second):
        trainer.take(run)
    second.add(0, {"kind": "push"}, LateBody.of([np.broadcast_to(np.float64(0), (rows,))]))
    later, earlier = trainer.end(second), trainer.end(first, 0)
    assert earlier is not None
    trainer.committer.flush(earlier)
    trainer.committer.flush(later)
    assert trainer.servers.asked == ["decide 0"] * commits
    assert trainer.sent == [(2, "value"), (3, "value")]


@pytest.mark.parametrize("kind", ["prepare", "decide"])
def test_refused_part_fails_its_closure_and_not_the_next(trainer: Trainer, kind: str) -> None:
    held = trainer.end(trainer.run(2), 0, 1)
    trainer.servers.refuse = {kind: InvalidArgumentError("no")}
    answers = trainer.run(3, held).read_with([], PULLS)
    # What was pulled with the preparation is as good as any.
    assert list(answers) == ([1] if kind == "decide" else [])
    assert trainer.sent == [(2, "error_json")]
    assert held is not None
    assert held.is_done


def test_element_of_refused_part_is_acknowledged_after_settlement(trainer: Trainer) -> None:
    run = trainer.run(2)
    trainer.take(run)
    held = trainer.end(run, 0)
    trainer.servers.refuse = {"decide": InvalidArgumentError("no")}
    assert trainer.run(3, held).read_with([], PULLS) == {}
    assert trainer.sent == [(2, "error_json")]
    assert trainer.servers.asked == ["decide pull 0"]
    assert trainer.acknowledged == 0
    trainer.committer.settle([2])
    assert trainer.acknowledged == 1


def _interleaved(trainer: Trainer) -> tuple[ClosureRun, ClosureRun, ClosureRun]:
    """Returns runs 2, 3 and 4, whose elements interleave, so that the runs commit together."""
    runs = trainer.run(2), trainer.run(3), trainer.run(4)
    for run in (*runs, *runs):
        trainer.take(run)
    return runs


def test_refused_run_of_commit_group_fails_alone(trainer: Trainer) -> None:
    first, second, third = _interleaved(trainer)
    second.add(1, {"kind": "push", "bad": True}, None)
    held = [trainer.end(run, 0) for run in (first, second, third)]
    trainer.servers.refuse_changes = True
    assert list(trainer.run(5, held[0]).read_with([], PULLS)) == [0]
    assert trainer.servers.asked == [
        "prepare pull 1",
        "abort 1",
        *("check 0", "check 1", "check 0"),
        "decide pull 0",
    ]
    assert trainer.sent == [(2, "value"), (3, "error_json"), (4, "value")]
    assert trainer.acknowledged == 1
    assert trainer.servers.tries == [0, 0, 1]


def test_refused_running_closure_of_group_raises_and_others_wait_for_its_end(
    trainer: Trainer,
) -> None:
    first, second, third = _interleaved(trainer)
    for run in (first, third):
        trainer.end(run, 0)
    second.add(0, {"kind": "push", "bad": True}, None)
    second.touch([VARIABLE])
    trainer.servers.refuse_changes = True
    with pytest.raises(InvalidArgumentError, match="refused"):
        second.before_read([VARIABLE])
    assert trainer.sent == []
    failed = pb.ClosureResult(id=3, error_json="refused")
    assert trainer.committer.end(second, failed) is None
    assert trainer.sent == [(2, "value"), (3, "error_json"), (4, "value")]


def test_whole_commit_group_fails_when_no_single_run_is_refused(trainer: Trainer) -> None:
    runs = _interleaved(trainer)
    held = [trainer.end(run, 0) for run in runs]
    trainer.servers.refuse = {"decide": InvalidArgumentError("too much")}
    assert held[0] is not None
    trainer.committer.flush(held[0])
    assert trainer.sent == [(closure, "error_json") for closure in (2, 3, 4)]


def test_failed_check_of_refused_group_leaves_it_to_coordinator(
    trainer: Trainer,
) -> None:
    held = [trainer.end(run, 0) for run in _interleaved(trainer)]
    trainer.servers.refuse = {
        "decide": InvalidArgumentError("no"),
        "check": UnavailableError("gone"),
    }
    assert held[0] is not None
    with pytest.raises(CancelledError, match="left to the coordinator"):
        trainer.committer.flush(held[0])
    assert (len(trainer.lost), trainer.sent) == (1, [])


def test_group_with_unknown_commit_outcome_is_not_checked(trainer: Trainer) -> None:
    held = [trainer.end(run, 0) for run in _interleaved(trainer)]
    trainer.servers.refuse = {"decide": UnavailableError("gone")}
    assert held[0] is not None
    with pytest.raises(CancelledError, match="left to the coordinator"):
        trainer.committer.flush(held[0])
    assert (trainer.servers.asked, trainer.sent) == (["decide 0"], [])


@pytest.mark.parametrize("kind", ["prepare", "decide"])
def test_unknown_commit_outcome_stops_committer_and_is_left_to_coordinator(
    trainer: Trainer, kind: str
) -> None:
    held = trainer.end(trainer.run(2), 0, 1)
    other = trainer.end(trainer.run(3), 0)
    trainer.servers.refuse = {kind: UnavailableError("gone")}
    with pytest.raises(CancelledError, match="left to the coordinator"):
        trainer.run(4, held).read_with([], PULLS)
    assert [str(error) for error in trainer.lost] == ["gone"]
    assert not [what for what in trainer.servers.asked if what.startswith("abort")]
    trainer.servers.refuse = {}
    asked = list(trainer.servers.asked)
    assert other is not None
    with pytest.raises(CancelledError):
        trainer.committer.flush(other)
    with pytest.raises(CancelledError):
        trainer.end(trainer.run(5), 0)
    assert (trainer.servers.asked, trainer.sent) == (asked, [])


def test_close_drops_held_part_without_reporting_it(trainer: Trainer) -> None:
    held = trainer.end(trainer.run(2), 0)
    trainer.committer.close()
    assert held is not None
    with pytest.raises(CancelledError):
        trainer.committer.flush(held)
    assert not trainer.committer._commit_overdue()
    assert (trainer.servers.asked, trainer.sent) == ([], [])


def test_close_waits_once_for_commit_in_progress(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committing, "_CLOSE_TIMEOUT_S", 0.01)
    held: Any = trainer.end(trainer.run(2), 0)
    held.is_busy = True
    trainer.committer.close()
    flush_timer: Any = trainer.committer._flush_timer
    assert flush_timer.waits_s == [0.0]


def test_overdue_part_is_committed_when_its_turn_comes(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, fast = trainer.run(2), trainer.run(3)
    trainer.take(slow)
    trainer.take(fast)
    trainer.end(fast, 0)
    assert trainer.committer._commit_overdue()
    monkeypatch.setattr(committing, "HELD_S", 0.0)
    assert trainer.committer._commit_overdue()
    assert trainer.servers.asked == []
    trainer.end(slow, 0)
    assert not trainer.committer._commit_overdue()
    assert trainer.sent == [(2, "value"), (3, "value")]


@pytest.mark.parametrize("wait_s", [0.0, 0.01, 0.049])
def test_end_is_held_back_no_longer_than_a_result_may_be(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch, wait_s: float
) -> None:
    """Ends are checked once a period, first ``wait_s`` after this one is held back."""
    clock, timer = SimpleNamespace(now_s=0.0), trainer.committer._flush_timer
    monkeypatch.setattr(committing, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    trainer.end(trainer.run(2), 0)
    clock.now_s += wait_s
    while trainer.committer._commit_overdue():
        clock.now_s += timer._period_s
    assert trainer.sent == [(2, "value")]
    assert HELD_S <= clock.now_s <= HOLD_MAX_S


def test_closures_of_thread_without_elements_commit_in_program_order(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluation, first = trainer.run(2), trainer.run(3)
    for run in (evaluation, first):
        trainer.take(run)
    trainer.end(evaluation)
    held = trainer.end(first, 0)
    flush = trainer.committer._commit_held_alone

    def look_meanwhile(held: PendingPart) -> None:
        # The held part has to wait until the coordinator has settled the evaluation, closure 2.
        trainer.committer._commit_overdue()
        trainer.committer.settle([2])
        flush(held)

    monkeypatch.setattr(committing, "HELD_S", 0.0)
    monkeypatch.setattr(trainer.committer, "_commit_held_alone", look_meanwhile)
    second = trainer.end(trainer.run(4, held), 0)
    assert second is not None
    flush(second)
    assert [closure for closure, _ in trainer.sent] == [2, 3, 4]


def settle_when_waited_for(trainer: Trainer, *closures: int) -> None:
    """Lets the coordinator settle closures as soon as a thread waits for a turn."""
    trainer.committer._await_change = lambda _: trainer.committer.settle(closures)  # type: ignore[method-assign]


def held_behind_evaluation(trainer: Trainer) -> PendingPart | None:
    """Ends closure 3, whose turn comes once the evaluation before it, closure 2, is settled."""
    evaluation, training = trainer.run(2), trainer.run(3)
    for run in (evaluation, training):
        trainer.take(run)
    trainer.end(evaluation)
    return trainer.end(training, 0)


def lone_run_behind_held_end() -> tuple[Trainer, ClosureRun]:
    """Returns a trainer that runs one closure at a time, and closure 4, which has an element.

    The end of closure 3 is held; closure 2, before it, is settled when anything waits for that.
    """
    trainer = Trainer(closures=1)
    run = trainer.run(4, held_behind_evaluation(trainer))
    trainer.take(run)
    settle_when_waited_for(trainer, 2)
    return trainer, run


@pytest.mark.usefixtures("trainer")
def test_trainer_that_runs_one_closure_at_a_time_waits_for_the_turn_of_the_one_before() -> None:
    trainer, run = lone_run_behind_held_end()
    assert list(run.read_with([], PULLS)) == [0]
    assert trainer.servers.asked == ["decide pull 0"]


@pytest.mark.usefixtures("trainer")
def test_trainer_that_runs_one_closure_at_a_time_ends_it_after_the_one_before() -> None:
    trainer, run = lone_run_behind_held_end()
    trainer.end(run, 0)
    assert [closure for closure, _ in trainer.sent] == [2, 3, 4]


def test_changes_stay_in_order_after_several_held_ends_of_other_sources(trainer: Trainer) -> None:
    run = trainer.run(4, held_behind_evaluation(trainer))
    trainer.take(run, source=1)
    following = trainer.run(5, trainer.end(run, 1))
    settle_when_waited_for(trainer, 2)
    following.read_with([], PULLS)
    trainer.committer.flush(trainer.end(following, 0))
    assert [entry[0] for entry in trainer.servers.entries] == [3, 4, 5]


def test_held_ends_of_a_thread_stay_in_order_while_it_goes_on(trainer: Trainer) -> None:
    run = trainer.run(4, held_behind_evaluation(trainer))
    trainer.take(run, source=1)
    following = trainer.run(5, trainer.end(run, 1))
    trainer.take(following, source=2)
    assert following.read_with([], PULLS) == {}
    assert trainer.servers.asked == []


def test_thread_waits_for_the_commit_of_what_it_held_that_another_makes(trainer: Trainer) -> None:
    held = trainer.end(trainer.run(2), 0)
    assert held is not None
    held.is_busy = True
    waits: list[float] = []

    def end_commit(timeout_s: float) -> None:
        waits.append(timeout_s)
        held.is_done = True

    trainer.committer._await_change = end_commit  # type: ignore[method-assign]
    following = trainer.run(3, held)
    trainer.take(following)
    assert following.read_with([], PULLS) == {}
    assert len(waits) == 1


def test_end_without_elements_or_changes_needs_no_settling(trainer: Trainer) -> None:
    assert trainer.end(trainer.run(2)) is None
    assert [result.needs_settling for result in trainer.results] == [False]


@pytest.mark.parametrize("news", ["end", "close"])
def test_thread_that_waits_for_its_turn_is_told_of_what_it_waits_for(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch, news: str
) -> None:
    monkeypatch.setattr(committing, "_RECHECK_S", 600.0)
    first, second = trainer.run(2), trainer.run(3)
    for run in (first, second, first):
        trainer.take(run)
    held = trainer.end(second, 0)
    waits, wait = threading.Event(), trainer.committer._await_change

    def note_wait(timeout_s: float) -> None:
        waits.set()
        wait(timeout_s)

    def flush() -> None:
        with contextlib.suppress(CancelledError):
            trainer.committer.flush(held)

    trainer.committer._await_change = note_wait  # type: ignore[method-assign]
    other = threading.Thread(target=flush, daemon=True)
    other.start()
    assert waits.wait(60)
    if news == "end":
        trainer.end(first, 0)
    else:
        trainer.committer.close()
    other.join(20)
    assert not other.is_alive()
    assert trainer.sent == ([(2, "value"), (3, "value")] if news == "end" else [])


def test_thread_that_is_idle_commits_all_that_it_holds(trainer: Trainer) -> None:
    run = trainer.run(4, held_behind_evaluation(trainer))
    trainer.take(run, source=1)
    held = trainer.end(run, 1)
    settle_when_waited_for(trainer, 2)
    trainer.committer.flush(held)
    assert [closure for closure, _ in trainer.sent] == [2, 3, 4]


def test_part_without_elements_commits_after_part_held_by_its_thread(trainer: Trainer) -> None:
    evaluation, first = trainer.run(2), trainer.run(3)
    for run in (evaluation, first):
        trainer.take(run)
    trainer.end(evaluation)
    second = trainer.run(4, trainer.end(first, 0))
    second.add(1, {"kind": "push"}, None)
    second.touch([VARIABLE])
    reading = threading.Thread(target=lambda: second.before_read([VARIABLE]))
    reading.start()
    trainer.committer.settle([2])
    reading.join(60)
    assert not reading.is_alive()
    assert trainer.servers.asked == ["decide 0", "decide 1"]


def test_prepared_part_is_aborted_when_home_server_refuses(trainer: Trainer) -> None:
    trainer.servers.refuse = {"decide 0": InvalidArgumentError("of no such shape")}
    held = trainer.end(trainer.run(2), 0, 1)
    assert held is not None
    trainer.committer.flush(held)
    assert trainer.servers.asked == ["prepare 1", "decide 0", "abort 1"]
    assert trainer.sent == [(2, "error_json")]


# Ends that are not reported yet


class DecidingServer(Servers):
    """Servers of which server 0 keeps decisions as a real one does."""

    def __init__(self) -> None:
        super().__init__()
        self.commits: Commits[None] = Commits()

    def _ask(self, what: str, header: dict[str, Any]) -> None:
        super()._ask(what, header)
        if what.startswith("decide") and what.endswith(" 0"):
            entries = [Entry(*entry) for entry in header["entries"]]
            self.commits.decide("t", PartKey(*header["key"]), entries)

    def decided(self) -> list[int]:
        return [entry.closure for entry in self.commits.fence("t").decided]


def with_deciding_server(trainer: Trainer) -> DecidingServer:
    trainer.servers = servers = DecidingServer()
    trainer.committer._parameters = servers  # type: ignore[assignment]
    return servers


def end_many(trainer: Trainer, held: PendingPart | None = None) -> None:
    """Ends more closures than a server keeps, each on server 0 alone, by one thread."""
    for closure in range(10, 10 + 3 * ENDED_KEPT):
        held = trainer.end(read_ahead(trainer, closure, held), 0)


@pytest.fixture
def _waits_for_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a thread that waits for reports go on only when it is told of one."""
    monkeypatch.setattr(two_phase_commit, "_RECHECK_S", 600.0)


@pytest.mark.usefixtures("_waits_for_changes")
def test_end_that_waits_for_a_left_commit_is_reported_before_its_server_forgets_it(
    trainer: Trainer,
) -> None:
    servers = with_deciding_server(trainer)
    following = read_ahead(trainer, 3, trainer.end(trainer.run(2), 0, 1))
    trainer.end(following)
    assert (2, "value") not in trainer.sent
    end_many(trainer)
    assert 2 not in servers.decided()
    assert (2, "value") in trainer.sent


@pytest.mark.usefixtures("_waits_for_changes")
def test_few_closures_end_while_the_commit_of_another_is_under_way(trainer: Trainer) -> None:
    servers = with_deciding_server(trainer)
    asked, answered = threading.Event(), threading.Event()
    ask, wait = servers._ask, trainer.committer._await_change
    ended: list[int] = []

    def answer_late(what: str, header: dict[str, Any]) -> None:
        ask(what, header)
        if what == "commit(2) 1":
            asked.set()
            assert answered.wait(60)

    def wait_for_answer(timeout_s: float) -> None:
        ended.append(len(trainer.sent))
        answered.set()
        wait(timeout_s)

    servers._ask = answer_late  # type: ignore[method-assign]
    trainer.committer._await_change = wait_for_answer  # type: ignore[method-assign]
    held = trainer.end(trainer.run(2), 0, 1)
    slow = threading.Thread(target=lambda: trainer.committer.flush(held))
    slow.start()
    assert asked.wait(60)
    end_many(trainer)
    slow.join(60)
    assert ended[0] == ENDS_MAX
    assert (2, "value") in trainer.sent


def test_closure_whose_decision_was_refused_holds_up_no_others(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer.committer, "_await_change", lambda _: pytest.fail("it waits"))
    held = trainer.end(trainer.run(2), 0)
    assert held is not None
    with pytest.raises(InvalidArgumentError), trainer.committer._ending([held]):
        raise InvalidArgumentError("no")
    end_many(trainer)
    trainer.committer.flush(held)
    assert trainer.sent[-1] == (2, "value")


# Cancelled closures

KEY = (2, 0)


def test_closure_cancelled_before_start_does_not_run(trainer: Trainer) -> None:
    trainer.committer.admit([KEY])
    assert trainer.committer.cancel(KEY)
    run = trainer.run(2)
    with pytest.raises(CancelledError, match="closure 2"):
        trainer.committer.check_wanted(run)
    assert trainer.end(run) is None
    assert trainer.sent == [(2, "error_json")]
    assert not trainer.committer.cancel(KEY), "its end is told"
    trainer.committer.check_wanted(trainer.run(2))


def test_closure_cancelled_while_running_is_not_committed(trainer: Trainer) -> None:
    run = trainer.run(2)
    assert trainer.committer.cancel(KEY)
    held = trainer.end(run, 0, 1)
    assert held is not None
    trainer.committer.flush(held)
    assert (trainer.servers.asked, trainer.sent) == ([], [(2, "error_json")])


def test_part_of_cancelled_closure_is_not_committed(trainer: Trainer) -> None:
    run = trainer.run(2)
    run.add(0, {"kind": "push"}, None)
    run.touch([VARIABLE])
    assert trainer.committer.cancel(KEY)
    with pytest.raises(CancelledError):
        run.read_with([VARIABLE], PULLS)
    trainer.end(run)
    assert (trainer.servers.asked, trainer.sent) == ([], [(2, "error_json")])


def test_held_part_can_be_cancelled_before_commit(trainer: Trainer) -> None:
    run = trainer.run(2)
    trainer.take(run)
    held = trainer.end(run, 0)
    assert trainer.committer.cancel(KEY)
    assert not trainer.committer._commit_overdue()
    assert (trainer.servers.asked, trainer.sent) == ([], [(2, "error_json")])
    assert trainer.acknowledged == 0
    trainer.committer.settle([2])
    assert trainer.acknowledged == 1
    assert held is not None
    assert held.is_done


def test_closure_with_committed_part_refuses_cancel(trainer: Trainer) -> None:
    run = trainer.run(2)
    run.add(0, {"kind": "push"}, None)
    run.touch([VARIABLE])
    run.read_with([VARIABLE], {})
    assert not trainer.committer.cancel(KEY)
    trainer.end(run)
    assert trainer.sent == [(2, "value")]


def test_closure_in_commit_refuses_cancel(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[bool] = []

    def exchange_with(*_: object) -> Answers:
        said.append(trainer.committer.cancel(KEY))
        return {}

    monkeypatch.setattr(trainer.servers, "exchange_with", exchange_with)
    held = trainer.end(trainer.run(2), 0)
    assert held is not None
    trainer.committer.flush(held)
    assert (said, trainer.sent) == ([False], [(2, "value")])


def test_cancel_of_unknown_run_is_refused(trainer: Trainer) -> None:
    assert not trainer.committer.cancel((7, 0))
    trainer.end(trainer.run(2))
    assert not trainer.committer.cancel(KEY)
    assert not trainer.committer._open._cancelled
