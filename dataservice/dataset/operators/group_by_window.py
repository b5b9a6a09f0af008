"""The operator that gathers elements by key and hands each window to a function of datasets."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import ClassVar, Final

import pyarrow as pa

from dataservice.dataset.columns import no_rows
from dataservice.dataset.function import Function, call_user
from dataservice.dataset.node import (
    Node,
    none_or_endless,
    register_node,
    rows_of_known,
)
from dataservice.dataset.operators.base import Operator
from dataservice.dataset.operators.element_key import key_function, keys_of
from dataservice.dataset.operators.nested import dataset_of, node_of
from dataservice.dataset.operators.open_windows import Window
from dataservice.dataset.operators.windows import WindowGatherer
from dataservice.dataset.padded_columns import declared_schema
from dataservice.dataset.seeds import settle_seeds
from dataservice.dataset.stream import BatchStream, RunContext, State
from dataservice.errors import InvalidArgumentError
from dataservice.runtime.arguments import integer_at_least

_OPERATOR = "group_by_window"
_REDUCE = f"{_OPERATOR} reduce_func"
_SIZE_OF = f"{_OPERATOR} window_size_func"
_MOST_ELEMENTS: Final = (1 << 63) - 1  # of a window: what int64 holds


@register_node
@dataclasses.dataclass(frozen=True, eq=False)
class GroupByWindow(Operator):
    """Windows of up to `window_size` elements of one key, each reduced to a dataset of batches.

    Without `reduce`, the window of rows is one batch; a window of batches stays as it is.
    """

    kind: ClassVar[str] = _OPERATOR
    key: Function
    reduce: Function | None = None
    window_size: int | None = None
    window_size_of: Function | None = None
    schema: pa.Schema | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", key_function(self.key, _OPERATOR))
        object.__setattr__(self, "schema", declared_schema(self.schema, _OPERATOR))
        if self.reduce is not None:
            object.__setattr__(self, "reduce", Function.code_of(self.reduce, _REDUCE))
        if (self.window_size is None) == (self.window_size_of is None):
            raise InvalidArgumentError(
                f"{_OPERATOR} takes either window_size or window_size_func, got "
                f"{self.window_size!r} and {self.window_size_of!r}"
            )
        if self.window_size is not None:
            size = integer_at_least(self.window_size, 1, "window_size")
            object.__setattr__(self, "window_size", min(size, _MOST_ELEMENTS))
        else:
            size_of = Function.code_of(self.window_size_of, _SIZE_OF)
            object.__setattr__(self, "window_size_of", size_of)

    @property
    def batched(self) -> bool:
        return True

    def attach(self, stream: BatchStream, context: RunContext) -> BatchStream:
        whole = self.input.batched
        keys = keys_of(self.key, _OPERATOR, context, whole_batches=whole, lengths=False)
        gatherer = WindowGatherer(stream, keys, self._sizes(context), whole_batches=whole)
        return _GroupStream(self, gatherer, context)

    def _sizes(self, context: RunContext) -> Callable[[int], int]:
        if self.window_size is not None:
            size = self.window_size
            return lambda _key: size
        assert self.window_size_of is not None
        call = self.window_size_of.load(context.allow_functions)
        known: dict[int, int] = {}

        def size_of(key: int) -> int:
            if key not in known:
                found = call_user(call, key, _OPERATOR, lambda: f"window_size_func({key})")
                size = integer_at_least(found, 1, f"the size of window {key}")
                known[key] = min(size, _MOST_ELEMENTS)
            return known[key]

        return size_of

    def reduced(
        self, key: int, batches: Sequence[pa.RecordBatch], context: RunContext, number: int
    ) -> Node:
        """Returns the plan of the dataset that a window is reduced to.

        `number` is the window's, from which unseeded shuffles in that dataset get their seeds.
        """
        window = dataset_of(batches, batched=self.input.batched)
        if self.reduce is None:
            return node_of(window, _OPERATOR)
        function = self.reduce.load(context.allow_functions)
        made = call_user(
            lambda dataset: function(key, dataset), window, _OPERATOR, lambda: f"window of {key}"
        )
        node = node_of(made, _OPERATOR)
        if not node.batched:
            raise InvalidArgumentError(
                f"the function given to {_OPERATOR} must return a dataset of batches; end it with "
                ".batch(n), and put .unbatch() after group_by_window to get rows"
            )
        return settle_seeds(node, *context.key, number)

    def sample(self, context: RunContext) -> pa.RecordBatch:
        if self.schema is None:
            return self._tried(context)
        return rows_of_known(self.schema, self._tried, context, self.kind)

    def _tried(self, context: RunContext) -> pa.RecordBatch:
        if self.reduce is None:
            return self.input.sample(context)
        window = self.input.sample(context.sampling())
        if self.schema is not None and not window.num_rows:
            return no_rows(self.schema)
        return self.reduced(0, [window], context, 0).sample(context)

    def cardinality(self) -> int:
        return none_or_endless(self.input.cardinality())


class _GroupStream(BatchStream):
    def __init__(self, node: GroupByWindow, gatherer: WindowGatherer, context: RunContext) -> None:
        self._node = node
        self._gatherer = gatherer
        self._context = context
        self._nested_context = context.nested()
        self._number = 0  # of the current window
        self._stream: BatchStream | None = None  # of the window that is being read

    def __next__(self) -> pa.RecordBatch:
        while True:
            if self._stream is None:
                window = next(self._gatherer)
                if self._node.reduce is None and len(window.batches) == 1:
                    self._number += 1
                    return window.batches[0]
                self._stream = self._opened(window)
            batch = next(self._stream, None)
            if batch is not None:
                return batch
            self._end_window()

    def _opened(self, window: Window) -> BatchStream:
        node = self._node.reduced(window.key, window.batches, self._context, self._number)
        return node.open(self._nested_context)

    def _end_window(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None
            self._number += 1

    def state(self) -> State:
        if self._stream is None:
            return {"input": self._gatherer.state(), "window": self._number, "inner": None}
        before = self._gatherer.state(back=1)
        return {"input": before, "window": self._number, "inner": self._stream.state()}

    def restore(self, state: State) -> None:
        self._gatherer.restore(state["input"])
        self._number = int(state["window"])
        if state["inner"] is not None:
            self._stream = self._opened(next(self._gatherer))
            self._stream.restore(state["inner"])

    def close(self) -> None:
        self._end_window()
        self._gatherer.close()

    def location(self) -> str:
        return self._gatherer.location()
