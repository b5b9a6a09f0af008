"""Large text files are read in parts, with the rows, errors and positions of whole files."""

from __future__ import annotations

import gzip
import itertools
import json
import pathlib
import zipfile
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from dataservice.dataset.dataset import Dataset
from dataservice.dataset.division.linearise import linearise
from dataservice.dataset.division.static_sharding import Share, share_of
from dataservice.dataset.sources import csv_text as csv_text_module
from dataservice.dataset.sources import text_parts
from dataservice.errors import InvalidArgumentError, SchemaError, SourceError, UserFunctionError
from dataservice.sharding import FILE_COST_BYTES, Split
from dataservice.vocabulary import ShardingPolicy
from tests.unit.dataservice.dataset.checkpoint_checker import check_positions

PART_BYTES = 64


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_parts, "PART_BYTES", PART_BYTES)


def csv_text(rows: range, end: str = "\n") -> str:
    return "".join(f"{i},name {i},{i / 4}{end}" for i in rows)


def json_text(rows: range, end: str = "\n") -> str:
    return "".join(
        json.dumps({"n": i, "s": f"name {i}", "f": i / 4, "l": [i] * (i % 3)}) + end for i in rows
    )


def from_csv(path: pathlib.Path, **options: Any) -> Dataset:
    return Dataset.from_csv(str(path), newlines_in_values=False, **options)


def numbers(dataset: Dataset, column: str = "n") -> list[int]:
    return dataset.to_table()[column].to_pylist()


def read_csv(path: pathlib.Path, end: str = "\n") -> Dataset:
    path.write_bytes(("n,s,f" + end + csv_text(range(200), end)).encode())
    return from_csv(path)


def read_json(path: pathlib.Path, end: str = "\n") -> Dataset:
    path.write_bytes(json_text(range(200), end).encode())
    return Dataset.from_json(str(path))


