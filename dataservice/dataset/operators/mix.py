"""Operators that take each element from one of several datasets, chosen at random or by a dataset.

Responsible for the datasets and for putting their elements together, a block of choices at a time
and column by column. Does not know how a dataset is chosen: see `choices`. Invariant: the choices
move past an element exactly when it is taken from its dataset.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from dataservice.dataset.columns import concat_batches, conform
from dataservice.dataset.node import (
    INFINITE_CARDINALITY,
    UNKNOWN_CARDINALITY,
    Node,
    register_node,
    sum_of_cardinalities,
)
from dataservice.dataset.operators.choices import Choices, DatasetChoices, RandomChoices
from dataservice.dataset.operators.concatenate import completed_by, samples_alike
from dataservice.dataset.seeds import check_seeds, effective_seed
from dataservice.dataset.stream import BatchStream, RowCutter, RunContext, State, TransformStream
from dataservice.errors import InvalidArgumentError
from dataservice.runtime.arguments import check_true_or_false
from dataservice.runtime.number_arrays import from_numbers


@dataclasses.dataclass(frozen=True, eq=False)
class Mix(Node):
    """The base of both operators: datasets whose rows all get the schema of the first.

    A column whose type there is null, for lack of values, gets its type from another dataset.
    """

    variadic: ClassVar[str | None] = "datasets"
    datasets: tuple[Node, ...] = ()
    stop_on_empty_dataset: bool = False
    schema: pa.Schema | None = None

    def __post_init__(self) -> None:
        if not self.datasets:
            raise InvalidArgumentError(f"{self.kind} takes at least one dataset, got none")
        if len({node.batched for node in self.datasets}) > 1:
            raise InvalidArgumentError(
                f"{self.kind} takes datasets of rows or datasets of batches, not both"
            )
        check_true_or_false(stop_on_empty_dataset=self.stop_on_empty_dataset)

    @property
    def batched(self) -> bool:
        return self.datasets[0].batched

    def streams(self, context: RunContext) -> list[BatchStream]:
        """Opens the datasets; the rows of each have the common schema."""
        first, *others = self.datasets
        schema = self.schema or completed_by(others, first.sample(context).schema, context)
        what = self._what

        def same(batch: pa.RecordBatch, _location: Any) -> pa.RecordBatch:
            return conform(batch, schema, what=what)

        return [TransformStream(node.run(context), same) for node in self.datasets]

    @property
    def _what(self) -> str:
        return f"the rows of a dataset given to {self.kind}"

    def sample(self, context: RunContext) -> pa.RecordBatch:
        alike = samples_alike(self.datasets, context, what=self._what)
        return max(alike, key=lambda sample: sample.num_rows)


@register_node
@dataclasses.dataclass(frozen=True, eq=False)
class SampleFromDatasets(Mix):
    """Each element comes from a dataset drawn at random in proportion to `weights`.

    Without weights, all datasets are equally likely.
    """

    kind: ClassVar[str] = "sample_from_datasets"
    outside_fingerprint: ClassVar[frozenset[str]] = frozenset({"drawn_seed"})
    weights: tuple[float, ...] | None = None
    seed: int | None = None
    drawn_seed: int | None = None
    rerandomize_each_iteration: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_seeds(self)
        check_true_or_false(rerandomize_each_iteration=self.rerandomize_each_iteration)
        if self.weights is not None:
            object.__setattr__(self, "weights", _checked_weights(self.weights, len(self.datasets)))

    def open(self, context: RunContext) -> BatchStream:
        context = dataclasses.replace(context, split_order=None)
        epoch = context.epoch if self.rerandomize_each_iteration else 0
        weights = np.ones(len(self.datasets)) if self.weights is None else np.array(self.weights)
        choices = RandomChoices(weights, effective_seed(self), epoch)
        return _MixStream(self.streams(context), choices, self.stop_on_empty_dataset, self.batched)

    def cardinality(self) -> int:
        weights = self.weights or (1.0,) * len(self.datasets)
        parts = [
            node.cardinality()
            for node, weight in zip(self.datasets, weights, strict=True)
            if weight > 0
        ]
        if self.stop_on_empty_dataset:
            endless = all(count == INFINITE_CARDINALITY for count in parts)
            return INFINITE_CARDINALITY if endless else UNKNOWN_CARDINALITY
        return sum_of_cardinalities(parts)


@register_node
@dataclasses.dataclass(frozen=True, eq=False)
class ChooseFromDatasets(Mix):
    """Each element comes from the dataset whose number the next row of `choice` holds."""

    kind: ClassVar[str] = "choose_from_datasets"
    choice: Node | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.choice, Node) or self.choice.batched:
            raise InvalidArgumentError(
                "choose_from_datasets takes a choice_dataset of rows with one integer column"
            )

    def open(self, context: RunContext) -> BatchStream:
        assert self.choice is not None
        context = dataclasses.replace(context, split_order=None)
        choices = DatasetChoices(RowCutter(self.choice.run(context)), len(self.datasets))
        return _MixStream(self.streams(context), choices, self.stop_on_empty_dataset, self.batched)

    def cardinality(self) -> int:
        assert self.choice is not None
        return 0 if self.choice.cardinality() == 0 else UNKNOWN_CARDINALITY


def _checked_weights(weights: Any, datasets: int) -> tuple[float, ...]:
    try:
        listed = tuple(float(weight) for weight in weights)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"weights must be a list of {datasets} numbers, got {weights!r:.200}"
        ) from error
    if len(listed) != datasets:
        raise InvalidArgumentError(
            f"weights must have one number per dataset: {datasets} datasets, got {list(listed)}"
        )
    if not all(weight >= 0 for weight in listed) or not 0 < sum(listed) < float("inf"):
        raise InvalidArgumentError(
            f"weights must be finite, their sum too, not negative and not all 0, got {list(listed)}"
        )
    return listed


class _MixStream(BatchStream):
    def __init__(
        self,
        streams: Sequence[BatchStream],
        choices: Choices,
        stop_on_empty: bool,
        whole_batches: bool,
    ) -> None:
        self._cutters = [RowCutter(stream) for stream in streams]
        self._choices = choices
        self._stop_on_empty = stop_on_empty
        self._whole_batches = whole_batches
        self._exhausted: set[int] = set()
        self._last = 0

    def __next__(self) -> pa.RecordBatch:
        # Choices may be endless although all datasets have ended.
        while len(self._exhausted) < len(self._cutters):
            choices = self._choices.peek(self._exhausted)
            if not choices.size:
                break
            left = self._left_of(choices)
            if not left.size:
                self._choices.advance(len(choices))
                continue
            self._last = int(choices[left[0]])
            if self._cutters[self._last].available():
                return self._block(choices, left)
            if self._stop_on_empty:
                break
            self._exhausted.add(self._last)
        raise StopIteration

    def _left_of(self, choices: np.ndarray) -> np.ndarray:
        """Returns the places of the choices whose datasets have not ended."""
        if not self._exhausted:
            return np.arange(len(choices))
        has_rows = np.ones(len(self._cutters), np.bool_)
        has_rows[list(self._exhausted)] = False
        return np.flatnonzero(has_rows[choices])

    def _block(self, choices: np.ndarray, left: np.ndarray) -> pa.RecordBatch:
        """Takes the next elements by the choices at `left`; the others' datasets have ended."""
        if self._whole_batches:
            self._choices.advance(int(left[0]) + 1)
            batch = self._cutters[self._last].piece()
            assert batch is not None
            return batch
        ready = self._ready(choices[left])
        passed = int(left[ready - 1]) + 1
        choices = choices[left[:ready]]
        counts = np.bincount(choices, minlength=len(self._cutters))
        pieces = [
            self._cutters[index].piece(int(counts[index])) for index in np.flatnonzero(counts)
        ]
        self._choices.advance(passed)
        rows = concat_batches([piece for piece in pieces if piece is not None])
        if len(pieces) == 1:
            return rows
        order = np.empty(len(choices), np.int64)
        order[np.argsort(choices, kind="stable")] = np.arange(len(choices))
        return rows.take(from_numbers(order))

    def _ready(self, choices: np.ndarray) -> int:
        """Returns how many of the choices the current chunks of the datasets can serve."""
        ready = len(choices)
        wanted = np.bincount(choices, minlength=len(self._cutters))
        for index in np.flatnonzero(wanted):
            available = self._cutters[index].available()
            if available < wanted[index]:
                ready = min(ready, int(np.flatnonzero(choices == index)[available]))
        return ready

    def state(self) -> State:
        return {
            "inputs": [cutter.state() for cutter in self._cutters],
            "choices": self._choices.state(),
            "exhausted": sorted(self._exhausted),
        }

    def restore(self, state: State) -> None:
        for cutter, saved in zip(self._cutters, state["inputs"], strict=True):
            cutter.restore(saved)
        self._choices.restore(state["choices"])
        self._exhausted = {int(index) for index in state["exhausted"]}

    def close(self) -> None:
        self._choices.close()
        for cutter in self._cutters:
            cutter.close()

    def location(self) -> str:
        return self._cutters[self._last].location()
