"""A request to join: each attempt states the current age, and a late refusal is retried."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from dataservice.client.connection import (
    MAX_LATE_REFUSALS,
    PROMPT_REFUSAL_S,
    DispatcherConnection,
    JoinRequest,
)
from dataservice.client.read_spec import ReadSpec
from dataservice.client.service_stream import ServiceStream
from dataservice.client.source import ServiceSource
from dataservice.dataset.stream import RunContext
from dataservice.errors import FailedPreconditionError, NotFoundError
from dataservice.wire import dispatcher_pb2 as pb


class Dispatcher:
    """A stand-in for the network: refuses once for each of ``delays_s``, after that delay."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, delays_s: list[float]) -> None:
        self.age_s = 7.0
        self.ages: list[float] = []
        self.delays_s = delays_s
        self.error: Exception = FailedPreconditionError("repetition 0 was read by another run")
        self.connection = DispatcherConnection("127.0.0.1:1")
        monkeypatch.setattr("dataservice.client.connection.process_age_s", lambda: self.age_s)
        monkeypatch.setattr(self.connection._rpc, "call_retrying", self.answer)

    def answer(self, _method: str, request: Any, **_limits: Any) -> pb.OpenIterationReply:
        # A request that waits for the dispatcher is built anew for each attempt.
        request()
        self.ages.append(request().program_age_s)
        if not self.delays_s:
            return pb.OpenIterationReply(reader_id="r")
        self.age_s += self.delays_s.pop(0)
        raise self.error

    def join(self) -> str:
        with self.connection:
            request = pb.OpenIterationRequest()
            return self.connection.open_iteration(request, timeout_s=5.0).reader_id


LATE_S = PROMPT_REFUSAL_S + 0.01


def test_each_join_attempt_states_current_program_age(monkeypatch: pytest.MonkeyPatch) -> None:
    dispatcher = Dispatcher(monkeypatch, delays_s=[3.0])
    assert dispatcher.join() == "r"
    assert dispatcher.ages == [7.0, 10.0]


def test_dataset_age_is_stated_only_at_first_read_of_repetition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = ServiceSource(target="127.0.0.1:1", dataset_id="1", policy=1, schema=pa.schema([]))
    specs: list[ReadSpec] = []
    monkeypatch.setattr(ServiceStream, "try_to_join", lambda stream: specs.append(stream._spec))
    for epoch in (0, 0, 1):
        source.open(RunContext(epoch=epoch)).close()
    made_s = specs[0].made_s
    assert made_s is not None
    assert [spec.made_s for spec in specs] == [made_s, None, made_s]
    request = JoinRequest(pb.OpenIterationRequest(), lambda: 9.0, made_s).aged()
    assert 0.0 < request.dataset_age_s < 9.0 == request.program_age_s
    assert JoinRequest(pb.OpenIterationRequest(), lambda: 9.0, None).aged().dataset_age_s == 0.0


def test_prompt_refusal_is_final(monkeypatch: pytest.MonkeyPatch) -> None:
    dispatcher = Dispatcher(monkeypatch, delays_s=[PROMPT_REFUSAL_S / 2, 0.0])
    with pytest.raises(FailedPreconditionError, match="another run"):
        dispatcher.join()
    assert len(dispatcher.ages) == 1


def test_prompt_refusal_after_late_refusal_is_final(monkeypatch: pytest.MonkeyPatch) -> None:
    dispatcher = Dispatcher(monkeypatch, delays_s=[LATE_S, 0.0, 0.0])
    with pytest.raises(FailedPreconditionError):
        dispatcher.join()
    assert len(dispatcher.ages) == 2


@pytest.mark.parametrize(("refusals", "joins"), [(3, True), (4, False), (9, False)])
def test_late_refusals_are_retried_limited_times(
    monkeypatch: pytest.MonkeyPatch, refusals: int, joins: bool
) -> None:
    dispatcher = Dispatcher(monkeypatch, delays_s=[LATE_S] * refusals)
    if joins:
        assert dispatcher.join() == "r"
    else:
        with pytest.raises(FailedPreconditionError):
            dispatcher.join()
    assert len(dispatcher.ages) == MAX_LATE_REFUSALS == 4
    assert dispatcher.ages == sorted(set(dispatcher.ages)), "each tells a greater age"


def test_join_error_other_than_refusal_is_final(monkeypatch: pytest.MonkeyPatch) -> None:
    dispatcher = Dispatcher(monkeypatch, delays_s=[LATE_S, LATE_S])
    dispatcher.error = NotFoundError("no dataset")
    with pytest.raises(NotFoundError):
        dispatcher.join()
    assert len(dispatcher.ages) == 1
