"""Real parameter servers, in processes of their own: values, sessions, failures, checkpoints."""

from __future__ import annotations

import concurrent.futures
import contextlib
import errno
import itertools
import os
import pathlib
import random
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from dataservice.runtime.exchanges import connection_server
from dataservice.runtime.exchanges.connection_exchange import ConnectionExchange
from dataservice.runtime.exchanges.message import ACTION
from dataservice.runtime.process.children import ChildProcess
from pstrain import initializers
from pstrain.checkpoints.checkpoint import Checkpoint
from pstrain.config import ParameterConfig
from pstrain.errors import (
    AbortedError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    ServerLostError,
    UnauthenticatedError,
    UnavailableError,
)
from pstrain.paramserver.server import ParameterServer
from pstrain.strategy import ParameterServerStrategy
from pstrain.strategy.default import get_strategy
from pstrain.strategy.scope import has_strategy
from pstrain.trainer.client import RemoteParameters
from pstrain.trainer.server_session import ServerSession
from pstrain.variables.scope import local_parameters
from pstrain.variables.variable import Variable, create_variable
from pstrain.vocabulary import Fetch, OptimizerSpec, Update
from tests.integration.parameter_servers import (
    ADAGRAD,
    DEADLINE_S,
    SGD,
    TOKEN,
    address_of,
    make_model,
    make_table,
    running_servers,
    spawn_server,
    strategy_on,
)
from tests.unit.pstrain.checkpoints.checkpoint_cases import Position
from tests.waiting import wait_until

AT_MOST_S = 25.0
"""Shorter than a request's default time-out."""
SHORT = ParameterConfig(request_timeout_s=1.0, start_timeout_s=1.0)
SESSIONS = itertools.count()


@pytest.fixture(scope="module")
def addresses() -> Iterator[list[str]]:
    """Yields three servers that tests use in turn, each in a session of its own."""
    with running_servers(3) as addresses:
        yield addresses


@pytest.fixture
def own_server() -> Iterator[ChildProcess]:
    """Yields a server of its own to a test that harms it."""
    process = spawn_server()
    process.wait_ready(DEADLINE_S)
    try:
        yield process
    finally:
        process.kill()


@pytest.fixture
def strategy(addresses: list[str]) -> Iterator[ParameterServerStrategy]:
    strategy = strategy_on(addresses, shards=3)
    yield strategy
    strategy.parameters.close()


def _train(table: Any, bias: Any, steps: Any, count: int) -> None:
    """Makes the same ``count`` Adagrad steps, wherever the variables are."""
    random = np.random.default_rng(0)
    for _ in range(count):
        ids = random.integers(0, table.shape[0], 300)
        lookup, whole = table.parameters.fetch([Fetch(table.spec, ids), Fetch(bias.spec)])
        gradient = lookup.rows + np.float32(whole.sum())
        updates = [Update(table.spec, gradient, lookup), Update(bias.spec, 0.1 * whole)]
        table.parameters.apply(updates, ADAGRAD, iterations=steps.spec)


# -- values


