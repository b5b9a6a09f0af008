"""Computes the gradients of a step's loss with respect to the variables that the step read.

Knows nothing of layers or of where variables are. Invariant: a tape records only the thread that
entered it, and summing changes no arrays but the tape's own sums, so one gradient array may go to
two consumers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dataservice.runtime.arguments import check_true_or_false
from pstrain import buffers
from pstrain.errors import InvalidArgumentError, InvalidTypeError
from pstrain.gradients.recording import Leaf, Record, check_precision, records
from pstrain.gradients.tensor import Tensor
from pstrain.gradients.variable_gradient import VariableGradient
from pstrain.kernels.embedding import scatter_fields
from pstrain.porting import foreign_arguments, foreign_names
from pstrain.porting.foreign_arguments import refuse_arguments
from pstrain.porting.foreign_names import Hinting
from pstrain.variables.indexed_slices import IndexedSlices
from pstrain.variables.joined import JoinedParameters
from pstrain.variables.rows import look_up
from pstrain.vocabulary import Update, VariableSpec


@dataclass(frozen=True, slots=True, repr=False)
class Gradients:
    """The gradients of a step: at most one update per variable, all of one ``parameters``."""

    updates: tuple[Update, ...]
    parameters: Any

    def __iter__(self) -> Iterator[Update]:
        return iter(self.updates)

    def __len__(self) -> int:
        return len(self.updates)

    def __repr__(self) -> str:
        return f"<Gradients of {', '.join(repr(update.variable.name) for update in self)}>"

    def of(self, variable: Any) -> Update:
        """Returns the update of one variable; KeyError if the loss does not depend on it."""
        for update in self.updates:
            if update.variable.id == variable.spec.id:
                return update
        raise KeyError(variable.name)


class GradientTape(Hinting):
    """A tape that records the operations of its ``with`` block in the thread that entered it.

    It tracks trainable float32 variables where layers and models read them, where their rows are
    looked up (``variable[ids]``, ``embedding_lookup``), and where operators or NumPy's functions
    take them as a whole: ``x @ variable``, ``np.sum(variable * variable)``. The array that
    ``numpy()`` returns is a constant to the tape. The tape keeps the arrays of the step alive until
    it is garbage-collected; gradients can be computed any number of times, as those of a tape that
    is ``persistent`` in TensorFlow.
    """

    _remedies = foreign_names.TAPE

    @refuse_arguments(
        "GradientTape", foreign_arguments.NEW_TAPE, asking_by_false=("watch_accessed_variables",)
    )
    def __init__(self, persistent: bool = False) -> None:
        check_true_or_false(persistent=persistent)
        self._seen = Record()

    def __repr__(self) -> str:
        operations, reads = len(self._seen.operations), len(self._seen.leaves)
        return f"<GradientTape of {operations} operations, {reads} reads>"

    def __enter__(self) -> GradientTape:
        records().append(self._seen)
        return self

    def __exit__(self, *_exc: object) -> None:
        records().remove(self._seen)

    def gradients(self, loss: Tensor) -> Gradients:
        """Returns gradients of a scalar ``loss`` for every trainable variable that it depends on.

        The gradient of a variable that was read several times is the sum over all reads.
        InvalidArgumentError if ``loss`` is not a scalar computed inside this tape.
        """
        if not isinstance(loss, Tensor):
            raise InvalidArgumentError(
                f"gradients need a scalar Tensor as loss, got {type(loss).__name__}: compute it "
                "inside the tape, of what layers give or of variables of float32 themselves; what "
                "numpy() reads of a variable is an array, which has no gradient"
            )
        if loss.value.size != 1:
            raise InvalidArgumentError(
                f"gradients need a scalar Tensor as loss, got shape {loss.shape}: take the mean "
                "first"
            )
        found_by_tensor = self._backpropagate(loss)
        per_variable: dict[tuple[int, int], list[tuple[Leaf, NDArray[Any]]]] = {}
        for entry in self._seen.leaves:
            gradient = found_by_tensor.get(id(entry.tensor))
            if gradient is not None:
                key = (id(entry.variable.parameters), entry.variable.spec.id)
                per_variable.setdefault(key, []).append((entry, gradient))
        if not per_variable:
            raise InvalidArgumentError(
                "the loss depends on no trainable variable of float32 that this tape has seen: "
                "compute it inside the `with GradientTape()` block, of a model, layers or variables"
            )
        if len({key[0] for key in per_variable}) > 1:
            names = sorted({uses[0][0].variable.name for uses in per_variable.values()})
            raise InvalidArgumentError(
                f"the loss mixes variables of different scopes ({', '.join(names)}): create them "
                "all inside one strategy.scope(), or all outside"
            )
        (first, _), *_ = next(iter(per_variable.values()))
        updates = tuple(map(_summed, per_variable.values()))
        return Gradients(updates, first.variable.parameters)

    @refuse_arguments("gradient", foreign_arguments.GRADIENT)
    def gradient(self, target: Tensor, sources: Any) -> Any:
        """Returns the gradients of :meth:`gradients` for given variables; None for no dependence.

        For a variable, returns a ``VariableGradient``, which supports arithmetic; for lists, tuples
        and dicts of variables, nested to any depth, lists and dicts of these. Pass them to
        ``apply_gradients`` as pairs: ``zip(tape.gradient(loss, variables), variables)``. The
        gradient of a part of a ShardedVariable covers the part's rows: an array, or
        ``IndexedSlices`` if rows were looked up.
        """
        return _of_sources(self.gradients(target), sources)

    def _backpropagate(self, loss: Tensor) -> dict[int, NDArray[Any]]:
        found: dict[int, NDArray[Any]] = {id(loss): np.ones_like(loss.value)}
        sums: set[int] = set()
        for outputs, inputs, backward in reversed(self._seen.operations):
            if found.keys().isdisjoint(map(id, outputs)):
                continue
            answer = backward(*[found.pop(id(output), None) for output in outputs])
            sums.difference_update(map(id, outputs))
            results = answer if isinstance(answer, tuple | list) else (answer,)
            for tensor, gradient in zip(inputs, results, strict=True):
                if gradient is not None and tensor.tracked:
                    key = id(tensor)
                    known = found.get(key)
                    if known is None:
                        found[key] = gradient
                    else:
                        found[key] = _added_up(known, gradient, may_change=key in sums)
                        sums.add(key)
        return found


def _added_up(known: NDArray[Any], gradient: NDArray[Any], *, may_change: bool) -> NDArray[Any]:
    """Returns the sum; ``may_change``: ``known`` is the tape's own sum and may be overwritten."""
    if not (known.dtype == gradient.dtype == np.float32 and known.shape == gradient.shape):
        return known + gradient
    out = known if may_change else buffers.empty(known.shape)
    return np.add(known, gradient, out=out)


