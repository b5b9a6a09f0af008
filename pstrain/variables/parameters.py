"""How everything above reaches the values of variables, and where the changes of a closure wait.

``Parameters`` is the only road to values: layers, optimizers and metrics neither know nor care
whether rows come from this process or from parameter servers. Must not know of models or of the
coordinator. Invariant: inside a ``step_scope`` that stages, changes are collected and not made, and
nothing is read that they would have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from pstrain.features.key_map import Asked, KeyMaps
from pstrain.paramserver.increments import Base
from pstrain.paramserver.saved import Saved, Tracking
from pstrain.vocabulary import Fetch, Lookup, OptimizerSpec, StepToken, Update, VariableSpec

Array = NDArray[Any]


def agreed() -> None:
    """Nobody else has to agree that values change."""


class ParametersSnapshot(Protocol):
    """Values at one moment, which are read while they change. To be closed, by any thread."""

    @property
    def size_bytes(self) -> int:
        """What it takes to write it."""

    @property
    def moment(self) -> str:
        """Names it, for a later one to know what changed since."""

    def write(self, directory: str, base: Base | None = None) -> Saved:
        """Writes all into ``directory``, once; blocks until it is on disk.

        ``base``: the checkpoint of the moment since which the snapshot knows what changed.
        """

    def close(self) -> None:
        """Nothing is kept for it any more; idempotent."""


@runtime_checkable
class Parameters(Protocol):
    """Access to the values of variables. Thread-safe."""

    def create(self, spec: VariableSpec, value: Array | None = None) -> None:
        """Makes the variable, with ``value`` or by its initializer; again is harmless."""

    def give_first(self, spec: VariableSpec, value: Array, start: int = 0) -> None:
        """Rows from ``start`` on of a variable that was just made have these first values."""

    def fetch(self, requests: Sequence[Fetch]) -> list[Array | Lookup]:
        """Values for one step, one message per server for all requests together.

        A whole variable comes as an array of its shape that the caller must not write into;
        rows come as a Lookup. Ids outside the variable raise InvalidArgumentError.
        """

    def apply(
        self,
        updates: Sequence[Update],
        optimizer: OptimizerSpec,
        *,
        iterations: VariableSpec | None = None,
    ) -> None:
        """One optimizer step, one message per server; ``iterations`` (int64 scalar) grows by 1."""

    def read(self, spec: VariableSpec, start: int = 0, stop: int | None = None) -> Array:
        """Rows ``[start, stop)`` as a new array [rows, *shape[1:]]; a scalar has shape ()."""

    def read_rows(self, spec: VariableSpec, ids: Array) -> Array:
        """Rows [n, *shape[1:]] in the order of ``ids``, which may repeat."""

    def assign(self, spec: VariableSpec, op: str, value: Any, start: int = 0) -> None:
        """``set``, ``add`` or ``sub`` of ``value`` to the rows from ``start`` on."""

    def scatter(self, spec: VariableSpec, op: str, ids: Array, rows: Any) -> None:
        """``set``, ``add``, ``sub``, ``mul``, ``div``, ``min`` or ``max`` of rows ``ids``."""

    def barrier(self) -> AbstractContextManager[None]:
        """Scope in which no closure changes anything, entered when none is under way."""

    def check_current(self) -> None:
        """AbortedError where these values belong to somebody else by now."""

    def snapshot(
        self, specs: Mapping[str, VariableSpec], tracking: Tracking | None = None
    ) -> ParametersSnapshot:
        """Values and slots of ``specs`` (by name in the checkpoint) as they are now."""

    def load(
        self,
        directory: str,
        specs: Mapping[str, VariableSpec],
        saved: Saved,
        agree: Callable[[], None] = agreed,
    ) -> None:
        """Overwrites ``specs`` with what a snapshot wrote, however it was sharded then.

        NotFoundError, InvalidArgumentError (shapes) or DataLossError before any value changes.
        ``agree`` is called in between, once it is known that all can be: what it raises, too, is
        raised before.
        """

    def device(self, ps: int) -> str:
        """Name of the place that a shard with this ``ps`` is in."""

    def close(self) -> None:
        """Lets go of connections; idempotent."""


class KeyParameters(Protocol):
    """What parameters offer for a variable whose values are keys: see ``Shard.claim``."""

    @property
    def key_maps(self) -> KeyMaps:
        """What this process knows of keys."""

    def claim(self, spec: VariableSpec, asked: Asked) -> NDArray[np.int64]:
        """Rows of keys, -1 where there is none. At once, of no closure; again is harmless."""

    def count_keys(self, spec: VariableSpec) -> dict[str, int]:
        """Rows that are ``used``, and how many claims were ``refused``."""


class Staging(Protocol):
    """Where the changes of a closure wait until they are made together.

    ``is_of_round``: with those of other closures, as one step.
    """

    is_of_round: bool

    def add(self, ps: int, header: dict[str, Any], body: Any) -> None:
        """One more change, on parameter server ``ps``."""

    def touch(self, variables: Iterable[int]) -> None:
        """These variables (ids) have changes that wait."""

    def before_take(self) -> None:
        """Makes the changes before an element of a data service is taken."""

    def before_read(self, variables: Iterable[int]) -> None:
        """Makes the changes now if they would change what is about to be read."""

    def read_with(self, variables: Iterable[int], pulls: Mapping[int, Any]) -> dict[int, Any]:
        """The same, and pulls, by server, may go along; replies to those that did."""


class Step(NamedTuple):
    """A run of a closure, and where its changes wait; None: they are made at once."""

    token: StepToken
    staging: Staging | None


_step: ContextVar[Step | None] = ContextVar("pstrain_step", default=None)


@contextmanager
def step_scope(token: StepToken, staging: Staging | None = None) -> Iterator[None]:
    """Scope of one run of a closure in this thread."""
    reset = _step.set(Step(token, staging))
    try:
        yield
    finally:
        _step.reset(reset)


def current_step() -> StepToken | None:
    """The token of the closure that this thread runs, or None."""
    step = _step.get()
    return None if step is None else step.token


def current_round() -> StepToken | None:
    """The token of the closure that this thread runs as its part of a round, or None."""
    step = _step.get()
    is_of_round = step is not None and step.staging is not None and step.staging.is_of_round
    return step.token if step is not None and is_of_round else None


def current_staging() -> Staging | None:
    """Where this thread's changes wait; None where they are made at once."""
    step = _step.get()
    return None if step is None else step.staging