def test_training_on_servers_equals_training_in_one_process(
    strategy: ParameterServerStrategy,
) -> None:
    with strategy.scope():
        remote = make_model()
    with local_parameters():
        local = make_model()
    for model in (remote, local):
        _train(*model, 5)
    for a, b in zip(remote, local, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    assert int(remote[2]) == 5
    ids = [999, 0, 500, 0]
    np.testing.assert_array_equal(remote[0].sparse_read(ids), local[0].sparse_read(ids))


def test_large_arrays_over_tcp_arrive_unchanged(addresses: list[str]) -> None:
    strategy = strategy_on(addresses, config=ParameterConfig(share_memory=False))
    with strategy.scope():
        remote = make_table(50_000, 16)
    with local_parameters():
        local = make_table(50_000, 16)
    ids = np.random.default_rng(0).permutation(50_000)[:45_000]
    for table in (remote, local):
        for _ in range(2):
            (lookup,) = table.parameters.fetch([Fetch(table.spec, ids)])
            table.parameters.apply([Update(table.spec, lookup.rows + 1, lookup)], ADAGRAD)
    np.testing.assert_array_equal(remote.numpy(), local.numpy())
    strategy.parameters.close()


def test_shards_are_placed_round_robin_and_colocated_on_request(
    strategy: ParameterServerStrategy,
) -> None:
    with strategy.scope():
        first, table, last = Variable(1.0), make_table(), Variable(2.0)
    assert first.device == "/job:ps/task:0"
    assert table.device == ["/job:ps/task:1", "/job:ps/task:2", "/job:ps/task:0"]
    assert last.device == "/job:ps/task:1"
    assert strategy.variables == (first, table, last)
    assert strategy.extended.parameter_devices[2] == "/job:ps/task:2"
    for part in (table, *table.variables):
        with strategy.extended.colocate_vars_with(part):
            beside = Variable([1.0, 2.0])
        assert beside.device == (part.device if part is not table else table.device[0])


def test_scope_of_another_strategy_inside_a_scope_is_refused(
    strategy: ParameterServerStrategy, addresses: list[str]
) -> None:
    with strategy.scope(), strategy.scope() as inner:
        assert inner is get_strategy()
    other = strategy_on(addresses)
    with strategy.scope(), pytest.raises(RuntimeError, match="another strategy"), other.scope():
        pass
    assert not has_strategy()
    other.parameters.close()


def test_strategy_run_in_the_program_warns_once(
    strategy: ParameterServerStrategy, caplog: pytest.LogCaptureFixture
) -> None:
    with strategy.scope():
        variable = Variable(2.0)
    assert strategy.run(lambda x: x + variable, args=(1.0,)) == 3.0
    assert caplog.text.count("coordinator.schedule()") == 1


def test_assignments_and_scatter_updates_change_the_variable(
    strategy: ParameterServerStrategy,
) -> None:
    with strategy.scope():
        table, count = make_table(30, 2), Variable(np.arange(30), name="count")
    expected = table.numpy()
    table.assign_add(np.ones((30, 2)))
    table.scatter_mul([29, 0], 2 * np.ones((2, 2)))
    table.variables[1].assign(5.0)
    expected = expected + 1
    expected[[0, 29]] *= 2
    expected[10:20] = 5
    np.testing.assert_array_equal(table.numpy(), expected)
    np.testing.assert_array_equal(table[8:22], expected[8:22])
    count.assign_sub(1)
    assert count[[29, 0, 11]].tolist() == [28, -1, 10]
    assert count.dtype == np.int64


def test_unchanged_variable_is_not_fetched_again(
    strategy: ParameterServerStrategy,
) -> None:
    with strategy.scope():
        kernel = Variable(np.ones((1, 4), np.float32))
    fetch = [Fetch(kernel.spec)]
    (first,), (second,) = (strategy.parameters.fetch(fetch) for _ in range(2))
    assert np.shares_memory(first, second)
    strategy.parameters.apply([Update(kernel.spec, np.ones((1, 4), np.float32))], SGD)
    (third,) = strategy.parameters.fetch(fetch)
    assert (first == 1).all()
    assert (third == 0).all()


def test_large_variables_travel_in_chunks(addresses: list[str]) -> None:
    strategy = strategy_on(addresses[:2], config=ParameterConfig(chunk_bytes=1000))
    values = np.random.default_rng(3).normal(size=(3000, 7)).astype(np.float32)
    with strategy.scope():
        table = Variable(values, name="table")
    np.testing.assert_array_equal(table.numpy(), values)
    np.testing.assert_array_equal(strategy.parameters.fetch([Fetch(table.spec)])[0], values)
    ids = np.random.default_rng(4).integers(0, 3000, 2000)
    np.testing.assert_array_equal(table.sparse_read(ids), values[ids])
    strategy.parameters.close()


def test_slots_of_large_variables_are_requested_once_per_session(
    addresses: list[str],
) -> None:
    strategy = strategy_on(addresses, config=ParameterConfig(chunk_bytes=1000))
    with strategy.scope():
        table = make_table()
    before = [strategy.parameters.status(ps)["requests"].get("slots", 0) for ps in range(2)]
    lookup: Any = table.parameters.fetch([Fetch(table.spec, np.array([1, 999]))])[0]
    for _ in range(2):
        table.parameters.apply([Update(table.spec, np.ones((2, 5), np.float32), lookup)], ADAGRAD)
    after = [strategy.parameters.status(ps)["requests"]["slots"] for ps in range(2)]
    assert [b + 1 for b in before] == after
    np.testing.assert_allclose(table.sparse_read([1]), lookup.rows[:1] - 0.1636, atol=1e-3)
    strategy.begin()  # as after a restart: the table has no slots
    table.parameters.apply([Update(table.spec, np.ones((2, 5), np.float32), lookup)], ADAGRAD)
    assert strategy.parameters.status(0)["requests"]["slots"] == after[0] + 1
    strategy.parameters.close()


def test_begin_anew_resets_small_variables_to_initial_values(
    strategy: ParameterServerStrategy,
) -> None:
    def rows_of(shard_info: Any) -> Any:
        return np.arange(shard_info.offset[0], shard_info.offset[0] + shard_info.shape[0])

    with strategy.scope():
        made = [Variable(rows_of, shape=(size,), dtype="int64") for size in (10, 10_000)]
        made.append(Variable(np.arange(10)))
    for variable in made:
        variable.assign(np.full(variable.shape, 7))
    strategy.begin_anew()
    assert [int(variable.numpy().sum()) for variable in made] == [45, 0, 45]


def test_restore_refused_by_another_object_changes_no_server(
    strategy: ParameterServerStrategy, tmp_path: pathlib.Path
) -> None:
    with strategy.scope():
        table = create_variable(initializers.normal(seed=1), shape=(6, 1 << 18), name="table")
    before = table[:2]
    table.assign(7 * np.ones(table.shape, np.float32))
    saved = Checkpoint(table=table, data=Position(row=None))
    saved.save(tmp_path)
    strategy.begin_anew()
    with pytest.raises(InvalidArgumentError, match="no position of these data"):
        saved.restore(tmp_path)
    np.testing.assert_array_equal(table[:2], before)


def test_request_errors_name_the_fault_and_keep_the_connection_usable(
    strategy: ParameterServerStrategy,
) -> None:
    with strategy.scope():
        table = make_table()
    with pytest.raises(InvalidArgumentError, match=r"id 1000 .*'table'"):
        strategy.parameters.fetch([Fetch(table.spec, np.array([3, 1000]))])
    (lookup,) = strategy.parameters.fetch([Fetch(table.spec, np.array([3]))])
    wrong = OptimizerSpec(name="adam", learning_rate=1.0, slots=(0.0, 0.0))
    with pytest.raises(InvalidArgumentError, match="adam"):
        strategy.parameters.apply([Update(table.spec, lookup.rows, lookup)], wrong)
    with local_parameters():
        foreign = [make_table() for _ in range(9)][-1]
    with pytest.raises(NotFoundError, match="variable 8"):
        strategy.parameters.fetch([Fetch(foreign.spec)])
    assert table.numpy().shape == (1000, 5)


def test_concurrent_threads_lose_no_update(strategy: ParameterServerStrategy) -> None:
    with strategy.scope():
        table = create_variable(initializers.zeros(), shape=(100, 3), name="table")
    ids = np.arange(100)

    def steps(_: int) -> None:
        for _ in range(20):
            (lookup,) = strategy.parameters.fetch([Fetch(table.spec, ids)])
            gradient = -np.ones((100, 3), np.float32)
            strategy.parameters.apply([Update(table.spec, gradient, lookup)], SGD)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(steps, range(4)))
    assert (table.numpy() == 80).all()


