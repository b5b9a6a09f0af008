"""Ids and small frozen values that every part of pstrain shares.

Knows nothing of sockets, threads, clocks or Arrow. Invariant: values here are immutable once
made and mean the same in the coordinator, the trainers and the parameter servers.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pstrain.features.field_groups import FieldGroups

CLOSURE_MAX_BYTES = 24 << 20
"""The largest size of a function, its arguments or its result: two fit one control message."""

OUTCOME_MAX_BYTES = 1 << 20
"""The largest result that servers keep with a decision; a larger one may be lost with a trainer."""

# All number types of NumPy but uint16, in which bfloat16 travels.
VARIABLE_DTYPES = (
    "float32", "float64", "float16", "int64", "int32", "int16", "int8", "uint64", "uint32",
    "uint8", "bool",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSpec:
    """A shard: rows ``[row_start, row_stop)`` of a variable, held by parameter server ``ps``."""

    ps: int
    row_start: int
    row_stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InitializerSpec:
    """How a shard fills its own rows; ``name`` picks one of the servers' initializers."""

    name: str
    parameters: dict[str, float] = field(default_factory=dict)
    seed: int = 0

    def __call__(self, shape: Iterable[int] | int, dtype: str | None = None) -> InitialValue:
        """Returns the initial value of a variable of that shape; nothing is computed here."""
        sizes = tuple(shape) if isinstance(shape, Iterable) else (shape,)
        return InitialValue(self, sizes, dtype)


class InitialValue(NamedTuple):
    """An initializer with the shape and dtype of the variable that it is for."""

    initializer: InitializerSpec
    shape: tuple[int, ...]
    dtype: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VariableSpec:
    """The description of a variable that coordinator, trainers and parameter servers share.

    Shards divide ``shape[0]``; a scalar has shape ``()`` and one shard ``[0, 1)``. ``shards`` are
    in row order and cover ``[0, shape[0])`` without gaps.
    """

    id: int
    name: str
    shape: tuple[int, ...]
    dtype: str
    trainable: bool
    initializer: InitializerSpec
    shards: tuple[ShardSpec, ...]
    rows: int = field(init=False, compare=False, repr=False)
    width: int = field(init=False, compare=False, repr=False)
    """The number of values per row."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", self.shape[0] if self.shape else 1)
        object.__setattr__(self, "width", math.prod(self.shape[1:]))


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSpec:
    """An update rule: ``name`` picks the kernel; ``l2`` times the value is added to its gradient.

    ``slots``: initial values of the slots that the rule keeps per value; ``row_slots``: of those
    that it keeps per row. ``text``: the JSON form that travels with every step; it is encoded once
    and decoded once.
    """

    name: str
    learning_rate: float
    l2: float = 0.0
    parameters: dict[str, float] = field(default_factory=dict)
    slots: tuple[float, ...] = ()
    row_slots: tuple[float, ...] = ()
    text: str = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        kept = {name: getattr(self, name) for name in _OPTIMIZER_FIELDS}
        object.__setattr__(self, "text", json.dumps(kept, default=float))

    @classmethod
    def from_text(cls, text: str) -> OptimizerSpec:
        """Returns the spec that ``text`` encodes."""
        return _read_optimizer(text)


_OPTIMIZER_FIELDS = ("name", "learning_rate", "l2", "parameters", "slots", "row_slots")


@functools.lru_cache(maxsize=256)
def _read_optimizer(text: str) -> OptimizerSpec:
    value = json.loads(text)
    kept = {name: tuple(value[name]) for name in ("slots", "row_slots")}
    return OptimizerSpec(**{**value, **kept})


class Lookup(NamedTuple):
    """The distinct rows of a variable that were looked up, and the row of each requested id.

    ``unique``: ids of the rows, int64 [U], grouped by shard; ``offsets``: int64 [shards + 1] into
    ``unique``; ``found``: the index in ``unique`` of each requested id, int32 [n], or grouped by
    field; ``rows``: float32 [U, width].
    """

    unique: NDArray[np.int64]
    offsets: NDArray[np.int64]
    found: NDArray[np.int32] | FieldGroups
    rows: NDArray[np.float32]

    @property
    def inverse(self) -> NDArray[np.int32]:
        """The index in ``unique`` of each requested id, int32 [n]: ``unique[inverse]`` are the ids.

        Computed on each access if ``found`` is grouped by field.
        """
        return self.found.inverse() if isinstance(self.found, tuple) else self.found


class Fetch(NamedTuple):
    """A request of a step for a whole variable (``ids`` None) or for the rows of ``ids``.

    Ids of two axes are [n, fields]; their ``Lookup`` is grouped by field.
    """

    variable: VariableSpec
    ids: NDArray[np.int64] | None = None


class Update(NamedTuple):
    """The gradient of a whole variable or, with ``lookup``, [U, width] of its looked-up rows."""

    variable: VariableSpec
    gradient: NDArray[np.float32]
    lookup: Lookup | None = None


class StepToken(NamedTuple):
    """The name of one attempt of one closure, by which a server applies a closure's pushes once.

    ``session`` identifies the coordinator's incarnation; a server refuses tokens of an older one.
    """

    session: str
    closure: int
    attempt: int


def trainer_name(session: str, index: int, incarnation: int) -> str:
    """Returns the name of one incarnation of a trainer.

    Servers fence the name when the trainer counts as lost; it also owns the trainer's readers.
    """
    return f"{session}/trainer-{index}.{incarnation}"


def spec_to_json(spec: VariableSpec) -> dict[str, Any]:
    """Returns the JSON form of a variable's spec, used on the wire and in manifests."""
    return {
        "id": spec.id,
        "name": spec.name,
        "shape": list(spec.shape),
        "dtype": spec.dtype,
        "trainable": spec.trainable,
        "initializer": {
            "name": spec.initializer.name,
            "parameters": dict(spec.initializer.parameters),
            "seed": spec.initializer.seed,
        },
        "shards": [[s.ps, s.row_start, s.row_stop] for s in spec.shards],
    }


def spec_from_json(value: dict[str, Any]) -> VariableSpec:
    """Returns the spec that :func:`spec_to_json` encoded."""
    return VariableSpec(
        id=value["id"],
        name=value["name"],
        shape=tuple(value["shape"]),
        dtype=value["dtype"],
        trainable=value["trainable"],
        initializer=InitializerSpec(**value["initializer"]),
        shards=tuple(ShardSpec(ps=p, row_start=a, row_stop=b) for p, a, b in value["shards"]),
    )
