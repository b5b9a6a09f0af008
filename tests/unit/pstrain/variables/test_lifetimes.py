"""Values last as long as something refers to their variable, and no longer."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest

import pstrain as ps
from dataservice import Dataset
from pstrain.coordinator.functions import FoundFunction, KnownFunctions, Pickled
from pstrain.errors import NotFoundError
from pstrain.variables.base import handle_of
from pstrain.variables.lifetimes import Lifetime, Lifetimes
from pstrain.variables.local_parameters import LocalParameters
from pstrain.variables.scope import local_parameters
from tests.unit.pstrain.paramserver.shard_cases import make_spec


def is_dropped(parameters: LocalParameters, variable: Any) -> bool:
    """Whether the values of a spec are gone once another variable has been made."""
    ps.Variable(0.0)
    try:
        parameters.read(variable)
    except NotFoundError:
        return True
    return False


def same(variable: Any) -> Any:
    return variable


@pytest.mark.parametrize(
    "other_of",
    [same, copy.copy, lambda v: v.to_be_trained(False), lambda v: [v], lambda v: v.assign_add],
)
def test_values_last_while_anything_refers_to_the_variable(other_of: Callable[[Any], Any]) -> None:
    with local_parameters() as parameters:
        variable = ps.Variable([1.0, 2.0])
        spec, other = variable.spec, other_of(variable)
        del variable
        assert not is_dropped(parameters, spec)
        del other
        gc.collect()
        assert is_dropped(parameters, spec)


def test_a_part_keeps_the_whole_variable() -> None:
    with local_parameters() as parameters:
        joined = ps.ShardedVariable([ps.Variable([1.0]), ps.Variable([2.0])])
        first, second = joined.variables
        specs = [first.spec, second.spec]
        del first, second
        assert not any(is_dropped(parameters, spec) for spec in specs)
        part = joined.variables[1]
        del joined
        assert [is_dropped(parameters, spec) for spec in specs] == [True, False]
        assert part.numpy().tolist() == [2.0]


def test_a_trained_model_that_is_dropped_leaves_no_values() -> None:
    data = Dataset.from_numpy({"x": [0.5, 1.5], "color": ["r", "g"], "label": [0, 1]})
    with local_parameters() as parameters:
        model = ps.models.WideDeep(data.schema, dim=4, hidden=(4,))
        model.compile(ps.optimizers.Adam(0.1), metrics=[ps.metrics.AUC()])
        model.fit(data.batch(2), epochs=2, verbose=0)
        assert parameters.lifetimes.living()
        del model
        gc.collect()
        assert parameters.lifetimes.living() == []
        ps.Variable(0.0)
        assert len(parameters._store.shards()) == 1


def test_what_is_known_of_the_keys_of_a_dropped_lookup_is_dropped() -> None:
    with local_parameters() as parameters:
        lookup = ps.layers.OnlineLookup(8)
        lookup([5, 6], training=True)
        assert parameters.key_maps._maps
        del lookup
        gc.collect()
        ps.Variable(0.0)
        assert not parameters.key_maps._maps


def test_a_variable_that_could_not_be_made_is_dropped() -> None:
    with local_parameters() as parameters:
        parameters.create = fail  # type: ignore[method-assign]
        with pytest.raises(ps.errors.InvalidArgumentError):
            ps.Variable(1.0)
    assert [spec.name for spec in parameters.lifetimes.take_ended()] == ["Variable"]


def fail(*_arguments: Any) -> None:
    raise ps.errors.InvalidArgumentError("no room")


def test_an_ended_lifetime_is_returned_once_unless_it_is_put_back() -> None:
    lifetimes, spec = Lifetimes(), make_spec(4)
    assert lifetimes.find(spec.id) is None
    lifetime: Lifetime | None = lifetimes.begin(spec, ps.Variable)
    assert lifetimes.find(spec.id) is lifetime
    assert lifetimes.living() == []  # it is still being made
    lifetime = None
    assert lifetimes.take_ended() == [spec]
    assert lifetimes.take_ended() == []
    lifetimes.put_back([spec])
    assert lifetimes.take_ended() == [spec]


def test_the_list_of_variables_has_the_handles_that_exist_or_else_new_ones() -> None:
    with local_parameters() as parameters:
        first, second = ps.Variable([1.0]), ps.Variable([2.0])
        kept = first.to_be_trained(False)
        del first
        found = [handle_of(each, parameters) for each in parameters.lifetimes.living()]
        assert found[1] is second
        assert (type(found[0]), found[0].spec.id) == (ps.Variable, kept.spec.id)
        assert found[0].numpy().tolist() == [1.0]


class Step:
    """A function without weak references, such as classes with slots make."""

    __slots__ = ()

    def __call__(self) -> None:
        pass


def found_with(
    known: KnownFunctions, fn: Callable[..., Any], lifetimes: Lifetimes
) -> FoundFunction:
    spec = make_spec(4)
    lifetime = lifetimes.find(spec.id) or lifetimes.begin(spec, ps.Variable)
    return known.find(fn, lambda _: Pickled(b"fn", (lifetime,)))


def test_what_a_sent_function_captured_lasts_as_long_as_the_function_or_a_closure() -> None:
    known, lifetimes = KnownFunctions(), Lifetimes()

    def step() -> None: ...

    closure: Any = found_with(known, step, lifetimes)
    del closure
    assert lifetimes.take_ended() == []
    closure = found_with(known, step, lifetimes)
    del step
    assert lifetimes.take_ended() == []
    del closure
    assert len(lifetimes.take_ended()) == 1


def test_a_function_without_weak_references_is_kept_with_what_it_captured() -> None:
    known, lifetimes = KnownFunctions(), Lifetimes()
    step = Step()
    function = found_with(known, step, lifetimes).function
    assert found_with(known, step, lifetimes).function is function
    del step
    assert lifetimes.take_ended() == []


def test_a_function_that_is_sent_again_is_found_although_the_first_is_gone() -> None:
    known, lifetimes = KnownFunctions(), Lifetimes()
    first = found_with(known, lambda: None, lifetimes).function
    assert found_with(known, lambda: None, lifetimes).function is first
