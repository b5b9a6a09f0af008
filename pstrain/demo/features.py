"""The features of a flight, as dataset operators that run on the data workers.

What is learnt from data (the ranks of the numeric columns) comes from training rows alone.
Invariant: training, test and prediction rows go through the same operators, so that equal rows have
the same features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dataservice import Dataset, col
from dataservice.runtime.number_arrays import from_numbers, scalar_of, to_numbers
from pstrain.demo.flights import LABEL, NUMERIC, WEATHER
from pstrain.features.schema import Category, FeatureSchema

_KNOTS = 256
_SPREAD = 3.4

# Ids that are used as they are, and ids that are hashed into enough buckets for few collisions.
_PLAIN = {"month": 13, "weekday": 7, "hour": 24, "minute": 60}
_HASHED = {"carrier": 2**10, "origin": 2**8, "dest": 2**12, "tailnum": 2**16, "flight": 2**14}

# Columns that tell more in combination than each alone.
_CROSSES = (
    ("origin", "hour"),
    ("carrier", "hour"),
    ("dest", "hour"),
    ("carrier", "dest"),
    ("carrier", "origin", "dest"),
    ("origin", "month"),
    ("carrier", "month"),
    ("dest", "month"),
    ("humid_bin", "wind_speed_bin"),
    ("pressure_bin", "visib_bin"),
    ("origin", "wind_dir_bin"),
)
_CROSS_BUCKETS = 2**15
_KEYS = 2**40
_BINS = 8
_NO_BIN = pa.nulls(1, pa.int64())[0]
_UNKNOWN = scalar_of(np.nan, pa.float32())

_CIRCLES = ("month_sin", "month_cos", "wind_sin", "wind_cos")
DENSE = (*NUMERIC, "clock", *_CIRCLES)

Knots = tuple[NDArray[np.float32], NDArray[np.float32]]


def schema() -> FeatureSchema:
    """Returns the columns that the model reads of the rows that :func:`operators` makes."""
    sizes = _PLAIN | _HASHED
    sizes |= {_bin(name): _BINS for name in WEATHER}
    sizes |= {"_".join(names): _CROSS_BUCKETS for names in _CROSSES}
    categorical = {name: Category(size, hashed=False) for name, size in sizes.items()}
    return FeatureSchema(dense=DENSE, categorical=categorical, label=LABEL)


def operators(flights: Dataset, ranks: Ranks) -> Dataset:
    """Returns a dataset that turns rows of flights into rows of features; nothing runs yet."""
    rows = flights.with_column(
        "clock", ((col("hour") + col("minute") / 60.0 - 13.0) / 5.0).cast("float32")
    )
    rows = rows.map(ranks, format="arrow")
    for names in _CROSSES:
        rows = rows.with_column("_".join(names), _cross(names))
    for name, buckets in _HASHED.items():
        rows = rows.with_column(name, col(name).hash(buckets))
    features = schema()
    return rows.select([LABEL, *features.dense, *features.categorical])


def _cross(names: Sequence[str]) -> Any:
    """Returns the expression for the bucket of several columns' values together."""
    key = col(names[0]).hash(_KEYS)
    for name in names[1:]:
        key = (key * 31 + col(name).hash(_KEYS)).hash(_KEYS)
    return key.hash(_CROSS_BUCKETS)


def _bin(name: str) -> str:
    return f"{name}_bin"


class Ranks:
    """A batch function that replaces numeric columns by ranks, and adds circles and bins.

    Ranks are those among the training rows, spread evenly over [-1.7, 1.7], which has a standard
    deviation near 1, so outliers and units do not matter. An unknown value becomes 0, the middle.
    Month and wind direction are added as sine and cosine, since December is next to January, and
    the weather as bins of ranks.
    """

    def __init__(self, knots: Mapping[str, Knots]) -> None:
        self.knots = dict(knots)

    @classmethod
    def of(cls, table: pa.Table, names: Sequence[str] = NUMERIC) -> Ranks:
        """Learns the ranks of the named columns of ``table``."""
        return cls({name: _knots(table[name].drop_null().to_numpy()) for name in names})

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        month = np.deg2rad(_floats(columns["month"]) * 30.0)
        wind = np.deg2rad(_floats(columns["wind_dir"]))
        for name, (values, ranks) in self.knots.items():
            found = np.interp(_floats(columns[name]), values, ranks)
            columns[name] = _column(found)
            if name in WEATHER:
                columns[_bin(name)] = _bins(found)
        circles = (np.sin(month), np.cos(month), np.sin(wind), np.cos(wind))
        columns |= {name: _column(value) for name, value in zip(_CIRCLES, circles, strict=True)}
        return pa.RecordBatch.from_pydict(columns)


def _knots(values: NDArray[np.float32]) -> Knots:
    """Returns (values, their ranks): at most ``_KNOTS``, spread evenly over the distinct values."""
    distinct, counts = np.unique(values, return_counts=True)
    if not len(distinct):
        return np.zeros(1, np.float32), np.zeros(1, np.float32)
    middle = (np.cumsum(counts) - counts / 2) / counts.sum()
    kept = np.unique(np.linspace(0, len(distinct) - 1, _KNOTS).round().astype(np.int64))
    return distinct[kept].astype(np.float32), (_SPREAD * (middle[kept] - 0.5)).astype(np.float32)


def _bins(ranks: NDArray[np.float64]) -> pa.Array:
    """Returns the number of the bin of each rank, null for NaN."""
    unknown = np.isnan(ranks)
    share = np.where(unknown, 0.0, ranks) / _SPREAD + 0.5
    bins = from_numbers(np.clip(share * _BINS, 0, _BINS - 1).astype(np.int64))
    return pc.if_else(from_numbers(unknown), _NO_BIN, bins)


def _floats(column: pa.Array) -> Any:
    """Returns the column as float32, with NaN for null."""
    return to_numbers(column.cast(pa.float32()).fill_null(_UNKNOWN))


def _column(values: NDArray[np.floating]) -> pa.Array:
    """Returns a float32 column, with 0 for NaN."""
    return from_numbers(np.nan_to_num(values).astype(np.float32))