# -- access


def test_wrong_token_is_refused(addresses: list[str]) -> None:
    with pytest.raises(UnauthenticatedError):
        RemoteParameters(addresses, token="wrong", session="x").begin_session(0)


@pytest.mark.parametrize(
    "bring_back", [ParameterServerStrategy.begin, ParameterServerStrategy.begin_anew]
)
def test_replaced_coordinator_cannot_take_a_restarted_server(
    bring_back: Callable[[ParameterServerStrategy], None],
) -> None:
    with ParameterServer(token=TOKEN) as kept, contextlib.ExitStack() as stack:
        lost = ParameterServer(token=TOKEN)
        lost.start()
        old, new = (strategy_on([lost.address, kept.address]) for _ in range(2))
        lost.stop()
        again = stack.enter_context(ParameterServer(port=lost.port, token=TOKEN))
        with pytest.raises(AbortedError, match="another coordinator"):
            bring_back(old)
        assert again._sessions.status()["session"] is None
        bring_back(new)
        assert again._sessions.is_current(new.session)
        for strategy in (old, new):
            strategy.parameters.close()


def test_takeover_includes_a_server_restarted_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ParameterServer(token=TOKEN) as kept, contextlib.ExitStack() as stack:
        lost = ParameterServer(token=TOKEN)
        lost.start()
        old = strategy_on([lost.address, kept.address])
        begin_session = RemoteParameters.begin_session
        restarted: list[ParameterServer] = []

        def begin(self: RemoteParameters, ps: int, *conditions: str) -> bool:
            if ps == 1 and not restarted:
                lost.stop()
                again = ParameterServer(port=lost.port, token=TOKEN)
                restarted.append(stack.enter_context(again))
                old.begin_anew()
            return begin_session(self, ps, *conditions)

        monkeypatch.setattr(RemoteParameters, "begin_session", begin)
        new = strategy_on([lost.address, kept.address])
        for server in (kept, *restarted):
            assert server._sessions.is_current(new.session)
        with pytest.raises(AbortedError, match="another coordinator"):
            old.begin_anew()
        for strategy in (old, new):
            strategy.parameters.close()


