"""How a link configures its trainer, and what it makes of errors and of a lost server."""

from __future__ import annotations

import itertools
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pstrain.coordinator import link as module
from pstrain.coordinator import settling
from pstrain.coordinator.link import TrainerLink
from pstrain.coordinator.lost_servers import is_server_loss
from pstrain.coordinator.lost_trainers import Settlement
from pstrain.coordinator.settling import SettlingTurns
from pstrain.errors import (
    AbortedError,
    CancelledError,
    DataServiceError,
    InvalidArgumentError,
    ServerLostError,
    ServerRestartedError,
    UnavailableError,
)
from pstrain.serialization import remote_errors, results
from pstrain.vocabulary import trainer_name
from pstrain.wire import trainer_pb2 as pb


class LinkWithGivenReplies(TrainerLink):
    """A link to a trainer whose messages are given."""

    def __init__(self, replies: list[list[pb.ClosureResult]]) -> None:
        self.heard: list[int] = []
        self.index = 0
        self._slots = 1
        self._stopping = threading.Event()
        self._configuration: Any = SimpleNamespace(session="s", incarnation=1)
        self._servers: Any = SimpleNamespace(session="s", dropped=[])
        self._recovery: Any = SimpleNamespace(is_restoring=False, notice=is_server_loss)
        self._settling = SettlingTurns()
        self._functions: Any = {}
        self._scheduler: Any = SimpleNamespace(trainers=self)
        self._replies = [
            SimpleNamespace(services=(), results=r, positions=(), cancels=()) for r in replies
        ]
        self.address = "trainer:1"

    def joined(self, *_: Any) -> None: ...

    def services_read(self, _services: Any) -> Any:
        return {}

    def results(self, _trainer: int, ended: Any) -> None:
        self.heard += [end.closure for end in ended]

    def serve(self) -> None:
        self._serve(SimpleNamespace(stream=lambda *_: self._replies))  # type: ignore[arg-type]


def ended(closure: int, error: Exception | None = None) -> pb.ClosureResult:
    if error is None:
        return pb.ClosureResult(id=closure, value=results.encode(None))
    return pb.ClosureResult(id=closure, error_json=remote_errors.encode(error, "trainer 0"))


def test_results_reported_together_with_server_loss_are_discarded() -> None:
    """The marks of closure 3 cover the row of closure 2, which changed nothing."""
    link = LinkWithGivenReplies(
        [[ended(1)], [ended(2, ServerLostError("gone")), ended(3)], [ended(4)]]
    )
    with pytest.raises(ServerLostError):
        link.serve()
    assert link.heard == [1]


def test_failed_closure_without_server_loss_is_reported() -> None:
    link = LinkWithGivenReplies([[ended(1, ValueError("x")), ended(2)]])
    link.serve()
    assert link.heard == [1, 2]


