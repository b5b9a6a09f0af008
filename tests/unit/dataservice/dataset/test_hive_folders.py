"""Folders named `day=...`: a column with their values, a filter that spares opening files."""

from __future__ import annotations

import pathlib
import secrets
from collections.abc import Iterator
from typing import Any
from unittest import mock

import fsspec
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataservice import Dataset, ShardingPolicy, col
from dataservice.dataset.dataset import Dataset as AnyDataset
from dataservice.dataset.division.linearise import linearise
from dataservice.dataset.division.splits import open_window, plan_splits
from dataservice.dataset.division.static_sharding import Share, list_sources, share_of
from dataservice.dataset.optimise import optimise
from dataservice.dataset.plan import decode_plan, encode_plan, fingerprint
from dataservice.dataset.sources import files
from dataservice.dataset.sources.files import InputFile
from dataservice.dataset.sources.hive import FolderColumns, folder_row
from dataservice.dataset.stream import RunContext
from dataservice.dataset.tolerance import tolerant
from dataservice.errors import InvalidArgumentError, SchemaError, SourceError
from tests.planned_windows import plan_windows
from tests.unit.dataservice.dataset.checkpoint_checker import check_positions

DAYS = ("2024-01-01", "2024-01-02", "2024-01-03")


def columns_of(*found: tuple[str, str]) -> pa.Schema:
    """Returns the columns noted for pairs of the given path and a file's."""
    columns = FolderColumns()
    list(columns.noting((given, InputFile(path, 0, "")) for given, path in found))
    return columns.schema()


def write(path: pathlib.Path, **columns: Any) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, row_group_size=2)
    return str(path)


@pytest.fixture
def days(tmp_path: pathlib.Path) -> pathlib.Path:
    """Three folders day=.../hour=... of a file each; `x` counts through all rows."""
    folder = tmp_path / "exp=7" / "clicks"
    for number, day in enumerate(DAYS):
        rows = range(3 * number, 3 * number + 3)
        write(folder / f"day={day}" / f"hour={number:02}" / "part-0.parquet", x=list(rows))
    return folder


