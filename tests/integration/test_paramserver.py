"""Real parameter servers, in processes of their own: values, sessions, failures, checkpoints."""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import pathlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from dataservice.runtime.connection_exchange import ConnectionExchange
from dataservice.runtime.message import ACTION
from dataservice.runtime.process import ChildProcess, spawn_module
from pstrain import initializers, results
from pstrain.checkpoints.checkpoint import Checkpoint
from pstrain.cluster import ClusterSpec, SimpleClusterResolver
from pstrain.config import ParameterConfig
from pstrain.coordinator.recovery import settle_servers
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
from pstrain.partition import FixedShardsPartitioner
from pstrain.strategy import ParameterServerStrategy
from pstrain.strategy_scope import get_strategy, has_strategy
from pstrain.trainer.client import RemoteParameters
from pstrain.trainer.committing import Committer
from pstrain.trainer.staging import ClosureRun
from pstrain.variables.parameters import step_scope
from pstrain.variables.scope import local_parameters
from pstrain.variables.variable import Variable, create_variable
from pstrain.vocabulary import Fetch, OptimizerSpec, StepToken, Update
from pstrain.wire import trainer_pb2 as pb
from tests.unit.bfloat16_twin import rounded

TOKEN = "token-of-these-tests"
ADAGRAD = OptimizerSpec(
    name="adagrad", learning_rate=0.1, parameters={"epsilon": 1e-7}, slots=(0.1,)
)
SGD = OptimizerSpec(name="sgd", learning_rate=1.0)
DEADLINE_S = 60.0
AT_MOST_S = 25.0
"""Less than a request waits for its answer unless told otherwise."""
SHORT = ParameterConfig(request_timeout_s=1.0, start_timeout_s=1.0)
SESSIONS = itertools.count()


def _spawn(port: int = 0) -> ChildProcess:
    arguments = ["--port", str(port)]
    return spawn_module("pstrain.paramserver", arguments, env={"DATASERVICE_TOKEN": TOKEN})


def _address(process: ChildProcess) -> str:
    return str(process.wait_ready(DEADLINE_S)["address"])


@pytest.fixture(scope="module")
def addresses() -> Iterator[list[str]]:
    """Three servers that tests share, one after the other, with sessions of their own."""
    processes = [_spawn() for _ in range(3)]
    try:
        yield [_address(process) for process in processes]
    finally:
        for process in processes:
            process.terminate()


@pytest.fixture
def lonely() -> Iterator[ChildProcess]:
    """A server for a test that harms it."""
    process = _spawn()
    process.wait_ready(DEADLINE_S)
    try:
        yield process
    finally:
        process.kill()


def _strategy(
    addresses: list[str],
    shards: int = 2,
    config: ParameterConfig | None = None,
    transport_dtype: str = "float32",
) -> ParameterServerStrategy:
    resolver = SimpleClusterResolver(ClusterSpec({"worker": ["127.0.0.1:1"], "ps": addresses}))
    resolver.token = TOKEN
    return ParameterServerStrategy(
        resolver, FixedShardsPartitioner(shards), config=config, transport_dtype=transport_dtype
    )


@pytest.fixture
def strategy(addresses: list[str]) -> Iterator[ParameterServerStrategy]:
    strategy = _strategy(addresses, shards=3)
    yield strategy
    strategy.parameters.close()


def _table(rows: int = 1000, width: int = 5) -> Any:
    return create_variable(initializers.normal(seed=1), shape=(rows, width), name="table")


def _train(table: Any, bias: Any, steps: Any, count: int) -> None:
    """The same ``count`` Adagrad steps wherever the variables are."""
    random = np.random.default_rng(0)
    for _ in range(count):
        ids = random.integers(0, table.shape[0], 300)
        lookup, whole = table.parameters.fetch([Fetch(table.spec, ids), Fetch(bias.spec)])
        gradient = lookup.rows + np.float32(whole.sum())
        updates = [Update(table.spec, gradient, lookup), Update(bias.spec, 0.1 * whole)]
        table.parameters.apply(updates, ADAGRAD, iterations=steps.spec)


def _model() -> tuple[Any, Any, Any]:
    return _table(), Variable(np.ones(4, np.float32), name="bias"), Variable(0, name="steps")


# -- values


