"""Turns a user's rows into the columns that a model reads, and keeps the rules for it as JSON.

Knows nothing of files of rows or of models. Invariant: training, evaluation and prediction prepare
rows by the same rules, restored from the model's folder, so that a row always becomes the same
features.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dataservice.runtime.number_arrays import from_numbers
from pstrain.errors import DataError, InvalidArgumentError, NotFoundError
from pstrain.features.bags import is_list
from pstrain.features.columns import number_labels
from pstrain.features.weighting import finite_weights

FILE = "preparation.json"
_FORMAT = 1
_TUPLES = ("label_values", "dense", "log1p", "categorical", "lists")

Value = bool | int | float | str


def is_in(folder: str | os.PathLike[str]) -> bool:
    """True if a folder holds the rules of a preparation, so that `pstrain train` made it."""
    return (Path(folder) / FILE).exists()


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """The rules that turn a batch into features; callable, for ``map(..., format="arrow")``.

    ``label_values``: the value that means 0 and the one that means 1; None if labels are any
    numbers. ``log1p``: the dense columns that are replaced by log(1 + value), negative values by
    -log(1 - value). ``lists``: the categorical columns with several values in a row. ``types``: the
    columns' Arrow types in training; a category that arrives with another type is converted back,
    such as integers that pandas wrote as floats because of nulls. ``blank_is_null``: an empty text
    counts as null, because CSV files write nulls so. ``weights``: the column that says how much
    each row counts in training.
    """

    label: str
    label_values: tuple[Value, Value] | None
    dense: tuple[str, ...] = ()
    log1p: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    types: Mapping[str, str] = field(default_factory=dict)
    blank_is_null: bool = False
    weights: str | None = None

    @property
    def predicts_numbers(self) -> bool:
        """True if labels are numbers, False if there are two of them, of any type."""
        return self.label_values is None

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the feature columns."""
        return (*self.dense, *self.categorical, *self.lists)

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the features, and the label and weights if the batch has them.

        Labels are int8 0 and 1, or numbers as float32.
        """
        self.check_columns(batch.schema.names)
        prepared: dict[str, pa.Array] = {}
        for name in self.dense:
            # Unsafe, as a safe cast refuses integers of 2^24 and more.
            values = _cast(name, batch.column(name), pa.float32(), safe=False)
            prepared[name] = _logarithm(values) if name in self.log1p else values
        for name in self.categorical:
            values = _category(name, batch.column(name), self.types.get(name))
            is_text = self.blank_is_null and pa.types.is_string(values.type)
            prepared[name] = _without_blanks(values) if is_text else values
        for name in self.lists:
            prepared[name] = _categories(name, batch.column(name))
        if self.label in batch.schema.names:
            prepared[self.label] = self._labels(batch.column(self.label))
        if self.weights is not None and self.weights in batch.schema.names:
            prepared[self.weights] = weights_of(self.weights, batch.column(self.weights))
        return pa.RecordBatch.from_pydict(prepared)

    def features(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the features alone: the label of rows to predict may be of any type."""
        names = batch.schema.names
        kept = [name for name in names if name not in (self.label, self.weights)]
        return self(batch if kept == names else batch.select(kept))

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes these rules into a folder, whole or not at all."""
        path = Path(folder) / FILE
        partial = path.with_name(f".{FILE}.{os.getpid()}")
        partial.write_text(json.dumps({"format": _FORMAT, **asdict(self)}, indent=1))
        os.replace(partial, path)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Preparation:
        """Reads what :meth:`save` wrote. NotFoundError without it, DataError if it is damaged."""
        path = Path(folder) / FILE
        if not path.exists():
            raise NotFoundError(
                f"no {FILE} in {str(folder)!r}: name the folder that `pstrain train --out` "
                "wrote; a model of your own program, as of a torch module, is evaluated there: "
                "restore the checkpoint and call model.evaluate(data) or model.predict(data)"
            )
        try:
            value: dict[str, Any] = json.loads(path.read_text())
            if value.pop("format") != _FORMAT:
                raise DataError(f"{path} was written by another version of pstrain")
            for key in _TUPLES:
                value[key] = None if value[key] is None else tuple(value[key])
            return cls(**value)
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path} is damaged ({error}): train again") from error

    def check_columns(self, names: Sequence[str]) -> None:
        """Raises InvalidArgumentError if ``names``, of columns, lack that of a feature."""
        missing = [name for name in self.columns if name not in names]
        if missing:
            raise InvalidArgumentError(
                f"the rows lack {', '.join(missing)}, which the model was trained on; they have "
                f"{', '.join(names) or 'no column that it reads'}"
            )

    def _labels(self, column: pa.Array) -> pa.Array:
        if self.label_values is None:
            return numbers_of(self.label, column)
        values = _plain(column)
        if pa.types.is_float16(values.type):
            values = values.cast(pa.float32())  # Arrow compares none of half precision
        if values.null_count:
            raise DataError(
                f"label column {self.label!r} holds {values.null_count} nulls: filter them out"
            )
        negative, positive = map(_scalar, self.label_values)
        try:
            is_positive = pc.equal(values, positive)
            is_known = pc.or_(is_positive, pc.equal(values, negative))
        except pa.ArrowException as error:
            raise DataError(
                f"label column {self.label!r} holds {values.type}; in training its values were "
                f"{self.label_values[0]!r} and {self.label_values[1]!r}"
            ) from error
        if not pc.all(is_known, min_count=0).as_py():
            found = ", ".join(repr(value) for value in values.unique()[:6].to_pylist())
            raise DataError(
                f"label column {self.label!r} must hold the two values "
                f"{self.label_values[0]!r} and {self.label_values[1]!r}, found {found}"
            )
        return is_positive.cast(pa.int8())


def numbers_of(name: str, column: pa.Array) -> pa.Array:
    """Returns labels as finite float32; DataError for nulls and for what is no number."""
    values = _cast(name, column, pa.float64()) if pa.types.is_decimal(column.type) else column
    return from_numbers(number_labels(name, values))


def weights_of(name: str, column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Returns the weights as float32; DataError unless all are finite numbers."""
    return from_numbers(finite_weights(f"weights of column {name!r}", column))


