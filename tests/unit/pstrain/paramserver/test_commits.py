"""Parts of closures on several servers: all servers apply a part or none does, each once."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pstrain.errors import AbortedError
from pstrain.paramserver import commits
from pstrain.paramserver.commits import ENDED_KEPT, Commits, Entry, PartKey
from pstrain.reader_marks import READERS_KEPT
from tests.unit.counted_calls import calls_of

KEY = PartKey(4, 0, 0)


def entry(key: PartKey, ended: bool = True) -> Entry:
    return Entry(*key, {"value": ""} if ended else None)


def test_held_payload_is_committed_once() -> None:
    commits: Commits[str] = Commits()
    for _ in range(2):
        commits.prepare("t", KEY, "payload")
    assert commits.commit("t", KEY) == "payload"
    assert commits.commit("t", KEY) is None
    commits.prepare("t", KEY, "late")
    assert commits.counts()["held"] == 0
    assert commits.commit("t", KEY) is None


def test_commit_of_part_that_is_not_held_leaves_it_undecided() -> None:
    commits: Commits[str] = Commits()
    assert commits.commit("t", KEY) is None
    assert commits.decide("t", KEY, [entry(KEY)])


def test_part_is_decided_once_and_newer_reader_marks_replace_older() -> None:
    commits: Commits[str] = Commits()
    assert commits.decide("t", KEY, [entry(KEY)], [{"reader": "r", "marks": [[0, 0, 5, False]]}])
    assert not commits.decide("t", KEY, [entry(KEY)], [])
    other = PartKey(5, 0, 0)
    assert commits.decide("t", other, [entry(other)], [{"reader": "r", "marks": [[1, 0, 2, True]]}])
    report = commits.fence("t")
    assert [found.closure for found in report.decided] == [4, 5]
    assert report.rows == {"r": {"reader": "r", "marks": [[1, 0, 2, True]]}}


def test_notes_of_closure_are_kept_until_it_has_ended() -> None:
    commits: Commits[str] = Commits()
    parts = [PartKey(4, 0, part) for part in range(4)]
    noted = [Entry(*part, None, 0, str(part.part)) for part in parts]
    for known in (noted[0], entry(parts[1], ended=False), *noted[2:]):
        commits.decide("t", PartKey(*known[:3]), [known])
    assert not commits.decide("t", parts[2], [noted[2]])
    assert commits.counts()["decided"] == 1
    assert commits.fence("t").decided == [noted[0], noted[2], noted[3]]
    commits.decide("v", PartKey(6, 0, 0), [Entry(6, 0, 0, None, 0, "")])
    commits.decide("v", PartKey(6, 0, 1), [Entry(6, 0, 1, None)])
    assert commits.fence("v").decided == [Entry(6, 0, 0, None, 0, ""), Entry(6, 0, 1, None)]
    commits.decide("u", PartKey(5, 0, 0), [Entry(5, 0, 0, None, 0, "")])
    end = entry(PartKey(5, 0, 1))
    commits.decide("u", PartKey(5, 0, 1), [end])
    assert commits.fence("u").decided == [end]


def test_notes_of_closures_that_ended_elsewhere_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The ends are decided on other servers; a running closure holds back the low-water mark."""
    monkeypatch.setattr(commits, "NOTES_MAX_BYTES", 100)
    left: Commits[str] = Commits()
    for closure in range(50):
        left.decide("t", PartKey(closure, 0, 0), [Entry(closure, 0, 0, None, 0, 30 * "x")])
    found = left.fence("t").decided
    assert [each.closure for each in found] == list(range(50))
    assert [each.closure for each in found if each.note] == [47, 48, 49]
    for closure, size in ((61, 200), (62, 30), (63, 60)):
        left.decide("u", PartKey(closure, 0, 0), [Entry(closure, 0, 0, None, 0, size * "x")])
        left.advance(closure - 1)
    sizes = {each.closure: len(each.note or "") for each in left.fence("u").decided}
    assert sizes == {62: 30, 63: 60}


def test_notes_of_closure_whose_last_note_is_oldest_are_dropped_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(commits, "NOTES_MAX_BYTES", 100)
    left: Commits[str] = Commits()

    def note(closure: int, part: int, size: int) -> None:
        left.decide("t", PartKey(closure, 0, part), [Entry(closure, 0, part, None, 0, size * "x")])

    note(1, 0, 30)
    note(2, 0, 60)
    note(1, 1, 10)
    left.advance(2)
    note(3, 0, 40)
    note(2, 1, 1)
    note(2, 2, 200)
    sizes = [(each.closure, len(each.note or "")) for each in left.fence("t").decided]
    assert sizes == [(3, 0), (2, 60), (2, 1), (2, 200)]


def test_marks_of_readers_of_old_epochs_are_forgotten() -> None:
    commits: Commits[str] = Commits()
    for closure in range(READERS_KEPT + 10):
        key, names = PartKey(closure, 0, 0), ("always", f"epoch {closure}")
        commits.decide("t", key, [entry(key)], [{"reader": name, "marks": []} for name in names])
    rows = commits.fence("t").rows
    assert len(rows) == READERS_KEPT
    assert {"always", f"epoch {READERS_KEPT + 9}"} < set(rows)
    assert "epoch 0" not in rows


