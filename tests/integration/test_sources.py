"""File sources on real files: what they read, what they skip, and every way a file can be bad."""

from __future__ import annotations

import datetime
import gzip
import os
import pathlib
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataservice.dataset.dataset import Dataset
from dataservice.dataset.division.linearise import linearise
from dataservice.dataset.division.splits import open_window, plan_splits
from dataservice.dataset.expressions import col
from dataservice.dataset.node import UNKNOWN_CARDINALITY
from dataservice.dataset.optimise import optimise
from dataservice.dataset.stream import RunContext
from dataservice.errors import SchemaError, SourceError, UserFunctionError
from tests.planned_windows import plan_windows
from tests.unit.dataservice.dataset.checkpoint_checker import check_positions, run, values

ROWS = 3_000
FILES = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Three files of 1,000 rows; the last in row groups of 20, with pandas metadata."""
    folder = tmp_path_factory.mktemp("parquet")
    for number in range(FILES):
        first = number * 1_000
        table = pa.table(
            {
                "x": pa.array(range(first, first + 1_000), pa.int64()),
                "f": pa.array(np.linspace(0, 1, 1_000, dtype=np.float32)),
                "s": pa.array([f"name {x % 7}" for x in range(1_000)]),
            }
        )
        pq.write_table(table, folder / f"part-{number}.parquet", row_group_size=400)
    pq.write_table(
        table.replace_schema_metadata({"pandas": "{}"}),
        folder / "part-2.parquet",
        row_group_size=20,
        use_dictionary=False,
    )
    return folder


def parquet(folder: pathlib.Path, **arguments: Any) -> Dataset:
    return Dataset.from_parquet(str(folder / "*.parquet"), **arguments)


def write(path: pathlib.Path, columns: dict[str, Any], **arguments: Any) -> str:
    pq.write_table(pa.table(columns), path, **arguments)
    return str(path)


class TestParquet:
    def test_rows_and_schema_of_every_form_of_paths(self, folder: pathlib.Path) -> None:
        for paths in (
            str(folder),
            str(folder / "part-*.parquet"),
            [str(folder / f"part-{n}.parquet") for n in range(FILES)],
            folder / "part-?.parquet",
            f"file://{folder}/part-*.parquet",
        ):
            dataset = Dataset.from_parquet(paths)  # type: ignore[arg-type]
            assert values(run(dataset)) == list(range(ROWS))
            assert dataset.cardinality() == ROWS
        assert parquet(folder).schema == pa.schema(
            [("x", pa.int64()), ("f", pa.float32()), ("s", pa.string())]
        )
        assert not parquet(folder).schema.metadata

    def test_reading_resumes_at_every_position(self, folder: pathlib.Path) -> None:
        check_positions(parquet(folder))
        check_positions(parquet(folder, columns=["x"], filter=col("x") % 2 == 0).batch(256))
        check_positions(parquet(folder).select("x").shuffle(300, seed=3).batch(256), epoch=2)

    def test_selected_columns_keep_their_order(self, folder: pathlib.Path) -> None:
        dataset = parquet(folder, columns=["s", "x"])
        assert dataset.schema.names == ["s", "x"]
        assert run(dataset)[0].schema.names == ["s", "x"]
        pushed = optimise(parquet(folder).select(["s", "x"]).filter(col("x") < 2).node)
        assert pushed.kind == "parquet"
        assert [b.to_pydict() for b in run(pushed)] == [{"s": ["name 0", "name 1"], "x": [0, 1]}]

    def test_filter_skips_row_groups_and_rows(self, folder: pathlib.Path) -> None:
        dataset = parquet(folder, columns=["f"], filter=(col("x") >= 2_500) & (col("x") % 2 == 0))
        node: Any = dataset.node
        planned = node.plan()
        assert [os.path.basename(split.path) for split in planned] == ["part-2.parquet"]
        assert planned[0].row_groups == tuple(range(25, 50))
        assert sum(batch.num_rows for batch in run(dataset)) == 250
        assert run(dataset)[0].schema.names == ["f"]
        assert dataset.cardinality() == UNKNOWN_CARDINALITY
        assert run(parquet(folder, filter=col("x") > 10**9)) == []
        assert parquet(folder, filter=col("x") > 10**9).schema == parquet(folder).schema

    def test_filters_on_datetimes_and_nulls(self, tmp_path: pathlib.Path) -> None:
        days = [datetime.datetime(2024, 1, day) for day in range(1, 21)]
        path = write(tmp_path / "t.parquet", {"t": days, "n": [None, 1] * 10}, row_group_size=5)
        dataset = Dataset.from_parquet(path, filter=col("t") >= datetime.datetime(2024, 1, 18))
        assert values(run(dataset), "t") == days[17:]
        assert (
            values(run(Dataset.from_parquet(path, filter=col("n").is_null())), "n") == [None] * 10
        )
        with pytest.raises(SchemaError, match=r"col\('t'\)"):
            run(Dataset.from_parquet(path, filter=col("t") > "soon"))

    def test_shuffle_permutes_files_and_row_groups(self, folder: pathlib.Path) -> None:
        dataset = parquet(folder).shuffle(10, seed=1)
        first, second = values(run(dataset)), values(run(dataset, epoch=1))
        assert sorted(first) == sorted(second) == list(range(ROWS))
        assert [x // 400 for x in first[::400]] != [x // 400 for x in second[::400]]

    def test_windows_give_every_row_once(self, folder: pathlib.Path) -> None:
        dataset = parquet(folder).filter(col("x") % 3 == 0).shuffle(50, seed=1)
        linear = linearise(dataset.node)
        splits = plan_splits(linear)
        assert [split.row_groups for split in splits[:3]] == [
            (0, 1, 2),
            (0, 1, 2),
            tuple(range(50)),
        ]
        rows: list[int] = []
        for window in plan_windows(linear, splits, 0):
            with open_window(
                linear, window.splits, epoch=0, window_index=window.index, context=RunContext()
            ) as stream:
                rows += values(list(stream))
        assert Counter(rows) == Counter(range(0, ROWS, 3))

    def test_skip_and_take_cut_row_groups(self, folder: pathlib.Path) -> None:
        linear = linearise(parquet(folder).skip(390).take(1_700).node)
        rows: list[int] = []
        for window in plan_windows(linear, plan_splits(linear), 0):
            with open_window(
                linear, window.splits, epoch=0, window_index=window.index, context=RunContext()
            ) as stream:
                rows += values(list(stream))
        assert rows == list(range(390, 2_090))

    def test_large_row_groups_are_separate_splits(self, tmp_path: pathlib.Path) -> None:
        path = write(tmp_path / "a.parquet", {"x": np.arange(100_000)}, row_group_size=15_000)
        splits = plan_splits(linearise(Dataset.from_parquet(path).node))
        assert [split.row_groups for split in splits] == [(0,), (1,), (2,), (3,), (4,), (5,), (6,)]
        assert [split.rows for split in splits] == [15_000] * 6 + [10_000]

    def test_files_with_other_column_order_or_dictionaries_are_read(
        self, tmp_path: pathlib.Path
    ) -> None:
        write(tmp_path / "a.parquet", {"x": [1], "s": pa.array(["u"]).dictionary_encode()})
        write(tmp_path / "b.parquet", {"s": ["v"], "x": [2]})
        dataset = Dataset.from_parquet(str(tmp_path))
        assert dataset.to_table().to_pydict() == {"x": [1, 2], "s": ["u", "v"]}

    def test_empty_files_give_no_rows(self, tmp_path: pathlib.Path) -> None:
        write(tmp_path / "a.parquet", {"x": pa.array([], pa.int64())})
        dataset = Dataset.from_parquet(str(tmp_path)).map(lambda c: {"y": c["x"]}).batch(3)
        assert run(dataset) == []
        assert dataset.cardinality() == 0
        assert dataset.schema == pa.schema([("y", pa.int64())])
        assert plan_splits(linearise(dataset.node)) == []
        write(tmp_path / "b.parquet", {"x": [7]})
        assert values(run(dataset), "y") == [7]

    def test_function_error_names_file_and_rows(self, folder: pathlib.Path) -> None:
        def fail(columns: dict[str, Any]) -> Any:
            assert columns["x"][0] < 1_000
            return columns

        with pytest.raises(UserFunctionError) as caught:
            run(parquet(folder).map(fail))
        assert "part-1.parquet row group 0, 1, 2 rows 0..999" in caught.value.source


class TestBadParquet:
    def test_missing_file_is_named(self, tmp_path: pathlib.Path) -> None:
        path = str(tmp_path / "nope.parquet")
        for use in (lambda d: d.schema, run, lambda d: d.cardinality(), list):
            with pytest.raises(SourceError, match=r"no file '.*nope\.parquet'; check the path"):
                use(Dataset.from_parquet(path))
        with pytest.raises(OSError, match="nope"):
            run(Dataset.from_parquet(f"file://{path}"))

    def test_glob_or_folder_without_match_is_an_error(self, tmp_path: pathlib.Path) -> None:
        for path in (str(tmp_path / "*.parquet"), f"file://{tmp_path}/*.parquet"):
            with pytest.raises(SourceError, match=r"no file matches .*\*\.parquet"):
                run(Dataset.from_parquet(path))
        with pytest.raises(SourceError, match=r"no file that ends in \.parquet"):
            run(Dataset.from_parquet(str(tmp_path)))

    def test_unknown_protocol_is_an_error(self) -> None:
        with pytest.raises(SourceError, match=r"nosuch://bucket/a\.parquet"):
            run(Dataset.from_parquet("nosuch://bucket/a.parquet"))

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
    def test_file_without_permission_is_named(self, tmp_path: pathlib.Path) -> None:
        path = write(tmp_path / "a.parquet", {"x": [1]})
        os.chmod(path, 0)
        with pytest.raises(SourceError, match=r"permission.*a\.parquet"):
            run(Dataset.from_parquet(path))

    @pytest.mark.parametrize("content", [b"", b"PAR1", b"hello world, not parquet at all"])
    def test_file_that_is_not_parquet_is_named(
        self, tmp_path: pathlib.Path, content: bytes
    ) -> None:
        path = tmp_path / "a.parquet"
        path.write_bytes(content)
        with pytest.raises(SourceError, match=r"a\.parquet' is not a readable Parquet file"):
            run(Dataset.from_parquet(str(path)))

    def test_truncated_file_is_named(self, tmp_path: pathlib.Path) -> None:
        path = write(tmp_path / "a.parquet", {"x": np.arange(10_000)})
        content = pathlib.Path(path).read_bytes()
        pathlib.Path(path).write_bytes(content[: len(content) // 2])
        with pytest.raises(SourceError, match=r"a\.parquet' is not a readable.*cut short"):
            run(Dataset.from_parquet(path))

    def test_damage_in_the_middle_names_the_row_group(self, tmp_path: pathlib.Path) -> None:
        path = write(
            tmp_path / "a.parquet",
            {"x": np.random.default_rng(1).integers(0, 2**60, 60_000)},
            row_group_size=20_000,
            compression="zstd",
        )
        file = pathlib.Path(path)
        content = bytearray(file.read_bytes())
        offset = pq.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
        content[offset : offset + 4_000] = bytes(4_000)
        file.write_bytes(bytes(content))
        with Dataset.from_parquet(path).__iter__() as iterator:
            rows: list[int] = []
            with pytest.raises(SourceError, match=r"a\.parquet', row group 1, cannot be decoded"):
                rows.extend(batch.num_rows for batch in iterator)
            assert sum(rows) == 20_000

    def test_file_changed_or_deleted_after_planning_is_an_error(
        self, tmp_path: pathlib.Path
    ) -> None:
        path = write(tmp_path / "a.parquet", {"x": [1, 2, 3]})
        linear = linearise(Dataset.from_parquet(path).node)
        splits = plan_splits(linear)
        write(tmp_path / "a.parquet", {"x": [1, 2, 3, 4, 5, 6]})
        stream = open_window(linear, splits, epoch=0, window_index=0, context=RunContext())
        with pytest.raises(SourceError, match=r"a\.parquet' has changed since it was planned"):
            next(stream)
        os.unlink(path)
        stream = open_window(linear, splits, epoch=0, window_index=0, context=RunContext())
        with pytest.raises(SourceError, match="no file"):
            next(stream)

    def test_missing_column_is_named(self, folder: pathlib.Path) -> None:
        for dataset in (
            parquet(folder, columns=["x", "nope"]),
            parquet(folder, filter=col("nope") > 1),
            parquet(folder).select("nope"),
            parquet(folder).filter(col("nope") > 1),
            parquet(folder).with_column("y", col("nope")),
        ):
            for use in (lambda d: d.schema, list):
                with pytest.raises(SchemaError, match=r"no column 'nope'.*\['x', 'f', 's'\]"):
                    use(dataset)

    def test_files_with_different_types_or_columns_are_an_error(
        self, tmp_path: pathlib.Path
    ) -> None:
        write(tmp_path / "a.parquet", {"x": [1], "y": [1.0]})
        write(tmp_path / "b.parquet", {"x": [1], "y": ["one"]})
        dataset = Dataset.from_parquet(str(tmp_path))
        message = r"'y' is of type double in '.*a\.parquet', and '.*b\.parquet' has it as string"
        for use in (run, lambda d: plan_splits(linearise(d.node))):
            with pytest.raises(SchemaError, match=message):
                use(dataset)
        assert values(run(optimise(dataset.select("x").node))) == [1, 1]
        write(tmp_path / "b.parquet", {"x": [1]})
        with pytest.raises(SchemaError, match="has no such column"):
            run(Dataset.from_parquet(str(tmp_path)))


class TestCsv:
    def test_rows_types_and_positions_of_plain_and_gzip_files(self, tmp_path: pathlib.Path) -> None:
        lines = ["x,f,s", *(f"{x},{x / 2},n{x % 3}" for x in range(200_000))]
        (tmp_path / "a.csv").write_text("\n".join(lines))
        (tmp_path / "b.csv.gz").write_bytes(gzip.compress(b"x,f,s\n200000,1.5,z\n"))
        dataset = Dataset.from_csv(str(tmp_path))
        assert dataset.schema == pa.schema(
            [("x", pa.int64()), ("f", pa.float64()), ("s", pa.string())]
        )
        assert values(run(dataset)) == list(range(200_001))
        assert len(run(dataset)) > 2
        assert dataset.cardinality() == UNKNOWN_CARDINALITY
        check_positions(dataset.batch(50_000))
        linear = linearise(dataset.node)
        windows = plan_windows(linear, plan_splits(linear), 0)
        assert [window.rows for window in windows] == [None, None]
        shuffled = dataset.shuffle(1_000, seed=1)
        assert sorted(values(run(shuffled))) == list(range(200_001))

    def test_schema_chooses_order_and_types_of_columns(self, tmp_path: pathlib.Path) -> None:
        (tmp_path / "a.csv").write_text("a,b,c\n1,2,3\n")
        schema = pa.schema([("c", pa.float32()), ("a", pa.string())])
        dataset = Dataset.from_csv(str(tmp_path / "a.csv"), schema=schema)
        assert dataset.to_table().to_pydict() == {"c": [3.0], "a": ["1"]}
        assert dataset.schema == schema

    def test_delimiter_header_and_null_values_are_respected(self, tmp_path: pathlib.Path) -> None:
        path = str(tmp_path / "a.csv")
        pathlib.Path(path).write_text("1;x\nNA;NA\n")
        dataset = Dataset.from_csv(path, delimiter=";", header=False, null_values=["NA"])
        assert list(dataset.rows()) == [{"f0": 1, "f1": "x"}, {"f0": None, "f1": None}]
        schema = pa.schema([("n", pa.int8()), ("s", pa.string())])
        named = Dataset.from_csv(
            path, schema=schema, delimiter=";", header=False, null_values=["NA"]
        )
        assert list(named.rows()) == [{"n": 1, "s": "x"}, {"n": None, "s": None}]

    def test_file_without_rows_is_empty_and_without_header_an_error(
        self, tmp_path: pathlib.Path
    ) -> None:
        path = tmp_path / "a.csv"
        path.write_text("a,b\n")
        assert run(Dataset.from_csv(str(path))) == []
        assert Dataset.from_csv(str(path)).schema.names == ["a", "b"]
        path.write_text("")
        with pytest.raises(SourceError, match=r"a\.csv' is empty"):
            run(Dataset.from_csv(str(path)))
        schema = pa.schema([("a", pa.int64())])
        assert run(Dataset.from_csv(str(path), schema=schema, header=False)) == []

    def test_type_that_changes_halfway_is_an_error_with_row_and_column(
        self, tmp_path: pathlib.Path
    ) -> None:
        path = tmp_path / "a.csv"
        lines = ["id,value", *(f"{x},{x}" for x in range(200_000)), "200000,oops"]
        path.write_text("\n".join(lines))
        with pytest.raises(SchemaError) as caught:
            run(Dataset.from_csv(str(path)))
        message = str(caught.value)
        assert "a.csv" in message
        assert "'value' of type int64" in message
        assert "oops" in message
        assert "schema=" in message
        assert "row 200001" in message
        with iter(Dataset.from_csv(str(path))) as iterator, pytest.raises(SchemaError):
            list(iterator)
        strings = pa.schema([("id", pa.int64()), ("value", pa.string())])
        assert len(values(run(Dataset.from_csv(str(path), schema=strings)), "id")) == 200_001

    def test_second_file_of_another_type_is_an_error(self, tmp_path: pathlib.Path) -> None:
        (tmp_path / "a.csv").write_text("x\n1\n")
        (tmp_path / "b.csv").write_text("x\none\n")
        with pytest.raises(SchemaError, match=r"b\.csv', row 1: column 'x' of type int64"):
            run(Dataset.from_csv(str(tmp_path)))

    def test_files_with_other_columns_are_an_error(self, tmp_path: pathlib.Path) -> None:
        (tmp_path / "a.csv").write_text("x,y\n1,2\n")
        (tmp_path / "b.csv").write_text("x,z\n1,2\n")
        with pytest.raises(SchemaError, match=r"a\.csv' has the columns \['x', 'y'\].*b\.csv"):
            run(Dataset.from_csv(str(tmp_path)))
        schema = pa.schema([("x", pa.int64()), ("nope", pa.int64())])
        with pytest.raises(SchemaError, match=r"a\.csv' lacks a column.*nope"):
            run(Dataset.from_csv(str(tmp_path / "a.csv"), schema=schema))

    def test_broken_line_or_archive_is_named(self, tmp_path: pathlib.Path) -> None:
        path = tmp_path / "a.csv"
        path.write_text("a,b\n1,2\n1,2,3\n")
        with pytest.raises(SourceError, match=r"a\.csv' cannot be read as CSV.*columns"):
            run(Dataset.from_csv(str(path)))
        whole = gzip.compress(b"a\n" + b"".join(b"%d\n" % x for x in range(100_000)))
        archive = tmp_path / "b.csv.gz"
        archive.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(SourceError, match=r"b\.csv\.gz' cannot be read"):
            run(Dataset.from_csv(str(archive)))
        archive.write_bytes(b"not gzip")
        with pytest.raises(SourceError, match=r"b\.csv\.gz' cannot be read"):
            run(Dataset.from_csv(str(archive)))

    def test_missing_file_or_column_is_named(self, tmp_path: pathlib.Path) -> None:
        with pytest.raises(SourceError, match=r"nope\.csv"):
            run(Dataset.from_csv(str(tmp_path / "nope.csv")))
        (tmp_path / "a.csv").write_text("x\n1\n")
        with pytest.raises(SchemaError, match="no column 'q'"):
            run(Dataset.from_csv(str(tmp_path / "a.csv")).select("q"))
