"""Changes of closures on real parameter servers: all are made, once each, whatever is lost."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from dataservice.runtime.exchanges.connection_exchange import ConnectionExchange
from pstrain import initializers
from pstrain.config import ParameterConfig
from pstrain.coordinator.lost_trainers import LostRunNotes, settle_servers
from pstrain.errors import (
    AbortedError,
    InvalidArgumentError,
    UnavailableError,
)
from pstrain.serialization import results
from pstrain.strategy import ParameterServerStrategy
from pstrain.trainer.committing import Committer
from pstrain.trainer.staging import ClosureRun, note
from pstrain.variables.parameters import step_scope
from pstrain.variables.variable import Variable, create_variable
from pstrain.vocabulary import Fetch, OptimizerSpec, StepToken, Update
from pstrain.wire import trainer_pb2 as pb
from tests.integration.parameter_servers import (
    DEADLINE_S,
    SGD,
    make_model,
    make_table,
    running_servers,
    strategy_on,
)
from tests.unit.bfloat16_twin import rounded


@pytest.fixture(scope="module")
def addresses() -> Iterator[list[str]]:
    """Yields three servers that tests use in turn, each in a session of its own."""
    with running_servers(3) as addresses:
        yield addresses


@pytest.fixture
def strategy(addresses: list[str]) -> Iterator[ParameterServerStrategy]:
    strategy = strategy_on(addresses, shards=3)
    yield strategy
    strategy.parameters.close()


def _not_expected(error: Exception) -> None:
    raise error


class Closures:
    """Runs closures in this process as a trainer runs them."""

    def __init__(
        self, strategy: ParameterServerStrategy, trainer: str = "t", at_once: int = 1
    ) -> None:
        self.strategy = strategy
        self.ended: list[pb.ClosureResult] = []
        self.failures: list[Exception] = []
        self.committer = Committer(
            strategy.parameters,
            trainer,
            self.ended.extend,
            give_up=_not_expected,
            fail=self._failed,
            closures=at_once,
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


def test_changes_of_a_closure_become_visible_together_at_its_end(
    strategy: ParameterServerStrategy,
) -> None:
    with strategy.scope():
        table, steps = make_table(), Variable(0, name="steps")
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


def test_closure_sees_its_own_changes_and_a_failed_one_makes_none(
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


def test_update_refused_by_one_server_is_applied_by_none(strategy: ParameterServerStrategy) -> None:
    with strategy.scope():
        whole, one_row = (Variable(np.zeros((rows, 1), np.float32)) for rows in (6, 1))
    assert (len(whole.spec.shards), len(one_row.spec.shards)) == (3, 1)
    closures, ones = Closures(strategy), np.ones((6, 1), np.float32)
    wrong = OptimizerSpec(name="NoSuchRule", learning_rate=1.0)

    def change(closure: int) -> None:
        with closures.run(closure):
            whole.assign_add(ones)
            strategy.parameters.apply([Update(one_row.spec, ones[:1])], wrong)

    # The home of the decision, which refuses last, is another server for each closure.
    for closure in range(3):
        with pytest.raises(InvalidArgumentError, match="NoSuchRule"):
            change(closure)
        assert not whole.numpy().any()
        assert not one_row.numpy().any()
        for ps in range(3):
            assert strategy.parameters.status(ps)["commits"]["held"] == 0


class _IgnoredReceipt:
    def acknowledge(self) -> None: ...

    def marks(self) -> list[dict[str, Any]]:
        return []


def test_refused_closure_in_a_group_commit_does_not_fail_the_others(
    strategy: ParameterServerStrategy,
) -> None:
    with strategy.scope():
        whole = Variable(np.zeros((6, 1), np.float32))
    closures, ones = Closures(strategy), np.ones((6, 1), np.float32)
    runs = [closures.committer.new_run(StepToken(strategy.session, c, 0), 0) for c in (1, 2, 3)]
    for run in (*runs, *runs):
        closures.committer.take(run, 0, _IgnoredReceipt())
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


def test_closure_of_fenced_trainer_is_committed_if_decided_else_dropped(
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

        monkeypatch.setattr("pstrain.trainer.two_phase_commit.reached", die)
        with pytest.raises(UnavailableError, match="killed"), closures.run(5):
            x.assign_add(np.ones((6, 1), np.float32))
        settlement = settle_servers(strategy.parameters, trainer)
        assert settlement.outcomes == ({5: (5, None)} if applied else {})
        np.testing.assert_array_equal(x.numpy(), np.full((6, 1), applied, np.float32))
        monkeypatch.setattr("pstrain.trainer.two_phase_commit.reached", lambda _place: None)
        with pytest.raises(AbortedError, match="taken for lost"), closures.run(6):
            x.assign_add(np.ones((6, 1), np.float32))
        np.testing.assert_array_equal(x.numpy(), np.full((6, 1), applied, np.float32))


def test_lost_closure_ends_with_the_notes_of_its_committed_parts(
    strategy: ParameterServerStrategy,
) -> None:
    with strategy.scope():
        x = Variable(np.zeros((6, 1), np.float32))

    def count_rows() -> None:
        for step in range(3):
            x.scatter_add(np.array([step, step + 3]), np.ones((2, 1), np.float32))
            note(step)
            if step == 2:
                raise UnavailableError("killed")
            x.numpy()

    closures = Closures(strategy, "dies")
    with pytest.raises(UnavailableError, match="killed"), closures.run(5):
        count_rows()
    settlement = settle_servers(strategy.parameters, "dies")
    assert settlement.outcomes == {5: (LostRunNotes([0, 1]), None)}
    assert settlement.decided[5].has_ended
    np.testing.assert_array_equal(x.numpy().reshape(-1), [1, 1, 0, 1, 1, 0])


class LostReplies:
    """Breaks connections as the next ``count`` replies arrive, after the server has acted."""

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


def test_commit_with_lost_replies_is_retried_and_applied_once(
    strategy: ParameterServerStrategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    with strategy.scope():
        x, n = Variable(np.zeros((6, 1), np.float32)), Variable(0.0)
    closures = Closures(strategy)
    lost = LostReplies(monkeypatch)
    for closure, place in enumerate(("begun", "prepared", "decided")):

        def lose(at: str, place: str = place) -> None:
            lost.count += at == place

        monkeypatch.setattr("pstrain.trainer.two_phase_commit.reached", lose)
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


@pytest.mark.parametrize("at_once", [1, 2])
@pytest.mark.parametrize("share_memory", [True, False])
def test_pull_sent_with_an_earlier_commit_survives_lost_replies(
    addresses: list[str], monkeypatch: pytest.MonkeyPatch, share_memory: bool, at_once: int
) -> None:
    strategy = strategy_on(addresses, config=ParameterConfig(share_memory=share_memory))
    with strategy.scope():
        table = create_variable(initializers.zeros(), shape=(60_000, 16), name="table")
    parameters, closures = strategy.parameters, Closures(strategy, at_once=at_once)
    lost, ids = LostReplies(monkeypatch), np.arange(0, 60_000, 7)
    asked: list[str] = []
    for closure, place in enumerate(("nowhere", "begun", "prepared", "decided")):

        def lose(at: str, place: str = place) -> None:
            lost.count += at == place

        monkeypatch.setattr("pstrain.trainer.two_phase_commit.reached", lose)
        run = closures.committer.new_run(StepToken(strategy.session, 2 * closure, 0), 0)
        with step_scope(run.token, run):
            # Large enough for a message of its own over Flight.
            table.assign_add(np.ones((60_000, 16), np.float32))
        held = closures.committer.end(run, pb.ClosureResult(id=run.token.closure))
        token = StepToken(strategy.session, 2 * closure + 1, 0)
        run = closures.committer.new_run(token, 0, held)
        lose("begun")
        with step_scope(token, run):
            (lookup,) = parameters.fetch([Fetch(table.spec, ids)])
        # Server 0, which decides, has the closure's change by then; server 1 if no other runs.
        has_change = (lookup.unique[:, None] < table.spec.shards[0].row_stop) | (at_once == 1)
        seen = closure + has_change
        np.testing.assert_array_equal(lookup.rows, np.broadcast_to(seen, (len(ids), 16)))
        assert closures.committer.end(run, pb.ClosureResult(id=token.closure)) is held
        closures.committer.flush(held)
        assert (lost.count, len(closures.ended)) == (0, 2 * closure + 2)
        np.testing.assert_array_equal(table.numpy(), np.full((60_000, 16), closure + 1))
        asked = sorted(parameters.status(0)["requests"])
    assert "both" in asked
    closures.committer.close()
    parameters.close()


@pytest.fixture(params=[True, False], ids=["shared memory", "tcp"])
def rounding_strategy(
    addresses: list[str], request: pytest.FixtureRequest
) -> Iterator[ParameterServerStrategy]:
    config = ParameterConfig(share_memory=request.param, chunk_bytes=1 << 20)
    strategy = strategy_on(addresses, 3, config, transport_dtype="bfloat16")
    yield strategy
    strategy.parameters.close()


def test_bfloat16_step_rounds_only_pulled_rows_and_pushed_gradients(
    rounding_strategy: ParameterServerStrategy,
) -> None:
    with rounding_strategy.scope():
        table, bias, steps = make_table(90_000, 16), *make_model()[1:]
        counts = Variable(np.arange(30) + (1 << 40), name="counts")
    bias.assign(np.array([1.001, -1 / 3, 1e-41, 1e30], np.float32))
    values, before, ids = table.numpy(), bias.numpy(), np.random.default_rng(0).permutation(90_000)
    for _ in range(2):
        lookup, whole, same, large = rounding_strategy.parameters.fetch(
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
        rounding_strategy.parameters.apply(updates, SGD, iterations=steps.spec)
        values[lookup.unique] -= rounded(gradient)
        before -= rounded(other)
        np.testing.assert_array_equal(table.numpy(), values)
        np.testing.assert_array_equal(bias.numpy(), before)
    np.testing.assert_array_equal(table.sparse_read(ids[:100]), values[ids[:100]])
    table.scatter_add([7], np.full((1, 16), 1.001, np.float32))
    np.testing.assert_array_equal(table[7:8], values[7:8] + np.float32(1.001))
    assert int(steps) == 2


def test_bfloat16_step_with_lost_replies_is_retried_and_applied_once(
    rounding_strategy: ParameterServerStrategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rounding_strategy.scope():
        table = create_variable(initializers.zeros(), shape=(60_000, 16), name="table")
    parameters, closures = rounding_strategy.parameters, Closures(rounding_strategy)
    ids, lost = np.arange(0, 60_000, 2), LostReplies(monkeypatch)
    gradient = np.random.default_rng(1).normal(size=(30_000, 16)).astype(np.float32)
    expected = np.zeros_like(gradient)
    for closure, place in enumerate(("nowhere", "begun", "prepared", "decided")):

        def lose(at: str, place: str = place) -> None:
            lost.count += at == place

        monkeypatch.setattr("pstrain.trainer.two_phase_commit.reached", lose)
        with closures.run(closure):
            (lookup,) = parameters.fetch([Fetch(table.spec, ids)])
            parameters.apply([Update(table.spec, gradient, lookup)], SGD)
            lose("begun")
        assert (lost.count, len(closures.ended)) == (0, closure + 1)
        expected -= rounded(gradient)
        np.testing.assert_array_equal(table.sparse_read(ids), expected)
