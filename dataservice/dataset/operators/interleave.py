"""The operator that makes a dataset of each element of its input and reads several by turns.

Rows come in blocks of `block_length` from each of `cycle_length` open datasets; a dataset that has
ended is replaced by that of the next element. If all open datasets have enough rows at hand, many
rounds are put together at once. Over one window of a distributed dataset, the elements are those of
the window. Invariant: the order is that of tf.data's deterministic interleave.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from dataservice.dataset.columns import concat_batches, conform, no_rows
from dataservice.dataset.function import Function, call_user
from dataservice.dataset.node import (
    Node,
    none_or_endless,
    register_node,
    rows_of_known,
    walk,
)
from dataservice.dataset.numpy_views import to_function, to_rows
from dataservice.dataset.operators.base import FunctionOperator, Operator
from dataservice.dataset.operators.concatenate import completed_schema
from dataservice.dataset.operators.nested import node_of
from dataservice.dataset.optimise import optimise
from dataservice.dataset.padded_columns import declared_schema
from dataservice.dataset.seeds import settle_seeds
from dataservice.dataset.sources.reference import lacks_type
from dataservice.dataset.stream import (
    CHUNK_ROWS,
    SAMPLE_ROWS,
    BatchStream,
    RowCutter,
    RunContext,
    State,
)
from dataservice.errors import InvalidArgumentError
from dataservice.runtime.arguments import check_true_or_false, integer_at_least
from dataservice.runtime.number_arrays import from_numbers

# Elements to try if the first ones have no rows; a generator's first sample is only one element.
# Not more, because the dataset of each element may have to open a file.
_FURTHER_ELEMENTS: Final = 64
_WHAT: Final = "the rows of a dataset that the function given to interleave returned"


@register_node
@dataclasses.dataclass(frozen=True, eq=False)
class Interleave(Operator):
    """The rows of the datasets that `function` returns for the elements, by turns.

    The function gets a row as a dict of values, and a batch as a dict of arrays. `deterministic`
    False says that it may return other datasets when it runs again.
    """

    kind: ClassVar[str] = "interleave"
    outside_fingerprint: ClassVar[frozenset[str]] = frozenset({"deterministic"})
    function: Function
    cycle_length: int = 1
    block_length: int = 1
    schema: pa.Schema | None = None
    deterministic: bool = True

    def __post_init__(self) -> None:
        function = Function.code_of(
            self.function,
            "interleave",
            result=" that returns a Dataset",
            remedy='; write one such as lambda row: Dataset.from_csv(row["path"])',
        )
        object.__setattr__(self, "function", function)
        object.__setattr__(self, "schema", declared_schema(self.schema, "interleave"))
        for name in ("cycle_length", "block_length"):
            value = integer_at_least(getattr(self, name), 1, f"interleave {name}")
            object.__setattr__(self, name, value)
        check_true_or_false(deterministic=self.deterministic)

    @property
    def unrepeatable(self) -> str:
        return "" if self.deterministic else f"interleave({self.function.name})"

    @property
    def batched(self) -> bool:
        return False

    def attach(self, stream: BatchStream, context: RunContext) -> BatchStream:
        return _InterleaveStream(self, stream, context)

    def nested(self, element: pa.RecordBatch, number: int, context: RunContext, where: str) -> Node:
        """Returns the plan of the dataset of rows that the function makes of element `number`."""
        function = self.function.load(context.allow_functions)
        argument = to_function(element) if self.input.batched else to_rows(element)[0]
        made = call_user(function, argument, "interleave", lambda: where)
        node = node_of(made, "interleave")
        if node.batched:
            raise InvalidArgumentError(
                "the function given to interleave must return a dataset of rows; put batch after "
                "interleave instead"
            )
        return optimise(settle_seeds(node, *context.key, number))

    def common_schema(self, context: RunContext) -> pa.Schema | None:
        """Returns the schema of the rows; None for an input without elements."""
        if self.schema is not None:
            return self.schema
        rows = self._first_rows(context)
        return None if rows is None else rows.schema

    def _first_rows(self, context: RunContext) -> pa.RecordBatch | None:
        """Returns sample rows of the first element; of several if it has fewer than asked for.

        Of several, too, if the rows of the first do not tell all types. None for an input without
        elements.
        """
        where = "the first elements, to find the schema"
        wanted = context.sample_rows if context.sample_rows > SAMPLE_ROWS else 1
        rows: list[pa.RecordBatch] = []
        for count in (SAMPLE_ROWS, _FURTHER_ELEMENTS):
            rows.clear()
            sample = self.input.sample(context.sampling(count))
            size = sample.num_rows if self.input.batched else 1
            for first in range(0, min(sample.num_rows, count), max(1, size)):
                dataset = self.nested(sample.slice(first, size), first, context, where)
                rows.append(dataset.sample(context))
                is_enough = sum(part.num_rows for part in rows) >= wanted
                if (is_enough or not context.sample_rows) and _tell_types(rows, dataset, context):
                    return _joined(rows)
        return _joined(rows) if rows else None

    def sample(self, context: RunContext) -> pa.RecordBatch:
        if self.schema is not None:
            return rows_of_known(self.schema, self._known_rows, context, self.kind)
        rows = self._first_rows(context)
        if rows is None:
            raise InvalidArgumentError(
                "interleave cannot tell the schema of its rows, since its input has no elements; "
                "state it with schema="
            )
        return rows

    def _known_rows(self, context: RunContext) -> pa.RecordBatch:
        assert self.schema is not None
        rows = self._first_rows(context)
        if rows is None:
            return no_rows(self.schema)
        return conform(rows, self.schema, what=_WHAT)

    def cardinality(self) -> int:
        return none_or_endless(self.input.cardinality())


def _tell_types(samples: list[pa.RecordBatch], last: Node, context: RunContext) -> bool:
    """Whether the samples, the last of them of the dataset `last`, tell the types of all columns.

    The types that a function returns for no rows are a guess.
    """
    if any(map(lacks_type, _joined(samples).schema.types)):
        return False
    return any(sample.num_rows for sample in samples) or not any(
        isinstance(node, FunctionOperator)
        and node.lacks_schema
        and not node.input.sample(context.sampling()).num_rows
        for node in walk(last)
    )


def _joined(samples: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Joins the samples with the schema of the first that has rows; the last if none has rows.

    Columns without a value there have the type of the first sample that has one.
    """
    with_rows = [sample for sample in samples if sample.num_rows] or samples[-1:]
    known = with_rows[0].schema
    schema = completed_schema([known, *(s.schema for s in (*with_rows, *samples))])
    alike = (sample for sample in with_rows if sample.schema in (known, schema))
    return concat_batches([conform(sample, schema, what=_WHAT) for sample in alike])


