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
"""What a function, its arguments or its result may take: two of them fit one control message."""

# All that NumPy has but uint16, as which bfloat16 travels.
VARIABLE_DTYPES = (
    "float32", "float64", "float16", "int64", "int32", "int16", "int8", "uint64", "uint32",
    "uint8", "bool",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSpec:
    """Rows ``[row_start, row_stop)`` of a variable, held by parameter server ``ps``."""

    ps: int
    row_start: int
    row_stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InitializerSpec:
    """How a shard fills its own rows; ``name`` is a key of ``pstrain.initializers``."""

    name: str
    parameters: dict[str, float] = field(default_factory=dict)
    seed: int = 0

    def __call__(self, shape: Iterable[int] | int, dtype: str | None = None) -> InitialValue:
        """What a variable of that shape starts with; nothing is computed here."""
        sizes = tuple(shape) if isinstance(shape, Iterable) else (shape,)
        return InitialValue(self, sizes, dtype)


class InitialValue(NamedTuple):
    """An initializer, and the shape of the variable that it is for."""

    initializer: InitializerSpec
    shape: tuple[int, ...]
    dtype: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VariableSpec:
    """A variable as the cluster knows it.

    ``shape[0]`` is what shards divide; a scalar has shape ``()`` and one shard ``[0, 1)``.
    ``shards`` are in row order and cover ``[0, shape[0])`` without gaps.
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
    """Values per row."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", self.shape[0] if self.shape else 1)
        object.__setattr__(self, "width", math.prod(self.shape[1:]))


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSpec:
    """An update rule: ``name`` picks the kernel; ``l2`` times the value is added to its gradient.

    ``slots`` are the first values of what it keeps for each value, ``row_slots`` of what it keeps
    for each row. ``text`` is how it travels, with every step: made once, and read once.
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
        """Inverse of ``text``."""
        return _read_optimizer(text)


_OPTIMIZER_FIELDS = ("name", "learning_rate", "l2", "parameters", "slots", "row_slots")


@functools.lru_cache(maxsize=256)
def _read_optimizer(text: str) -> OptimizerSpec:
    value = json.loads(text)
    kept = {name: tuple(value[name]) for name in ("slots", "row_slots")}
    return OptimizerSpec(**{**value, **kept})


class Lookup(NamedTuple):
    """Rows of a variable without repetition, and where each asked-for id finds its row.

    ``unique``: int64 [U], grouped by shard; ``offsets``: int64 [shards + 1] into ``unique``;
    ``found``: where each id is, int32 [n], or by field; ``rows``: float32 [U, width].
    """

    unique: NDArray[np.int64]
    offsets: NDArray[np.int64]
    found: NDArray[np.int32] | FieldGroups
    rows: NDArray[np.float32]

    @property
    def inverse(self) -> NDArray[np.int32]:
        """int32 [n]: ``unique[inverse]`` are the ids as asked. Made anew where it is by field."""
        return self.found.inverse() if isinstance(self.found, tuple) else self.found


class Fetch(NamedTuple):
    """What a step wants to read: all of a variable (``ids`` None) or the rows of ``ids``.

    Ids of two axes are [n, fields], and their ``Lookup`` is by field.
    """

    variable: VariableSpec
    ids: NDArray[np.int64] | None = None


class Update(NamedTuple):
    """A gradient of a variable: of all of it, or (``lookup``) [U, width] of its looked-up rows."""

    variable: VariableSpec
    gradient: NDArray[np.float32]
    lookup: Lookup | None = None


class StepToken(NamedTuple):
    """Names one run of one closure, so that a server applies a closure's pushes once.

    ``session`` is the coordinator's incarnation; a server refuses tokens of an older one.
    """

    session: str
    closure: int
    attempt: int


def trainer_name(session: str, index: int, incarnation: int) -> str:
    """What servers fence when a trainer is taken for lost, and who owns what it reads."""
    return f"{session}/trainer-{index}.{incarnation}"


def spec_to_json(spec: VariableSpec) -> dict[str, Any]:
    """The JSON form of a variable's spec, used on the wire and in manifests."""
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
    """Inverse of :func:`spec_to_json`."""
    return VariableSpec(
        id=value["id"],
        name=value["name"],
        shape=tuple(value["shape"]),
        dtype=value["dtype"],
        trainable=value["trainable"],
        initializer=InitializerSpec(**value["initializer"]),
        shards=tuple(ShardSpec(ps=p, row_start=a, row_stop=b) for p, a, b in value["shards"]),
    )
