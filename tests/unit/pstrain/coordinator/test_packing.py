"""What is packed for trainers says what must live as long as it may be used."""

from __future__ import annotations

import gc
import types
from typing import Any, cast

import pytest

from pstrain.coordinator.packing import Packer
from pstrain.coordinator.per_worker import PerWorkerIterator
from pstrain.coordinator.remote_value import Owner
from pstrain.strategy.parameter_server import ParameterServerStrategy
from pstrain.variables.base import new_handle
from pstrain.variables.lifetimes import Lifetime, Lifetimes
from pstrain.variables.variable import Variable
from tests.unit.pstrain.paramserver.shard_cases import make_spec

OWNER = cast("Owner", None)


class Trainers:
    """Trainers that note which iterators they were to close."""

    def __init__(self) -> None:
        self.dropped: list[str] = []

    def define_resource(self, *_: Any) -> None: ...

    def note_iterator(self, _: Any) -> None: ...

    def drop_resource(self, resource_id: str) -> None:
        self.dropped.append(resource_id)


@pytest.fixture
def lifetimes() -> Lifetimes:
    return Lifetimes()


@pytest.fixture
def packer(lifetimes: Lifetimes) -> Packer:
    parameters = types.SimpleNamespace(lifetimes=lifetimes)
    return Packer(cast("ParameterServerStrategy", types.SimpleNamespace(parameters=parameters)))


def made(packer: Packer, lifetimes: Lifetimes, number: int = 0) -> Variable:
    spec = make_spec(4, id=number)
    begun: Lifetime = lifetimes.begin(spec, Variable)
    variable: Variable = new_handle(Variable, spec, packer._strategy.parameters, 0, 4)
    assert variable.lifetime is begun
    return variable


def test_arguments_keep_what_the_program_takes_out_of_them(
    packer: Packer, lifetimes: Lifetimes
) -> None:
    trainers: Any = Trainers()
    box: list[Any] = [made(packer, lifetimes), PerWorkerIterator([], 0, trainers, print)]
    name = box[1].resource_id
    packed: Any = packer.arguments(len, ((box,), {}), OWNER)
    assert packed.iterators == {name}
    box.clear()
    gc.collect()
    assert (lifetimes.take_ended(), trainers.dropped) == ([], [])
    del packed
    assert (len(lifetimes.take_ended()), trainers.dropped) == (1, [name])


def test_dataset_and_function_keep_what_they_captured(packer: Packer, lifetimes: Lifetimes) -> None:
    first, second = made(packer, lifetimes, 0), made(packer, lifetimes, 1)

    def of_both() -> Any:
        return first, second.to_be_trained(False)

    for pack in (packer.function, lambda source: packer.dataset((source, 0, {}))):
        captured: Any = pack(of_both).captured
        assert {each.spec.id for each in captured} == {0, 1}


def test_a_function_keeps_the_iterator_that_it_captured(packer: Packer) -> None:
    trainers: Any = Trainers()

    def pack_capturing() -> tuple[str, Any]:
        iterator = PerWorkerIterator([], 0, trainers, print)
        return iterator.resource_id, packer.function(lambda: iterator)

    name, packed = pack_capturing()
    gc.collect()
    assert trainers.dropped == []
    del packed
    assert trainers.dropped == [name]


def test_variables_of_another_process_have_no_lifetime_to_keep(packer: Packer) -> None:
    variable = new_handle(Variable, make_spec(4), packer._strategy.parameters, 0, 4)
    assert packer.arguments(len, ((variable,), {}), OWNER).referred == ()