def test_one_of_two_concurrent_takeovers_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = random.Random(5)
    begin_session = RemoteParameters.begin_session

    def begin(self: RemoteParameters, *arguments: Any) -> bool:
        time.sleep(rng.choice([0.0, 0.0, 0.001, 0.003]))
        return begin_session(self, *arguments)

    def program(addresses: list[str]) -> ParameterServerStrategy | None:
        try:
            return strategy_on(addresses)
        except AbortedError:
            return None

    def goes_on(strategy: ParameterServerStrategy | None) -> bool:
        try:
            if strategy is not None:
                strategy.parameters.check_current()
        except AbortedError:
            return False
        return strategy is not None

    monkeypatch.setattr(RemoteParameters, "begin_session", begin)
    with contextlib.ExitStack() as stack, concurrent.futures.ThreadPoolExecutor(2) as pool:
        servers = [stack.enter_context(ParameterServer(token=TOKEN)) for _ in range(3)]
        addresses = [server.address for server in servers]
        for _ in range(30):
            both = list(pool.map(program, [addresses, addresses]))
            assert [goes_on(strategy) for strategy in both].count(True) == 1
            for strategy in filter(None, both):
                strategy.parameters.close()


def test_new_coordinator_takes_over_and_fences_the_old_one(addresses: list[str]) -> None:
    old = strategy_on(addresses)
    with old.scope():
        x = Variable(1.0)
    new = strategy_on(addresses)
    with new.scope():
        y = Variable(2.0)
    for call in (x.numpy, lambda: x.assign(3.0), old.begin, lambda: old.parameters.advance(1)):
        with pytest.raises(AbortedError, match="a newer ParameterServerStrategy of"):
            call()
    assert float(y) == 2.0
    assert new.parameters.status(0)["session"] == new.session
    for strategy in (old, new):
        strategy.parameters.close()


# -- transports


