"""Statistics of Parquet row groups: groups that they rule out have no row that a filter keeps."""

from __future__ import annotations

import datetime
import decimal
import math
import pathlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataservice import Dataset
from dataservice.dataset.expressions import Expression, col, lit
from dataservice.dataset.pushdown import statistics_conditions
from dataservice.errors import SchemaError

SCHEMA = pa.schema([("i", pa.int64()), ("f", pa.float32()), ("s", pa.string())])


def write_row_groups(path: pathlib.Path, **columns: pa.Array) -> Dataset:
    """Writes a file with a row group for each row; returns its dataset."""
    pq.write_table(pa.table(columns), path / "rows.parquet", row_group_size=1)
    return Dataset.from_parquet(str(path / "rows.parquet"))


def count_read(data: Dataset, condition: Expression) -> int:
    source = Dataset.from_parquet(data.node.paths, filter=condition).node  # type: ignore[attr-defined]
    return sum(len(split.row_groups) for split in source.plan())  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("condition", "groups"),
    [
        (col("i") > 1, 1),
        (~(col("i") > 1), 2),
        (col("i").is_in([1, 7]), 1),
        (col("i").is_in([1.5]), 0),
        (col("i").is_null(), 1),
        (col("f") > 1, 1),
        ((col("f") == 1.5) | (col("i") == 1), 2),
        (~(col("f") != 1.5), 1),
        (col("f") != 1.5, 4),
        (~(col("f") <= 1.5), 4),
        ((col("f") > 1).is_valid(), 4),
        ((col("f") != 1.5) & (col("i") > 1), 1),
        (col("f").is_in([math.nan]), 4),
        (col("s") == "b", 1),
        (col("i") % 2 == 0, 4),
        (col("i") + 1 == 2, 4),
    ],
)
def test_only_row_groups_not_ruled_out_by_statistics_are_read(
    tmp_path: pathlib.Path, condition: Expression, groups: int
) -> None:
    data = write_row_groups(
        tmp_path,
        i=pa.array([0, 1, 2, None]),
        f=pa.array([1.5, 0.5, -2.0, None], pa.float32()),
        s=pa.array(["a", "b", None, "d"]),
    )
    assert count_read(data, condition) == groups


@pytest.mark.parametrize(
    "condition",
    [
        col("f") != 1.5,
        ~(col("f") > 0),
        ~((col("f") < 9) | (col("f") > 1)),
        ~col("f").is_in([1.5]),
        col("f").is_in([math.nan]),
        col("f") != col("f"),
        (col("f") * 0.1) != 0.15,
        col("f") != math.nan,
    ],
)
def test_pushed_down_filter_keeps_nan_rows(tmp_path: pathlib.Path, condition: Expression) -> None:
    table = pa.table({"f": pa.array([1.5, math.nan], from_pandas=False)})
    pq.write_table(table, tmp_path / "a.parquet")
    found = Dataset.from_parquet(str(tmp_path)).filter(condition).to_table()["f"].to_pylist()
    assert any(math.isnan(value) for value in found)
    assert len(found) == Dataset.from_table(table).filter(condition).to_table().num_rows


@pytest.mark.parametrize(
    "condition",
    [
        ~(col("i") < math.nan),
        ~(lit(math.nan) >= col("i")),
        (col("i") > 1) | ~(col("i") <= math.nan),
        col("i") != math.nan,
    ],
)
def test_row_groups_are_not_ruled_out_by_nan(tmp_path: pathlib.Path, condition: Expression) -> None:
    pq.write_table(pa.table({"i": [1, 2, 5]}), tmp_path / "a.parquet")
    found = Dataset.from_parquet(str(tmp_path), filter=condition).to_table()
    assert found["i"].to_pylist() == [1, 2, 5]


def test_types_with_incomparable_statistics_are_still_filtered(tmp_path: pathlib.Path) -> None:
    values = [decimal.Decimal("0.50"), None, decimal.Decimal("1.50")]
    data = write_row_groups(
        tmp_path,
        price=pa.array(values, pa.decimal128(9, 2)),
        id=pa.array([b"0" * 16, b"1" * 16, None], pa.uuid()),
    )
    assert data.filter(col("price") > 1).to_table()["price"].to_pylist() == values[2:]
    assert data.filter(col("id").is_null()).to_table()["price"].to_pylist() == values[2:]
    assert data.filter(col("price").is_null()).to_table().num_rows == 1
    with pytest.raises(SchemaError, match="cannot compute"):
        data.filter(col("price") > "a").to_table()
    with pytest.raises(SchemaError, match=r"is_in.* takes values of one type"):
        data.filter(col("price").is_in([1, "a"])).to_table()
    halves = write_row_groups(tmp_path, h=pa.array([0.5, None, 2.0], pa.float16()))
    assert halves.filter(col("h") > 1).to_table()["h"].to_pylist() == [2.0]
    assert halves.filter(col("h").is_in([0.5])).to_table()["h"].to_pylist() == [0.5]


_columns = st.sampled_from([col("i"), col("f")])
_numbers = st.sampled_from([0, 1, 1.5, 0.1, math.nan, -3, 1 << 63])
_comparisons = st.builds(
    lambda name, left, right: Expression(name, (left, lit(right))),
    st.sampled_from(["eq", "ne", "lt", "le", "gt", "ge"]),
    _columns,
    _numbers.filter(lambda number: number != 1 << 63),
)
_members = st.builds(lambda column, listed: column.is_in(listed), _columns, st.lists(_numbers))
_conditions = st.recursive(
    _comparisons | _members | st.builds(lambda column: column.is_null(), _columns),
    lambda inner: st.one_of(
        st.builds(lambda a, b: a & b, inner, inner),
        st.builds(lambda a, b: a | b, inner, inner),
        st.builds(lambda a: ~a, inner),
        st.builds(lambda a: a.is_null(), inner),
    ),
    max_leaves=6,
)
_integers = st.none() | st.integers(-3, 3)
_floats = st.none() | st.sampled_from([math.nan, 0.0, -0.0, 1.5, 0.1, -3.0, math.inf])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("statistics")


@given(st.lists(st.tuples(_integers, _floats), max_size=6), st.integers(1, 3), _conditions)
def test_pushed_down_filter_keeps_same_rows_as_plain_filter(
    folder: pathlib.Path,
    rows: list[tuple[int | None, float | None]],
    group_rows: int,
    condition: Expression,
) -> None:
    table = pa.table(
        {
            "i": pa.array([i for i, _ in rows], pa.int64()),
            "f": pa.array([f for _, f in rows], pa.float32(), from_pandas=False),
            "row": pa.array(range(len(rows)), pa.int64()),
        }
    )
    pq.write_table(table, folder / "a.parquet", row_group_size=group_rows)
    pushed = Dataset.from_parquet(str(folder / "a.parquet"), filter=condition).to_table()
    plain = Dataset.from_table(table).filter(condition).to_table()
    assert pushed["row"].to_pylist() == plain["row"].to_pylist()


def test_statistics_condition_equals_original_condition() -> None:
    (built,) = statistics_conditions(col("i").is_in([1, 2]) | (col("s") == "a"), SCHEMA)
    rows = pa.table({"i": [1, 3, 3], "s": ["b", "a", "c"]})
    assert rows.filter(built).num_rows == 2
    day = lit(datetime.date(2024, 1, 2))
    (built,) = statistics_conditions(day == day, SCHEMA)
    assert rows.filter(built).num_rows == 3
