"""The source of the rows that a user's Python generator yields.

It has one split. A position is restored by running the generator from its beginning and leaving out
rows, so the generator must yield the same rows each time. Invariant: all chunks have the declared
schema.
"""

from __future__ import annotations

import dataclasses
import itertools
import types
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from dataservice.dataset.arrow_arrays import from_numpy, of_values
from dataservice.dataset.columns import check_names, conform, no_rows, require_distinct
from dataservice.dataset.function import Function, call_user
from dataservice.dataset.node import register_node, rows_of_known
from dataservice.dataset.plain_types import plain_batch, plain_schema
from dataservice.dataset.sources.base import Source
from dataservice.dataset.stream import SAMPLE_ROWS, RunContext
from dataservice.errors import InvalidTypeError, SchemaError, SourceError
from dataservice.runtime.arguments import check_choice, check_true_or_false
from dataservice.sharding import Split

_CHUNK_ROWS: Final = 1_024
_WHAT: Final = "the columns that the generator yielded"
_FORMATS: Final = ("rows", "numpy", "arrow")
_REMEDY: Final = (
    "let the function return a new iterator over the same rows at each call, or pass "
    "deterministic=False, with which it is not called again for rows that were read"
)
# The generators that any source in this process has begun to read.
_begun: weakref.WeakSet[types.GeneratorType[Any, Any, Any]] = weakref.WeakSet()