@pytest.mark.parametrize(
    ("error", "level"),
    [(AbortedError("session s is over"), "INFO"), (ServerLostError("gone"), "ERROR")],
)
def test_replaced_strategy_logs_unknown_commits_at_info(
    error: DataServiceError, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fence(_trainer: str) -> None:
        raise error

    link, stopped = LinkWithGivenReplies([]), list[Exception]()
    link._servers = SimpleNamespace(session="s", fence=fence)
    link._awaits_restore = lambda _error: False  # type: ignore[method-assign]
    link._scheduler = SimpleNamespace(
        trainers=SimpleNamespace(
            marks_of=lambda *_: {}, record_settled=lambda *_: frozenset(), lost=lambda *_: None
        ),
        rounds=SimpleNamespace(wait_for_round=lambda *_: None),
        stop=stopped.append,
    )
    with caplog.at_level("INFO", "pstrain"):
        link._settle_loss()
    assert stopped == [error]
    (record,) = caplog.records
    assert (record.levelname, "had committed is not known" in record.message) == (level, True)


class Cluster:
    """The scheduler, servers and recovery around a link, all made up; notes what is done."""

    session = "s"

    def __init__(self, *configured: Exception | None) -> None:
        self.done: list[Any] = []
        self.is_restoring = self.had_joined = False
        self.trainers = self.waits = self.rounds = self
        self._configured = list(configured)
        self.link = TrainerLink(
            0,
            "trainer:1",
            configuration=pb.ConfigureRequest(),
            scheduler=cast(Any, self),
            functions=cast(Any, {}),
            servers=cast(Any, self),
            incarnations=itertools.count(1),
            slots=1,
            token="t",
            recovery=cast(Any, self),
            settling=SettlingTurns(),
        )
        self.link._configure = self._configure  # type: ignore[method-assign]
        self.link._serve = self._serve  # type: ignore[method-assign]
        self.link._settle_loss = lambda: self.done.append("settled")  # type: ignore[method-assign]
        self.link._stopping = cast(Any, self)

    def run(self) -> list[Any]:
        self.link._run()
        return self.done

    def _configure(self) -> None:
        configuration = self.link._configuration
        self.done.append((configuration.session, configuration.incarnation))
        if (error := self._configured.pop(0)) is not None:
            raise error

    def _serve(self, _client: Any) -> None:
        self.done.append("served")

    # -- the event that stops the link

    def is_set(self) -> bool:
        return not self._configured

    def wait(self, pause_s: float) -> None:
        self.done.append(pause_s)

    # -- the scheduler, its trainers and its waits

    def silence(self, _trainer: int) -> bool:
        self.done.append("silent")
        return self.had_joined

    def check_absent_trainers(self) -> None:
        self.done.append("checked")

    def stop(self, error: Exception) -> None:
        self.done.append(error)

    # -- the recovery

    def wait_while_restoring(self) -> None:
        self.done.append("waited")

    notice = staticmethod(is_server_loss)


def only(done: list[Any], kind: type) -> list[Any]:
    return [each for each in done if isinstance(each, kind)]


def test_trainer_is_configured_anew_after_each_loss_under_another_name() -> None:
    """By this name servers fence what its earlier incarnation still sends."""
    cluster = Cluster(None, UnavailableError("gone"), None)
    assert only(cluster.run(), tuple) == [("s", 1), ("s", 2), ("s", 3)]
    assert cluster.done[:4] == ["waited", ("s", 1), "served", "silent"]
    assert cluster.done.count("silent") == 3


def test_link_tries_ever_more_seldom_until_its_trainer_is_there() -> None:
    gone = UnavailableError("gone")
    pauses = only(Cluster(*[gone] * 6, None, gone, gone).run(), float)
    assert pauses == [0.25, 0.5, 1.0, 2.0, 3.0, 3.0, 0.25, 0.5, 1.0]


def test_loss_of_a_trainer_that_had_joined_is_settled_before_it_counts_as_absent() -> None:
    cluster = Cluster(UnavailableError("gone"))
    assert cluster.run()[2:4] == ["silent", "checked"]
    cluster = Cluster(UnavailableError("gone"))
    cluster.had_joined = True
    assert cluster.run()[2:5] == ["silent", "settled", "checked"]


@pytest.mark.parametrize(
    "error",
    [ServerLostError("gone"), ServerRestartedError("anew"), CancelledError("a restore")],
)
def test_link_outlives_errors_that_a_restore_or_a_new_stream_mends(error: Exception) -> None:
    done = Cluster(error, None).run()
    assert done.count("served") == 1
    assert only(done, Exception) == []


def test_error_that_nothing_mends_ends_the_scheduling() -> None:
    error = InvalidArgumentError("of another version")
    done = Cluster(error, None).run()
    assert only(done, Exception) == [error]
    assert done[-1] == "silent", "the trainer is lost for the scheduler as well"
    assert "served" not in done


@pytest.mark.parametrize(
    ("is_restoring", "session"), [(True, "s"), (False, "another")], ids=["restore", "session"]
)
def test_trainer_that_missed_the_begin_of_a_restore_is_told_to_come_again(
    is_restoring: bool, session: str
) -> None:
    link = LinkWithGivenReplies([[ended(1)]])
    link._recovery.is_restoring, link._servers.session = is_restoring, session
    with pytest.raises(CancelledError, match="another session"):
        link.serve()
    assert link.heard == []


class Loss:
    """A link whose trainer is lost; notes what is settled, and with which limit."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *, is_stopping: bool = False, restores: bool = False
    ) -> None:
        self.done: list[str] = []
        self.tell_s = 0.0
        link = LinkWithGivenReplies([])
        if is_stopping:
            link._stopping.set()
        link._recovery.is_restoring = restores
        link._scheduler = SimpleNamespace(
            trainers=SimpleNamespace(
                marks_of=lambda *_: {},
                record_settled=lambda *_: frozenset({"service"}),
                lost=self._lost,
            ),
            rounds=SimpleNamespace(wait_for_round=lambda *_: self.done.append("round")),
        )
        monkeypatch.setattr(settling, "settle_servers", self._settle_servers)
        monkeypatch.setattr(module, "settle_services", self._settle_services)
        link._settle_loss()

    def _settle_servers(self, _servers: Any, name: str) -> Settlement:
        self.done.append(f"servers of {name}")
        return Settlement({}, {}, {})

    def _settle_services(self, _name: str, _services: Any, _marks: Any, timeout_s: float) -> None:
        self.done.append("services")
        self.tell_s = timeout_s

    def _lost(self, *_: Any) -> None:
        self.done.append("lost")


def test_loss_is_settled_after_the_round_that_needs_what_the_trainer_prepared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loss = Loss(monkeypatch)
    assert loss.done == ["round", f"servers of {trainer_name('s', 0, 1)}", "services", "lost"]


def test_loss_during_a_restore_asks_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """The restore undoes whatever the trainer had committed."""
    assert Loss(monkeypatch, restores=True).done == ["round", "services", "lost"]


def test_link_that_stops_waits_for_no_server_and_tells_services_briefly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loss = Loss(monkeypatch, is_stopping=True)
    assert loss.done == ["services", "lost"]
    assert 0 < loss.tell_s <= 2.0 < Loss(monkeypatch).tell_s


def test_stop_breaks_off_the_stream() -> None:
    link, broken_off = LinkWithGivenReplies([[ended(1)]]), list[str]()
    link._thread = threading.Thread()  # never started, so nobody waits for it
    link._stream = SimpleNamespace(cancel=lambda: broken_off.append("stream"))
    for _ in range(2):
        link.stop()
    assert broken_off == ["stream"] * 2
    link.serve()
    assert link.heard == [], "a link that was stopped while it connected serves no trainer"


@pytest.mark.parametrize(
    ("is_noticed", "restores", "stops"),
    [(True, True, False), (True, False, True), (False, True, True)],
    ids=["restored", "not restored in time", "of another kind"],
)
def test_unknown_commits_end_the_scheduling_unless_a_restore_undoes_them(
    is_noticed: bool, restores: bool, stops: bool
) -> None:
    error = ServerLostError("gone")

    def fence(_trainer: str) -> None:
        raise error

    link, done = LinkWithGivenReplies([]), list[Any]()
    link._servers = SimpleNamespace(session="s", fence=fence)
    link._recovery = SimpleNamespace(
        is_restoring=False, notice=lambda _: is_noticed, wait_restoring=lambda _: restores
    )
    link._scheduler = SimpleNamespace(
        trainers=SimpleNamespace(
            marks_of=lambda *_: {},
            record_settled=lambda *_: frozenset(),
            lost=lambda *_: done.append("lost"),
        ),
        rounds=SimpleNamespace(wait_for_round=lambda *_: None),
        stop=done.append,
    )
    link._settle_loss()
    assert done == ([error] if stops else []) + ["lost"]


def test_all_that_a_trainer_says_reaches_the_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    link, heard = LinkWithGivenReplies([]), list[Any]()
    reply = pb.RunReply(
        results=[ended(1)],
        services=["data:1"],
        positions=[pb.Position(resource_id="it", json="[4]")],
        cancels=[pb.CancelAnswer(id=7, attempt=2, is_granted=True)],
    )
    link._scheduler = SimpleNamespace(
        trainers=SimpleNamespace(
            joined=lambda index, slots, _outbox: heard.append(("joined", index, slots)),
            services_read=lambda services: {"a lost trainer": frozenset(services)},
            released=lambda: heard.append("released"),
            results=lambda _index, ends: heard.append([end.closure for end in ends]),
            cancel_answered=lambda _index, closure, attempt, *, is_granted: heard.append(
                (closure, attempt, is_granted)
            ),
        ),
        barrier=SimpleNamespace(position=lambda _index, position: heard.append(position)),
    )
    monkeypatch.setattr(
        module, "settle_services", lambda name, services, *_: heard.append((name, *services))
    )
    link._replies = cast(Any, [reply])
    link.serve()
    told = [("a lost trainer", "data:1"), "released"]
    assert heard == [("joined", 0, 1), *told, [1], (7, 2, True), [4]]


def test_all_lost_trainers_together_are_told_in_the_time_of_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock, limits = SimpleNamespace(now_s=100.0), list[tuple[str, float]]()

    def settle(name: str, _services: Any, _marks: Any, timeout_s: float) -> None:
        limits.append((name, timeout_s))
        clock.now_s += 12.0

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    monkeypatch.setattr(module, "settle_services", settle)
    link, released = LinkWithGivenReplies([]), list[bool]()
    lost = [f"lost {number}" for number in range(1_000)]
    link._scheduler = SimpleNamespace(
        trainers=SimpleNamespace(
            services_read=lambda services: dict.fromkeys(lost, frozenset(services)),
            released=lambda: released.append(True),
        )
    )
    link._learn_services(["data:1"])
    assert limits == [("lost 0", 20.0), ("lost 1", 8.0)]
    assert released == [True]
    assert "the loss of 998 trainers could not be told to data:1" in caplog.text
