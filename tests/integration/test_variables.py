"""What variables on real parameter servers cost the network and this process."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import numpy as np
import pytest

import pstrain as ps
from pstrain.coordinator.sent_functions import SentFunctions
from pstrain.errors import InvalidArgumentError
from pstrain.trainer.connections import Connections
from pstrain.variables.joint_access import assign_together, read_together
from pstrain.variables.scope import local_parameters

DEADLINE_S = 60.0
ROWS, WIDTH = 400_000, 16
TABLE_BYTES = ROWS * WIDTH * 4


@pytest.fixture(scope="module")
def strategy(cluster: ps.LocalCluster) -> ps.ParameterServerStrategy:
    partitioner = ps.partitioners.FixedShardsPartitioner(2)
    return ps.ParameterServerStrategy(cluster.resolver, variable_partitioner=partitioner)


class Traffic:
    """Counts of the bytes sent to and received from parameter servers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent_bytes = self.received_bytes = self.messages = 0
        ask = Connections.ask

        def counted(connections: Any, requests: Any, *args: Any, **kwargs: Any) -> Any:
            self.messages += len(requests)
            for request in requests.values():
                self.sent_bytes += len(request.header)
                self.sent_bytes += 0 if request.body is None else request.body.room
            replies = ask(connections, requests, *args, **kwargs)
            for reply in replies.values():
                self.received_bytes += 0 if reply.body is None else reply.body.size
            return replies

        monkeypatch.setattr(Connections, "ask", counted)


@pytest.fixture
def traffic(monkeypatch: pytest.MonkeyPatch) -> Traffic:
    return Traffic(monkeypatch)


def test_large_table_is_initialised_on_its_servers(
    strategy: ps.ParameterServerStrategy, traffic: Traffic
) -> None:
    tracemalloc.start()
    try:
        with strategy.scope():
            table = ps.Variable(ps.initializers.normal(seed=4), shape=(ROWS, WIDTH), name="table")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert isinstance(table, ps.ShardedVariable)
    assert traffic.sent_bytes < 4096
    assert peak_bytes < TABLE_BYTES / 20
    ids = np.array([ROWS - 1, 0, 7, ROWS // 2, 7])
    with local_parameters():
        alone = ps.Variable(ps.initializers.normal(seed=4), shape=(ROWS, WIDTH))
        expected = alone.numpy()[ids]
    np.testing.assert_array_equal(table.sparse_read(ids), expected)
    assert traffic.received_bytes <= len(ids) * WIDTH * 4 + 64


def test_lookup_transfers_only_requested_rows(
    strategy: ps.ParameterServerStrategy, traffic: Traffic
) -> None:
    with strategy.scope():
        table = ps.Variable(ps.initializers.uniform(), shape=(ROWS, WIDTH), name="looked_up")
    ids = np.array([[3, ROWS - 1], [3, 5]])
    assert table.embedding_lookup(ids).shape == (2, 2, WIDTH)
    assert table[10:20:3].shape == (4, WIDTH)
    table.scatter_add(ps.IndexedSlices(values=np.ones((2, WIDTH)), indices=[1, ROWS - 1]))
    assert traffic.received_bytes < 16 * WIDTH * 4
    assert traffic.sent_bytes < 8192


def test_scheduled_steps_train_only_looked_up_rows(
    strategy: ps.ParameterServerStrategy,
) -> None:
    coordinator = ps.ClusterCoordinator(strategy)
    with strategy.scope():
        table = ps.Variable(np.zeros((10, 2), np.float32), name="trained_rows")
        optimizer = ps.optimizers.SGD(1.0)
    assert isinstance(table, ps.ShardedVariable)

    def step() -> float:
        with ps.GradientTape() as tape:
            rows = table.embedding_lookup([[9, 1], [9, 9]])
            loss = np.sum(rows)
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])
        return float(loss)

    losses = [coordinator.schedule(step) for _ in range(2)]
    coordinator.join(timeout=DEADLINE_S)
    assert len(losses) == 2
    expected = np.zeros((10, 2))
    expected[9], expected[1] = -6, -2
    np.testing.assert_array_equal(table.numpy(), expected)