@pytest.mark.parametrize("share_memory", [True, False])
def test_rows_travel_through_shared_memory_or_tcp_as_configured(
    addresses: list[str], monkeypatch: pytest.MonkeyPatch, share_memory: bool
) -> None:
    opened: list[str] = []
    begin = ConnectionExchange.__init__

    def noted(self: Any, connection: Any, address: str, command: Any, **options: Any) -> None:
        if command["exchange"] != ACTION:
            opened.append(connection.protocol)
        begin(self, connection, address, command, **options)

    monkeypatch.setattr(ConnectionExchange, "__init__", noted)
    strategy = strategy_on(addresses, config=ParameterConfig(share_memory=share_memory))
    with strategy.scope():
        table = create_variable(initializers.zeros(), shape=(6000, 16), name="table")
    parameters, spec, ids = strategy.parameters, table.spec, np.arange(0, 6000, 2)
    (lookup,) = parameters.fetch([Fetch(spec, ids)])
    parameters.apply([Update(spec, np.ones_like(lookup.rows), lookup)], SGD)
    (after,) = parameters.fetch([Fetch(spec, ids)])
    np.testing.assert_array_equal(after.rows, np.full((3000, 16), -1, np.float32))
    np.testing.assert_array_equal(after.unique, ids)
    (some,) = parameters.fetch([Fetch(spec, ids[:1000])])
    assert not some.rows.flags.writeable
    parameters.close()
    assert set(opened) == {"shared_memory" if share_memory else "tcp"}


@pytest.mark.parametrize("share_memory", [True, False])
def test_server_has_no_thread_for_a_trainer_that_computes(
    monkeypatch: pytest.MonkeyPatch, share_memory: bool
) -> None:
    monkeypatch.setattr(connection_server, "_STAY_S", 0.0)
    with ParameterServer(token=TOKEN) as server:
        config = ParameterConfig(share_memory=share_memory)
        strategy = strategy_on([server.address], shards=1, config=config)
        with strategy.scope():
            table = make_table()
        listeners = [each for each in (server._server, server._local) if each is not None]

        def resting() -> int:
            return sum(len(each._readable.get_map()) - 1 for each in listeners)

        for _ in range(2):
            wait_until(lambda: resting() == 1, "a resting trainer")
            assert not server.presence.is_over(0)
            strategy.parameters.fetch([Fetch(table.spec, np.arange(3))])
        strategy.parameters.close()
        wait_until(lambda: server.presence.is_over(0), "the trainer's end")


# -- failures


