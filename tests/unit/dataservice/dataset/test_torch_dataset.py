"""Datasets in PyTorch: tensors, shares of loader workers, positions. Skipped without torch."""

from __future__ import annotations

import copy
import datetime
import importlib.util
import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dataservice.dataset.dataset import Dataset
from dataservice.dataset.expressions import col
from dataservice.errors import FailedPreconditionError, SchemaError
from tests.unit.dataservice.dataset.checkpoint_checker import numbers

HAS_TORCH = importlib.util.find_spec("torch") is not None
if HAS_TORCH:
    # On import, CUDA builds look for libraries in a child process, which unit tests must not start.
    importlib.import_module("torch")
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="torch is not installed")


@pytest.mark.skipif(HAS_TORCH, reason="torch is installed")
def test_missing_torch_is_refused_naming_package() -> None:
    with pytest.raises(FailedPreconditionError, match=r"install pstrain\[torch\]"):
        numbers(3).torch()


@needs_torch
def test_torch_tensors_are_writable_copies() -> None:
    dataset = Dataset.from_numpy(
        {"x": np.arange(6), "v": np.ones((6, 2), np.float32), "s": np.array(list("abcdef"))}
    )
    first, second = list(dataset.batch(3).torch())
    assert first["x"].tolist() == [0, 1, 2]
    assert tuple(second["v"].shape) == (3, 2)
    assert list(second["s"]) == ["d", "e", "f"]
    first["x"][0] = 99
    assert next(iter(dataset.numpy()))["x"][0] == 0


@needs_torch
def test_times_become_integers_of_their_unit() -> None:
    from torch.utils.data import DataLoader

    days = pa.array([datetime.date(1970, 1, 2), datetime.date(1970, 1, 4)])
    times = pa.table(
        {
            "day": days,
            "at": days.cast(pa.timestamp("ms")),
            "long": pa.array([5, 7], pa.duration("us")),
            "vector": pa.FixedSizeListArray.from_arrays(days.cast(pa.timestamp("s")), 1),
        }
    )
    batches = Dataset.from_table(times).batch(2).torch()
    (batch,) = DataLoader(batches, batch_size=None)
    assert {name: values.tolist() for name, values in batch.items()} == {
        "day": [1, 3],
        "at": [86_400_000, 3 * 86_400_000],
        "long": [5, 7],
        "vector": [[86_400], [3 * 86_400]],
    }


@needs_torch
def test_times_with_nulls_are_refused_naming_remedy() -> None:
    times = pa.table({"at": pa.array([0, None], pa.timestamp("us"))})
    with pytest.raises(SchemaError, match=r"'at' of datetime64\[us\] has nulls.*filter\(~col"):
        list(Dataset.from_table(times).batch(2).torch())
    kept = Dataset.from_table(times).filter(~col("at").is_null()).batch(2)
    assert next(iter(kept.torch()))["at"].tolist() == [0]


@needs_torch
def test_torch_dataset_resumes_from_saved_position() -> None:
    dataset = numbers(20).shuffle(9, seed=1).batch(3)
    wanted = [batch["x"].tolist() for batch in dataset.torch()]
    source = numbers(20).shuffle(9, seed=1).batch(3).torch()
    assert source.state_dict() == {}
    iterator = iter(source)
    next(iterator)
    next(iterator)
    for state in (source.state_dict(), iterator.state_dict()):
        other = numbers(20).shuffle(9, seed=1).batch(3).torch()
        other.load_state_dict(state)
        assert other.state_dict() == state
        assert [batch["x"].tolist() for batch in other] == wanted[2:]
    assert [b["x"].tolist() for b in pickle.loads(pickle.dumps(source))] == wanted


@needs_torch
def test_loader_workers_share_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataservice.dataset import torch_dataset

    found = []
    for index in range(3):
        worker = loader_worker(index, of=3, seed=1)
        monkeypatch.setattr(torch_dataset, "get_worker_info", lambda worker=worker: worker)
        found += [batch["x"].tolist() for batch in numbers(20).batch(4).torch()]
    assert sorted(found) == [list(range(i, i + 4)) for i in range(0, 20, 4)]


def loader_worker(index: int, of: int, seed: int) -> Any:
    """Returns what torch tells a loader's worker about itself."""
    return type("Worker", (), {"num_workers": of, "id": index, "seed": seed + index})


@needs_torch
def test_workers_that_missed_a_broken_pass_agree_with_the_others_on_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from dataservice.dataset import torch_dataset

    source = numbers(20).shuffle(20, seed=1).batch(4).torch()

    def one_pass(seed: int, *workers: int) -> list[int]:
        found = []
        for index in workers:
            worker = loader_worker(index, of=3, seed=seed)
            monkeypatch.setattr(torch_dataset, "get_worker_info", lambda worker=worker: worker)
            found += [x for batch in source for x in batch["x"].tolist()]
        return found

    one_pass(70, 0)
    passes = [one_pass(80, 1, 0, 2)]
    one_pass(-9, 2)
    passes += [one_pass(seed, *order) for seed, order in ((2**62, (0, 2, 1)), (60, (2, 1, 0)))]
    assert all(sorted(rows) == list(range(20)) for rows in passes)
    assert len({tuple(rows) for rows in passes}) == 3