@pytest.mark.parametrize("read", [read_csv, read_json])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_large_file_has_a_split_for_each_part_and_the_rows_of_the_file(
    read: Callable[[pathlib.Path, str], Dataset], end: str, tmp_path: pathlib.Path
) -> None:
    dataset = read(tmp_path / "a", end)
    size_bytes = (tmp_path / "a").stat().st_size
    splits = list(dataset.node.splits())
    assert len(splits) == -(-size_bytes // PART_BYTES)
    assert [split.start for split in splits[1:]] == [split.stop for split in splits[:-1]]
    assert max(split.stop - split.start for split in splits) <= PART_BYTES
    assert dataset.node.plan_table() == splits
    assert numbers(dataset) == list(range(200))


@pytest.mark.parametrize("read", [read_csv, read_json])
def test_reading_in_parts_resumes_from_every_position(
    read: Callable[[pathlib.Path], Dataset], tmp_path: pathlib.Path
) -> None:
    check_positions(read(tmp_path / "a").batch(7), 0, limit=12)
    check_positions(read(tmp_path / "a").shuffle(50, seed=1).batch(7), 1, limit=12)


def test_small_files_and_large_ones_are_planned_together(tmp_path: pathlib.Path) -> None:
    for name, rows in (("a", range(1)), ("b", range(1, 100)), ("c", range(100, 101))):
        (tmp_path / f"{name}.jsonl").write_text(json_text(rows))
    dataset = Dataset.from_json(str(tmp_path / "*.jsonl"))
    splits = dataset.node.plan_table()
    stops = [split.stop for split in splits]
    assert (stops[0], stops[-1], len(stops) > 4) == (0, 0, True)
    total_bytes = sum(path.stat().st_size for path in tmp_path.iterdir())
    assert splits.total_bytes() == total_bytes + len(splits) * FILE_COST_BYTES
    assert numbers(dataset) == list(range(101))


@pytest.mark.parametrize("count", [2, 3])
def test_static_sharding_by_file_keeps_the_parts_of_a_file_together(
    count: int, tmp_path: pathlib.Path
) -> None:
    for number in range(4):
        rows = range(50 * number, 50 * number + 50)
        (tmp_path / f"{number}.jsonl").write_text(json_text(rows))
    dataset = Dataset.from_json(str(tmp_path / "*.jsonl"))
    shards = [numbers_of_shard(dataset, count, index) for index in range(count)]
    assert sorted(itertools.chain(*shards)) == list(range(200))
    assert all(len(shard) % 50 == 0 for shard in shards)


def numbers_of_shard(dataset: Dataset, count: int, index: int) -> list[int]:
    return numbers(Dataset(share_of(dataset.node, Share(ShardingPolicy.FILE, index, count))))


@pytest.mark.parametrize(
    "write",
    [
        lambda path, text: path.with_suffix(".csv.gz").write_bytes(gzip.compress(text.encode())),
        lambda path, text: path.with_suffix(".csv").write_text(text, "utf-16"),
    ],
)
def test_files_that_cannot_be_cut_are_read_whole(
    write: Callable[[pathlib.Path, str], int], tmp_path: pathlib.Path
) -> None:
    write(tmp_path / "a", "n,s,f\n" + csv_text(range(100)))
    (path,) = tmp_path.iterdir()
    dataset = from_csv(path, encoding="utf-8" if path.suffix == ".gz" else "utf-16")
    assert len(list(dataset.node.splits())) == 1
    assert numbers(dataset) == list(range(100))


def test_files_in_archives_are_read_whole(tmp_path: pathlib.Path) -> None:
    # A byte of them can be read only after all those before it.
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.csv", "n,s,f\n" + csv_text(range(100)))
    dataset = Dataset.from_csv(f"zip://a.csv::{tmp_path / 'a.zip'}", newlines_in_values=False)
    assert len(list(dataset.node.splits())) == 1
    assert numbers(dataset) == list(range(100))


def test_csv_is_read_whole_unless_values_are_said_to_have_no_line_ends(
    tmp_path: pathlib.Path,
) -> None:
    path = tmp_path / "a.csv"
    path.write_text("n,s\n" + "".join(f'{i},"two\nlines"\n' for i in range(40)))
    dataset = Dataset.from_csv(str(path))
    assert len(list(dataset.node.splits())) == 1
    assert numbers(dataset) == list(range(40))


def test_a_value_with_a_line_end_that_a_part_cuts_is_an_error(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("n,s\n" + "".join(f'{i},"{"x" * 20}\n{"y" * 20}"\n' for i in range(40)))
    with pytest.raises((SourceError, SchemaError), match=r"a\.csv"):
        numbers(from_csv(path))


@pytest.mark.parametrize("prefix", ["", "\ufeff", "\r\n\n"])
def test_every_part_of_a_csv_file_has_its_header(prefix: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(
        (prefix + "s,n,more\n").encode() + b"".join(b"x,%d,7\n" % i for i in range(90))
    )
    schema = pa.schema([("n", pa.int32()), ("s", pa.string())])
    dataset = from_csv(path, schema=schema)
    assert dataset.to_table().schema == schema
    assert numbers(dataset) == list(range(90))


def test_csv_without_a_header(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text(csv_text(range(90)).replace(",", "\t"))
    dataset = from_csv(path, header=False, delimiter="\t")
    assert numbers(dataset, "f0") == list(range(90))


def test_a_csv_file_whose_lines_end_in_returns_is_read(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(("n,s,f\r" + csv_text(range(90), "\r")).encode())
    assert numbers(from_csv(path)) == list(range(90))


def test_a_first_row_of_a_part_with_another_number_of_values_is_left_out_alone(
    tmp_path: pathlib.Path,
) -> None:
    path = tmp_path / "a.csv"
    # Every part begins with one of the rows that have too few values.
    path.write_text("0,a,b\n" + "".join(f"x,y\n{i},a,b\n" for i in range(1, 90)))
    with iter(from_csv(path, header=False, on_error="skip")) as iterator:
        rows = [i for batch in iterator for i in batch["f0"].to_pylist()]
        skipped = iterator.stats()["skipped"]
    assert rows == list(range(90))
    assert (skipped["source_rows"], skipped["splits"]) == (89, 0)


def test_lines_without_a_header_that_are_longer_than_a_read(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_parts, "_READ_BYTES", 16)
    path = tmp_path / "a.csv"
    path.write_text("".join(f"{i},{'x' * 50}\n" for i in range(90)))
    assert numbers(from_csv(path, header=False), "f0") == list(range(90))


def test_a_value_with_a_line_end_is_an_error_that_names_the_argument(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_parts, "PART_BYTES", 32 << 20)
    path = tmp_path / "a.csv"
    lines = "x" * 90 + "\n" + "y" * 90
    path.write_text("n,s\n" + "".join(f'{i},"{lines}"\n' for i in range(30_000)))
    assert path.stat().st_size > csv_text_module.BLOCK_BYTES
    with pytest.raises(SourceError, match=r"a value has the end of a line.*newlines_in_v"):
        numbers(from_csv(path))


@pytest.mark.parametrize("header", [True, False])
def test_the_line_of_an_open_quote_counts_from_the_first_of_its_part(
    header: bool, tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "a.csv"
    lines = [f"{i},name {i}\n" for i in range(90)]
    lines[50] = '50,"open\n'
    text = ("\nn,s\n" if header else "") + "".join(lines)
    path.write_text(text)
    dataset = from_csv(path, header=header)
    begin = text.find("50,")
    (part,) = (split for split in dataset.node.splits() if split.start <= begin < split.stop)
    first = text.find("\n", part.start - 1) + 1
    line = text.count("\n", first, begin) + 1
    with pytest.raises(SourceError, match=f"line {line} of the lines from byte {part.start:,} on"):
        numbers(dataset)


def test_a_row_of_too_few_values_may_be_one_of_several_lines(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('n,s\n1,"two"\nlines"\n')
    with pytest.raises(SourceError, match="newlines_in_values=False says that there is not"):
        numbers(from_csv(path))
    with pytest.raises(SourceError, match="number of columns; from_csv"):
        numbers(Dataset.from_csv(str(path)))


@pytest.mark.parametrize("read", [read_csv, read_json])
def test_errors_of_functions_say_from_which_byte_on_rows_are_counted(
    read: Callable[[pathlib.Path], Dataset], tmp_path: pathlib.Path
) -> None:
    def fail(columns: dict[str, Any]) -> dict[str, Any]:
        if 150 in columns["n"]:
            raise ValueError("no")
        return columns

    dataset = read(tmp_path / "a")
    text = (tmp_path / "a").read_text()
    begin = text.rfind("\n", 0, text.find("name 150")) + 1
    (part,) = (split for split in dataset.node.splits() if split.start <= begin < split.stop)
    named = rf"rows 0\.\.\d of the lines from byte {part.start:,} on"
    with pytest.raises(UserFunctionError, match=named):
        numbers(dataset.map(fail))


def test_batches_of_several_parts_are_described_by_their_bytes(tmp_path: pathlib.Path) -> None:
    dataset = read_json(tmp_path / "a")
    first, second, *_ = dataset.node.splits()
    linear = linearise(dataset.node)
    described = f"{first.path} lines that begin in bytes {second.start}..{second.stop - 1}"
    assert linear.describe(second) == described
    assert linear.describe(Split(path="b")) == "b"


@pytest.mark.parametrize(("split", "row"), [(0, 100), (1, 0)])
def test_a_position_of_a_version_that_read_files_whole_is_refused(
    split: int, row: int, tmp_path: pathlib.Path
) -> None:
    dataset = read_json(tmp_path / "a")
    with iter(dataset) as iterator:
        state = iterator.state_dict()
        assert state["stream"].pop("cuts")
        state["stream"].update(split=split, row=row)
        with pytest.raises(InvalidArgumentError, match=r"earlier version.*as one piece"):
            iterator.load_state_dict(state)


def test_a_position_before_all_rows_is_right_in_any_version(tmp_path: pathlib.Path) -> None:
    with iter(read_json(tmp_path / "a")) as iterator:
        state = iterator.state_dict()
        assert state["stream"].pop("cuts")
        iterator.load_state_dict(state)
        assert sum(batch.num_rows for batch in iterator) == 200


def test_a_position_of_a_version_that_read_files_whole_is_right_for_small_files(
    tmp_path: pathlib.Path,
) -> None:
    for name in range(3):
        (tmp_path / f"{name}.jsonl").write_text(f'{{"n": {name}}}\n')
    with iter(Dataset.from_json(str(tmp_path))) as iterator:
        state = iterator.state_dict()
        assert state["stream"].pop("cuts")
        state["stream"].update(split=1, row=0)
        iterator.load_state_dict(state)
        assert [batch["n"].to_pylist() for batch in iterator] == [[1], [2]]


SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string()), ("f", pa.float64())])


def stated(path: pathlib.Path, kind: str, **options: Any) -> Dataset:
    """Returns rows whose types are stated, so that only the parts are read."""
    if kind == "json":
        return Dataset.from_json(str(path), SCHEMA, **options)
    return from_csv(path, schema=SCHEMA, **options)


@pytest.mark.parametrize(("read", "kind"), [(read_csv, "csv"), (read_json, "json")])
def test_errors_say_from_which_byte_on_rows_are_counted(
    read: Callable[[pathlib.Path], Dataset], kind: str, tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "a"
    read(path)
    text = path.read_bytes().replace(b"150", b"[;]", 1)
    path.write_bytes(text)
    dataset = stated(path, kind)
    begin = text.rfind(b"\n", 0, text.find(b"[;]")) + 1
    (part,) = (split for split in dataset.node.splits() if split.start <= begin < split.stop)
    with pytest.raises((SourceError, SchemaError), match=f"of the lines from byte {part.start:,} "):
        numbers(dataset)


@pytest.mark.parametrize(("read", "kind"), [(read_csv, "csv"), (read_json, "json")])
def test_lines_that_do_not_fit_are_left_out_of_each_part(
    read: Callable[[pathlib.Path], Dataset], kind: str, tmp_path: pathlib.Path
) -> None:
    path = tmp_path / "a"
    read(path)
    lines = path.read_text().splitlines()
    for number in (20, 70, 150):
        lines[number] = "broken"
    path.write_text("\n".join(lines))
    with iter(stated(path, kind, on_error="skip")) as iterator:
        assert sum(batch.num_rows for batch in iterator) == 197
        assert iterator.stats()["skipped"]["source_rows"] == 3