def _once_reachable(call: Callable[[], Any], timeout_s: float = DEADLINE_S) -> Any:
    """Retries ``call`` until a restarted server can be reached; returns its result."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            return call()
        except UnavailableError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.05)


def test_killed_server_is_named_and_its_restart_is_restored(
    own_server: ChildProcess, addresses: list[str], tmp_path: pathlib.Path
) -> None:
    address = address_of(own_server)
    strategy = strategy_on([addresses[0], address])
    with strategy.scope():
        table, bias, steps = make_model()
    _train(table, bias, steps, 2)
    saved = Checkpoint(table=table, bias=bias, steps=steps)
    saved.save(tmp_path)
    expected = [variable.numpy() for variable in (table, bias, steps)]
    own_server.kill()
    started_s = time.monotonic()
    with pytest.raises(UnavailableError, match=f"parameter server 1 at {address}"):
        table.numpy()
    assert time.monotonic() - started_s < AT_MOST_S
    with spawn_server(int(address.rpartition(":")[2])) as restarted:
        restarted.wait_ready(DEADLINE_S)
        with pytest.raises(FailedPreconditionError, match="restore a checkpoint"):
            _once_reachable(table.numpy)
        strategy.begin()
        saved.restore(tmp_path)
        for variable, values in zip((table, bias, steps), expected, strict=True):
            np.testing.assert_array_equal(variable.numpy(), values)
    strategy.parameters.close()


@pytest.mark.parametrize("megabytes", [0, 64])
def test_requests_to_frozen_server_time_out(
    own_server: ChildProcess, megabytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy = strategy_on([address_of(own_server)], shards=1)
    with strategy.scope():
        table = create_variable(
            initializers.zeros(), shape=(1 + (megabytes << 18), 1), name="table"
        )
    values = np.zeros(table.shape, np.float32)
    table.assign(values)
    own_server.suspend()
    started_s = time.monotonic()
    with monkeypatch.context() as patch:
        patch.setattr(strategy.parameters, "_config", SHORT)
        with pytest.raises(ServerLostError, match=r"parameter server 0 .* not answered within"):
            strategy.parameters.apply([Update(table.spec, values)], SGD)
        with pytest.raises(ServerLostError, match=r"parameter server 0.*frozen or cut off"):
            strategy.parameters.check_current()
        with pytest.raises(DeadlineExceededError):
            strategy.parameters.status(0, timeout_s=0.2)
        # A request that may take long, such as a checkpoint's, proves no loss by its delay.
        with pytest.raises(DeadlineExceededError, match="parameter server 0 at"):
            strategy.parameters.ask_all({0: {"kind": "verify"}}, timeout_s=0.2)
    assert time.monotonic() - started_s < AT_MOST_S
    own_server.resume()
    assert _once_reachable(lambda: table[:1]).tolist() == [[0.0]]
    strategy.parameters.close()


def test_strategy_waits_for_its_servers_until_its_deadline(own_server: ChildProcess) -> None:
    address = address_of(own_server)
    own_server.kill()
    with pytest.raises(UnavailableError, match=f"parameter server 0 at {address}.*start"):
        strategy_on([address], config=SHORT)
    port = int(address.rpartition(":")[2])
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(strategy_on, [address])
        with spawn_server(port):
            strategy = waiting.result(DEADLINE_S)
            assert strategy.parameters.status(0)["session"] == strategy.session
            strategy.parameters.close()


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch) -> str:
    """Returns the address of a server that the network does not reach."""

    def connect(*_: Any) -> None:
        raise OSError(errno.EHOSTUNREACH, os.strerror(errno.EHOSTUNREACH))

    monkeypatch.setattr(socket.socket, "connect", connect)
    return "192.0.2.1:7"


def test_strategy_names_a_server_that_the_network_does_not_reach_at_its_deadline(
    unreachable: str,
) -> None:
    began_s = time.monotonic()
    reason = f"parameter server 0 at {unreachable}.*start.*{os.strerror(errno.EHOSTUNREACH)}"
    with pytest.raises(UnavailableError, match=reason):
        strategy_on([unreachable], config=ParameterConfig(start_timeout_s=1.0))
    assert time.monotonic() - began_s < AT_MOST_S


def test_save_does_not_wait_long_for_a_server_that_the_network_does_not_reach(
    unreachable: str,
) -> None:
    session = ServerSession([unreachable], token=TOKEN, session="s", tls=None, config=SHORT)
    began_s = time.monotonic()
    with pytest.raises(ServerLostError, match=f"parameter server 0 at {unreachable} is gone"):
        session.ask_all({0: {"kind": "verify"}}, timeout_s=600.0)
    assert time.monotonic() - began_s < AT_MOST_S
    session.close()


# -- checkpoints


@pytest.mark.parametrize(("servers", "shards"), [(1, 1), (3, 5)])
def test_checkpoint_with_slots_restores_onto_other_servers_and_shards(
    addresses: list[str], tmp_path: pathlib.Path, servers: int, shards: int
) -> None:
    before = strategy_on(addresses[:2], shards=2)
    with before.scope():
        model = make_model()
    _train(*model, 3)
    Checkpoint(**dict(zip("abc", model, strict=True))).save(tmp_path)
    _train(*model, 2)
    expected = [variable.numpy() for variable in model]
    before.parameters.close()
    after = strategy_on(addresses[:servers], shards=shards)
    with after.scope():
        other = make_model()
    Checkpoint(**dict(zip("abc", other, strict=True))).restore(tmp_path)
    assert int(other[2]) == 3
    _train(*other, 2)
    for variable, values in zip(other, expected, strict=True):
        np.testing.assert_array_equal(variable.numpy(), values)
    after.parameters.close()


def test_checkpoint_of_servers_restores_in_one_process(
    strategy: ParameterServerStrategy, tmp_path: pathlib.Path
) -> None:
    with strategy.scope():
        remote = make_table()
    path = Checkpoint(table=remote).save(tmp_path)
    with local_parameters():
        local = create_variable(initializers.zeros(), shape=(1000, 5), name="table")
    assert Checkpoint(table=local).restore(path) == path
    np.testing.assert_array_equal(local.numpy(), remote.numpy())