@needs_torch
@pytest.mark.parametrize("first_seed", [70, 71])
def test_workers_of_loaders_that_are_read_at_a_time_agree(
    monkeypatch: pytest.MonkeyPatch, first_seed: int
) -> None:
    from dataservice.dataset import torch_dataset

    source = numbers(20).shuffle(20, seed=1).batch(4).torch()
    # Loaders of as many workers, which live on, and one of three workers with the seed of another.
    loaders = ((2, first_seed), (2, 90), (3, first_seed))
    found: dict[tuple[int, int, int], list[int]] = {}
    for number in range(3):
        turns = [(index, of, seed) for index in range(3) for of, seed in loaders if index < of]
        for index, of, seed in turns if number != 1 else reversed(turns):
            worker = loader_worker(index, of=of, seed=seed)
            monkeypatch.setattr(torch_dataset, "get_worker_info", lambda worker=worker: worker)
            rows = [x for batch in source for x in batch["x"].tolist()]
            found.setdefault((number, of, seed), []).extend(rows)
    assert [sorted(rows) for rows in found.values()] == 9 * [list(range(20))]
    of_two = [tuple(sorted(rows[:8])) for (_, of, _), rows in found.items() if of == 2]
    assert len(set(of_two)) == 6, "each pass is another epoch"


@needs_torch
def test_pass_after_a_resume_at_an_earlier_epoch_is_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from dataservice.dataset import torch_dataset

    shuffled = numbers(20).shuffle(20, seed=1).batch(4)
    source = shuffled.torch()
    states: list[dict[str, Any]] = []
    for number, seed in enumerate((5, 6, 5, 6, 5, 6)):
        for index in range(2):
            worker = loader_worker(index, of=2, seed=seed)
            monkeypatch.setattr(torch_dataset, "get_worker_info", lambda worker=worker: worker)
            if number == 4:
                source.load_state_dict(states[index])
            next(iter(source))
            states.append(source.state_dict())
    assert [state["epoch"] for state in states] == [0, 0, 1, 1, 2, 2, 3, 3, 0, 0, 1, 1]


class SharedJob:
    """A dataset that stands for one which the workers of a loader read as one job."""

    is_distributed = True

    def shared(self, job_name: str) -> Any:
        assert job_name
        return self

    def iterator(self, epoch: int) -> Any:
        return numbers(20).batch(4).iterator(epoch)


@needs_torch
def test_position_in_a_shared_job_waits_for_the_other_workers_of_the_loader(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from dataservice.dataset import torch_dataset

    source: Any = torch_dataset.TorchDataset(SharedJob())  # type: ignore[arg-type]
    other = copy.copy(source)  # as in another process, with the same shared memory
    clock = SimpleNamespace(now_s=0.0, opens=None)

    def open_as(index: int, seed: int) -> Any:
        worker = loader_worker(index, of=2, seed=seed)
        monkeypatch.setattr(torch_dataset, "get_worker_info", lambda: worker)
        return iter(source if index == 0 else other)

    def sleep(seconds: float) -> None:
        clock.now_s += seconds
        if clock.now_s > 1.0 and clock.opens is not None:
            open_as(1, clock.opens)

    time = SimpleNamespace(monotonic=lambda: clock.now_s, sleep=sleep)
    monkeypatch.setattr(torch_dataset, "time", time)
    first = open_as(0, seed=7)
    assert next(first)["x"].tolist() == [0, 1, 2, 3]
    assert clock.now_s == 0.0, "only positions wait"
    clock.opens = 7
    assert first.state_dict()["epoch"] == 0
    assert 1.0 < clock.now_s < 2.0
    clock.now_s, clock.opens = 0.0, None
    second = open_as(0, seed=8)
    assert second.state_dict()["epoch"] == 1
    assert clock.now_s > 29.0
    assert "not all 2 workers of a loader have begun" in caplog.text
    clock.now_s = 0.0
    assert source.state_dict() == second.state_dict()
    assert clock.now_s == 0.0, "it waits once"


@needs_torch
def test_each_pass_of_loader_workers_is_next_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataservice.dataset import torch_dataset

    shuffled = numbers(20).shuffle(20, seed=1).batch(4)
    source = shuffled.torch()

    def one_pass(seed: int) -> list[int]:
        found = []
        for index in range(2):
            worker = loader_worker(index, of=2, seed=seed)
            monkeypatch.setattr(torch_dataset, "get_worker_info", lambda worker=worker: worker)
            found += [x for batch in source for x in batch["x"].tolist()]
        return found

    # The workers of a persistent loader keep their seed.
    passes = [one_pass(seed) for seed in (5, 6, 6)]
    assert all(sorted(rows) == list(range(20)) for rows in passes)
    assert len({tuple(rows) for rows in passes}) == 3
    # A worker that resumes from a position counts passes from there.
    resumed = shuffled.torch()
    resumed.load_state_dict(source.state_dict())
    assert list(resumed) == []
    resumed.load_state_dict(dict(iter(shuffled.shard(2, 1)).state_dict()))
    again = [[x for batch in resumed for x in batch["x"].tolist()] for _ in range(2)]
    assert again == [rows[-len(again[0]) :] for rows in passes[:2]]
