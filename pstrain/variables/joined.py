"""Joins several variables as the shards of one; passes each request on to the parts with the rows.

Serves users who join variables of their own; a variable that a strategy cuts is one from the start.
Invariant: the parts stay variables of their own; a change through a part is seen through the whole,
and the other way round.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from pstrain import initializers
from pstrain.errors import InvalidArgumentError, InvalidTypeError, UnimplementedError
from pstrain.variables.lifetimes import Lifetimes
from pstrain.variables.rows import (
    as_rows,
    check_ids,
    overlaps,
    rows_of_value,
    scatter_parts,
    shape_of_rows,
)
from pstrain.vocabulary import ShardSpec, VariableSpec

Array = NDArray[Any]


def joined_spec(variables: Any, name: str) -> VariableSpec:
    """Returns the spec of the joined variable.

    Raises InvalidTypeError (a TypeError) for anything but variables, and InvalidArgumentError for
    variables that do not fit together.
    """
    if not isinstance(variables, Sequence) or not variables:
        raise InvalidTypeError(f"a ShardedVariable needs a list of Variables, got {variables!r}")
    for part in variables:
        if not hasattr(part, "spec") or not hasattr(part, "parameters"):
            raise InvalidTypeError(f"a ShardedVariable needs Variables, got {type(part).__name__}")
    dtypes, rest = {part.dtype for part in variables}, {part.shape[1:] for part in variables}
    if len(dtypes) > 1:
        raise InvalidArgumentError(
            f"parts of {name!r} have different dtypes: {', '.join(sorted(map(str, dtypes)))}"
        )
    if len(rest) > 1 or any(not part.shape for part in variables):
        shapes = ", ".join(str(part.shape) for part in variables)
        raise InvalidArgumentError(
            f"parts of {name!r} must have axes and may differ in the first only, got {shapes}"
        )
    ends = np.cumsum([0, *(part.shape[0] for part in variables)]).tolist()
    return VariableSpec(
        id=-1,
        name=name,
        shape=(ends[-1], *variables[0].shape[1:]),
        dtype=variables[0].spec.dtype,
        trainable=any(part.trainable for part in variables),
        initializer=initializers.zeros(),
        shards=tuple(
            ShardSpec(ps=number, row_start=ends[number], row_stop=ends[number + 1])
            for number in range(len(variables))
        ),
    )


class JoinedParameters:
    """Access to the values of joined variables; the ``ps`` of a shard is the index of its part."""

    lifetimes = Lifetimes()
    """Always empty: the parts have lifetimes of their own."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts = tuple(parts)

    def read(self, spec: VariableSpec, start: int = 0, stop: int | None = None) -> Array:
        stop = spec.rows if stop is None else stop
        out = np.empty(shape_of_rows(spec, stop - start), spec.dtype)
        for part, shard, a, b in self._overlaps(spec, start, stop):
            out[a - start : b - start] = part[a - shard.row_start : b - shard.row_start]
        return out

    def read_all(self, specs: Sequence[VariableSpec]) -> list[Array]:
        return [self.read(spec) for spec in specs]

    def read_rows(self, spec: VariableSpec, ids: Array) -> Array:
        flat = np.asarray(ids, np.int64).reshape(-1)
        out = np.empty(shape_of_rows(spec, flat.size), spec.dtype)
        for part, mine, part_ids in self.by_part(spec, flat):
            out[mine] = part.parameters.read_rows(part.spec, part.global_ids(part_ids))
        return out

    def by_part(self, spec: VariableSpec, ids: Array) -> Iterator[tuple[Any, Array, Array]]:
        """Yields (part, positions in ``ids``, rows of the part) for each part that holds ids."""
        check_ids(spec, ids)
        for part, shard in zip(self.parts, spec.shards, strict=True):
            mine = np.flatnonzero((ids >= shard.row_start) & (ids < shard.row_stop))
            if len(mine):
                yield part, mine, ids[mine] - shard.row_start

    def assign(self, spec: VariableSpec, op: str, value: Any, start: int = 0) -> None:
        count = rows_of_value(spec, value, start)
        rows = as_rows(spec, value, count)
        for part, shard, a, b in self._overlaps(spec, start, start + count):
            values = rows[a - start : b - start].reshape(shape_of_rows(spec, b - a))
            part.parameters.assign(part.spec, op, values, part.first_row + a - shard.row_start)

    def assign_all(self, values: Sequence[tuple[VariableSpec, Any]]) -> None:
        for spec, rows in [(spec, as_rows(spec, value, spec.rows)) for spec, value in values]:
            self.assign(spec, "set", rows.reshape(spec.shape))

    def scatter(self, spec: VariableSpec, op: str, ids: Array, rows: Any) -> None:
        for index, shard, part_ids, part in scatter_parts(spec, ids, rows):
            values = part.reshape(shape_of_rows(spec, len(part_ids)))
            self.parts[index].scatter(op, part_ids - shard.row_start, values)

    def device(self, ps: int) -> Any:
        return self.parts[ps].device

    def _refuse(self, *_args: Any, **_arguments: Any) -> NoReturn:
        raise UnimplementedError(
            "a ShardedVariable made of given variables is a view of them: train its .variables, "
            "or create it under a strategy with a variable_partitioner"
        )

    create = set_initial_values = fetch = apply = _refuse
    barrier = check_current = snapshot = load = _refuse

    def close(self) -> None:
        """Does nothing: the parts keep their own parameters."""

    def _overlaps(
        self, spec: VariableSpec, start: int, stop: int
    ) -> Iterator[tuple[Any, ShardSpec, int, int]]:
        for index, a, b in overlaps(spec, start, stop):
            yield self.parts[index], spec.shards[index], a, b