def expected_rows() -> list[dict[str, Any]]:
    return [{"x": x, "day": DAYS[x // 3], "hour": x // 3} for x in range(9)]


def rows_of(data: AnyDataset) -> list[dict[str, Any]]:
    return data.to_table().to_pylist()


class TestNames:
    @pytest.mark.parametrize(
        ("texts", "kind", "values"),
        [
            (["1", "02", "-3"], pa.int64(), [1, 2, -3]),
            (["1", "__HIVE_DEFAULT_PARTITION__"], pa.int64(), [1, None]),
            (["__HIVE_DEFAULT_PARTITION__"], pa.string(), [None]),
            (["1", "b"], pa.string(), ["1", "b"]),
            (["b", "1"], pa.string(), ["b", "1"]),
            (["1", "9223372036854775808"], pa.string(), ["1", "9223372036854775808"]),
            (["-9223372036854775808"], pa.int64(), [-(2**63)]),
            (["-9223372036854775809"], pa.string(), ["-9223372036854775809"]),
            (["+1"], pa.string(), ["+1"]),
            (["1.5"], pa.string(), ["1.5"]),
            (["\u0663"], pa.string(), ["\u0663"]),
            ([""], pa.string(), [""]),
            (["a%2Fb%20c", "=d"], pa.string(), ["a/b c", "=d"]),
        ],
    )
    def test_integers_if_all_are_else_strings(
        self, texts: list[str], kind: pa.DataType, values: list[Any]
    ) -> None:
        paths = [f"t/k={text}/p.parquet" for text in texts]
        columns = columns_of(*(("t", path) for path in paths))
        assert columns == pa.schema([("k", kind)])
        assert [folder_row(path, columns)["k"][0].as_py() for path in paths] == values

    @pytest.mark.parametrize(
        ("given_path", "path", "names"),
        [
            ("a=1/t", "a=1/t/b=2/p.parquet", ["b"]),
            ("a=1/t/", "a=1/t/b=2/p.parquet", ["b"]),
            ("a=1/t/*/*.parquet", "a=1/t/b=2/p.parquet", ["a", "b"]),
            ("a=1/t/b=2/p.parquet", "a=1/t/b=2/p.parquet", ["a", "b"]),
            ("a=1/[t]", "a=1/[t]/b=2/p.parquet", ["b"]),
            ("s3://k/a=1/t", "s3://k/a=1/t/b=2/p.parquet", ["b"]),
            ("s3://k/a=1/*/*/*.parquet", "s3://k/a=1/t/b=2/p.parquet", ["a", "b"]),
            ("memory://a=1/b=2/p.parquet", "memory:///a=1/b=2/p.parquet", ["a", "b"]),
            ("memory://t/a=1", "memory:///t/a=1/b=2/p.parquet", ["b"]),
            ("/q?/t", "/q?/t/b=2/p.parquet", ["b"]),
            ("t", "t/x=1.parquet", []),
            ("t", "t/=1/p.parquet", []),
        ],
    )
    def test_names_below_a_given_folder_count_and_all_of_a_file(
        self, given_path: str, path: str, names: list[str]
    ) -> None:
        assert columns_of((given_path, path)).names == names

    def test_innermost_folder_of_a_name_counts(self) -> None:
        assert (
            folder_row("k=1/t/k=2/p.parquet", pa.schema([("k", pa.int64())]))["k"][0].as_py() == 2
        )

    def test_value_that_has_become_text_is_named(self) -> None:
        with pytest.raises(SchemaError, match=r"'k=b/p' has k 'b'.*integer.*new iteration"):
            folder_row("k=b/p", pa.schema([("k", pa.int64())]))

    def test_name_that_does_not_decode_is_named(self) -> None:
        with pytest.raises(SourceError, match=r"'%ff'.*UTF-8.*partitioning=None"):
            columns_of(("t", "t/k=%ff/p.parquet"))


class TestReading:
    @pytest.mark.parametrize("form", ["folder", "files", "pattern"])
    def test_folders_are_the_last_columns(self, days: pathlib.Path, form: str) -> None:
        paths: Any = {
            "folder": str(days),
            "files": sorted(map(str, days.rglob("*.parquet"))),
            "pattern": str(days / "day=*" / "hour=*" / "*.parquet"),
        }[form]
        above = [] if form == "folder" else [("exp", pa.int64())]
        data = Dataset.from_parquet(paths)
        kinds = [("x", pa.int64()), *above, ("day", pa.string()), ("hour", pa.int64())]
        assert data.schema == pa.schema(kinds)
        assert data.to_table().drop_columns([name for name, _ in above]).to_pylist() == (
            expected_rows()
        )
        assert data.cardinality() == 9

    def test_they_are_as_pyarrow_reads_them(self, days: pathlib.Path) -> None:
        theirs = pads.dataset(str(days), partitioning="hive").to_table()
        assert rows_of(Dataset.from_parquet(str(days))) == theirs.to_pylist()

    @pytest.mark.parametrize(
        "columns", [["x"], ["day"], ["hour", "x"], ["x", "hour", "day"], ["day", "hour"]]
    )
    def test_columns_chooses_among_them(self, days: pathlib.Path, columns: list[str]) -> None:
        expected = [{name: row[name] for name in columns} for row in expected_rows()]
        for data in (
            Dataset.from_parquet(str(days), columns=columns),
            Dataset.from_parquet(str(days)).select(columns),
        ):
            assert data.schema.names == columns
            assert rows_of(data) == expected

    def test_positions_are_exact(self, days: pathlib.Path) -> None:
        check_positions(Dataset.from_parquet(str(days)))
        check_positions(Dataset.from_parquet(str(days), ["day"], col("hour") > 0).batch(2))

    def test_partitioning_none_ignores_names(self, days: pathlib.Path) -> None:
        data = Dataset.from_parquet(str(days), partitioning=None)
        assert data.schema.names == ["x"]
        with pytest.raises(InvalidArgumentError, match=r"partitioning.*'hive' or None.*'hiv'"):
            Dataset.from_parquet(str(days), partitioning="hiv")

    def test_files_have_the_last_word_on_a_column_of_their_own(
        self, tmp_path: pathlib.Path
    ) -> None:
        write(tmp_path / "k=1" / "p.parquet", x=[1, 2], k=["a", "b"])
        write(tmp_path / "k=2" / "p.parquet", x=[3, 4], k=["c", "d"])
        data = Dataset.from_parquet(str(tmp_path), filter=col("k") == "d")
        assert rows_of(data) == [{"x": 4, "k": "d"}]

    def test_folders_have_the_last_word_if_the_first_file_lacks_the_column(
        self, tmp_path: pathlib.Path
    ) -> None:
        write(tmp_path / "k=1" / "p.parquet", x=[1])
        write(tmp_path / "k=2" / "p.parquet", x=[2], k=["c"])
        expected = [{"x": 1, "k": 1}, {"x": 2, "k": 2}]
        assert rows_of(Dataset.from_parquet(str(tmp_path))) == expected

    def test_file_outside_of_the_folders_is_named(self, tmp_path: pathlib.Path) -> None:
        write(tmp_path / "a.parquet", x=[1])
        write(tmp_path / "k=1" / "p.parquet", x=[2])
        with pytest.raises(SchemaError, match=r"a\.parquet' lies in no folder k=.*partitioning=No"):
            rows_of(Dataset.from_parquet(str(tmp_path)))
        assert rows_of(Dataset.from_parquet(str(tmp_path), columns=["x"])) == [{"x": 1}, {"x": 2}]
        skipping = Dataset(tolerant(Dataset.from_parquet(str(tmp_path)).node))
        assert rows_of(skipping) == [{"x": 2, "k": 1}]

    def test_remote_folders(self) -> None:
        root = f"memory://hive-{secrets.token_hex(4)}/exp=7"
        for number, day in enumerate(DAYS):
            with fsspec.open(f"{root}/day={day}/p.parquet", "wb") as file:
                pq.write_table(pa.table({"x": [number]}), file)
        expected = [{"x": number, "day": day} for number, day in enumerate(DAYS)]
        assert rows_of(Dataset.from_parquet(root)) == expected
        kept = Dataset.from_parquet(f"{root}/*/*.parquet", ["x", "day"]).filter(col("exp") == 7)
        assert rows_of(Dataset.from_parquet(root, filter=col("day") > DAYS[0])) == expected[1:]
        with pytest.raises(SchemaError):
            rows_of(kept)  # its condition needs a column that was not chosen

    def test_of_many_urls_only_the_first_is_looked_at_for_the_columns(self) -> None:
        root = f"memory://hive-{secrets.token_hex(4)}"
        urls = [f"{root}/k={number}/p.parquet" for number in (0, 1, "b")]
        for url in urls:
            with fsspec.open(url, "wb") as file:
                pq.write_table(pa.table({"x": [1]}), file)
        with mock.patch.object(files, "_find_remote", wraps=files._find_remote) as find:
            assert Dataset.from_parquet(urls).schema == pa.schema(
                [("x", pa.int64()), ("k", pa.string())]
            )
        assert {call.args[0] for call in find.call_args_list} == {urls[0]}
        assert [row["k"] for row in rows_of(Dataset.from_parquet(urls))] == ["0", "1", "b"]


class TestFilter:
    @pytest.mark.parametrize(
        ("condition", "kept"),
        [
            (col("day") == DAYS[1], [3, 4, 5]),
            (col("hour") >= 1, [3, 4, 5, 6, 7, 8]),
            ((col("hour") == 0) | (col("day") == DAYS[2]), [0, 1, 2, 6, 7, 8]),
            ((col("hour") % 2 == 1) & (col("x") > 3), [4, 5]),
            (col("hour").is_null(), []),
            ([("day", "in", [DAYS[0]]), ("x", ">", 0)], [1, 2]),
        ],
    )
    @pytest.mark.parametrize("columns", [None, ["x"]])
    def test_files_that_it_excludes_are_not_opened(
        self, days: pathlib.Path, condition: Any, kept: list[int], columns: list[str] | None
    ) -> None:
        # Damaged except for the first one, which tells the columns, and those that are needed.
        for path in list(days.rglob("*.parquet")):
            number = DAYS.index(path.parent.parent.name.removeprefix("day="))
            if number and not any(x // 3 == number for x in kept):
                path.write_bytes(b"no Parquet")
        data = Dataset.from_parquet(str(days), columns, filter=condition)
        assert [row["x"] for row in rows_of(data)] == kept

    def test_filter_operator_and_select_reach_the_files(self, days: pathlib.Path) -> None:
        data = Dataset.from_parquet(str(days)).filter(col("day") == DAYS[2]).select(["x"])
        source: Any = optimise(data.node)
        assert [split.path for split in source.plan()] == [
            str(days / f"day={DAYS[2]}" / "hour=02" / "part-0.parquet")
        ]
        assert rows_of(data) == [{"x": 6}, {"x": 7}, {"x": 8}]

    def test_null_folder_is_dropped_by_comparison_and_found_by_is_null(
        self, tmp_path: pathlib.Path
    ) -> None:
        write(tmp_path / "k=1" / "p.parquet", x=[1])
        write(tmp_path / "k=__HIVE_DEFAULT_PARTITION__" / "p.parquet", x=[2])
        for condition, kept in ((col("k") != 5, [1]), (col("k").is_null(), [2])):
            data = Dataset.from_parquet(str(tmp_path), filter=condition)
            assert [row["x"] for row in rows_of(data)] == kept


conditions = st.recursive(
    st.one_of(
        st.builds(lambda v: col("hour") >= v, st.integers(-1, 3)),
        st.builds(lambda v: col("day") == v, st.sampled_from([*DAYS, "z"])),
        st.builds(lambda v: col("x") < v, st.integers(0, 9)),
        st.builds(lambda v: col("hour").is_in(v), st.lists(st.integers(0, 3), max_size=2)),
    ),
    lambda inner: st.one_of(
        st.builds(lambda a, b: a & b, inner, inner),
        st.builds(lambda a, b: a | b, inner, inner),
        st.builds(lambda a: ~a, inner),
    ),
    max_leaves=5,
)


@pytest.fixture(scope="module")
def shared_days(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("days")
    for number, day in enumerate(DAYS):
        rows = list(range(3 * number, 3 * number + 3))
        write(folder / f"day={day}" / f"hour={number}" / "p.parquet", x=rows)
    return str(folder)


@given(conditions)
def test_filter_keeps_the_rows_that_it_keeps_of_a_table(shared_days: str, condition: Any) -> None:
    whole = Dataset.from_table(pa.Table.from_pylist(expected_rows()))
    filtered = Dataset.from_parquet(shared_days, filter=condition)
    assert rows_of(filtered) == rows_of(whole.filter(condition))


class TestDivision:
    @pytest.mark.parametrize("policy", [ShardingPolicy.FILE, ShardingPolicy.DATA])
    @pytest.mark.parametrize("optimised_first", [True, False])
    def test_static_shares_have_the_columns_of_the_whole(
        self, days: pathlib.Path, policy: ShardingPolicy, optimised_first: bool
    ) -> None:
        # A share of one folder alone would take its name for an integer.
        write(days / "day=5" / "hour=9" / "part-0.parquet", x=[99])
        data = Dataset.from_parquet(str(days)).filter(col("x") >= 0)
        plan = optimise(data.node) if optimised_first else data.node
        listing = list_sources(plan, policy, 2)
        shares = [
            Dataset(optimise(share_of(plan, Share(policy, index, 2, listing)))) for index in (0, 1)
        ]
        assert [share.schema.names for share in shares] == [["x", "day", "hour"]] * 2
        rows = sorted((row for share in shares for row in rows_of(share)), key=lambda r: r["x"])
        assert rows == [*expected_rows(), {"x": 99, "day": "5", "hour": 9}]

    def test_windows_hold_every_row(self, days: pathlib.Path) -> None:
        data = Dataset.from_parquet(str(days), ["hour", "x"]).filter(col("hour") != 1)
        # A worker has the plan from the wire and reads the columns of the files again.
        planned = linearise(optimise(data.node))
        rows = [
            row
            for window in plan_windows(planned, plan_splits(planned), 0)
            for row in _rows_of_window(encode_plan(data.node), window)
        ]
        assert rows == [{"hour": x // 3, "x": x} for x in (0, 1, 2, 6, 7, 8)]


def _rows_of_window(encoded: bytes, window: Any) -> Iterator[dict[str, Any]]:
    linear = linearise(optimise(decode_plan(encoded)))
    arguments: Any = {"epoch": 0, "window_index": window.index, "context": RunContext()}
    with open_window(linear, window.splits, **arguments) as stream:
        for batch in stream:
            yield from batch.to_pylist()


@pytest.mark.parametrize("own", [[100, 100], ["5", "5"]])
def test_column_of_a_later_file_neither_counts_nor_hides_its_rows(
    tmp_path: pathlib.Path, own: list[Any]
) -> None:
    write(tmp_path / "day=1" / "a.parquet", x=[1])
    write(tmp_path / "day=2" / "b.parquet", x=[2, 3], day=own)
    data = Dataset.from_parquet(str(tmp_path))
    rows = [{"x": 2, "day": 2}, {"x": 3, "day": 2}]
    assert rows_of(data) == [{"x": 1, "day": 1}, *rows]
    assert rows_of(data.filter(col("day") == 2)) == rows
    assert rows_of(data.filter((col("day") == 2) | (col("x") > 100))) == rows


@pytest.mark.parametrize("column", ["x", "day"])
def test_filter_that_is_no_condition_is_named(days: pathlib.Path, column: str) -> None:
    with pytest.raises(SchemaError, match=rf"takes a condition, but col\('{column}'\) is of type"):
        rows_of(Dataset.from_parquet(str(days)).filter(col(column)))


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("ftp://me:pass=word@host/clicks/day=1/a.parquet",) * 2,
        ("ftp://me:pass=word@host/clicks", "ftp://host/clicks/day=1/a.parquet"),
        ("https://host/day=1/a.parquet?key=a/b=c",) * 2,
    ],
)
def test_credentials_in_a_url_are_no_columns(given: str, found: str) -> None:
    assert columns_of((given, found)) == pa.schema([("day", pa.int64())])


class TestWire:
    def test_plan_is_the_same_after_the_wire(self) -> None:
        for partitioning in ("hive", None):
            node = Dataset.from_parquet("t", partitioning=partitioning).node
            decoded: Any = decode_plan(encode_plan(node))
            assert decoded.partitioning == partitioning
            assert encode_plan(decoded) == encode_plan(node)
        others = {
            fingerprint(Dataset.from_parquet("t", partitioning=p).node) for p in ("hive", None)
        }
        assert len(others) == 2  # a cache must not take one for the other

    def test_plan_that_states_none_reads_as_before(self) -> None:
        encoded = encode_plan(Dataset.from_parquet("t", partitioning=None).node)
        field = b',"partitioning":null'
        assert field in encoded
        length = int.from_bytes(encoded[8:12], "little") - len(field)
        older = encoded[:8] + length.to_bytes(4, "little") + encoded[12:].replace(field, b"")
        decoded: Any = decode_plan(older)
        assert decoded.partitioning is None
