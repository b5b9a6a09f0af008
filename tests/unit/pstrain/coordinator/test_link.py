"""What a link to a trainer makes of errors that a lost parameter server causes."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from pstrain import remote_errors, results
from pstrain.coordinator.link import TrainerLink
from pstrain.coordinator.lost_servers import is_server_loss
from pstrain.errors import AbortedError, DataServiceError, ServerLostError
from pstrain.wire import trainer_pb2 as pb


class LinkWithGivenReplies(TrainerLink):
    """A link to a trainer whose messages are given."""

    def __init__(self, replies: list[list[pb.ClosureResult]]) -> None:
        self.heard: list[int] = []
        self.index = 0
        self._slots = 1
        self._stopping = threading.Event()
        self._configuration: Any = SimpleNamespace(session="s", incarnation=1)
        self._servers: Any = SimpleNamespace(session="s")
        self._recovery: Any = SimpleNamespace(is_restoring=False, notice=is_server_loss)
        self._functions: Any = {}
        self._scheduler: Any = SimpleNamespace(trainers=self)
        self._replies = [
            SimpleNamespace(services=(), results=r, positions=(), cancels=()) for r in replies
        ]
        self.address = "trainer:1"

    def joined(self, *_: Any) -> None: ...

    def services_read(self, _services: Any) -> Any:
        return frozenset(), ()

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
        trainers=SimpleNamespace(record_loss=lambda *_: (frozenset(), {}), lost=lambda *_: None),
        rounds=SimpleNamespace(wait_for_round=lambda *_: None),
        stop=stopped.append,
    )
    with caplog.at_level("INFO", "pstrain"):
        link._settle_loss()
    assert stopped == [error]
    (record,) = caplog.records
    assert (record.levelname, "had committed is not known" in record.message) == (level, True)
