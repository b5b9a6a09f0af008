"""Pickles functions, arguments and datasets for trainers.

Knows which objects are sent as references to what the trainer has; sends nothing itself. Invariant:
what is packed is small enough to travel.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from pstrain.coordinator.functions import Pickled
from pstrain.coordinator.per_worker import PerWorkerIterator
from pstrain.coordinator.remote_value import InputValues, Owner, RemoteValue
from pstrain.errors import InvalidArgumentError
from pstrain.serialization import pickling
from pstrain.strategy.parameter_server import ParameterServerStrategy
from pstrain.variables.base import BaseVariable
from pstrain.variables.lifetimes import Lifetime
from pstrain.vocabulary import CLOSURE_MAX_BYTES


class Arguments(NamedTuple):
    """The pickled arguments of a call, the RemoteValues in them, and the ids of iterators.

    ``kept``: the iterators, and lifetimes of variables. The pickled form refers to them, whatever
    the program makes of the arguments meanwhile.
    """

    pickled: bytes = b""
    inputs: tuple[RemoteValue, ...] = ()
    iterators: frozenset[str] = frozenset()
    kept: tuple[object, ...] = ()


NO_ARGUMENTS: Final = Arguments()


class Packer:
    """Pickles for the trainers of one strategy; InvalidArgumentError if the result is too large."""

    def __init__(self, strategy: ParameterServerStrategy) -> None:
        self._strategy = strategy

    def function(self, fn: Callable[..., Any]) -> Pickled:
        """Pickles a function with all that it captures."""
        lifetimes: set[Lifetime] = set()
        pickled = pickling.dumps_function(fn, functools.partial(self._reference, lifetimes))
        return Pickled(_bounded("what is captured by", fn, pickled), tuple(lifetimes))

    def arguments(self, fn: Callable[..., Any], arguments: object, owner: Owner) -> Arguments:
        """Pickles the arguments of one call of ``fn``.

        The pickled arguments refer to the RemoteValues in them by their positions.
        """
        lifetimes: set[Lifetime] = set()
        iterators: dict[str, PerWorkerIterator] = {}

        def reference(value: object) -> tuple[str, ...] | None:
            if isinstance(value, PerWorkerIterator):
                iterators[value.resource_id] = value
            return self._reference(lifetimes, value)

        found = InputValues(owner, reference)
        pickled = _bounded("the arguments of", fn, pickling.dumps(arguments, found.reference))
        kept = *lifetimes, *iterators.values()
        return Arguments(pickled, found.values, frozenset(iterators), kept)

    def dataset(self, source: tuple[Any, ...]) -> Pickled:
        """Pickles (dataset, epoch, positions by trainer), with all that they capture."""
        lifetimes: set[Lifetime] = set()
        pickled = pickling.dumps_function(source, functools.partial(self._reference, lifetimes))
        return Pickled(_bounded("the dataset of", source[0], pickled), tuple(lifetimes))

    def _reference(self, lifetimes: set[Lifetime], value: object) -> tuple[str, ...] | None:
        """Returns the reference to an object that the trainer has; None to pickle ``value``.

        Adds the lifetimes of variables to ``lifetimes``.
        """
        if isinstance(value, BaseVariable) and value.lifetime is not None:
            lifetimes.add(value.lifetime)
        if isinstance(value, PerWorkerIterator):
            value.note_use()
            return ("resource", value.resource_id)
        if isinstance(value, RemoteValue):
            raise InvalidArgumentError(
                "a RemoteValue travels among the arguments of schedule, not in what a function "
                "captures or a dataset is made of: pass it as an argument, or fetch() it first"
            )
        if value is self._strategy:
            return ("strategy",)
        if value is self._strategy.parameters:
            return ("parameters",)
        return None


def _bounded(what: str, of: object, pickled: bytes) -> bytes:
    if len(pickled) > CLOSURE_MAX_BYTES:
        name = getattr(of, "__qualname__", type(of).__name__)
        raise InvalidArgumentError(
            f"{what} {name} takes {len(pickled):,} bytes; at most {CLOSURE_MAX_BYTES:,} travel: "
            "read large data from files, or keep it in variables"
        )
    return pickled
