"""Variables that have ended leave the servers and this process, now or later."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import pytest

from pstrain.coordinator.orders import Outbox, Settled
from pstrain.coordinator.trainer_messages import Requests
from pstrain.errors import DeadlineExceededError, ServerLostError
from pstrain.features.key_map import KeyFields
from pstrain.trainer.client import RemoteParameters
from pstrain.trainer.trainer_session import TrainerSession
from pstrain.variables.variable import Variable
from pstrain.vocabulary import ShardSpec
from pstrain.wire import trainer_pb2 as pb
from tests.unit.pstrain.paramserver.shard_cases import make_spec


class Servers(RemoteParameters):
    """Servers that note what they are asked, and answer with ``error`` if there is one."""

    def __init__(self) -> None:
        super().__init__(["localhost:1", "localhost:2"], session="s", token="-")
        self.asked: list[tuple[Any, float]] = []
        self.error: BaseException | None = None

    def ask_all(self, headers: Any, *, timeout_s: float, repeat: bool = True) -> Any:
        del repeat
        self.asked.append((headers, timeout_s))
        if self.error is not None:
            raise self.error
        return {}


@pytest.fixture
def servers() -> Servers:
    """Returns servers with two variables that have ended, one of them on both servers."""
    servers = Servers()
    shards = [ShardSpec(ps=ps, row_start=2 * ps, row_stop=2 * ps + 2) for ps in (0, 1)]
    for spec in (make_spec(4, id=1), make_spec(4, id=2, shards=tuple(shards))):
        servers.lifetimes.begin(spec, Variable)
    return servers


def deletion(*variables: int) -> dict[str, Any]:
    return {"kind": "delete", "variables": [*variables]}


def test_each_server_is_told_once_what_it_holds(servers: Servers) -> None:
    servers.drop_ended()
    servers.drop_ended()
    assert servers.asked == [({0: deletion(1, 2), 1: deletion(2)}, 5.0)]


@pytest.mark.parametrize(("within_s", "timeouts_s"), [(0.5, [0.5]), (60.0, [5.0]), (0.0, [])])
def test_waits_for_servers_as_long_as_it_may(
    servers: Servers, within_s: float, timeouts_s: list[float]
) -> None:
    servers.drop_ended(within_s)
    assert [timeout_s for _, timeout_s in servers.asked] == timeouts_s
    servers.drop_ended()
    assert len(servers.asked) == 1


@pytest.mark.parametrize("error", [ServerLostError("gone"), DeadlineExceededError("slow")])
def test_what_servers_do_not_answer_is_asked_again_later(
    servers: Servers, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    servers.error = error
    servers.drop_ended()
    assert f"still on parameter servers: {error}" in caplog.text
    servers.error = None
    servers.drop_ended()
    assert servers.asked[0] == servers.asked[1]


def test_what_is_interrupted_is_asked_again_later(servers: Servers) -> None:
    servers.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        servers.drop_ended()
    servers.error = None
    servers.drop_ended()
    assert servers.asked[0] == servers.asked[1]


def test_this_process_forgets_what_was_dropped(servers: Servers) -> None:
    fields = KeyFields.of([4], [1])
    servers.key_maps.register(1)
    known = servers.key_maps.of(1, fields)
    other = servers.key_maps.of(3, fields)
    for key in ((1, 0), (2, 1), (3, 0)):
        servers._wholes[key] = (7, np.ones((4, 3), np.float32))
        servers._initial_values[key[0]] = []
    servers.drop_ended()
    assert list(servers._wholes) == [(3, 0)]
    assert list(servers._initial_values) == [3]
    assert servers.key_maps.of(1, fields) is not known
    assert servers.key_maps.of(3, fields) is other
    assert not servers.key_maps.any_holds_keys([1])


def test_trainers_are_told_once_what_was_dropped_since_their_streams_began(
    servers: Servers,
) -> None:
    servers.dropped = [7, 8]
    outbox = Outbox()
    scheduler: Any = SimpleNamespace(trainers=SimpleNamespace(low_water=lambda: 0), is_traced=False)
    requests = Requests(
        outbox, scheduler, WeakValueDictionary(), servers, trainer=0, session="s", incarnation=1
    )
    told = []
    for _ in range(3):
        outbox.put(Settled((1,)))
        request: Any = requests.take()
        told.append(list(request.dropped_variables))
        servers.drop_ended()
    assert told == [[], [1, 2], []]


def test_a_trainer_forgets_what_it_is_told_was_dropped(servers: Servers) -> None:
    configuration = pb.ConfigureRequest(session="s", trainer_count=1)
    session = TrainerSession(configuration, servers)
    for variable in (1, 2):
        servers._wholes[variable, 0] = (7, np.ones((4, 3), np.float32))
    known = servers.key_maps.of(1, KeyFields.of([4], [1]))
    session.define(pb.RunRequest(dropped_variables=[1, 5]))
    assert list(servers._wholes) == [(2, 0)]
    assert servers.key_maps.of(1, KeyFields.of([4], [1])) is not known
    session.close()