def _category(name: str, column: pa.Array, trained: str | None) -> pa.Array:
    values = _plain(column)
    if trained is not None:
        values = _as_trained(name, values, pa.type_for_alias(trained))
    # Unsafe casts: ids beyond int64 keep their bits, and bytes that are no text stay as they are.
    if pa.types.is_integer(values.type) or pa.types.is_boolean(values.type):
        return _cast(name, values, pa.int64(), safe=False)
    return _cast(name, values, pa.string(), safe=False)


def _logarithm(values: pa.Array) -> pa.Array:
    # The sample that suggested it had no negative values, but other rows may have them.
    return pc.multiply(pc.sign(values), pc.log1p(pc.abs(values)))


def _without_blanks(values: pa.StringArray) -> pa.Array:
    # Most columns have none, and of one row each of Arrow's functions takes longer than this look.
    if not len(values):
        return values
    ends = np.frombuffer(values.buffers()[1], np.int32, len(values) + 1, 4 * values.offset)
    if (ends[1:] != ends[:-1]).all():
        return values
    return pc.if_else(pc.equal(values, _BLANK), _NULL, values)


def _scalar(value: Value) -> pa.Scalar:
    """Makes a scalar without `pa.scalar`, which imports pandas: half a second per data worker."""
    if not isinstance(value, str):
        return from_numbers(np.array([value]))[0]
    text = value.encode()
    ends = np.array([0, len(text)], np.int32)
    return pa.StringArray.from_buffers(1, pa.py_buffer(ends), pa.py_buffer(text))[0]


_BLANK = _scalar("")
_NULL = pa.nulls(1, pa.string())[0]


def _as_trained(name: str, values: pa.Array, trained: pa.DataType) -> pa.Array:
    """Casts numbers and booleans to their kind in training, of any width; leaves others alone."""
    is_whole = pa.types.is_integer(values.type) or pa.types.is_boolean(values.type)
    if pa.types.is_integer(trained):
        wide = pa.uint64() if pa.types.is_uint64(trained) else pa.int64()
        return values if is_whole else _cast(name, values, wide)
    if pa.types.is_boolean(trained):
        return values if is_whole else _cast(name, values, trained)
    if pa.types.is_floating(trained) and is_whole:
        return _cast(name, values, trained)
    return values


def _categories(name: str, column: pa.Array) -> pa.Array:
    if not is_list(column.type):
        raise InvalidArgumentError(
            f"column {name!r} holds {column.type}, the model was trained on lists"
        )
    one = column.type.value_type
    one = one.value_type if pa.types.is_dictionary(one) else one
    is_number = pa.types.is_integer(one) or pa.types.is_boolean(one)
    return _cast(name, column, pa.list_(pa.int64() if is_number else pa.string()))


def _plain(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _cast(name: str, column: pa.Array, type_: pa.DataType, *, safe: bool = True) -> pa.Array:
    plain = _plain(column)
    if plain.type == type_:
        return plain
    try:
        return plain.cast(type_, safe=safe)
    except pa.ArrowException as error:
        raise InvalidArgumentError(
            f"column {name!r} holds {column.type}, which does not become {type_}: {error}"
        ) from error