def test_fenced_trainer_is_refused_and_its_held_parts_are_completed_or_dropped() -> None:
    commits: Commits[str] = Commits()
    undecided = PartKey(5, 0, 0)
    commits.prepare("t", KEY, "decided elsewhere")
    commits.prepare("t", undecided, "undecided")
    assert commits.fence("t").held == [KEY, undecided] == commits.fence("t").held
    for call in (
        lambda: commits.prepare("t", PartKey(6, 0, 0), ""),
        lambda: commits.decide("t", PartKey(6, 0, 0), []),
        lambda: commits.commit("t", KEY),
        lambda: commits.abort("t", KEY),
    ):
        with pytest.raises(AbortedError, match="taken for lost"):
            call()
    assert commits.complete("t", [KEY]) == ["decided elsewhere"]
    assert commits.fence("t") == ([], [], {})
    assert commits.complete("t", [KEY]) == []
    with pytest.raises(AbortedError, match="not fenced"):
        commits.complete("u", [KEY])


def test_unknown_trainer_can_be_fenced() -> None:
    commits: Commits[str] = Commits()
    assert commits.fence("t") == ([], [], {})
    with pytest.raises(AbortedError):
        commits.prepare("t", KEY, "")


def test_decided_entries_are_bounded_by_low_water_mark_and_count() -> None:
    commits: Commits[str] = Commits()
    running = PartKey(0, 0, 0)
    commits.decide("t", running, [entry(running, ended=False)])
    for closure in range(1, 5 * ENDED_KEPT):
        key = PartKey(closure, 0, 0)
        commits.decide("t", key, [entry(key)])
        assert commits.counts()["decided"] <= 2 * ENDED_KEPT
    assert commits.fence("t").decided[0].closure == 0
    commits.advance(5 * ENDED_KEPT)
    assert commits.counts() == {"held": 0, "aborted": 0, "decided": 0, "ledger_blocks": 1}


def test_newest_end_is_kept_of_closure_that_began_long_ago() -> None:
    commits: Commits[str] = Commits()
    commits.decide("t", PartKey(0, 0, 0), [entry(PartKey(0, 0, 0), ended=False)])
    for closure in range(1, 2 * ENDED_KEPT):
        commits.decide("t", PartKey(closure, 0, 0), [entry(PartKey(closure, 0, 0))])
    for key in (PartKey(0, 0, 1), PartKey(2 * ENDED_KEPT, 0, 0)):
        commits.decide("t", key, [entry(key)])
    found = [each.closure for each in commits.fence("t").decided]
    assert found == [*range(ENDED_KEPT + 2, 2 * ENDED_KEPT), 0, 2 * ENDED_KEPT]


def test_restored_server_still_refuses_fenced_trainer() -> None:
    old, new = Commits[str](), Commits[str]()
    old.decide("u", KEY, [entry(KEY)])
    old.fence("t")
    new.restore(old.state())
    assert not new.decide("u", KEY, [entry(KEY)])
    with pytest.raises(AbortedError):
        new.prepare("t", KEY, "")


def test_messages_of_earlier_or_aborted_try_are_ignored() -> None:
    commits: Commits[str] = Commits()
    commits.prepare("t", KEY, "refused elsewhere", 0)
    commits.abort("t", KEY, 0)
    commits.prepare("t", KEY, "refused elsewhere", 0)
    assert commits.fence("t").held == []
    commits.prepare("u", KEY, "without who was refused", 1)
    commits.abort("u", KEY, 0)
    commits.prepare("u", KEY, "refused elsewhere", 0)
    assert commits.commit("u", KEY) == "without who was refused"
    commits.prepare("v", KEY._replace(part=1), "without who was refused", 1)
    commits.prepare("v", KEY._replace(part=1), "refused elsewhere", 0)
    assert commits.commit("v", KEY._replace(part=1)) == "without who was refused"


def test_part_is_held_again_only_by_later_try_than_was_aborted() -> None:
    commits: Commits[str] = Commits()
    for tries in (0, 1):
        commits.prepare("t", KEY, f"try {tries}", tries)
        assert commits.counts()["held"] == 1
        commits.abort("t", KEY, tries)
    commits.abort("t", KEY, 0)
    commits.prepare("t", KEY, "late", 1)
    assert commits.counts()["held"] == 0
    commits.prepare("t", KEY, "try 2", 2)
    assert commits.commit("t", KEY) == "try 2"


