"""Data workers share one large text file, and take over parts of it from a worker that is lost."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator

import pytest

import dataservice as ds
from dataservice.dataset.sources.text_parts import PART_BYTES
from tests.integration.service_cluster import ProcessCluster, process_cluster, read_ids

ROWS = 150_000
PADDING = "x" * 600


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Writes the same rows, of more than two parts, as JSON lines and as CSV."""
    folder = tmp_path_factory.mktemp("texts")
    lines = [json.dumps({"id": i, "pad": PADDING}) for i in range(ROWS)]
    (folder / "rows.jsonl").write_text("\n".join(lines))
    rows = "\n".join(f"{i},{PADDING}" for i in range(ROWS))
    (folder / "rows.csv").write_text(f"id,pad\n{rows}\n")
    assert all(path.stat().st_size > 2 * PART_BYTES for path in folder.iterdir())
    return {path.suffix: str(path) for path in folder.iterdir()}


@pytest.fixture
def cluster(tmp_path: pathlib.Path) -> Iterator[ProcessCluster]:
    with process_cluster(tmp_path, workers=2) as running:
        yield running


def dataset(paths: dict[str, str], kind: str) -> ds.Dataset:
    if kind == ".csv":
        data = ds.Dataset.from_csv(paths[kind], newlines_in_values=False)
    else:
        data = ds.Dataset.from_json(paths[kind])
    return data.select("id").batch(1_000)


@pytest.mark.parametrize("kind", [".csv", ".jsonl"])
def test_each_row_comes_once_although_a_worker_with_a_part_is_lost(
    kind: str, paths: dict[str, str], cluster: ProcessCluster
) -> None:
    remote = dataset(paths, kind).distribute(ds.ShardingPolicy.DYNAMIC, cluster.target)
    ids: list[int] = []
    for number, batch in enumerate(remote):
        ids += batch.column("id").to_pylist()
        if number == 20:
            cluster.workers[0].kill()
    assert sorted(ids) == list(range(ROWS))


def test_ordered_rows_of_several_workers_are_those_of_the_file(
    paths: dict[str, str], cluster: ProcessCluster
) -> None:
    remote = dataset(paths, ".jsonl").distribute(
        ds.ShardingPolicy.DYNAMIC, cluster.target, ordered=True
    )
    assert read_ids(remote) == list(range(ROWS))


def test_a_position_within_a_part_resumes_with_the_rows_that_are_left(
    paths: dict[str, str], cluster: ProcessCluster
) -> None:
    remote = dataset(paths, ".csv").distribute(ds.ShardingPolicy.DYNAMIC, cluster.target)
    with iter(remote) as iterator:
        ids = [i for _ in range(70) for i in next(iterator).column("id").to_pylist()]
        state = iterator.state_dict()
    with iter(remote) as iterator:
        iterator.load_state_dict(state)
        ids += [i for batch in iterator for i in batch.column("id").to_pylist()]
    assert sorted(ids) == list(range(ROWS))
