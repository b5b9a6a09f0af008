"""Shares of a plan under the static policies: disjoint, complete, and refused with the reason."""

from __future__ import annotations

import os
import pathlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dataservice import SHARD_HINT, ShardingPolicy
from dataservice.dataset.dataset import Dataset
from dataservice.dataset.division.static_sharding import (
    Share,
    check_policy,
    effective_policy,
    list_sources,
    share_of,
)
from dataservice.dataset.optimise import optimise
from dataservice.dataset.tolerance import tolerant
from dataservice.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    SchemaError,
)
from tests.unit.dataservice.dataset.checkpoint_checker import run

FILE, DATA = ShardingPolicy.FILE, ShardingPolicy.DATA
FILE_OR_DATA, HINT = ShardingPolicy.FILE_OR_DATA, ShardingPolicy.HINT


@pytest.fixture
def files(tmp_path: pathlib.Path) -> pathlib.Path:
    """Writes five Parquet files of three rows, two row groups; `x` counts through all of them."""
    for number in range(5):
        rows = range(3 * number, 3 * number + 3)
        path = tmp_path / f"part-{number}.parquet"
        pq.write_table(pa.table({"x": list(rows)}), path, row_group_size=2)
    return tmp_path


def parquet(folder: pathlib.Path) -> Dataset:
    return Dataset.from_parquet(str(folder / "*.parquet"))


def values(dataset: Dataset) -> list[int]:
    """Returns all values of the first column."""
    return [value for batch in run(dataset) for value in batch.column(0).to_pylist()]


def shares(dataset: Dataset, policy: ShardingPolicy, count: int) -> list[list[int]]:
    """Returns the values that each of `count` workers yields."""
    listing = list_sources(dataset.node, policy, count)
    plan = optimise(dataset.node)
    return [
        values(Dataset(share_of(plan, Share(policy, index, count, listing))))
        for index in range(count)
    ]


def batches_of(dataset: Dataset, policy: ShardingPolicy, index: int, count: int) -> list[list[int]]:
    node = share_of(dataset.node, Share(policy, index, count))
    return [batch.column(0).to_pylist() for batch in run(Dataset(node))]


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_file_policy_deals_files_in_order(files: pathlib.Path, count: int) -> None:
    got = shares(parquet(files), FILE, count)
    dealt = [range(5)[index::count] for index in range(count)]
    assert got == [[3 * f + i for f in mine for i in range(3)] for mine in dealt]


def test_file_policy_deals_every_branch_of_concatenation(files: pathlib.Path) -> None:
    csv = files / "csv"
    csv.mkdir()
    for number in range(3):
        (csv / f"{number}.csv").write_text(f"x\n{100 + number}\n")
    schema = pa.schema({"x": pa.int64()})
    both = parquet(files).concatenate(Dataset.from_csv(str(csv), schema=schema))
    got = shares(both, FILE, 2)
    assert got[0] == [0, 1, 2, 6, 7, 8, 12, 13, 14, 100, 102]
    assert got[1] == [3, 4, 5, 9, 10, 11, 101]


def test_files_are_dealt_before_they_are_shuffled(files: pathlib.Path) -> None:
    dataset = parquet(files).shuffle(100)
    first, second = shares(dataset, FILE, 2)
    assert sorted(first) == [0, 1, 2, 6, 7, 8, 12, 13, 14]
    assert sorted(second) == [3, 4, 5, 9, 10, 11]


def test_file_policy_deals_paths_of_list_files(files: pathlib.Path) -> None:
    dataset = Dataset.list_files(str(files / "*.parquet"))
    listing = list_sources(dataset.node, FILE, 2)
    node = share_of(dataset.node, Share(FILE, 1, 2, listing))
    names = [os.path.basename(row["path"]) for row in Dataset(node).rows()]
    assert names == ["part-1.parquet", "part-3.parquet"]


def test_selects_are_still_pushed_into_files_of_share(files: pathlib.Path) -> None:
    dataset = parquet(files).select("x").repeat(2)
    assert shares(dataset, FILE, 2)[1] == [3, 4, 5, 9, 10, 11] * 2


def test_file_policy_deals_both_sides_of_zip_alike(files: pathlib.Path) -> None:
    both = parquet(files).zip(parquet(files).rename({"x": "y"}))
    listing = list_sources(both.node, FILE, 2)
    for index in range(2):
        rows = list(Dataset(share_of(both.node, Share(FILE, index, 2, listing))).rows())
        assert rows
        assert all(row["x"] == row["y"] for row in rows)


@pytest.mark.parametrize("cached", [None, "kept"])
@pytest.mark.parametrize("policy", [FILE, HINT])
def test_each_share_has_its_own_cache(
    files: pathlib.Path, policy: ShardingPolicy, cached: str | None
) -> None:
    dataset = parquet(files).shard(SHARD_HINT, 0) if policy is HINT else parquet(files)
    node = dataset.cache(cached and str(files / cached)).node
    for _ in range(2):
        got = [values(Dataset(share_of(node, Share(policy, index, 2)))) for index in range(2)]
        assert sorted(got[0] + got[1]) == list(range(15))
    kept = sorted(path.name for path in files.glob("kept*"))
    assert kept == (["kept.0-of-2", "kept.1-of-2"] if cached else [])


def test_fewer_files_than_workers_are_refused(files: pathlib.Path) -> None:
    message = r"Found 5 files .*not enough for the required 6 shards/workers"
    for policy in (FILE, FILE_OR_DATA):
        with pytest.raises(InvalidArgumentError, match=message):
            list_sources(parquet(files).node, policy, 6)