def test_held_and_aborted_parts_are_forgotten_with_their_closure() -> None:
    commits: Commits[str] = Commits()
    commits.prepare("t", KEY, "held")
    commits.abort("t", KEY._replace(part=1))
    commits.advance(KEY.closure)
    assert commits.counts() == {"held": 1, "aborted": 1, "decided": 0, "ledger_blocks": 0}
    commits.advance(KEY.closure + 1)
    assert commits.counts() == {"held": 0, "aborted": 0, "decided": 0, "ledger_blocks": 0}
    commits.abort("t", KEY)  # late, and once more
    for part in range(2):
        commits.prepare("t", PartKey(5, 0, part), "held")
        commits.abort("t", PartKey(6, 0, part))
    commits.advance(6)
    assert commits.counts() == {"held": 0, "aborted": 2, "decided": 0, "ledger_blocks": 0}
    commits.advance(7)
    assert commits.counts() == {"held": 0, "aborted": 0, "decided": 0, "ledger_blocks": 0}


def test_round_with_a_part_that_is_not_held_takes_none() -> None:
    commits: Commits[str] = Commits()
    parts = [("t", KEY), ("u", KEY._replace(closure=5))]
    commits.prepare(*parts[0], "first")
    with pytest.raises(AbortedError, match="closure 5 of u is in a round, but was not prepared"):
        commits.take_round(parts)
    commits.prepare(*parts[1], "second")
    assert commits.take_round(parts) == ["first", "second"]
    assert commits.take_round(parts) == []


def test_advance_looks_only_at_trainers_whose_closures_it_forgets() -> None:
    def calls(trainers: int) -> int:
        commits: Commits[str] = Commits()
        for closure in range(trainers):
            commits.decide(f"t{closure}", PartKey(closure, 0, 0), [entry(PartKey(closure, 0, 0))])
        return calls_of(lambda: commits.advance(1))

    assert calls(400) == calls(2)


SERVERS = 3


class CommitProtocol(RuleBasedStateMachine):
    """Trainers that stop at any message, repeat any, and come back late; a coordinator that fences.

    Every part changes all three servers; server ``closure % 3`` is its home.
    """

    def __init__(self) -> None:
        super().__init__()
        self.servers: list[Commits[PartKey]] = [Commits() for _ in range(SERVERS)]
        self.applied: list[list[PartKey]] = [[] for _ in range(SERVERS)]
        self.steps: dict[tuple[str, PartKey], int] = {}  # how many messages were sent
        self.fenced: set[str] = set()
        self.closures = 0

    def _send(self, trainer: str, key: PartKey, number: int) -> None:
        home = key.closure % SERVERS
        others = [ps for ps in range(SERVERS) if ps != home]
        try:
            if number < len(others):
                self.servers[others[number]].prepare(trainer, key, key)
            elif number == len(others):
                if self.servers[home].decide(trainer, key, [entry(key)]):
                    self.applied[home].append(key)
            else:
                ps = others[number - len(others) - 1]
                if self.servers[ps].commit(trainer, key) is not None:
                    self.applied[ps].append(key)
        except AbortedError:
            assert trainer in self.fenced

    @rule(trainer=st.sampled_from(["a", "b"]))
    def begin(self, trainer: str) -> None:
        name = f"{trainer}{sum(t.startswith(trainer) for t in self.fenced)}"
        self.steps[name, PartKey(self.closures, 0, 0)] = 0
        self.closures += 1

    @precondition(lambda self: self.steps)
    @rule(data=st.data(), repeats=st.booleans())
    def send(self, data: st.DataObject, repeats: bool) -> None:
        trainer, key = data.draw(st.sampled_from(sorted(self.steps)))
        number = self.steps[trainer, key]
        if repeats and number:
            self._send(trainer, key, data.draw(st.integers(0, number - 1)))
        elif number < 2 * SERVERS - 1:
            # A trainer sends the next message only after a reply, which a fenced one never gets.
            self._send(trainer, key, number)
            self.steps[trainer, key] += trainer not in self.fenced

    @precondition(lambda self: self.steps)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        trainer, _ = data.draw(st.sampled_from(sorted(self.steps)))
        self.fenced.add(trainer)
        reports = [server.fence(trainer) for server in self.servers]
        decided = {PartKey(*e[:3]) for report in reports for e in report.decided}
        for server, applied, report in zip(self.servers, self.applied, reports, strict=True):
            applied += server.complete(trainer, [k for k in report.held if k in decided])

    @rule()
    def advance(self) -> None:
        ended = [k.closure for (t, k), n in self.steps.items() if n == 2 * SERVERS - 1]
        unended = [
            k.closure
            for (t, k), n in self.steps.items()
            if n < 2 * SERVERS - 1 and t not in self.fenced
        ]
        low_water = min(unended, default=max(ended, default=-1) + 1)
        for server in self.servers:
            server.advance(low_water)

    @invariant()
    def each_part_is_applied_once(self) -> None:
        for applied in self.applied:
            assert len(set(applied)) == len(applied)

    @invariant()
    def lost_parts_are_applied_everywhere_or_nowhere(self) -> None:
        for (trainer, key), sent in self.steps.items():
            if trainer in self.fenced or sent == 2 * SERVERS - 1:
                assert sum(key in applied for applied in self.applied) in (0, SERVERS)


TestCommitProtocol = CommitProtocol.TestCase
TestCommitProtocol.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