def test_training_on_servers_gives_what_training_in_one_process_gives(
    strategy: ParameterServerStrategy,
) -> None:
    with strategy.scope():
        remote = _model()
    with local_parameters():
        local = _model()
    for model in (remote, local):
        _train(*model, 5)
    for a, b in zip(remote, local, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    assert int(remote[2]) == 5
    ids = [999, 0, 500, 0]
    np.testing.assert_array_equal(remote[0].sparse_read(ids), local[0].sparse_read(ids))


def test_arrays_of_megabytes_travel_by_tcp(addresses: list[str]) -> None:
    strategy = _strategy(addresses, config=ParameterConfig(share_memory=False))
    with strategy.scope():
        remote = _table(50_000, 16)
    with local_parameters():
        local = _table(50_000, 16)
    ids = np.random.default_rng(0).permutation(50_000)[:45_000]
    for table in (remote, local):
        for _ in range(2):
            (lookup,) = table.parameters.fetch([Fetch(table.spec, ids)])
            table.parameters.apply([Update(table.spec, lookup.rows + 1, lookup)], ADAGRAD)
    np.testing.assert_array_equal(remote.numpy(), local.numpy())
    strategy.parameters.close()


def test_placement_is_round_robin_with_a_slot_per_shard(
    strategy: ParameterServerStrategy,
) -> None:
    with strategy.scope():
        first, table, last = Variable(1.0), _table(), Variable(2.0)
    assert first.device == "/job:ps/task:0"
    assert table.device == ["/job:ps/task:1", "/job:ps/task:2", "/job:ps/task:0"]
    assert last.device == "/job:ps/task:1"
    assert strategy.variables == (first, table, last)
    assert strategy.extended.parameter_devices[2] == "/job:ps/task:2"
    for part in (table, *table.variables):
        with strategy.extended.colocate_vars_with(part):
            beside = Variable([1.0, 2.0])
        assert beside.device == (part.device if part is not table else table.device[0])


def test_scopes_nest_in_themselves_only(
    strategy: ParameterServerStrategy, addresses: list[str]
) -> None:
    with strategy.scope(), strategy.scope() as inner:
        assert inner is get_strategy()
    other = _strategy(addresses)
    with strategy.scope(), pytest.raises(RuntimeError, match="another strategy"), other.scope():
        pass
    assert not has_strategy()
    other.parameters.close()


def test_what_runs_in_the_program_says_so(
    strategy: ParameterServerStrategy, caplog: pytest.LogCaptureFixture
) -> None:
    with strategy.scope():
        variable = Variable(2.0)
    assert strategy.run(lambda x: x + variable, args=(1.0,)) == 3.0
    assert caplog.text.count("coordinator.schedule()") == 1


def test_changes_of_all_kinds(strategy: ParameterServerStrategy) -> None:
    with strategy.scope():
        table, count = _table(30, 2), Variable(np.arange(30), name="count")
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


def test_a_whole_variable_travels_only_when_it_changed(
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


def test_large_variables_travel_in_pieces(addresses: list[str]) -> None:
    strategy = _strategy(addresses[:2], config=ParameterConfig(chunk_bytes=1000))
    values = np.random.default_rng(3).normal(size=(3000, 7)).astype(np.float32)
    with strategy.scope():
        table = Variable(values, name="table")
    np.testing.assert_array_equal(table.numpy(), values)
    np.testing.assert_array_equal(strategy.parameters.fetch([Fetch(table.spec)])[0], values)
    ids = np.random.default_rng(4).integers(0, 3000, 2000)
    np.testing.assert_array_equal(table.sparse_read(ids), values[ids])
    strategy.parameters.close()


def test_slots_of_large_variables_are_asked_for_before_the_first_step(
    addresses: list[str],
) -> None:
    strategy = _strategy(addresses, config=ParameterConfig(chunk_bytes=1000))
    with strategy.scope():
        table = _table()
    before = [strategy.parameters.status(ps)["requests"].get("slots", 0) for ps in range(2)]
    lookup: Any = table.parameters.fetch([Fetch(table.spec, np.array([1, 999]))])[0]
    for _ in range(2):
        table.parameters.apply([Update(table.spec, np.ones((2, 5), np.float32), lookup)], ADAGRAD)
    after = [strategy.parameters.status(ps)["requests"]["slots"] for ps in range(2)]
    assert [b + 1 for b in before] == after
    np.testing.assert_allclose(table.sparse_read([1]), lookup.rows[:1] - 0.1636, atol=1e-3)
    strategy.parameters.close()


def test_errors_name_what_is_wrong_and_leave_the_connection_usable(
    strategy: ParameterServerStrategy,
) -> None:
    with strategy.scope():
        table = _table()
    with pytest.raises(InvalidArgumentError, match=r"id 1000 .*'table'"):
        strategy.parameters.fetch([Fetch(table.spec, np.array([3, 1000]))])
    (lookup,) = strategy.parameters.fetch([Fetch(table.spec, np.array([3]))])
    wrong = OptimizerSpec(name="adam", learning_rate=1.0, slots=(0.0, 0.0))
    with pytest.raises(InvalidArgumentError, match="adam"):
        strategy.parameters.apply([Update(table.spec, lookup.rows, lookup)], wrong)
    with local_parameters():
        foreign = [_table() for _ in range(9)][-1]
    with pytest.raises(NotFoundError, match="variable 8"):
        strategy.parameters.fetch([Fetch(foreign.spec)])
    assert table.numpy().shape == (1000, 5)


def test_threads_work_side_by_side(strategy: ParameterServerStrategy) -> None:
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


# -- who may


def test_a_wrong_token_is_refused(addresses: list[str]) -> None:
    with pytest.raises(UnauthenticatedError):
        RemoteParameters(addresses, token="wrong", session="x").begin_session(0)


def test_a_new_coordinator_takes_over_and_the_old_one_is_fenced(addresses: list[str]) -> None:
    old = _strategy(addresses)
    with old.scope():
        x = Variable(1.0)
    new = _strategy(addresses)
    with new.scope():
        y = Variable(2.0)
    for call in (x.numpy, lambda: x.assign(3.0), old.begin, lambda: old.parameters.advance(1)):
        with pytest.raises(AbortedError, match="a newer ParameterServerStrategy of"):
            call()
    assert float(y) == 2.0
    assert new.parameters.status(0)["session"] == new.session
    for strategy in (old, new):
        strategy.parameters.close()


# -- once


def _not_expected(error: Exception) -> None:
    raise error


class Closures:
    """Runs closures here as a trainer runs them there."""

    def __init__(self, strategy: ParameterServerStrategy, trainer: str = "t") -> None:
        self.strategy = strategy
        self.ended: list[pb.ClosureResult] = []
        self.failures: list[Exception] = []
        self.committer = Committer(
            strategy.parameters,
            trainer,
            self.ended.extend,
            give_up=_not_expected,
            fail=self._failed,
        )

    @contextlib.contextmanager
    def run(self, closure: int, attempt: int = 0) -> Iterator[ClosureRun]:
        token = StepToken(self.strategy.session, closure, attempt)
        run = self.committer.new_run(token, 0)
        with step_scope(token, run):
            yield run
        result = pb.ClosureResult(id=closure, attempt=attempt, value=results.encode(closure))
        held = self.committer.end(run, result)
        if held is not None:
            self.committer.flush(held)
        if self.failures:
            raise self.failures.pop()

    def _failed(self, result: pb.ClosureResult, error: Exception) -> pb.ClosureResult:
        self.failures.append(error)
        return pb.ClosureResult(id=result.id, attempt=result.attempt, error_json="{}")


def test_a_closures_changes_are_made_together_at_its_end(
    strategy: ParameterServerStrategy,
) -> None:
    with strategy.scope():
        table, steps = _table(), Variable(0, name="steps")
    parameters, closures = strategy.parameters, Closures(strategy)
    ids = np.arange(0, 1000, 7)
    before = table.numpy()
    with closures.run(12):
        (lookup,) = parameters.fetch([Fetch(table.spec, ids)])
        gradient = np.ones_like(lookup.rows)
        parameters.apply([Update(table.spec, gradient, lookup)], SGD, iterations=steps.spec)
        steps.assign_add(10)
        other = threading.Thread(target=lambda: seen.extend([int(steps), table.numpy()]))
        seen: list[Any] = []
        other.start()
        other.join()
        assert seen[0] == 0
        np.testing.assert_array_equal(seen[1], before)
    np.testing.assert_array_equal(table.numpy()[::7], before[::7] - 1)
    assert int(steps) == 11
    assert [result.id for result in closures.ended] == [12]


def test_a_closure_sees_its_own_changes_and_one_that_fails_makes_none(
    strategy: ParameterServerStrategy,
) -> None:
    with strategy.scope():
        x, y = Variable(0.0), Variable(0.0)
    closures = Closures(strategy)
    with closures.run(1) as run:
        x.assign_add(1.0)
        assert float(y) == 0.0
        assert run.part == 0
        assert float(x) == 1.0
        assert run.part == 1
        y.assign_add(1.0)
    with contextlib.suppress(ZeroDivisionError), closures.run(2):
        x.assign_add(1.0)
        raise ZeroDivisionError
    assert (float(x), float(y)) == (1.0, 1.0)


def test_what_one_server_refuses_no_other_applies(strategy: ParameterServerStrategy) -> None:
    with strategy.scope():
        whole, bad = Variable(np.zeros((6, 1), np.float32)), Variable(np.zeros(2, np.int64))
    closures = Closures(strategy)

    def change() -> None:
        with closures.run(1):
            whole.assign_add(np.ones((6, 1), np.float32))
            update = Update(whole.spec, np.ones((6, 1), np.float32))
            wrong = OptimizerSpec(name="NoSuchRule", learning_rate=1.0)
            strategy.parameters.apply([update], wrong)

    with pytest.raises(InvalidArgumentError, match="NoSuchRule"):
        change()
    assert not whole.numpy().any()
    assert not bad.numpy().any()
    for ps in range(3):
        assert strategy.parameters.status(ps)["commits"]["held"] == 0


class _NoReceipt:
    def acknowledge(self) -> None: ...

    def marks(self) -> list[dict[str, Any]]:
        return []


def test_what_servers_refuse_fails_its_closure_and_none_that_commits_with_it(
    strategy: ParameterServerStrategy,
) -> None:
    with strategy.scope():
        whole = Variable(np.zeros((6, 1), np.float32))
    closures, ones = Closures(strategy), np.ones((6, 1), np.float32)
    runs = [closures.committer.new_run(StepToken(strategy.session, c, 0), 0) for c in (1, 2, 3)]
    for run in (*runs, *runs):
        closures.committer.take(run, 0, _NoReceipt())
    for run in runs:
        with step_scope(run.token, run):
            whole.assign_add(ones)
            if run is runs[1]:
                wrong = OptimizerSpec(name="NoSuchRule", learning_rate=1.0)
                strategy.parameters.apply([Update(whole.spec, ones)], wrong)
    threads = [
        threading.Thread(target=_end_and_flush, args=(closures.committer, run)) for run in runs
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
        assert not thread.is_alive()
    assert {r.id: r.WhichOneof("outcome") for r in closures.ended} == {
        1: "value",
        2: "error_json",
        3: "value",
    }
    assert [type(error) for error in closures.failures] == [InvalidArgumentError]
    assert "NoSuchRule" in str(closures.failures[0])
    np.testing.assert_array_equal(whole.numpy(), 2 * ones)
    for ps in range(3):
        assert strategy.parameters.status(ps)["commits"]["held"] == 0


def _end_and_flush(committer: Committer, run: ClosureRun) -> None:
    closure = run.token.closure
    held = committer.end(run, pb.ClosureResult(id=closure, value=results.encode(closure)))
    if held is not None:
        committer.flush(held)


def test_a_fenced_trainers_closure_is_completed_or_dropped_by_others(
    strategy: ParameterServerStrategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    with strategy.scope():
        x = Variable(np.zeros((6, 1), np.float32))
    for place, applied in (("prepared", 0.0), ("decided", 1.0)):
        trainer = f"dies when {place}"
        closures = Closures(strategy, trainer)

        def die(at: str, place: str = place) -> None:
            if at == place:
                raise UnavailableError("killed")

        monkeypatch.setattr("pstrain.trainer.deciding.reached", die)
        with pytest.raises(UnavailableError, match="killed"), closures.run(5):
            x.assign_add(np.ones((6, 1), np.float32))
        legacy = settle_servers(strategy.parameters, trainer)
        assert legacy.outcomes == ({5: (5, None)} if applied else {})
        np.testing.assert_array_equal(x.numpy(), np.full((6, 1), applied, np.float32))
        monkeypatch.setattr("pstrain.trainer.deciding.reached", lambda _place: None)
        with pytest.raises(AbortedError, match="taken for lost"), closures.run(6):
            x.assign_add(np.ones((6, 1), np.float32))
        np.testing.assert_array_equal(x.numpy(), np.full((6, 1), applied, np.float32))


@pytest.mark.parametrize("share_memory", [True, False])
def test_rows_travel_through_shared_memory_or_by_tcp(
    addresses: list[str], monkeypatch: pytest.MonkeyPatch, share_memory: bool
) -> None:
    opened: list[str] = []
    begin = ConnectionExchange.__init__

    def noted(self: Any, connection: Any, address: str, command: Any, **options: Any) -> None:
        if command["exchange"] != ACTION:
            opened.append(connection.protocol)
        begin(self, connection, address, command, **options)

    monkeypatch.setattr(ConnectionExchange, "__init__", noted)
    strategy = _strategy(addresses, config=ParameterConfig(share_memory=share_memory))
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


class LostReplies:
    """Makes the connection break when the next replies arrive, after the server has acted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        receive = self._losing(ConnectionExchange.recv)
        monkeypatch.setattr(ConnectionExchange, "recv", receive)

    def _losing(self, receive: Callable[..., Any]) -> Callable[..., Any]:
        def recv(exchange: Any, timeout_s: float) -> Any:
            message = receive(exchange, timeout_s)
            if self.count and message is not None and message.header:
                self.count -= 1
                raise UnavailableError("the connection broke")
            return message

        return recv


def test_a_commit_whose_replies_are_lost_is_sent_again_and_made_once(
    strategy: ParameterServerStrategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    with strategy.scope():
        x, n = Variable(np.zeros((6, 1), np.float32)), Variable(0.0)
    closures = Closures(strategy)
    lost = LostReplies(monkeypatch)
    for closure, place in enumerate(("begun", "prepared", "decided")):

        def lose(at: str, place: str = place) -> None:
            lost.count += at == place

        monkeypatch.setattr("pstrain.trainer.deciding.reached", lose)
        with closures.run(closure):
            x.assign_add(np.ones((6, 1), np.float32))
            n.assign_add(1.0)
            lose("begun")
        assert lost.count == 0
    np.testing.assert_array_equal(x.numpy(), np.full((6, 1), 3, np.float32))
    assert float(n) == 3.0
    lost.count = 1
    with pytest.raises(UnavailableError, match="parameter server"):
        n.assign_add(1.0)
    assert float(n) == 4.0


@pytest.mark.parametrize("share_memory", [True, False])
def test_a_pull_goes_along_with_an_earlier_closures_commit_although_replies_are_lost(
    addresses: list[str], monkeypatch: pytest.MonkeyPatch, share_memory: bool
) -> None:
    strategy = _strategy(addresses, config=ParameterConfig(share_memory=share_memory))
    with strategy.scope():
        table = create_variable(initializers.zeros(), shape=(60_000, 16), name="table")
    parameters, closures = strategy.parameters, Closures(strategy)
    lost, ids = LostReplies(monkeypatch), np.arange(0, 60_000, 7)
    asked: list[str] = []
    for closure, place in enumerate(("nowhere", "begun", "prepared", "decided")):

        def lose(at: str, place: str = place) -> None:
            lost.count += at == place

        monkeypatch.setattr("pstrain.trainer.deciding.reached", lose)
        run = closures.committer.new_run(StepToken(strategy.session, 2 * closure, 0), 0)
        with step_scope(run.token, run):
            # Large enough to travel by itself over Flight.
            table.assign_add(np.ones((60_000, 16), np.float32))
        held = closures.committer.end(run, pb.ClosureResult(id=run.token.closure))
        token = StepToken(strategy.session, 2 * closure + 1, 0)
        run = closures.committer.new_run(token, 0, held)
        lose("begun")
        with step_scope(token, run):
            (lookup,) = parameters.fetch([Fetch(table.spec, ids)])
        np.testing.assert_array_equal(lookup.rows, np.full((len(ids), 16), closure + 1))
        assert closures.committer.end(run, pb.ClosureResult(id=token.closure)) is held
        assert (lost.count, len(closures.ended)) == (0, 2 * closure + 2)
        asked = sorted(parameters.status(0)["requests"])
    assert "both" in asked
    closures.committer.close()
    parameters.close()


# -- in fewer bytes


@pytest.fixture(params=[True, False], ids=["shared memory", "tcp"])
def rounding(
    addresses: list[str], request: pytest.FixtureRequest
) -> Iterator[ParameterServerStrategy]:
    config = ParameterConfig(share_memory=request.param, chunk_bytes=1 << 20)
    strategy = _strategy(addresses, 3, config, transport_dtype="bfloat16")
    yield strategy
    strategy.parameters.close()


def test_a_step_rounds_what_it_pulls_and_pushes_and_nothing_else(
    rounding: ParameterServerStrategy,
) -> None:
    with rounding.scope():
        table, bias, steps = _table(90_000, 16), *_model()[1:]
        counts = Variable(np.arange(30) + (1 << 40), name="counts")
    bias.assign(np.array([1.001, -1 / 3, 1e-41, 1e30], np.float32))
    values, before, ids = table.numpy(), bias.numpy(), np.random.default_rng(0).permutation(90_000)
    for _ in range(2):
        lookup, whole, same, large = rounding.parameters.fetch(
            [
                Fetch(table.spec, ids[:80_000]),
                Fetch(bias.spec),
                Fetch(counts.spec),
                Fetch(table.spec),
            ]
        )
        np.testing.assert_array_equal(lookup.rows, rounded(values[lookup.unique]))
        np.testing.assert_array_equal(whole, rounded(before))
        np.testing.assert_array_equal(same, counts.numpy())
        np.testing.assert_array_equal(large, rounded(values))
        gradient, other = np.sin(lookup.rows), np.cos(np.arange(4, dtype=np.float32))
        updates = [Update(table.spec, gradient, lookup), Update(bias.spec, other)]
        rounding.parameters.apply(updates, SGD, iterations=steps.spec)
        values[lookup.unique] -= rounded(gradient)
        before -= rounded(other)
        np.testing.assert_array_equal(table.numpy(), values)
        np.testing.assert_array_equal(bias.numpy(), before)
    np.testing.assert_array_equal(table.sparse_read(ids[:100]), values[ids[:100]])
    table.scatter_add([7], np.full((1, 16), 1.001, np.float32))
    np.testing.assert_array_equal(table[7:8], values[7:8] + np.float32(1.001))
    assert int(steps) == 2


def test_a_rounded_step_whose_replies_are_lost_is_sent_again_and_made_once(
    rounding: ParameterServerStrategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rounding.scope():
        table = create_variable(initializers.zeros(), shape=(60_000, 16), name="table")
    parameters, closures = rounding.parameters, Closures(rounding)
    ids, lost = np.arange(0, 60_000, 2), LostReplies(monkeypatch)
    gradient = np.random.default_rng(1).normal(size=(30_000, 16)).astype(np.float32)
    expected = np.zeros_like(gradient)
    for closure, place in enumerate(("nowhere", "begun", "prepared", "decided")):

        def lose(at: str, place: str = place) -> None:
            lost.count += at == place

        monkeypatch.setattr("pstrain.trainer.deciding.reached", lose)
        with closures.run(closure):
            (lookup,) = parameters.fetch([Fetch(table.spec, ids)])
            parameters.apply([Update(table.spec, gradient, lookup)], SGD)
            lose("begun")
        assert (lost.count, len(closures.ended)) == (0, closure + 1)
        expected -= rounded(gradient)
        np.testing.assert_array_equal(table.sparse_read(ids), expected)


# -- failures


def _once_reachable(call: Callable[[], Any], timeout_s: float = DEADLINE_S) -> Any:
    """What ``call`` gives once connections to a restarted server are tried again."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            return call()
        except UnavailableError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.05)


def test_a_killed_server_is_named_and_a_restarted_one_is_restored(
    lonely: ChildProcess, addresses: list[str], tmp_path: pathlib.Path
) -> None:
    address = _address(lonely)
    strategy = _strategy([addresses[0], address])
    with strategy.scope():
        table, bias, steps = _model()
    _train(table, bias, steps, 2)
    saved = Checkpoint(table=table, bias=bias, steps=steps)
    saved.save(tmp_path)
    expected = [variable.numpy() for variable in (table, bias, steps)]
    lonely.kill()
    started_s = time.monotonic()
    with pytest.raises(UnavailableError, match=f"parameter server 1 at {address}"):
        table.numpy()
    assert time.monotonic() - started_s < AT_MOST_S
    with _spawn(int(address.rpartition(":")[2])) as restarted:
        restarted.wait_ready(DEADLINE_S)
        with pytest.raises(FailedPreconditionError, match="restore a checkpoint"):
            _once_reachable(table.numpy)
        strategy.begin()
        saved.restore(tmp_path)
        for variable, values in zip((table, bias, steps), expected, strict=True):
            np.testing.assert_array_equal(variable.numpy(), values)
    strategy.parameters.close()


@pytest.mark.parametrize("megabytes", [0, 64])
def test_a_frozen_server_does_not_freeze_its_clients(
    lonely: ChildProcess, megabytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy = _strategy([_address(lonely)], shards=1)
    with strategy.scope():
        table = create_variable(
            initializers.zeros(), shape=(1 + (megabytes << 18), 1), name="table"
        )
    values = np.zeros(table.shape, np.float32)
    table.assign(values)
    lonely.suspend()
    started_s = time.monotonic()
    with monkeypatch.context() as patch:
        patch.setattr(strategy.parameters, "_config", SHORT)
        with pytest.raises(ServerLostError, match=r"parameter server 0 .* not answered within"):
            strategy.parameters.apply([Update(table.spec, values)], SGD)
        with pytest.raises(DeadlineExceededError):
            strategy.parameters.status(0)
        # What may take long, as writing a checkpoint, says nothing of a loss.
        with pytest.raises(DeadlineExceededError, match="parameter server 0 at"):
            strategy.parameters.ask_all({0: {"kind": "verify"}}, timeout_s=0.2)
    assert time.monotonic() - started_s < AT_MOST_S
    lonely.resume()
    assert _once_reachable(lambda: table[:1]).tolist() == [[0.0]]
    strategy.parameters.close()


def test_a_strategy_waits_for_its_servers_until_its_deadline(lonely: ChildProcess) -> None:
    address = _address(lonely)
    lonely.kill()
    with pytest.raises(UnavailableError, match=f"parameter server 0 at {address}.*start"):
        _strategy([address], config=SHORT)
    port = int(address.rpartition(":")[2])
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(_strategy, [address])
        with _spawn(port):
            strategy = waiting.result(DEADLINE_S)
            assert strategy.parameters.status(0)["session"] == strategy.session
            strategy.parameters.close()


# -- checkpoints


@pytest.mark.parametrize(("servers", "shards"), [(1, 1), (3, 5)])
def test_a_checkpoint_restores_onto_other_servers_and_shards_with_slots(
    addresses: list[str], tmp_path: pathlib.Path, servers: int, shards: int
) -> None:
    before = _strategy(addresses[:2], shards=2)
    with before.scope():
        model = _model()
    _train(*model, 3)
    Checkpoint(**dict(zip("abc", model, strict=True))).save(tmp_path)
    _train(*model, 2)
    expected = [variable.numpy() for variable in model]
    before.parameters.close()
    after = _strategy(addresses[:servers], shards=shards)
    with after.scope():
        other = _model()
    Checkpoint(**dict(zip("abc", other, strict=True))).restore(tmp_path)
    assert int(other[2]) == 3
    _train(*other, 2)
    for variable, values in zip(other, expected, strict=True):
        np.testing.assert_array_equal(variable.numpy(), values)
    after.parameters.close()


def test_values_come_down_from_the_servers_into_one_process(
    strategy: ParameterServerStrategy, tmp_path: pathlib.Path
) -> None:
    with strategy.scope():
        remote = _table()
    path = Checkpoint(table=remote).save(tmp_path)
    with local_parameters():
        local = create_variable(initializers.zeros(), shape=(1000, 5), name="table")
    assert Checkpoint(table=local).restore(path) == path
    np.testing.assert_array_equal(local.numpy(), remote.numpy())
