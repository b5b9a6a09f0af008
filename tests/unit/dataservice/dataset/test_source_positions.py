"""Every source resumes from every position: alone, in batches, and below a shuffle."""

from __future__ import annotations

import gzip
import pathlib
from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from dataservice.dataset.dataset import Dataset
from tests.unit.dataservice.dataset.checkpoint_checker import check_positions, run, values

Build = Callable[[pathlib.Path], Dataset]
FILES, ROWS = 3, 40


def tables() -> Iterator[tuple[int, pa.Table]]:
    for index in range(FILES):
        yield index, pa.table({"x": range(index * ROWS, (index + 1) * ROWS)})


def parquet(folder: pathlib.Path) -> Dataset:
    for index, table in tables():
        pq.write_table(table, folder / f"{index}.parquet", row_group_size=15)
    return Dataset.from_parquet(str(folder))


def csv(folder: pathlib.Path) -> Dataset:
    for index, table in tables():
        pyarrow.csv.write_csv(table, folder / f"{index}.csv")
    return Dataset.from_csv(str(folder))


def compressed_csv(folder: pathlib.Path) -> Dataset:
    for index, table in tables():
        lines = "\n".join(str(x) for x in table.column("x").to_pylist())
        (folder / f"{index}.csv.gz").write_bytes(gzip.compress(f"x\n{lines}\n".encode()))
    return Dataset.from_csv(str(folder / "*.csv.gz"), schema=pa.schema({"x": pa.int64()}))


def json(folder: pathlib.Path) -> Dataset:
    for index, table in tables():
        lines = "".join(f'{{"x": {x}}}\n' for x in table.column("x").to_pylist())
        (folder / f"{index}.jsonl").write_text(lines)
    return Dataset.from_json(str(folder / "*.jsonl"))


def ipc(folder: pathlib.Path) -> Dataset:
    for index, table in tables():
        pyarrow.feather.write_feather(table, str(folder / f"{index}.feather"), chunksize=15)
    return Dataset.from_ipc(str(folder / "*.feather"))


def names(folder: pathlib.Path) -> Dataset:
    for index in range(FILES * ROWS):
        (folder / f"{index:03}.txt").touch()
    return Dataset.list_files(str(folder / "*.txt")).map(
        lambda row: {"x": int(pathlib.Path(row["path"]).stem)}, format="rows"
    )


def shuffled_names(folder: pathlib.Path) -> Dataset:
    names(folder)
    listed = Dataset.list_files([str(folder / "*.txt")], shuffle=True, seed=3)
    return listed.map(lambda row: {"x": int(pathlib.Path(row["path"]).stem)}, format="rows")


def by_batches() -> Iterator[dict[str, list[int]]]:
    for _, table in tables():
        yield table.to_pydict()


BUILDS: list[Build] = [
    lambda _: Dataset.range(FILES * ROWS).rename({"id": "x"}),
    lambda _: Dataset.from_table(pa.concat_tables([table for _, table in tables()])),
    lambda _: Dataset.from_generator(by_batches, pa.schema({"x": pa.int64()})),
    parquet,
    csv,
    compressed_csv,
    json,
    ipc,
    names,
    shuffled_names,
]


@pytest.mark.parametrize("build", BUILDS)
def test_source_resumes_from_every_position(build: Build, tmp_path: pathlib.Path) -> None:
    dataset = build(tmp_path)
    for made in (dataset, dataset.batch(17), dataset.shuffle(30, seed=1).batch(17)):
        assert sorted(values(run(made))) == list(range(FILES * ROWS))
        check_positions(made)
        check_positions(made.repeat(2), epoch=1)
