"""Plans that read less: what is pushed down to the files, and that the rows stay the same."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataservice import Dataset, col, lit
from dataservice.dataset.expressions import Expression
from dataservice.dataset.operators import Filter, Project, Rename
from dataservice.dataset.optimise import optimise
from dataservice.errors import MissingColumnError, SchemaError

NAMES = ["a", "b", "c"]
TABLE = pa.table({"a": [0, 1, 2, None], "b": [3.5, None, -1.0, 0.0], "c": [5, 4, 3, 2]})


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file with a row group for each row."""
    path = tmp_path_factory.mktemp("files") / "rows.parquet"
    pq.write_table(TABLE, path, row_group_size=1)
    return str(path)


def rows_of(data: Dataset) -> list[dict[str, Any]]:
    return data.to_table().to_pylist()


@st.composite
def renames(draw: st.DrawFn) -> dict[str, str]:
    """Valid ones of the three columns, which may exchange names or keep them."""
    new = draw(st.permutations([*NAMES, "d", "e", "f"]))[:3]
    pairs = list(zip(NAMES, new, strict=True))
    stay = [name for name in NAMES if name == dict(pairs)[name]]
    return {old: name for old, name in pairs if old not in stay or draw(st.booleans())}


def conditions(names: list[str]) -> st.SearchStrategy[Expression]:
    column = st.sampled_from(names).map(col)
    leaf = st.one_of(
        st.builds(lambda c, v: c > v, column, st.integers(-1, 5)),
        st.builds(lambda c, d: c == d, column, column),
        st.builds(lambda c: c.is_null(), column),
        st.builds(lambda c: c.fill_null(1).is_in([1, 2]), column),
    )
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.builds(lambda x, y: x & y, inner, inner),
            st.builds(lambda x, y: x | y, inner, inner),
            st.builds(lambda x: ~x, inner),
        ),
        max_leaves=4,
    )


@given(st.data(), renames())
def test_filter_behind_rename_keeps_the_same_rows_and_is_pushed_down(
    path: str, data: st.DataObject, names: dict[str, str]
) -> None:
    files, table = Dataset.from_parquet(path).rename(names), Dataset.from_table(TABLE).rename(names)
    condition = data.draw(conditions(table.schema.names))
    filtered = files.filter(condition)
    assert rows_of(filtered) == rows_of(table.filter(condition))
    plan: Any = optimise(filtered.node)
    assert isinstance(plan, Rename)
    assert plan.input.filter is not None


def test_filter_behind_several_renames_skips_row_groups(path: str) -> None:
    data = Dataset.from_parquet(path).rename({"a": "x"}).rename({"x": "c", "c": "a"})
    for condition in (col("c") > 1, (col("c") > 1) & (col("a") == 3)):
        plan: Any = optimise(data.filter(condition).node)
        assert [type(node).__name__ for node in (plan, plan.input)] == ["Rename", "Rename"]
        assert sum(len(split.row_groups) for split in plan.input.input.plan()) == 1
        assert rows_of(data.filter(condition)) == [{"c": 2, "b": -1.0, "a": 3}]


@pytest.mark.parametrize(
    ("names", "condition", "error"),
    [
        ({"a": "d"}, col("a") > 0, MissingColumnError),
        ({"a": "d", "b": "d"}, col("d") > 0, SchemaError),
        ({"a": "b"}, col("b") > 0, SchemaError),
        ({"z": "d"}, col("c") > 0, MissingColumnError),
    ],
)
def test_errors_behind_a_rename_stay_errors(
    path: str, names: dict[str, str], condition: Expression, error: type[Exception]
) -> None:
    with pytest.raises(error):
        rows_of(Dataset.from_parquet(path).rename(names).filter(condition))


def test_filter_behind_rename_of_columns_that_are_not_read_stays(path: str) -> None:
    data = Dataset.from_parquet(path, columns=["b"]).rename({"b": "x"}).filter(col("c") > 0)
    assert isinstance(optimise(data.node), Filter)
    functions = Dataset.from_parquet(path).rename({"a": "x"}).filter(lambda c: c["c"] > 3)
    assert isinstance(optimise(functions.node), Filter)


def test_map_with_expressions_reads_only_their_columns(path: str) -> None:
    data = Dataset.from_parquet(path).map({"x": col("c") * 2, "y": col("a")})
    plan: Any = optimise(data.node)
    assert isinstance(plan, Project)
    assert plan.input.columns == ("a", "c")
    assert rows_of(data)[:2] == [{"x": 10, "y": 0}, {"x": 8, "y": 1}]
    constant = Dataset.from_parquet(path).map({"one": lit(1)})
    assert rows_of(constant) == [{"one": 1}] * 4
    beyond = Dataset.from_parquet(path, columns=["a"]).map({"x": col("c")})
    with pytest.raises(MissingColumnError):
        rows_of(beyond)
