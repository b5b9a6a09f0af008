"""Reads ahead, with what a model's layers need, the variables that its computation reads by itself.

Which these are is known once it has run, so the first step of a process reads them one by one.
Knows neither models nor servers. Invariant: a computation sees the changes that its step has made
before the read, and each variable as of one moment.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from numpy.typing import NDArray

from pstrain.variables.parameters import Parameters, current_staging
from pstrain.variables.rows import row_bytes
from pstrain.vocabulary import Fetch, VariableSpec

Array = NDArray[Any]

# One that is larger may be a table, of which a step reads only rows as a rule.
_MAX_BYTES: Final = 1 << 20


class Computation:
    """One run of a model's computation over values of ``parameters``."""

    def __init__(self, parameters: Parameters, known: Sequence[VariableSpec] = ()) -> None:
        self.parameters = parameters
        self.requests = [Fetch(spec) for spec in known]
        self.found: dict[int, VariableSpec] = {}
        self._values: dict[int, Array] | None = None

    @property
    def is_begun(self) -> bool:
        """Whether the values of ``requests`` are there."""
        return self._values is not None

    def put(self, values: Sequence[Any]) -> None:
        """Takes the values of ``requests``; the computation begins."""
        self._values = {
            request.variable.id: value for request, value in zip(self.requests, values, strict=True)
        }

    def value(self, spec: VariableSpec) -> Array | None:
        """Returns what was read ahead of a whole variable, not to be written into, or None."""
        if self._values is None:
            return None
        if spec.trainable and spec.rows * row_bytes(spec) <= _MAX_BYTES:
            self.found[spec.id] = spec
        return self._values.get(spec.id)

    def forget(self, variables: Iterable[int]) -> None:
        """Forgets the values of variables, which are about to change."""
        values = self._values or {}
        for variable in variables:
            values.pop(variable, None)


_computation: ContextVar[Computation | None] = ContextVar("pstrain_computation", default=None)


class WholesRead:
    """The trainable variables that a model's computation reads as a whole. Thread-safe.

    It learns them in scheduled functions only: elsewhere a restore may come between two reads. It
    is empty in a process that it was sent to.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[int, VariableSpec] = {}

    @contextmanager
    def ahead(self, parameters: Parameters) -> Iterator[Computation]:
        """Opens a scope in which this thread reads ahead, and then runs the computation."""
        if current_staging() is None:
            yield Computation(parameters)
            return
        running = Computation(parameters, tuple(self._known.values()))
        reset = _computation.set(running)
        try:
            yield running
        finally:
            _computation.reset(reset)
        if not running.found.keys() <= self._known.keys():
            with self._lock:
                self._known = {**self._known, **running.found}

    def __reduce__(self) -> tuple[type[WholesRead], tuple[()]]:
        return WholesRead, ()


def read_ahead(parameters: Parameters, spec: VariableSpec) -> Array | None:
    """Returns the value of a whole variable as a new array, if this thread has read it ahead."""
    running = _running(parameters)
    value = None if running is None else running.value(spec)
    return None if value is None else value.copy()


def fetched(
    parameters: Parameters,
    requests: Sequence[Fetch],
    fetch: Callable[[Sequence[Fetch]], list[Any]],
) -> list[Any]:
    """Returns the answers to ``requests``: those that were read ahead, the others by ``fetch``."""
    running = _running(parameters)
    if running is None or not running.is_begun:
        return fetch(requests)
    known = [None if each.ids is not None else running.value(each.variable) for each in requests]
    left = [each for each, value in zip(requests, known, strict=True) if value is None]
    answers = iter(fetch(left) if left else ())
    return [next(answers) if value is None else value for value in known]


def forget(parameters: Parameters, variables: Iterable[int]) -> None:
    """Forgets what this thread has read ahead of ``variables``, which are about to change."""
    running = _running(parameters)
    if running is not None:
        running.forget(variables)


def _running(parameters: Parameters) -> Computation | None:
    running = _computation.get()
    return running if running is not None and running.parameters is parameters else None