def _of_sources(found: Gradients, sources: Any) -> Any:
    if isinstance(sources, Mapping):
        return {name: _of_sources(found, source) for name, source in sources.items()}
    if isinstance(sources, list | tuple):
        return [_of_sources(found, source) for source in sources]
    if not hasattr(sources, "spec"):
        raise InvalidTypeError(
            "gradients are those of variables, one or a list, tuple or dict of them, got "
            f"{type(sources).__name__}"
        )
    return _of_source(found, sources)


def _of_source(found: Gradients, source: Any) -> Any:
    if isinstance(source.parameters, JoinedParameters):
        raise InvalidArgumentError(
            f"{source.name!r} is a view of given variables, without a gradient of its own: ask for "
            "those of its .variables"
        )
    if source.trainable:
        check_precision(source, "or leave it out")
    if source.parameters is not found.parameters:
        return None
    of_source = (update for update in found if update.variable.id == source.spec.id)
    update = next(of_source, None)
    if update is None:
        return None
    if tuple(source.shape) == tuple(source.spec.shape):
        return VariableGradient(*update)
    start, stop = source.first_row, source.first_row + source.shape[0]
    if update.lookup is None:
        return update.gradient.reshape(source.spec.shape)[start:stop]
    unique = update.lookup.unique
    mine = (unique >= start) & (unique < stop)
    rows = update.gradient[mine].reshape(-1, *source.shape[1:])
    return IndexedSlices(rows, unique[mine] - start, source.shape)


def _summed(uses: list[tuple[Leaf, NDArray[Any]]]) -> Update:
    first, gradient = uses[0]
    spec: VariableSpec = first.variable.spec
    if len(uses) == 1:
        return Update(spec, gradient, first.lookup)
    if all(entry.lookup is None for entry, _ in uses):
        return Update(spec, np.sum([gradient for _, gradient in uses], axis=0), None)
    if any(entry.lookup is None for entry, _ in uses):
        return Update(spec, _whole_sum(spec, uses), None)
    return _merge_lookups(spec, uses)


def _whole_sum(spec: VariableSpec, uses: list[tuple[Leaf, NDArray[Any]]]) -> NDArray[Any]:
    """Sums the gradients of a variable that was read as a whole and also by rows."""
    total = np.zeros(spec.shape, np.float32)
    rows = total.reshape(spec.rows, -1)
    for entry, gradient in uses:
        if entry.lookup is None:
            total += gradient
        else:
            rows[entry.lookup.unique] += gradient.reshape(len(entry.lookup.unique), -1)
    return total


def _merge_lookups(spec: VariableSpec, uses: list[tuple[Leaf, NDArray[Any]]]) -> Update:
    """Merges several lookups of one variable into one update."""
    ids = np.concatenate([entry.lookup.unique for entry, _ in uses if entry.lookup is not None])
    gradients = np.concatenate([gradient for _, gradient in uses], dtype=np.float32)
    lookup = look_up(spec, ids)
    total = buffers.zeros((len(lookup.unique), spec.width))
    scatter_fields(gradients, lookup.inverse, 1, total)
    return Update(spec, total, lookup)