@pytest.mark.parametrize(
    "dataset", [Dataset.range(5), Dataset.from_numpy({"x": [1]}), Dataset.range(3).batch(2)]
)
def test_file_policy_refuses_sources_without_files(dataset: Dataset) -> None:
    for ask in (
        lambda: check_policy(dataset.node, FILE),
        lambda: list_sources(dataset.node, FILE, 2),
        lambda: share_of(dataset.node, Share(FILE, 0, 2)),
    ):
        with pytest.raises(NotFoundError, match=r"unshardable source dataset: (range|table)\. "):
            ask()
    assert effective_policy(dataset.node, FILE_OR_DATA) is DATA


def test_file_or_data_policy_is_data_if_a_branch_has_no_files(files: pathlib.Path) -> None:
    both = parquet(files).concatenate(Dataset.range(5).rename({"id": "x"}))
    with pytest.raises(NotFoundError, match="unshardable source dataset: range"):
        check_policy(both.node, FILE)
    assert shares(both, FILE_OR_DATA, 4) == [
        [*range(15), *range(5)][index::4] for index in range(4)
    ]
    assert effective_policy(parquet(files).node, FILE_OR_DATA) is FILE


def test_files_added_after_listing_are_refused(files: pathlib.Path) -> None:
    dataset = parquet(files)
    listing = list_sources(dataset.node, FILE, 2)
    pq.write_table(pa.table({"x": [99]}), files / "part-00.parquet")
    with pytest.raises(FailedPreconditionError, match="other files match"):
        share_of(dataset.node, Share(FILE, 0, 2, listing))


def test_files_are_listed_only_to_be_divided() -> None:
    node = Dataset.from_parquet("no-folder/*.parquet").cache().node
    for policy, count in ((DATA, 2), (HINT, 2), (FILE, 1), (FILE_OR_DATA, 1)):
        assert list_sources(node, policy, count) == ""
    assert share_of(node, Share(FILE, 0, 1)) is node


@pytest.mark.parametrize("count", [1, 2, 5, 40])
def test_data_policy_deals_rows(count: int) -> None:
    got = shares(Dataset.range(20), DATA, count)
    assert got == [list(range(20))[index::count] for index in range(count)]


def test_data_policy_deals_whole_batches() -> None:
    dataset = Dataset.range(20).batch(3)
    assert batches_of(dataset, DATA, 1, 5) == [[3, 4, 5], [18, 19]]
    assert batches_of(dataset, DATA, 2, 5) == [[6, 7, 8]]


def test_data_policy_keeps_prefetches_at_the_end() -> None:
    node = Dataset.range(20).prefetch(2).batch(3).prefetch(1).prefetch(2).node
    shared = share_of(node, Share(DATA, 1, 2))
    assert [shared.kind, shared.inputs[0].kind, shared.inputs[0].inputs[0].kind] == [
        "prefetch",
        "prefetch",
        "shard",
    ]


def test_hint_policy_fills_in_shard_hints_in_place() -> None:
    dataset = Dataset.range(12).shard(SHARD_HINT, 7).batch(2)
    assert batches_of(dataset, HINT, 2, 3) == [[2, 5], [8, 11]]
    assert batches_of(dataset, HINT, 0, 1) == [[i, i + 1] for i in range(0, 12, 2)]
    other = Dataset.range(12).shard(4, 3)
    for policy in (HINT, FILE_OR_DATA):
        mine = Dataset(share_of(other.node, Share(policy, 0, 1)))
        assert values(mine) == [3, 7, 11], "a shard of given numbers stays as it is"


def test_hint_policy_without_hint_gives_all_rows_to_every_worker() -> None:
    assert shares(Dataset.range(4), HINT, 2) == [[0, 1, 2, 3]] * 2


@pytest.mark.parametrize("policy", [p for p in ShardingPolicy if p is not HINT])
def test_shard_hint_under_other_policy_is_refused(policy: ShardingPolicy) -> None:
    dataset = Dataset.range(4).shard(SHARD_HINT, SHARD_HINT)
    with pytest.raises(FailedPreconditionError, match=rf"only ShardingPolicy\.HINT.*{policy.name}"):
        check_policy(dataset.node, policy)


def test_share_without_readable_file_is_empty_when_failures_are_skipped(
    files: pathlib.Path,
) -> None:
    (files / "part-1.parquet").write_text("damaged")
    dataset = Dataset(tolerant(parquet(files).node))
    listing = list_sources(dataset.node, FILE, 5)
    mine = Dataset(share_of(dataset.node, Share(FILE, 1, 5, listing)))
    reading = iter(mine)
    assert list(reading) == []
    assert reading.stats()["skipped"]["files"] == [str(files / "part-1.parquet")]
    assert mine.schema == dataset.schema


@pytest.mark.parametrize(("read", "line"), [("from_csv", "x\n{}"), ("from_json", '{{"x": {}}}')])
def test_share_has_column_types_of_whole_dataset(
    read: str, line: str, tmp_path: pathlib.Path
) -> None:
    for number, value in enumerate(("1", "null", "3")):
        text = line.format(value).replace("x\nnull", "x\n")
        (tmp_path / f"{number}.txt").write_text(text + "\n")
    dataset: Dataset = getattr(Dataset, read)(str(tmp_path / "*.txt"))
    listing = list_sources(dataset.node, FILE, 3)
    for index in range(3):
        mine = Dataset(share_of(dataset.node, Share(FILE, index, 3, listing)))
        assert mine.schema.field("x").type == pa.int64()
        assert mine.to_table().schema == mine.schema


def test_file_of_share_that_differs_from_first_file_is_refused(
    files: pathlib.Path,
) -> None:
    pq.write_table(pa.table({"x": ["text"]}), files / "part-3.parquet")
    with pytest.raises(SchemaError, match=r"the files differ: .*part-0.*part-3"):
        shares(parquet(files), FILE, 5)
