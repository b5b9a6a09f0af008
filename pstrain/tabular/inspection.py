"""Decides which columns of a sample are dense or categorical, and how large their tables are.

Pure: takes a sample and the user's wishes, returns findings. Invariant: every column is a feature,
the label, or listed as left out with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dataservice.runtime.number_arrays import to_numbers
from pstrain.errors import DataError, InvalidArgumentError
from pstrain.features import columns
from pstrain.features.bags import Pooling, is_list
from pstrain.features.schema import Category, FeatureSchema
from pstrain.tabular.preparation import Preparation, Value, numbers_of, weights_of

FEW_VALUES = 256
_MIN_BUCKETS = 64
_MAX_BUCKETS = 2**20
_ROOM = 8
_SKEW = 20.0
_KEY = re.compile(r"(^|_)(id|key|code|zip|hash)s?$", re.IGNORECASE)
_KEY_FROM = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnOptions:
    """What the user said about the columns; everything else is found out from the sample.

    ``pooling``: by column of lists, how the embeddings of a list's values become one; ``pool`` is
    for the other columns of lists. ``types``: Arrow types of columns of text files, where their
    first rows suggest a wrong type. ``weights``: the column that says how much each row counts.
    ``predict_numbers``: labels are any numbers, not two values.
    """

    label: str
    dense: Collection[str] = ()
    categorical: Collection[str] = ()
    ignore: Collection[str] = ()
    pooling: Mapping[str, Pooling] = field(default_factory=dict)
    pool: Pooling = "mean"
    types: Mapping[str, str] = field(default_factory=dict)
    weights: str | None = None
    predict_numbers: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The result of an inspection. ``reasons``: for each column, its role and the reason.

    ``label_scale``: the mean and the standard deviation of labels that are numbers.
    """

    preparation: Preparation
    schema: FeatureSchema
    label_scale: tuple[float, float] | None = None
    reasons: Mapping[str, str] = field(default_factory=dict)


def inspect(sample: pa.Table, options: ColumnOptions) -> Findings:
    """Returns the findings over a sample of the training rows.

    InvalidArgumentError if a named column is missing; DataError if the label does not have two
    values, or holds no numbers where it should, a weight is not a finite number, or no feature is
    left.
    """
    _check_names(sample.schema, options)
    labels, label_scale, meaning = _labels(sample[options.label], options)
    if options.weights is not None:
        weights_of(options.weights, sample[options.weights])
    dense: list[str] = []
    categorical: list[str] = []
    lists: list[str] = []
    kinds = {"dense": dense, "categorical": categorical, "lists": lists}
    reasons: dict[str, str] = {options.label: f"label: {meaning}"}
    for name in sample.schema.names:
        if name != options.label:
            kind, reasons[name] = _kind(name, sample[name], options)
            kinds.get(kind, []).append(name)
    if not any(kinds.values()):
        raise DataError(
            "no column is left to learn from: " + "; ".join(f"{n}: {r}" for n, r in reasons.items())
        )
    preparation = Preparation(
        label=options.label,
        label_values=labels,
        dense=tuple(dense),
        log1p=tuple(name for name in dense if _is_skewed(name, sample[name])),
        categorical=tuple(categorical),
        lists=tuple(lists),
        blank_is_null=True,
        weights=options.weights,
        types=_types(sample.schema, {options.label, *dense, *categorical, *options.types})
        | _types_of_numbers(sample.schema, options),
    )
    schema = _schema(preparation, sample, options)
    return Findings(
        preparation=preparation, schema=schema, label_scale=label_scale, reasons=reasons
    )


def _labels(
    column: pa.ChunkedArray, options: ColumnOptions
) -> tuple[tuple[Value, Value] | None, tuple[float, float] | None, str]:
    """Returns the two values or, for numbers, their scale; and words that tell what they mean."""
    if options.predict_numbers:
        mean, deviation = label_scale(options.label, column)
        meaning = f"numbers, mean {mean:,.6g}, standard deviation {deviation:,.6g}"
        return None, (mean, deviation), meaning
    negative, positive = label_values(options.label, column)
    return (negative, positive), None, f"{positive!r} is 1, {negative!r} is 0"


