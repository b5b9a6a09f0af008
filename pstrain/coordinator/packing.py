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

    ``referred``: the iterators, and lifetimes of variables, which the pickled form refers to
    whatever the program makes of the arguments meanwhile.
    """

    pickled: bytes = b""
    inputs: tuple[RemoteValue, ...] = ()
    iterators: frozenset[str] = frozenset()
    referred: tuple[object, ...] = ()


NO_ARGUMENTS: Final = Arguments()

_Referred = dict[int, Lifetime | PerWorkerIterator]


class Packer:
    """Pickles for the trainers of one strategy; InvalidArgumentError if the result is too large."""

    def __init__(self, strategy: ParameterServerStrategy) -> None:
        self._strategy = strategy

    def function(self, fn: Callable[..., Any]) -> Pickled:
        """Pickles a function with all that it captures."""
        referred: _Referred = {}
        pickled = pickling.dumps_function(fn, functools.partial(self._reference, referred))
        return Pickled(_bounded("what is captured by", fn, pickled), tuple(referred.values()))

    def arguments(self, fn: Callable[..., Any], arguments: object, owner: Owner) -> Arguments:
        """Pickles the arguments of one call of ``fn``.

        The pickled arguments refer to the RemoteValues in them by their positions.
        """
        referred: _Referred = {}
        found = InputValues(owner, functools.partial(self._reference, referred))
        pickled = _bounded("the arguments of", fn, pickling.dumps(arguments, found.reference))
        iterators = frozenset(
            each.resource_id for each in referred.values() if isinstance(each, PerWorkerIterator)
        )
        return Arguments(pickled, found.values, iterators, tuple(referred.values()))

    def dataset(self, source: tuple[Any, ...]) -> Pickled:
        """Pickles (dataset, epoch, positions by trainer), with all that they capture."""
        referred: _Referred = {}
        pickled = pickling.dumps_function(source, functools.partial(self._reference, referred))
        return Pickled(_bounded("the dataset of", source[0], pickled), tuple(referred.values()))

    def _reference(self, referred: _Referred, value: object) -> tuple[str, ...] | None:
        """Returns the reference to an object that the trainer has; None to pickle ``value``.

        Adds what must live as long as the pickled form is used to ``referred``.
        """
        if isinstance(value, BaseVariable) and value.lifetime is not None:
            referred[id(value.lifetime)] = value.lifetime
        if isinstance(value, PerWorkerIterator):
            referred[id(value)] = value
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
