"""The interface to the values of variables, and the scope that stages the changes of a closure.

``Parameters`` is the only access to values: layers, optimizers and metrics do not know whether rows
come from this process or from parameter servers. Must not know of models or of the coordinator.
Invariant: inside a ``step_scope`` with staging, changes are collected instead of made, and no value
is read that a staged change would alter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar, Token
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from pstrain.features.eviction import Eviction
from pstrain.features.key_map import KeyMaps, KeyQuery
from pstrain.paramserver.increments import Base
from pstrain.paramserver.saved import Saved, Tracking
from pstrain.variables.lifetimes import Lifetimes
from pstrain.vocabulary import Fetch, Lookup, OptimizerSpec, StepToken, Update, VariableSpec

Array = NDArray[Any]


def agreed() -> None:
    """Does nothing: the default ``agree`` of :meth:`Parameters.load`, which always consents."""


class ParametersSnapshot(Protocol):
    """The values of one moment, readable while variables change. Must be closed, by any thread."""

    @property
    def size_bytes(self) -> int:
        """The bytes that writing the snapshot takes."""

    @property
    def moment(self) -> str:
        """The name of the moment, by which a later snapshot tracks what has changed since."""

    def write(self, directory: str, base: Base | None = None) -> Saved:
        """Writes all values into ``directory``; may be called once. Blocks until they are on disk.

        ``base`` is the checkpoint of the moment since which the snapshot has tracked changes.
        """

    def close(self) -> None:
        """Releases what the snapshot holds. Idempotent."""


class Parameters(Protocol):
    """Access to the values of variables. Thread-safe."""

    @property
    def lifetimes(self) -> Lifetimes:
        """The lifetimes of the variables that this process has made here."""

    def create(self, spec: VariableSpec, value: Array | None = None) -> None:
        """Makes the variable from ``value``, or else by its initializer. Idempotent.

        Drops the variables whose lifetimes have ended.
        """

    def set_initial_values(self, spec: VariableSpec, value: Array, start: int = 0) -> None:
        """Sets the initial values of rows from ``start`` on of a variable that was just made."""

    def fetch(self, requests: Sequence[Fetch]) -> list[Array | Lookup]:
        """Returns values for one step, with one message per server for all requests together.

        A request for a whole variable gives an array of its shape that the caller must not write
        into; a request for rows gives a Lookup. Raises InvalidArgumentError for ids outside the
        variable.
        """

    def apply(
        self,
        updates: Sequence[Update],
        optimizer: OptimizerSpec,
        *,
        iterations: VariableSpec | None = None,
    ) -> None:
        """Makes one optimizer step, with one message per server.

        Adds 1 to ``iterations``, an int64 scalar, if it is given.
        """

    def read(self, spec: VariableSpec, start: int = 0, stop: int | None = None) -> Array:
        """Returns rows ``[start, stop)`` as a new array [rows, *shape[1:]], or () for a scalar."""

    def read_all(self, specs: Sequence[VariableSpec]) -> list[Array]:
        """Returns whole variables as new arrays; small ones share one message per server."""

    def read_rows(self, spec: VariableSpec, ids: Array) -> Array:
        """Returns rows [n, *shape[1:]] in the order of ``ids``, which may repeat."""

    def assign(self, spec: VariableSpec, op: str, value: Any, start: int = 0) -> None:
        """Applies ``op`` ("set", "add" or "sub") with ``value`` to the rows from ``start`` on."""

    def assign_all(self, values: Sequence[tuple[VariableSpec, Any]]) -> None:
        """Sets whole variables; small ones share one message per server.

        Raises InvalidArgumentError, before any change, if a value does not fit its variable.
        """

    def scatter(self, spec: VariableSpec, op: str, ids: Array, rows: Any) -> None:
        """Applies ``op`` ("set", "add", "sub", "mul", "div", "min", "max") to rows ``ids``."""

    def barrier(self) -> AbstractContextManager[None]:
        """Returns a scope without running closures: entering waits for those in flight to end."""

    def check_current(self) -> None:
        """Raises AbortedError if a newer session has taken over these values."""

    def snapshot(
        self, specs: Mapping[str, VariableSpec], tracking: Tracking | None = None
    ) -> ParametersSnapshot:
        """Takes a snapshot of the values and slots of ``specs``, by their names in a checkpoint."""

    def load(
        self,
        directory: str,
        specs: Mapping[str, VariableSpec],
        saved: Saved,
        agree: Callable[[], None] = agreed,
    ) -> None:
        """Overwrites ``specs`` with what a snapshot wrote, however it was sharded then.

        Raises NotFoundError, InvalidArgumentError (shapes) or DataLossError before any value
        changes. Calls ``agree`` once it is known that all values can be loaded; if ``agree``
        raises, no value changes either.
        """

    def device(self, ps: int) -> str:
        """Returns the name of the place that holds shards with this ``ps``."""

    def close(self) -> None:
        """Closes connections. Idempotent."""


class KeyParameters(Protocol):
    """The methods of parameters for a variable whose values are keys: see ``Shard.claim``."""

    @property
    def key_maps(self) -> KeyMaps:
        """The rows of keys that this process has already learnt."""

    def claim(self, spec: VariableSpec, asked: KeyQuery, *, is_training: bool) -> NDArray[np.int64]:
        """Returns the row of each key, below 0 if it has none, after claiming rows for new keys.

        ``is_training``: notes that the keys are trained on. Claims take effect at once and belong
        to no closure. Idempotent. See ``Shard.claim``.
        """

    def evict(self, eviction: Eviction) -> int:
        """Evicts keys while no closure runs, and forgets all known rows; returns how many."""

    def count_keys(self, spec: VariableSpec) -> dict[str, int]:
        """Returns how many rows are ``used`` by keys, and how many claims were ``refused``."""


class Staging(Protocol):
    """The staged changes of a closure, which are committed together.

    ``is_of_round`` means that they are committed with those of other closures, as one step.
    """

    is_of_round: bool

    def add(self, ps: int, header: dict[str, Any], body: Any) -> None:
        """Stages a change for parameter server ``ps``."""

    def touch(self, variables: Iterable[int]) -> None:
        """Marks variables (by id) as having staged changes."""

    def before_take(self) -> None:
        """Commits the staged changes before an element of a data service is taken."""

    def before_read(self, variables: Iterable[int]) -> None:
        """Commits the staged changes if they alter ``variables``, which are about to be read."""

    def read_with(self, variables: Iterable[int], pulls: Mapping[int, Any]) -> dict[int, Any]:
        """Does the same as :meth:`before_read`, and may send ``pulls`` (by server) with the commit.

        Returns, by server, the replies to the pulls that were sent.
        """


class Step(NamedTuple):
    """A run of a closure and its staging; without staging, changes are made at once."""

    token: StepToken
    staging: Staging | None


_step: ContextVar[Step | None] = ContextVar("pstrain_step", default=None)
_is_in_closure: ContextVar[bool] = ContextVar("pstrain_is_in_closure", default=False)


def begin_step(token: StepToken, staging: Staging | None = None) -> Token[Step | None]:
    """Has this context run the closure that ``token`` names from now on."""
    return _step.set(Step(token, staging))


@contextmanager
def step_scope(token: StepToken, staging: Staging | None = None) -> Iterator[None]:
    """Enters a scope in which this thread runs the closure that ``token`` names."""
    reset = begin_step(token, staging)
    try:
        yield
    finally:
        _step.reset(reset)


@contextmanager
def closure_scope() -> Iterator[None]:
    """Enters a scope in which this thread runs a closure that is at no trainer: it has no step."""
    reset = _is_in_closure.set(True)
    try:
        yield
    finally:
        _is_in_closure.reset(reset)


def in_closure() -> bool:
    """True if this thread runs a closure, on a trainer or in the program's own process."""
    return _is_in_closure.get() or _step.get() is not None


def current_step() -> StepToken | None:
    """Returns the token of the closure that this thread runs, or None."""
    step = _step.get()
    return None if step is None else step.token


def current_round() -> StepToken | None:
    """Returns the token of the closure that this thread runs as its part of a round, or None."""
    step = _step.get()
    is_of_round = step is not None and step.staging is not None and step.staging.is_of_round
    return step.token if step is not None and is_of_round else None


def current_staging() -> Staging | None:
    """Returns the staging of this thread's changes, or None if changes are made at once."""
    step = _step.get()
    return None if step is None else step.staging


def before_read(specs: Iterable[VariableSpec]) -> None:
    """Commits staged changes of variables before a read: a closure sees its own changes."""
    staging = current_staging()
    if staging is not None:
        staging.before_read(spec.id for spec in specs)


def read_with(specs: Iterable[VariableSpec], pulls: Mapping[int, Any]) -> dict[int, Any]:
    """Does the same as :func:`before_read`; returns replies to ``pulls`` that went along."""
    staging = current_staging()
    return {} if staging is None else staging.read_with([spec.id for spec in specs], pulls)