def label_scale(name: str, column: pa.ChunkedArray) -> tuple[float, float]:
    """Returns the mean and the standard deviation of labels; DataError unless they differ."""
    values = to_numbers(numbers_of(name, column.combine_chunks())).astype(np.float64)
    mean, deviation = float(values.mean()), float(values.std())
    if not deviation:
        raise DataError(
            f"label column {name!r} holds only the value {mean:g} in {len(values):,} rows: there "
            "is nothing to predict"
        )
    return mean, deviation


def label_values(name: str, column: pa.ChunkedArray) -> tuple[Value, Value]:
    """Returns (the value that means 0, the one that means 1): the smaller, then the larger."""
    if column.null_count:
        raise DataError(f"label column {name!r} holds {column.null_count} nulls: filter them out")
    found = column.unique().to_pylist()
    if any(value != value for value in found):
        raise DataError(f"label column {name!r} holds NaN: filter such rows out")
    shown = ", ".join(repr(value) for value in found[:6]) + (", ..." if len(found) > 6 else "")
    if len(found) == 1:
        raise DataError(
            f"label column {name!r} holds only the value {shown} in {len(column):,} rows: there "
            "is nothing to tell apart"
        )
    if len(found) != 2 or not all(isinstance(v, bool | int | float | str) for v in found):
        raise DataError(
            f"label column {name!r} must hold two values, found {len(found)}: {shown}; name "
            "another column with --label, map it to 0 and 1 or, to predict numbers, add --loss mse"
        )
    negative, positive = sorted(found)
    return negative, positive


def _check_names(schema: pa.Schema, options: ColumnOptions) -> None:
    named = {
        "--label": [options.label],
        "--dense": options.dense,
        "--categorical": options.categorical,
        "--ignore": options.ignore,
        "--weights": [] if options.weights is None else [options.weights],
    }
    present = set(schema.names)
    for option, names in (*named.items(), ("--pooling", options.pooling)):
        missing = [name for name in names if name not in present]
        if missing:
            raise InvalidArgumentError(
                f"{option} names {', '.join(map(repr, missing))}, which the data does not have; "
                f"its columns are {', '.join(schema.names)}"
            )
    for name in schema.names:
        used = [option for option, names in named.items() if name in names]
        if len(used) > 1:
            raise InvalidArgumentError(f"column {name!r} is named by {' and '.join(used)}")
    for name in options.pooling:
        if not is_list(schema.field(name).type):
            raise InvalidArgumentError(
                f"--pooling names {name!r}, which holds {schema.field(name).type}: only columns of "
                "lists are pooled"
            )


def _kind(name: str, column: pa.ChunkedArray, options: ColumnOptions) -> tuple[str, str]:
    """Returns (kind, reason); the kind is "dense", "categorical", "lists", or "" if left out."""
    type_ = column.type
    if name in options.ignore:
        return "", "left out: --ignore"
    if name == options.weights:
        return "", "weights of the rows: --weights"
    if name in options.dense:
        return "dense", "dense: --dense"
    if is_list(type_):
        return _kind_of_lists(name, type_, options)
    if name in options.categorical:
        return "categorical", "categorical: --categorical"
    if pa.types.is_floating(type_) or pa.types.is_decimal(type_):
        return "dense", f"dense: {type_}"
    if pa.types.is_integer(type_):
        return _kind_of_integers(name, column)
    if columns.is_categorical(type_):
        return "categorical", f"categorical: {type_}"
    return "", f"left out: {type_} is neither number, text nor boolean"


