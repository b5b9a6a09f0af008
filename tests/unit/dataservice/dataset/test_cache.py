"""Cache: filled once, in memory or a file; positions before, during and after the filling."""

from __future__ import annotations

import os
import pathlib
import resource
from typing import Any
from unittest import mock

import numpy as np
import pytest

from dataservice.dataset.dataset import Dataset
from dataservice.dataset.division.linearise import linearise
from dataservice.dataset.expressions import col
from dataservice.dataset.node import freeze_schemas
from dataservice.dataset.plan import decode_plan, encode_plan
from dataservice.dataset.sources.base import SplitStream
from dataservice.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    SourceError,
    UnsplittableError,
)
from tests.unit.dataservice.dataset.checkpoint_checker import (
    check_positions,
    numbers,
    open_stream,
    run,
    values,
)


@pytest.fixture(params=["memory", "file"])
def path(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> str | None:
    return str(tmp_path / "kept.arrow") if request.param == "file" else None


class Counted:
    """A maker of datasets whose function counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def dataset(self, rows: int = 20) -> Dataset:
        def count(columns: dict[str, Any]) -> dict[str, Any]:
            self.calls += 1
            return columns

        return numbers(rows).map(count, schema=numbers(1).schema)


def test_later_passes_read_cache_filled_by_first_pass(path: str | None) -> None:
    counted = Counted()
    dataset = counted.dataset().cache(path)
    assert values(list(dataset)) == list(range(20))
    calls = counted.calls
    assert values(list(dataset)) == list(range(20))
    assert values(list(dataset.batch(3))) == list(range(20))
    assert counted.calls == calls
    assert dataset.cardinality() == 20
    assert dataset.schema.names == ["x"]


def test_incomplete_pass_fills_no_cache(path: str | None, tmp_path: pathlib.Path) -> None:
    counted = Counted()
    dataset = counted.dataset().cache(path)
    assert values(list(dataset.take(5))) == [0, 1, 2, 3, 4]
    assert list(tmp_path.iterdir()) == []
    first = counted.calls
    assert values(list(dataset)) == list(range(20))
    assert counted.calls > first


def test_cache_resumes_from_positions_before_and_after_filling(path: str | None) -> None:
    base = numbers(30).shuffle(7, seed=1).filter(col("x") != 3)
    empty = base.cache(path)
    states = []
    with open_stream(empty, epoch=4) as stream:
        for _ in range(2):
            states.append(stream.state())
            next(stream)
    check_positions(empty, epoch=4)
    filled = run(empty, epoch=4)
    check_positions(empty, epoch=5)
    assert [run(empty, epoch) for epoch in (0, 5)] == [filled, filled]
    fresh = base.cache(None)
    for number, state in enumerate(states):
        for dataset in (empty, fresh):
            with open_stream(dataset, epoch=4) as stream:
                stream.restore(state)
                assert list(stream) == filled[number:]
    check_positions(base.cache(path).shuffle(9, seed=2).batch(4), epoch=1)


def test_position_of_filled_cache_is_restored_in_unfilled_cache(path: str | None) -> None:
    dataset = numbers(20).shuffle(5).cache(path)
    wanted = list(dataset)
    iterator = iter(dataset)
    next(iterator)
    state = iterator.state_dict()
    other = decode_plan(encode_plan(dataset.node))
    if path is not None:
        os.unlink(path)
    resumed = iter(Dataset(other))
    resumed.load_state_dict(state)
    assert list(resumed) == wanted[1:]
    at_end = iter(dataset)
    assert len(list(at_end)) == len(wanted)
    resumed = iter(Dataset(other))
    resumed.load_state_dict(at_end.state_dict())
    assert list(resumed) == []


def test_cache_file_is_reused_by_same_dataset_and_refused_by_others(tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "kept.arrow")
    dataset = numbers(20).padded_batch(6)
    assert run(dataset.cache(path)) == run(dataset)
    counted = Counted()
    again = decode_plan(encode_plan(dataset.cache(path).node))
    assert [b.schema for b in run(again)] == [b.schema for b in run(dataset)]
    with pytest.raises(FailedPreconditionError, match=r"cache of another dataset.*another path"):
        run(counted.dataset().cache(path))
    whole = pathlib.Path(path).read_bytes()
    pathlib.Path(path).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SourceError, match=r"kept\.arrow' cannot be read as a cache.*delete it"):
        run(again)


def test_cache_never_advises_to_delete_what_may_be_no_cache(tmp_path: pathlib.Path) -> None:
    with pytest.raises(SourceError, match=r"is a folder: name a file in it.*rows\.arrow") as caught:
        run(numbers(3).cache(str(tmp_path)))
    assert "delete" not in str(caught.value)
    other = tmp_path / "notes.txt"
    other.write_text("mine")
    with pytest.raises(SourceError, match=r"if it is a damaged one, delete it.*another path"):
        run(numbers(3).cache(str(other)))


@pytest.mark.parametrize("is_filled_by_service", [True, False])
def test_program_and_data_service_share_cache_file(
    is_filled_by_service: bool, tmp_path: pathlib.Path
) -> None:
    here = numbers(20).map(lambda c: {"x": c["x"] * 2}).cache(str(tmp_path / "kept.arrow"))
    there = Dataset(decode_plan(encode_plan(freeze_schemas(here.node))))
    first, second = (there, here) if is_filled_by_service else (here, there)
    assert values(run(first)) == values(run(second)) == list(range(0, 40, 2))


def test_position_is_refused_by_cache_file_filled_in_other_order(tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "kept.arrow")
    first, second = (numbers(20).shuffle(20).cache(path) for _ in range(2))
    list(first)
    iterator = iter(first)
    state = iterator.state_dict()
    os.unlink(path)
    list(second)
    with pytest.raises(FailedPreconditionError, match=r"give the shuffles before cache a seed"):
        iter(first).load_state_dict(state)


def test_empty_dataset_is_cached(path: str | None) -> None:
    counted = Counted()
    dataset = counted.dataset(10).filter(col("x") > 50).cache(path)
    assert list(dataset) == []
    calls = counted.calls
    assert list(dataset) == []
    assert counted.calls == calls


def test_invalid_cache_arguments_are_refused(tmp_path: pathlib.Path) -> None:
    for bad in (3, "", "s3://bucket/cache"):
        with pytest.raises(InvalidArgumentError, match=r"cache takes the path of a local file"):
            numbers(3).cache(bad)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="got 3"):
        numbers(3).cache(3)  # type: ignore[arg-type]
    with pytest.raises(SourceError, match=r"cannot be written.*directory that exists"):
        run(numbers(3).cache(str(tmp_path / "no" / "file")))
    with pytest.raises(UnsplittableError, match=r"dataset with cache cannot.*OFF"):
        linearise(numbers(3).cache().node)
    assert np.array_equal(values(run(numbers(3).cache(str(tmp_path / "a")))), [0, 1, 2])


@pytest.mark.parametrize("rows", [100, 100_000])
def test_cache_file_that_cannot_be_written_leaves_no_part(
    tmp_path: pathlib.Path, rows: int
) -> None:
    dataset = Dataset.range(rows).cache(os.fspath(tmp_path / "c"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # Few rows are written only at the end, many also on the way.
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, hard))
    try:
        with pytest.raises(SourceError, match=r"the cache .* cannot be written.*File too large"):
            dataset.to_table()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not os.listdir(tmp_path)
    assert dataset.to_table().num_rows == rows


def test_cache_file_of_data_service_rows_has_exact_positions(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "kept.arrow"
    dataset = numbers(9).cache(str(path))
    # Positions in a data service are no JSON values.
    with mock.patch.object(SplitStream, "state", return_value=object()):
        assert values(run(dataset)) == list(range(9))
    with open_stream(dataset) as stream:
        first = values([next(stream)])
        state = stream.state()
    with open_stream(dataset) as again:
        again.restore(state)
        assert first + values(list(again)) == list(range(9))
    path.unlink()
    with (
        open_stream(dataset) as lost,
        pytest.raises(FailedPreconditionError, match=r"kept\.arrow', which no longer exists"),
    ):
        lost.restore(state)
