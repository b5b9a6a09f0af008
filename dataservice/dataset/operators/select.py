"""Operators that choose and name columns: select and rename. They copy nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import pyarrow as pa

from dataservice.dataset.columns import require_columns
from dataservice.dataset.node import register_node
from dataservice.dataset.operators.base import RowOperator
from dataservice.dataset.stream import RunContext, Transform
from dataservice.errors import InvalidArgumentError, InvalidTypeError, SchemaError


@register_node
@dataclasses.dataclass(frozen=True, eq=False)
class Select(RowOperator):
    """Keeps the named columns, in the given order."""

    kind: ClassVar[str] = "select"
    columns: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", _names(self.columns))

    @property
    def ignores_batches(self) -> bool:
        return True

    def transform(self, context: RunContext) -> Transform:  # noqa: ARG002
        names = list(self.columns)

        def apply(batch: pa.RecordBatch, _location: Callable[[], str]) -> pa.RecordBatch:
            require_columns(names, batch.schema.names, what="select")
            return batch.select(names)

        return apply


def _names(value: Any) -> tuple[str, ...]:
    """Returns one or several names as a tuple; raises for no names and for a repeated name."""
    names = value if isinstance(value, list | tuple) else (value,)
    if not names or not all(isinstance(name, str) for name in names):
        raise InvalidTypeError(f"select takes column names, got {value!r}")
    if len(set(names)) < len(names):
        raise InvalidArgumentError(f"select got a column twice: {list(names)}")
    return tuple(names)


@register_node
@dataclasses.dataclass(frozen=True, eq=False)
class Rename(RowOperator):
    """Renames columns; those not mentioned keep their names."""

    kind: ClassVar[str] = "rename"
    names: Mapping[str, str]

    def __post_init__(self) -> None:
        pairs = self.names.items() if isinstance(self.names, Mapping) else [(None, None)]
        if not all(isinstance(name, str) for pair in pairs for name in pair):
            raise InvalidTypeError(
                f"rename takes a dict of old to new column names, got {self.names!r}"
            )
        object.__setattr__(self, "names", dict(self.names))

    @property
    def ignores_batches(self) -> bool:
        return True

    def transform(self, context: RunContext) -> Transform:  # noqa: ARG002
        def apply(batch: pa.RecordBatch, _location: Callable[[], str]) -> pa.RecordBatch:
            require_columns(list(self.names), batch.schema.names, what="rename")
            renamed = [self.names.get(name, name) for name in batch.schema.names]
            if len(set(renamed)) < len(renamed):
                raise SchemaError(f"rename gives two columns one name: {renamed}")
            return batch.rename_columns(renamed)

        return apply