@register_node
@dataclasses.dataclass(frozen=True, eq=False)
class GeneratorSource(Source):
    """The rows of the iterable that a function returns.

    With `format` None, the format is found from the first item. `deterministic` False says that the
    function may return other rows when it runs again.
    """

    kind: ClassVar[str] = "generator"
    outside_fingerprint: ClassVar[frozenset[str]] = frozenset({"deterministic"})
    function: Function
    schema: pa.Schema
    format: str | None = None
    deterministic: bool = True

    def __post_init__(self) -> None:
        result = " that returns an iterable"
        function = Function.code_of(self.function, "from_generator", result=result)
        object.__setattr__(self, "function", function)
        if not isinstance(self.schema, pa.Schema) or not len(self.schema):
            raise InvalidTypeError(
                "from_generator needs schema=, a pyarrow.Schema with columns, as in "
                f"pyarrow.schema({{'x': pyarrow.float32()}}), got {self.schema!r}"
            )
        require_distinct(self.schema.names, what="the schema given to from_generator")
        object.__setattr__(self, "schema", plain_schema(self.schema))
        # None: found from the first item that the generator yields.
        check_choice("format", self.format, (*_FORMATS, None))
        check_true_or_false(deterministic=self.deterministic)

    @property
    def unrepeatable(self) -> str:
        return "" if self.deterministic else f"from_generator({self.function.name})"

    @property
    def counts_rows(self) -> bool:
        return False

    def splits(self) -> Iterator[Split]:
        yield Split()

    def read(
        self, split: Split, first_row: int, context: RunContext
    ) -> Generator[pa.RecordBatch, None, None]:
        function = self.function.load(context.allow_functions)
        row = 0

        def location(ahead: int = 0) -> str:
            return self.describe(split, row + ahead, row + ahead + 1)

        items = call_user(lambda _: iter(function()), None, "from_generator", location)
        if self.deterministic:
            self._check_unread(items)
        for batch in self._batches(items, location):
            row += batch.num_rows
            fresh = min(row - first_row, batch.num_rows)
            if fresh > 0:
                yield batch.slice(batch.num_rows - fresh)
        if row < first_row:
            raise SourceError(
                f"the generator {self.function.name} yields {row} rows now, and {first_row} were "
                f"read before; {_REMEDY}"
            )

    def _check_unread(self, items: Iterator[Any]) -> None:
        """Raises SourceError for a generator object that this process has begun to read before."""
        if not isinstance(items, types.GeneratorType):
            return
        if items in _begun:
            raise SourceError(
                f"{self.function.name} returned the same generator a second time, after some of "
                f"its rows had been read; {_REMEDY}"
            )
        _begun.add(items)

    def _batches(
        self, items: Iterator[Any], location: Callable[[int], str]
    ) -> Iterator[pa.RecordBatch]:
        def take(count: int, taken: list[Any]) -> list[Any]:
            # An item is a row where several are taken: those before an error stay in the list.
            call_user(
                lambda _: taken.extend(itertools.islice(items, count)),
                None,
                "from_generator",
                lambda: location(len(taken)),
            )
            return taken

        taken = take(1, [])
        form = self.format or (_form_of(taken[0], self.schema) if taken else "rows")
        if form == "rows" and taken:
            # Functions above infer their types from the first rows, and one row may lack values.
            taken = take(SAMPLE_ROWS - 1, taken)
        while taken:
            if form == "rows":
                yield self._of_rows(taken)
                taken = take(_CHUNK_ROWS, [])
                continue
            batch = self._of_columns(taken[0], form)
            if batch.num_rows:
                yield batch
            taken = take(1, [])

    def _of_rows(self, rows: list[Any]) -> pa.RecordBatch:
        names = self.schema.names
        for row in rows:
            if not isinstance(row, Mapping):
                raise SchemaError(
                    f"the generator must yield a dict with the keys {names} for every row; "
                    f"it yielded {row!r:.200}"
                )
            if row.keys() != set(names):
                check_names(list(row), names, what="the rows that the generator yielded")
        arrays = [_column([row[field.name] for row in rows], field) for field in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _of_columns(self, item: Any, form: str) -> pa.RecordBatch:
        if form == "arrow":
            if isinstance(item, pa.Table):
                item = item.combine_chunks()
                chunks = item.to_batches()
                item = chunks[0] if chunks else self.empty()
            if isinstance(item, pa.RecordBatch):
                return conform(
                    plain_batch(item, plain_schema(item.schema)), self.schema, what=_WHAT
                )
        elif isinstance(item, Mapping):
            return from_numpy(item, self.schema, what=_WHAT)
        raise SchemaError(
            f"a generator of format {form!r} yielded {type(item).__name__}; "
            "it must yield one kind of thing: rows, dicts of arrays, or record batches"
        )

    def empty(self) -> pa.RecordBatch:
        return no_rows(self.schema)

    def sample(self, context: RunContext) -> pa.RecordBatch:
        # A generator that may yield other rows next time must not run only for a sample.
        if not self.deterministic:
            return self.empty()
        return rows_of_known(self.schema, super().sample, context, self.kind)

    def describe(self, split: Split, first_row: int, end_row: int) -> str:  # noqa: ARG002
        return f"rows {first_row}..{end_row - 1} of the generator {self.function.name}"


def _column(values: list[Any], field: pa.Field) -> pa.Array:
    try:
        return of_values(values, field.type)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise SchemaError(
            f"a value that the generator yielded for column {field.name!r} does not fit its type "
            f"{field.type}: {error}"
        ) from error


def _form_of(item: Any, schema: pa.Schema) -> str:
    """Returns the format of a generator's items, found from an item and the schema."""
    if isinstance(item, pa.RecordBatch | pa.Table):
        return "arrow"
    if not isinstance(item, Mapping):
        return "rows"
    for field in schema:
        value = item.get(field.name)
        if value is None:
            continue
        return "rows" if _is_value(value, field.type) else "numpy"
    return "rows"


def _is_value(value: Any, kind: pa.DataType) -> bool:
    """True for one value of a column of that type, False for an array of them."""
    if isinstance(kind, pa.FixedShapeTensorType):
        # Both may be flat: a tensor is one list then, and an array of them has two dimensions.
        return _depth(value) == 1 or getattr(value, "shape", None) == tuple(kind.shape)
    return _depth(value) <= _depth_of_type(kind)


def _depth_of_type(kind: pa.DataType) -> int:
    """Returns how many lists are around the plain values of a column's value."""
    types = pa.types
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return 1 + _depth_of_type(kind.value_type)
    return 2 if types.is_map(kind) else 0  # a map is a list of pairs


def _depth(value: Any) -> int:
    if isinstance(value, np.ndarray | pa.Array | pa.ChunkedArray):
        return int(np.ndim(value))
    if isinstance(value, list | tuple):
        return 1 + (_depth(value[0]) if value else 0)
    return 0
