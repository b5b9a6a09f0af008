"""Which coordinator's closures a trainer runs."""

from __future__ import annotations

import contextvars
from typing import Any, cast

import pytest

from pstrain.errors import FailedPreconditionError
from pstrain.serialization import results
from pstrain.sessions.presence import Presence
from pstrain.strategy.scope import has_strategy
from pstrain.trainer.client import RemoteParameters
from pstrain.trainer.context import get_current_worker_index
from pstrain.trainer.service import TrainerService
from pstrain.trainer.trainer_session import ClosureOrder, SentFunction, TrainerSession
from pstrain.wire import trainer_pb2 as pb


class _Parameters:
    """Parameters that are closed and not otherwise used."""

    def close(self) -> None:
        pass


def _connect(_request: pb.ConfigureRequest) -> Any:
    return _Parameters()


def test_stream_to_unconfigured_trainer_ends_without_error() -> None:
    service = TrainerService(_connect, Presence())
    assert list(service.run_closures(iter([pb.RunRequest(session="s1")]))) == []


def test_stream_of_another_coordinator_is_refused() -> None:
    service = TrainerService(_connect, Presence())
    service.configure(pb.ConfigureRequest(session="s2", incarnation=1))
    with pytest.raises(FailedPreconditionError, match="another coordinator"):
        list(service.run_closures(iter([pb.RunRequest(session="s1")])))
    service.close()


def test_older_session_takes_trainer_over_once_servers_have_it() -> None:
    """A trainer may remember a program whose clock was ahead, when no server does."""
    servers: list[str | None] = []

    class Parameters(_Parameters):
        def sessions(self, *, timeout_s: float) -> list[str | None]:  # noqa: ARG002
            return servers

    service = TrainerService(lambda _request: cast("RemoteParameters", Parameters()), Presence())
    ahead, later = (pb.ConfigureRequest(session=name, incarnation=1) for name in ("s9", "s2"))
    service.configure(ahead)
    for found in ([], ["s9"], [None, None], ["s2", "s9"], ["s3", None]):
        servers[:] = found
        with pytest.raises(FailedPreconditionError, match="session s2 is over"):
            service.configure(later)
    servers[:] = [None, "s2"]
    service.configure(later)
    with pytest.raises(FailedPreconditionError, match="session s9 is over"):
        service.configure(ahead)
    service.configure(pb.ConfigureRequest(session="s2", incarnation=2))
    service.configure(pb.ConfigureRequest(session="s3", incarnation=1))
    service.close()


_seen: contextvars.ContextVar[int] = contextvars.ContextVar("seen", default=0)


def test_closure_runs_in_trainer_scope_with_fresh_context() -> None:
    def count() -> tuple[int, int, bool]:
        _seen.set(_seen.get() + 1)
        return _seen.get(), get_current_worker_index(), has_strategy()

    request = pb.ConfigureRequest(session="s1", trainer_index=3, trainer_count=4)
    trainer = TrainerSession(request, cast("RemoteParameters", None))
    found: list[pb.ClosureResult] = []
    trainer.committer._send = found.extend
    order = ClosureOrder(pb.Closure(id=1), SentFunction(b"", lambda _pickled: count))
    for _ in range(2):
        trainer.run(order)
    assert [results.decode(result.value) for result in found] == [(1, 3, True)] * 2
    assert not has_strategy()
