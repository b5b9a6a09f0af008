"""Which variables a model's computation is known to read, and what it gets of them."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from pstrain.initializers import zeros
from pstrain.variables import read_ahead
from pstrain.variables.parameters import step_scope
from pstrain.variables.read_ahead import WholesRead
from pstrain.vocabulary import Fetch, ShardSpec, StepToken, VariableSpec


def spec_of(number: int, rows: int = 3, *, trainable: bool = True) -> VariableSpec:
    return VariableSpec(
        id=number,
        name=f"v{number}",
        shape=(rows,),
        dtype="float32",
        initializer=zeros(),
        shards=(ShardSpec(ps=0, row_start=0, row_stop=rows),),
        trainable=trainable,
    )


class Servers:
    """Parameters that note what is asked of them."""

    def __init__(self) -> None:
        self.messages: list[list[int]] = []
        self.values: dict[int, np.ndarray] = {}

    def fetch(self, requests: Sequence[Fetch]) -> list[Any]:
        return read_ahead.fetched(self, requests, self._pulled)  # type: ignore[arg-type]

    def _pulled(self, requests: Sequence[Fetch]) -> list[Any]:
        self.messages.append([request.variable.id for request in requests])
        return [self.values[request.variable.id].copy() for request in requests]

    def read(self, spec: VariableSpec) -> np.ndarray:
        ahead = read_ahead.read_ahead(self, spec)  # type: ignore[arg-type]
        if ahead is not None:
            return ahead
        self.messages.append([spec.id])
        return self.values[spec.id].copy()

    def assign(self, spec: VariableSpec, value: Any) -> None:
        read_ahead.forget(self, [spec.id])  # type: ignore[arg-type]
        self.values[spec.id] = np.asarray(value, np.float32)


FIRST, SECOND, TABLE = spec_of(1), spec_of(2), spec_of(3)
COUNTER, LARGE = spec_of(4, trainable=False), spec_of(5, rows=2**18 + 1)
SPECS = (FIRST, SECOND, TABLE, COUNTER, LARGE)


class Staging:
    """The staging of a closure; nothing here is staged."""

    is_of_round = False


@pytest.fixture
def servers() -> Servers:
    made = Servers()
    made.values = {spec.id: np.full(spec.rows, spec.id, np.float32) for spec in SPECS}
    return made


def run(wholes: WholesRead, servers: Any, compute: Any, *, is_in_step: bool = True) -> list[Any]:
    """Runs a computation as a model does, after a fetch of TABLE; returns the messages."""
    servers.messages.clear()
    staging: Any = Staging() if is_in_step else None
    with step_scope(StepToken("s", 0, 0), staging), wholes.ahead(servers) as running:
        _, *ahead = servers.fetch([Fetch(TABLE), *running.requests])
        running.put(ahead)
        compute()
    return list(servers.messages)


def test_what_a_computation_has_read_comes_with_the_first_message_of_the_next(
    servers: Servers,
) -> None:
    wholes = WholesRead()

    def compute() -> None:
        assert servers.read(FIRST).tolist() == [1, 1, 1]
        assert servers.fetch([Fetch(SECOND), Fetch(FIRST)])[0].tolist() == [2, 2, 2]

    assert run(wholes, servers, compute) == [[3], [1], [2, 1]]
    assert run(wholes, servers, compute) == [[3, 1, 2]]
    assert run(wholes, servers, lambda: None) == [[3, 1, 2]]
    # Rows of a variable are not what was read ahead of the whole.
    rows = [Fetch(FIRST), Fetch(SECOND, np.arange(2))]
    assert run(wholes, servers, lambda: servers.fetch(rows)) == [[3, 1, 2], [2]]


def test_counters_and_large_variables_are_read_where_they_are_used(servers: Servers) -> None:
    wholes = WholesRead()

    def compute() -> None:
        for spec in (COUNTER, LARGE):
            servers.read(spec)

    for _ in range(2):
        assert run(wholes, servers, compute) == [[3], [4], [5]]


def test_computation_sees_its_own_changes_and_may_write_into_what_it_reads(
    servers: Servers,
) -> None:
    wholes, seen = WholesRead(), []

    def compute() -> None:
        servers.read(FIRST)[:] = 9
        seen.append(servers.read(FIRST)[0])
        servers.assign(FIRST, [7, 7, 7])
        seen.append(servers.read(FIRST)[0])
        servers.assign(FIRST, [1, 1, 1])

    assert run(wholes, servers, compute) == [[3], [1], [1], [1]]
    assert run(wholes, servers, compute) == [[3, 1], [1]]
    assert seen == [1, 7, 1, 7]


def test_nothing_is_read_ahead_outside_of_steps_or_of_other_parameters(servers: Servers) -> None:
    wholes, other = WholesRead(), Servers()
    other.values = servers.values

    def compute() -> None:
        other.read(FIRST)

    for _ in range(2):
        assert run(wholes, servers, lambda: servers.read(FIRST), is_in_step=False) == [[3], [1]]
        assert run(wholes, servers, compute) == [[3]]
    servers.read(SECOND)
    assert run(wholes, servers, lambda: servers.read(SECOND)) == [[3], [2]]
    assert run(wholes, servers, lambda: None) == [[3, 2]]
    assert run(pickle.loads(pickle.dumps(wholes)), servers, lambda: None) == [[3]]


def test_failed_computation_ends_the_scope(servers: Servers) -> None:
    wholes = WholesRead()
    with pytest.raises(ZeroDivisionError):
        run(wholes, servers, lambda: 1 // 0)
    with step_scope(StepToken("s", 0, 0), Staging()):  # type: ignore[arg-type]
        servers.messages.clear()
        servers.read(FIRST)
    assert servers.messages == [[1]]
    assert run(wholes, servers, lambda: None) == [[3]]
