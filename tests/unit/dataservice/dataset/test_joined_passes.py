"""Repeated passes over few rows, and choices of datasets, are joined into large chunks."""

from __future__ import annotations

import sys

import numpy as np
import pyarrow as pa
import pytest

from dataservice.dataset.dataset import Dataset
from dataservice.dataset.operators import repeat
from dataservice.dataset.sources.range import RangeSource
from dataservice.dataset.stream import CHUNK_ROWS, BatchStream, RunContext
from dataservice.errors import CancelledError
from tests.unit.dataservice.dataset.checkpoint_checker import check_positions, run


def ids(batches: list[pa.RecordBatch]) -> list[int]:
    return [i for batch in batches for i in batch.column(0).to_pylist()]


@pytest.mark.parametrize("source", [Dataset.range(3), Dataset.from_numpy({"id": np.arange(3)})])
def test_repeat_of_few_rows_yields_large_chunks(source: Dataset) -> None:
    batches = run(source.repeat(10_000))
    assert ids(batches) == [0, 1, 2] * 10_000
    assert len(batches) == 2
    check_positions(source.repeat(10_000).batch(4_000))
    assert run(source.repeat(0)) == []
    assert run(source.take(0).repeat()) == []


def test_repeat_of_large_table_keeps_its_chunks() -> None:
    batches = run(Dataset.range(CHUNK_ROWS).repeat(2))
    assert [batch.num_rows for batch in batches] == [CHUNK_ROWS, CHUNK_ROWS]


def test_repeat_of_large_rows_does_not_join_passes() -> None:
    images = Dataset.from_table(pa.table({"image": [bytes([i]) * (1 << 20) for i in range(3)]}))
    batches = run(images.repeat(5))
    assert [batch.num_rows for batch in batches] == [3] * 5
    assert max(batch.nbytes for batch in batches) < 4 << 20
    assert [value[0] for batch in batches for value in batch["image"].to_pylist()] == [0, 1, 2] * 5


def test_position_inside_pass_is_resumed() -> None:
    dataset = Dataset.range(3).repeat(4)
    with dataset.node.open(RunContext()) as stream:
        stream.restore({"pass": 1, "input": {"split": 0, "row": 2}})
        assert ids(list(stream)) == [2, 0, 1, 2, 0, 1, 2]


def test_endless_repeat_ends_when_run_is_cancelled() -> None:
    gone = False
    with Dataset.range(3).repeat().node.open(RunContext(cancelled=lambda: gone)) as stream:
        next(stream)
        gone = True
        with pytest.raises(CancelledError):
            next(stream)


class SharedRange(RangeSource):
    """A source of which others have taken all rows of every pass but the third."""

    kind = "shared-range"
    is_shared = True
    in_memory = False

    def open(self, context: RunContext) -> BatchStream:
        return RangeSource(0, self.stop if context.epoch == 2 else 0, 1).open(context)


def test_repeat_continues_after_passes_taken_by_other_readers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(repeat, "MAX_PASSES_TAKEN", 5)
    with Dataset(SharedRange(0, 3, 1)).repeat().node.open(RunContext()) as stream:
        assert ids([next(stream)]) == [0, 1, 2]
        assert list(stream) == [], "what others take for ever would never return"


@pytest.mark.parametrize("choice_rows", [2, 5_000])
def test_choices_are_gathered_into_few_batches_with_exact_positions(choice_rows: int) -> None:
    wanted = np.tile([0, 1], 3_000) if choice_rows == 2 else np.arange(6_000) % 7 % 2
    choices = Dataset.range(2).repeat(3_000)
    if choice_rows != 2:
        table = pa.table({"c": wanted})
        small = pa.Table.from_batches(table.to_batches(max_chunksize=3))
        choices = Dataset.from_table(small)
    both = [Dataset.range(4_000), Dataset.range(-1, -4_001, -1)]
    dataset = Dataset.choose_from_datasets(both, choices)
    batches = run(dataset)
    found = np.array(ids(batches))
    assert (found < 0).tolist() == wanted.astype(bool).tolist()
    assert len(batches) < 10
    check_positions(dataset)


def test_older_position_within_piecewise_choices_is_restored() -> None:
    a, b = Dataset.range(10), Dataset.range(10, 20)
    dataset = Dataset.choose_from_datasets([a, b], Dataset.range(2).repeat(5))
    whole = ids(run(dataset))
    old = {
        "inputs": [{"input": {"split": 0, "row": 0}, "row": 2}] * 2,
        "choices": {"input": {"input": {"pass": 2, "input": None}, "row": 0}, "position": 4},
        "exhausted": [],
    }
    with dataset.node.open(RunContext()) as stream:
        stream.restore(old)
        assert ids(list(stream)) == whole[4:]


def test_take_of_large_table_cuts_only_chunks_it_takes() -> None:
    chunks = pa.chunked_array([pa.array([x]) for x in range(20_000)])
    with Dataset.from_table(pa.table({"x": chunks})).take(3).node.open(RunContext()) as stream:
        before = sys.getallocatedblocks()
        assert next(stream)["x"].to_pylist() == [0]
        assert sys.getallocatedblocks() - before < 2_000