@dataclasses.dataclass
class _Slot:
    """An open dataset: its element's number, the input's position before it, and its rows."""

    number: int
    element: State
    rows: RowCutter


class _InterleaveStream(BatchStream):
    def __init__(self, node: Interleave, stream: BatchStream, context: RunContext) -> None:
        self._node = node
        self._context = context
        self._nested_context = context.nested()
        self._input = RowCutter(stream)
        # Grows up to cycle_length while the input has elements.
        self._slots: list[_Slot | None] = [None]
        self._cycle = 0  # the slot whose turn it is
        self._block = 0  # rows of its block that have been taken
        self._number = 0  # of the next element
        self._input_ended = False
        self._schema: pa.Schema | None = None
        self._location = ""

    def __next__(self) -> pa.RecordBatch:
        while True:
            self._context.check()
            rounds = self._whole_rounds()
            if rounds:
                return self._conformed(self._take_rounds(rounds))
            slot = self._slots[self._cycle]
            if slot is not None:
                piece = slot.rows.piece(self._node.block_length - self._block)
                if piece is None:
                    slot.rows.close()
                    self._slots[self._cycle] = None
                    self._turn()
                    continue
                self._location = slot.rows.location()
                self._block += piece.num_rows
                if self._block == self._node.block_length:
                    self._turn()
                return self._conformed(piece)
            if not self._open_next():
                if not any(self._slots):
                    raise StopIteration
                self._turn()

    def _turn(self) -> None:
        self._cycle += 1
        self._block = 0
        if self._cycle == len(self._slots):
            if self._grows():
                self._slots.append(None)
            else:
                self._cycle = 0

    def _grows(self) -> bool:
        return len(self._slots) < self._node.cycle_length and not self._input_ended

    def _open_next(self) -> bool:
        """Puts the dataset of the next element into the slot whose turn it is; False at the end."""
        if self._input_ended:
            return False
        before = self._input.state()
        element = self._element(self._input)
        if element is None:
            self._input_ended = True
            return False
        self._slots[self._cycle] = self._slot(element, before, self._number)
        self._number += 1
        return True

    def _element(self, cutter: RowCutter) -> pa.RecordBatch | None:
        return cutter.piece(None if self._node.input.batched else 1)

    def _slot(self, element: pa.RecordBatch, before: State, number: int) -> _Slot:
        nested = self._node.nested(element, number, self._context, self._input.location())
        return _Slot(number, before, RowCutter(nested.open(self._nested_context)))

    def _whole_rounds(self) -> int:
        """Returns for how many whole rounds every slot has its rows at hand; 0 within a round."""
        if self._cycle or self._block or self._grows():
            return 0
        slots = self._open_slots()
        # A slot that stays empty after the last element has no turn in these rounds.
        is_full = len(slots) == len(self._slots) or self._input_ended
        if not (slots and is_full):
            return 0
        limit = CHUNK_ROWS // (len(slots) * self._node.block_length)
        if not limit:
            return 0
        return min(limit, *(s.rows.available() // self._node.block_length for s in slots))

    def _open_slots(self) -> list[_Slot]:
        return [slot for slot in self._slots if slot is not None]

    def _take_rounds(self, rounds: int) -> pa.RecordBatch:
        slots = self._open_slots()
        rows = rounds * self._node.block_length
        pieces = [piece for slot in slots for piece in slot.rows.cut(rows)]
        self._location = slots[0].rows.location()
        if len(pieces) == 1:
            return pieces[0]
        order = np.arange(len(slots) * rows).reshape(len(slots), rounds, -1)
        joined = concat_batches([self._conformed(piece) for piece in pieces])
        return joined.take(from_numbers(order.transpose(1, 0, 2).reshape(-1)))

    def _conformed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._schema is None:
            self._schema = self._node.common_schema(self._context)
        return batch if self._schema is None else conform(batch, self._schema, what=_WHAT)

    def state(self) -> State:
        return {
            "input": self._input.state(),
            "slots": [
                None if slot is None else [slot.number, slot.element, slot.rows.state()]
                for slot in self._slots
            ],
            "turn": [self._cycle, self._block, self._number],
            "input_ended": self._input_ended,
        }

    def restore(self, state: State) -> None:
        self._input.restore(state["input"])
        self._cycle, self._block, self._number = (int(n) for n in state["turn"])
        self._input_ended = bool(state.get("input_ended"))
        self._slots = [None] * len(state["slots"])
        for index, saved in enumerate(state["slots"]):
            if saved is not None:
                self._slots[index] = self._reopened(int(saved[0]), saved[1], saved[2])

    def _reopened(self, number: int, before: State, rows: Any) -> _Slot:
        cutter = RowCutter(self._node.input.open(self._node.input_context(self._context)))
        try:
            cutter.restore(before)
            element = self._element(cutter)
        finally:
            cutter.close()
        if element is None:
            raise InvalidArgumentError(
                f"malformed iterator state: the input has no element {number}; it has changed "
                "since the position was saved"
            )
        slot = self._slot(element, before, number)
        slot.rows.restore(rows)
        return slot

    def close(self) -> None:
        self._input.close()
        for slot in self._slots:
            if slot is not None:
                slot.rows.close()

    def location(self) -> str:
        return self._location
