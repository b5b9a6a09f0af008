"""The demo's flight records: their rows and columns, and that they are written only once."""

from __future__ import annotations

import pathlib

import pyarrow.parquet as pq
import pytest

from pstrain.demo import flights


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> flights.FlightFiles:
    return flights.prepare(tmp_path_factory.mktemp("flights"))


def test_prepare_writes_the_fixed_split_of_rows(files: flights.FlightFiles) -> None:
    assert (files.rows_train, files.rows_test) == (262_242, 65_104)
    assert files.written


def test_columns_hold_only_values_known_before_departure(files: flights.FlightFiles) -> None:
    names = set(pq.read_schema(files.test).names)
    assert names == {flights.LABEL, *flights.NUMERIC, *flights.CATEGORICAL}
    assert not names & {"dep_delay", "dep_time", "arr_time", "arr_delay", "air_time", "day"}


def test_labels_are_binary_and_weather_is_rarely_missing(files: flights.FlightFiles) -> None:
    table = pq.read_table(files.test)
    late = table[flights.LABEL].to_numpy()
    assert set(late) == {0, 1}
    assert 0.2 < late.mean() < 0.3
    assert table["temp"].null_count / len(table) < 0.02


def test_training_rows_are_shuffled_over_all_months(files: flights.FlightFiles) -> None:
    months = pq.read_table(files.train.replace("*", "0"))["month"].to_numpy()
    assert set(months[:500]) == set(range(1, 13))


def test_second_prepare_reuses_the_files(files: flights.FlightFiles) -> None:
    again = flights.prepare(pathlib.Path(files.test).parent)
    assert not again.written
    assert (again.rows_train, again.rows_test) == (files.rows_train, files.rows_test)
