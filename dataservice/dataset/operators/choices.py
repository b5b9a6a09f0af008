"""The choice of the dataset that each next element comes from: at random, or given by a dataset.

Responsible for the sequence of choices and its position. Knows nothing of the datasets to choose
from except their number. Invariant: a choice is a pure function of the seed, the epoch and the
position, or of the given choices, so that a saved position holds no random state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Final

import numpy as np
import pyarrow as pa

from dataservice.dataset.random_bits import random_bits
from dataservice.dataset.stream import RowCutter, State
from dataservice.errors import InvalidArgumentError, SchemaError
from dataservice.runtime.number_arrays import to_numbers
from dataservice.sharding import order_key

_BLOCK: Final = 4_096  # elements whose datasets are drawn from one key


class Choices(ABC):
    """A sequence of the numbers of the datasets to read from."""

    @abstractmethod
    def peek(self, exhausted: set[int]) -> np.ndarray:
        """Returns some of the next choices: at least one, or none at the end.

        `exhausted` are the datasets that have ended; choices drawn at random leave them out.
        """

    @abstractmethod
    def advance(self, count: int) -> None:
        """Moves past the next `count` choices."""

    @abstractmethod
    def state(self) -> Any:
        """Returns the position, JSON-able."""

    @abstractmethod
    def restore(self, state: Any) -> None:
        """Moves to a position that `state` returned."""

    @abstractmethod
    def close(self) -> None:
        """Closes the stream that the choices are read from, if there is one."""


class DrawnChoices(Choices):
    """An endless sequence of choices, drawn at random in proportion to weights."""

    def __init__(self, weights: np.ndarray, seed: int, epoch: int) -> None:
        self._weights = weights
        self._key = (seed, epoch)
        self._position = 0
        self._block = -1
        self._without: frozenset[int] = frozenset()
        self._drawn = np.empty(0, np.int64)  # the block, drawn without the datasets `_without`

    def peek(self, exhausted: set[int]) -> np.ndarray:
        block, first = divmod(self._position, _BLOCK)
        # Drawn once per block: if elements are batches, each of them calls `peek`.
        if block != self._block or exhausted != self._without:
            self._drawn = self._draw(block, exhausted)
            self._block, self._without = block, frozenset(exhausted)
        return self._drawn[first:]

    def _draw(self, block: int, exhausted: set[int]) -> np.ndarray:
        weights = self._weights.copy()
        weights[list(exhausted)] = 0
        if not weights.sum():
            return np.empty(0, np.int64)
        bits = random_bits(_BLOCK, order_key(*self._key, block))
        chances = (bits >> np.uint64(11)) * 2.0**-53
        bounds = np.cumsum(weights)
        drawn = np.searchsorted(bounds, chances * bounds[-1], side="right")
        return np.minimum(drawn, int(np.flatnonzero(weights)[-1]))

    def advance(self, count: int) -> None:
        self._position += count

    def state(self) -> Any:
        return self._position

    def restore(self, state: Any) -> None:
        self._position = int(state)

    def close(self) -> None:
        return


class GivenChoices(Choices):
    """A sequence of choices that is read from a dataset with a single integer column."""

    def __init__(self, cutter: RowCutter, datasets: int) -> None:
        self._cutter = cutter
        self._datasets = datasets
        self._position = 0
        self._before: State | None = None  # the position before `_block`
        self._block = np.empty(0, np.int64)
        self._given = 0  # choices of `_block` that were passed

    def peek(self, exhausted: set[int]) -> np.ndarray:  # noqa: ARG002
        if self._given >= self._block.size:
            before = self._cutter.state()
            # Blocks end at the same choices wherever the reading began.
            pieces = self._cutter.cut(_BLOCK - self._position % _BLOCK)
            numbers = [self._numbers(piece) for piece in pieces] or [np.empty(0, np.int64)]
            self._block, self._before, self._given = np.concatenate(numbers), before, 0
        return self._block[self._given :]

    def _numbers(self, rows: pa.RecordBatch) -> np.ndarray:
        if rows.num_columns != 1 or not pa.types.is_integer(rows.schema.field(0).type):
            raise SchemaError(
                "choose_from_datasets: the choice_dataset must have one integer column, it has "
                f"{rows.schema.to_string()!r}"
            )
        if rows.column(0).null_count:
            raise SchemaError("choose_from_datasets: the choice_dataset has nulls")
        numbers = to_numbers(rows.column(0)).astype(np.int64)
        bad = numbers[(numbers < 0) | (numbers >= self._datasets)]
        if bad.size:
            raise InvalidArgumentError(
                f"choose_from_datasets: the choice_dataset yielded {bad[0]}, but the datasets "
                f"are numbered 0 to {self._datasets - 1}"
            )
        return numbers

    def advance(self, count: int) -> None:
        self._position += count
        self._given += count

    def state(self) -> Any:
        if self._before is None or self._given >= self._block.size:
            return {"input": self._cutter.state(), "position": self._position}
        return {"input": self._before, "position": self._position, "given": self._given}

    def restore(self, state: Any) -> None:
        self._cutter.restore(state["input"])
        given = int(state.get("given", 0))
        self._position = int(state["position"]) - given
        if given:
            self.peek(set())
            self.advance(given)

    def close(self) -> None:
        self._cutter.close()