def _kind_of_lists(name: str, type_: pa.DataType, options: ColumnOptions) -> tuple[str, str]:
    if not columns.is_categorical(type_.value_type):
        return "", f"left out: lists of {type_.value_type} are not categories"
    return "lists", f"categorical: lists of {type_.value_type}, pooled by {_pooling(name, options)}"


def _pooling(name: str, options: ColumnOptions) -> Pooling:
    return options.pooling.get(name, options.pool)


def _kind_of_integers(name: str, column: pa.ChunkedArray) -> tuple[str, str]:
    distinct = pc.count_distinct(column).as_py()
    if distinct <= FEW_VALUES:
        return "categorical", f"categorical: integers of {distinct} values"
    if _KEY.search(name):
        return "categorical", f"categorical: integers of {distinct:,} values, named like a key"
    largest = max(abs(value or 0) for value in pc.min_max(column).as_py().values())
    if largest >= _KEY_FROM:
        return "categorical", f"categorical: integers of {distinct:,} values, as large as keys"
    return "dense", f"dense: integers of {distinct:,} values"


def _is_skewed(name: str, column: pa.ChunkedArray) -> bool:
    """True if the values have a long tail, as counts and amounts do: logarithms suit better."""
    values = _finite(name, column)
    if not len(values) or values.min() < 0:
        return False
    middle, high = np.quantile(values, [0.5, 0.995])
    return bool(high > _SKEW * max(middle, 1.0))


def _schema(preparation: Preparation, sample: pa.Table, options: ColumnOptions) -> FeatureSchema:
    categorical = {}
    for name in preparation.categorical:
        holds = columns.kind_of(sample[name].type)
        categorical[name] = Category(_buckets(sample[name]), holds=holds)
    for name in preparation.lists:
        buckets, holds = _buckets(pc.list_flatten(sample[name])), columns.kind_of(sample[name].type)
        categorical[name] = Category(buckets, pooling=_pooling(name, options), holds=holds)
    normalization = {}
    for name in preparation.dense:
        values = _finite(name, sample[name])
        values = np.log1p(values) if name in preparation.log1p else values
        std = float(values.std()) if len(values) else 1.0
        normalization[name] = (float(values.mean()) if len(values) else 0.0, std or 1.0)
    return FeatureSchema(
        dense=preparation.dense,
        categorical=categorical,
        label=preparation.label,
        normalization=normalization,
    )


def _buckets(column: pa.ChunkedArray) -> int:
    """Returns a power of two with room for the values seen and for those not in the sample."""
    # Arrow counts no column without a type, which one without values may have.
    distinct = 0 if pa.types.is_null(column.type) else pc.count_distinct(column).as_py()
    rows = _ROOM * distinct
    return int(min(max(2 ** int(np.ceil(np.log2(max(rows, 1)))), _MIN_BUCKETS), _MAX_BUCKETS))


def _finite(name: str, column: pa.ChunkedArray) -> Any:
    try:
        numbers = column.drop_null().cast(pa.float32(), safe=False).combine_chunks()
    except pa.ArrowException as error:
        raise InvalidArgumentError(
            f"dense column {name!r} must hold numbers, it holds {column.type}: {error}"
        ) from error
    values = to_numbers(numbers).astype(np.float64)
    return values[np.isfinite(values)]


def _types(schema: pa.Schema, used: Collection[str]) -> dict[str, str]:
    return {f.name: str(f.type) for f in schema if f.name in used and _has_alias(f.type)}


def _types_of_numbers(schema: pa.Schema, options: ColumnOptions) -> dict[str, str]:
    """Returns the type of a label of numbers: other files may have fractions where one has none."""
    is_whole = pa.types.is_integer(schema.field(options.label).type)
    return {options.label: "double"} if options.predict_numbers and is_whole else {}


def _has_alias(type_: pa.DataType) -> bool:
    try:
        return bool(pa.type_for_alias(str(type_)) == type_)
    except ValueError:
        return False