def test_initial_function_is_called_per_shard(
    strategy: ps.ParameterServerStrategy,
) -> None:
    def initial(partition_shape: Any, partition_offset: Any) -> np.ndarray:
        rows = np.arange(partition_offset[0], partition_offset[0] + partition_shape[0])
        return np.broadcast_to(rows[:, None], partition_shape).astype(np.float32)

    with strategy.scope():
        table = ps.Variable(initial, shape=(1001, 4))
    assert [part.shape[0] for part in table.variables] == [501, 500]
    assert table.sparse_read([1000, 0])[:, 0].tolist() == [1000, 0]


def test_trainers_update_their_own_per_worker_copies(strategy: ps.ParameterServerStrategy) -> None:
    coordinator = ps.ClusterCoordinator(strategy)
    with strategy.scope():
        steps = ps.Variable(0, name="steps", per_worker_variable=True)

    def step() -> tuple[int, int]:
        steps.assign_add(1)
        return ps.get_current_worker_index(), int(steps.numpy())

    try:
        results = coordinator.fetch([coordinator.schedule(step) for _ in range(40)])
        copies = [int(copy) for copy in steps.read_all()]
    finally:
        coordinator.close()
    counts = [sum(index == trainer for index, _ in results) for trainer in (0, 1)]
    assert copies == counts
    assert sum(copies) == 40


def test_scheduled_function_reads_what_a_change_returns(
    strategy: ps.ParameterServerStrategy,
) -> None:
    coordinator = ps.ClusterCoordinator(strategy)
    with strategy.scope():
        total = ps.Variable([1.0, 2.0], name="total")
    try:
        read = coordinator.schedule(lambda: total.assign_add([1.0, 1.0]).assign_sub(0.5).numpy())
        assert read.fetch().tolist() == [1.5, 2.5]
        assert coordinator.schedule(lambda: total.assign_add([1.0, 1.0])).fetch() is None
        assert coordinator.schedule(lambda: total).fetch().tolist() == [2.5, 3.5]
    finally:
        coordinator.close()


def test_changed_learning_rate_reaches_already_shipped_functions(
    strategy: ps.ParameterServerStrategy,
) -> None:
    coordinator = ps.ClusterCoordinator(strategy)
    with strategy.scope():
        value, optimizer = ps.Variable([0.0], name="stepped"), ps.optimizers.SGD(1.0)

    def step() -> None:
        optimizer.apply_gradients([(np.ones(1, np.float32), value)])

    try:
        for rate in (1.0, 0.25):
            optimizer.learning_rate = rate
            for _ in range(4):
                coordinator.schedule(step)
            coordinator.join(timeout=DEADLINE_S)
    finally:
        coordinator.close()
    assert value.numpy().tolist() == [-5.0]


