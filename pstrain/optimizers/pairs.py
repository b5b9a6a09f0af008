"""Converts pairs of (gradient, variable), as users write them, to one update per variable.

Knows nothing of update rules; reads and changes no values of variables. Invariant: given arrays are
copied, so callers may reuse them; only an ``Update``, as a tape makes it, is passed on as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pstrain.errors import InvalidArgumentError, InvalidTypeError
from pstrain.gradients.tape import Gradients
from pstrain.kernels.embedding import scatter_fields
from pstrain.variables.indexed_slices import IndexedSlices
from pstrain.variables.joined import JoinedParameters
from pstrain.variables.rows import as_rows, look_up
from pstrain.vocabulary import Update, VariableSpec

Array = NDArray[Any]


def from_pairs(pairs: Iterable[tuple[Any, Any]]) -> Gradients:
    """Returns the pairs as Gradients, with at most one update per variable.

    InvalidArgumentError if a gradient does not fit its variable, InvalidTypeError if an entry is
    not a pair of a gradient and a variable.
    """
    found: dict[int, _Given] = {}
    parameters = None
    for gradient, variable in _of_parts(pairs):
        if parameters is not None and variable.parameters is not parameters:
            raise InvalidArgumentError(
                f"variable {variable.name!r} lives elsewhere than the others: create all inside "
                "one strategy.scope(), or all outside"
            )
        parameters = variable.parameters
        found.setdefault(variable.spec.id, _Given(variable.spec)).add(gradient, variable)
    if not found:
        raise InvalidArgumentError("no gradients given for any variable")
    return Gradients(tuple(given.update() for given in found.values()), parameters)


class _Given:
    """The gradients given for one variable: one of the whole, or any number of rows of it."""

    def __init__(self, spec: VariableSpec) -> None:
        self._spec = spec
        self._whole: Update | None = None
        self._rows: list[tuple[Array, Array]] = []

    def add(self, gradient: Any, variable: Any) -> None:
        is_part = tuple(variable.shape) != self._spec.shape
        if isinstance(gradient, IndexedSlices):
            self._add_rows(gradient.indices, gradient.values, variable)
        elif is_part and not isinstance(gradient, Update):
            self._add_rows(np.arange(len(variable)), _array(gradient, variable), variable)
        elif self._whole is not None:
            raise self._refused()
        elif isinstance(gradient, Update):
            self._whole = gradient
        else:
            self._whole = Update(self._spec, _array(gradient, variable))

    def _add_rows(self, indices: Any, values: Any, variable: Any) -> None:
        ids = variable.global_ids(np.asarray(indices).reshape(-1))
        self._rows.append((ids, as_rows(self._spec, np.asarray(values, np.float32), len(ids))))

    def update(self) -> Update:
        if self._whole is not None:
            if self._rows:
                raise self._refused()
            return self._whole
        ids, rows = (np.concatenate(each) for each in zip(*self._rows, strict=True))
        lookup = look_up(self._spec, ids)
        total = np.zeros((len(lookup.unique), self._spec.width), np.float32)
        scatter_fields(rows, lookup.inverse, 1, total)
        return Update(self._spec, total, lookup)

    def _refused(self) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"variable {self._spec.name!r} is given a gradient of all of it and another one: give "
            "each variable one, or each of its parts"
        )


def _array(gradient: Any, variable: Any) -> Array:
    # Copied, because a closure sends it at its end, and the caller may change the array before.
    value = np.array(gradient, dtype=np.float32, order="C")
    if value.shape != tuple(variable.shape):
        raise InvalidArgumentError(
            f"gradient of shape {value.shape} for variable {variable.name!r} of shape "
            f"{tuple(variable.shape)}"
        )
    return value


def _of_parts(pairs: Any) -> Iterator[tuple[Any, Any]]:
    """Yields the pairs; splits the pair of a joined variable into pairs of its parts.

    Leaves out pairs without a gradient (None).
    """
    if not isinstance(pairs, Iterable):
        raise _refused(f"got {pairs!r}")
    for gradient, variable in map(_pair, pairs):
        if gradient is None:
            continue
        if isinstance(variable.parameters, JoinedParameters):
            yield from _divided(gradient, variable)
        else:
            yield gradient, variable


def _divided(gradient: Any, variable: Any) -> Iterator[tuple[Any, Any]]:
    shards = variable.spec.shards
    if isinstance(gradient, IndexedSlices):
        ids = variable.global_ids(np.asarray(gradient.indices).reshape(-1))
        outside = (ids < 0) | (ids >= variable.spec.rows)
        if outside.any():
            raise InvalidArgumentError(
                f"id {ids[outside][0]} is outside [0, {variable.spec.rows}) of variable "
                f"{variable.name!r}"
            )
        rows = as_rows(variable.spec, np.asarray(gradient.values, np.float32), len(ids))
        rows = rows.reshape(len(ids), *variable.shape[1:])
        for part, shard in zip(variable.variables, shards, strict=True):
            mine = (ids >= shard.row_start) & (ids < shard.row_stop)
            if mine.any():
                yield IndexedSlices(rows[mine], ids[mine] - shard.row_start), part
        return
    whole = _array(gradient, variable)
    for part, shard in zip(variable.variables, shards, strict=True):
        yield whole[shard.row_start : shard.row_stop], part


def _pair(entry: Any) -> tuple[Any, Any]:
    is_pair = isinstance(entry, list | tuple) and not isinstance(entry, Update | IndexedSlices)
    if not is_pair or len(entry) != 2 or not hasattr(entry[1], "spec"):
        raise _refused(f"one of them is {entry!r}")
    return entry[0], entry[1]


def _refused(given: str) -> InvalidTypeError:
    return InvalidTypeError(
        "apply_gradients takes pairs of (gradient, variable), such as zip(gradients, variables), "
        f"or what tape.gradients(loss) gave; {given}"
    )