def test_unused_functions_are_evicted(
    strategy: ps.ParameterServerStrategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pstrain.coordinator.functions._REMEMBERED", 3)
    monkeypatch.setattr(
        "pstrain.coordinator.trainer_messages.SentFunctions", lambda: SentFunctions(functions_max=2)
    )
    coordinator = ps.ClusterCoordinator(strategy)
    try:
        functions = [lambda k=k: k for k in range(20)]
        values = [coordinator.schedule(function) for function in functions * 2]
        assert coordinator.fetch(values) == [*range(20)] * 2
        coordinator.join(timeout=DEADLINE_S)
        del values
        gc.collect()
        assert len(coordinator._functions.pickled) <= 3 + 2
    finally:
        coordinator.close()


def test_reads_of_many_variables_share_messages(
    strategy: ps.ParameterServerStrategy, traffic: Traffic
) -> None:
    schema = ps.FeatureSchema(dense=["x"], categorical={"c": ps.Category(64, hashed=False)})
    with strategy.scope():
        model = ps.models.WideDeep(schema, dim=4, hidden=(8, 8, 8, 8))
    one_by_one = [variable.numpy() for variable in model.variables]
    traffic.messages = 0
    weights = model.get_weights()
    assert traffic.messages == 2
    for one, other in zip(weights, one_by_one, strict=True):
        np.testing.assert_array_equal(one, other)
    traffic.messages = 0
    model.set_weights([value + 1 for value in weights])
    assert traffic.messages == 2
    weights[0][:] = 0
    for one, variable in zip(one_by_one, model.variables, strict=True):
        np.testing.assert_array_equal(variable.numpy(), one + 1)


def test_variables_of_every_kind_are_read_and_assigned_together(
    strategy: ps.ParameterServerStrategy,
) -> None:
    with strategy.scope():
        table = ps.Variable(np.arange(12.0).reshape(6, 2), name="table")
        made = [
            ps.Variable(7, name="count"),
            table,
            ps.Variable(np.zeros((0, 3), np.float32), name="empty"),
            table.variables[1],
            ps.Variable([True, False, True], name="flags"),
            ps.ShardedVariable([ps.Variable([1.0, 2.0]), ps.Variable([3.0])]),
        ]
    made += [table, ps.Variable(np.ones((40, 2)), name="here")]
    expected = [variable.numpy() for variable in made]
    found = read_together(made)
    for variable, one, other in zip(made, found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
        assert (one.dtype, one.shape) == (variable.dtype, variable.shape)
        one[...] = 0
    assert (table.numpy() == expected[1]).all(), "what was read is a copy"
    part = expected[3] + 1
    assign_together(made, [8, *expected[1:3], part, ~expected[4], *expected[5:]])
    assert int(made[0]) == 8
    assert made[4].numpy().tolist() == [False, True, False]
    with pytest.raises(InvalidArgumentError, match="'flags'"):
        assign_together([made[0], made[4]], [9, np.array([0.5, 1.0, 2.0])])
    assert int(made[0]) == 8


class Loose(ps.models.Model):
    """A model of variables and layers that are in no list, which its computation reads itself."""

    def __init__(self, schema: Any, count: int = 30) -> None:
        super().__init__(schema)
        self.dense = ps.layers.Dense(1, input_size=1, name="dense", seed=0)
        self.many = [ps.Variable([0.5], name=f"many{i}") for i in range(count)]

    def compute(self, values: Any, features: Any) -> Any:  # noqa: ARG002
        out = self.dense(features.dense)
        for each in self.many:
            out = out + each * np.float32(0.1)
        return out


def test_variables_that_a_computation_reads_itself_share_a_message_from_the_second_step_on(
    cluster: ps.LocalCluster,
) -> None:
    strategy = ps.ParameterServerStrategy(cluster.resolver)
    coordinator = ps.ClusterCoordinator(strategy, closures_in_flight=1)
    schema = ps.FeatureSchema(dense=["x"], label="y")
    rows = {"x": np.arange(8.0), "y": np.arange(8) % 2}

    def made(where: ps.ParameterServerStrategy | None) -> Any:
        with where.scope() if where else local_parameters():
            model = Loose(schema)
            model.compile(ps.optimizers.SGD(0.5))
        return model

    model, local = made(strategy), made(None)

    def step(model: Any) -> float:
        with ps.GradientTape() as tape:
            loss = model.loss(rows)
        model.optimizer.apply_gradients(tape.gradients(loss))
        return float(loss)

    def counted_loss() -> tuple[int, float]:
        ask, messages = Connections.ask, []

        def counted(connections: Any, requests: Any, *args: Any, **kwargs: Any) -> Any:
            messages.extend(requests)
            return ask(connections, requests, *args, **kwargs)

        Connections.ask = counted  # type: ignore[method-assign]
        try:
            loss = float(model.loss(rows))
        finally:
            Connections.ask = ask  # type: ignore[method-assign]
        return len(messages), loss

    def run(function: Any) -> Any:
        return coordinator.schedule(function, trainer=0).fetch()

    def train() -> float:
        return step(model)

    losses = [run(train) for _ in range(5)]
    np.testing.assert_allclose(losses, [step(local) for _ in range(5)], rtol=1e-5)
    (first, _), (second, loss) = run(counted_loss), run(counted_loss)
    assert (first, second) == (32, 2)  # at first, two of the layer beside the others
    assert loss == pytest.approx(float(local.loss(rows)), rel=1e-5)
    coordinator.close()
