"""Keeping the newest checkpoints, and following a directory."""

from __future__ import annotations

import json
import os
import pathlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pstrain.checkpoints import manifest
from pstrain.checkpoints.checkpoint import Checkpoint
from pstrain.checkpoints.manager import CheckpointManager, checkpoints_iterator
from pstrain.errors import InvalidArgumentError, ResourceExhaustedError
from pstrain.optimizers import SGD
from pstrain.variables.scope import local_parameters
from pstrain.variables.variable import Variable


@pytest.fixture
def step() -> Iterator[Any]:
    with local_parameters():
        yield Variable(0, name="step")


def _names(manager: CheckpointManager) -> list[str]:
    return [pathlib.Path(path).name for path in manager.checkpoints]


def test_manager_keeps_newest_checkpoints_only(step: Any, tmp_path: pathlib.Path) -> None:
    manager = CheckpointManager(Checkpoint(step=step), tmp_path, max_to_keep=2)
    assert manager.restore_or_initialize() is None
    for value in range(4):
        step.assign(value)
        manager.save()
    assert _names(manager) == ["ckpt-3", "ckpt-4"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ckpt-3", "ckpt-4"]
    step.assign(9)
    assert manager.restore_or_initialize() == manager.latest_checkpoint
    assert int(step) == 3


def test_checkpoints_with_other_names_are_not_deleted(step: Any, tmp_path: pathlib.Path) -> None:
    checkpoint = Checkpoint(step=step)
    manager = CheckpointManager(checkpoint, tmp_path, max_to_keep=1)
    step.assign(7)
    checkpoint.save(tmp_path, name="best")
    step.assign(0)
    assert pathlib.Path(manager.restore_or_initialize() or "").name == "best-1"
    assert int(step) == 7
    latest = [manager.save(), manager.save()][-1]
    checkpoint.save(tmp_path, name="best")
    assert manager.latest_checkpoint == latest
    assert _names(manager) == ["ckpt-3"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best-1", "best-4", "ckpt-3"]


def test_concurrent_saves_delete_old_checkpoints_without_errors(
    step: Any, tmp_path: pathlib.Path
) -> None:
    failed: list[Exception] = []

    def save() -> None:
        manager = CheckpointManager(Checkpoint(step=step), tmp_path, max_to_keep=2)
        try:
            for _ in range(15):
                manager.save()
        except ResourceExhaustedError as error:
            failed.append(error)

    threads = [threading.Thread(target=save) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failed == []
    assert len(list(tmp_path.iterdir())) == 2


def test_sweep_for_a_save_that_another_manager_removed_removes_no_more(
    step: Any, tmp_path: pathlib.Path
) -> None:
    manager = CheckpointManager(Checkpoint(step=step), tmp_path, max_to_keep=2)
    removed = [manager.save(), manager.save(), manager.save()][0]
    manager._sweep(str(removed))
    assert _names(manager) == ["ckpt-2", "ckpt-3"]


def test_save_ignores_leftovers_removed_by_another_thread(
    step: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leftover = tmp_path / ".partial-old-1"
    leftover.mkdir()
    is_folder = os.path.isdir

    def removed_meanwhile(path: str) -> bool:
        if path == str(leftover):
            leftover.rmdir()
        return is_folder(path)

    monkeypatch.setattr(os.path, "isdir", removed_meanwhile)
    CheckpointManager(Checkpoint(step=step), tmp_path).save()
    assert [path.name for path in tmp_path.iterdir()] == ["ckpt-1"]


@pytest.mark.parametrize("kept", [1, 2, 4])
def test_relative_directory_keeps_max_to_keep_checkpoints(
    step: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    monkeypatch.chdir(tmp_path)
    manager = CheckpointManager(Checkpoint(step=step), "saved", max_to_keep=kept)
    for value in range(3):
        step.assign(value)
        manager.save()
    assert _names(manager) == ["ckpt-1", "ckpt-2", "ckpt-3"][-kept:]
    step.assign(9)
    assert manager.restore_or_initialize() == os.path.join("saved", "ckpt-3")
    assert int(step) == 2


def test_save_with_a_lower_number_is_the_newest(step: Any, tmp_path: pathlib.Path) -> None:
    manager = CheckpointManager(Checkpoint(step=step), tmp_path, max_to_keep=1)
    manager.save(7)
    manager.save(3)
    assert _names(manager) == ["ckpt-3"]


def test_all_checkpoints_are_kept_without_max_to_keep(step: Any, tmp_path: pathlib.Path) -> None:
    manager = CheckpointManager(Checkpoint(step=step), tmp_path)
    assert not Checkpoint(step=step).restore(manager.latest_checkpoint)
    for _ in range(3):
        manager.save()
    assert len(manager.checkpoints) == 3


def test_checkpoint_interval_counts_steps(step: Any, tmp_path: pathlib.Path) -> None:
    manager = CheckpointManager(
        Checkpoint(step=step), tmp_path, 5, step_counter=step, checkpoint_interval=10
    )
    saved = []
    for value in range(0, 25, 5):
        step.assign(value)
        saved.append(manager.save() is not None)
    assert saved == [True, False, True, False, True]
    assert manager.save() is None
    step.assign(21)
    assert manager.save() is None
    assert manager.save(check_interval=False) is not None


def test_step_counter_without_interval_holds_up_no_save(step: Any, tmp_path: pathlib.Path) -> None:
    manager = CheckpointManager(Checkpoint(step=step), tmp_path, step_counter=step)
    assert [manager.save(), manager.save()] == [str(tmp_path / f"ckpt-{n}") for n in (1, 2)]


def test_manager_restores_or_keeps_learning_rate(step: Any, tmp_path: pathlib.Path) -> None:
    optimizer = SGD(0.1)
    manager = CheckpointManager(Checkpoint(step=step, optimizer=optimizer), tmp_path)
    optimizer.learning_rate = 0.2
    manager.save()
    for keeps_rates, rate in ((True, 0.3), (False, 0.2)):
        optimizer.learning_rate = 0.3
        manager.restore_or_initialize(keeps_rates=keeps_rates)
        assert optimizer.learning_rate == rate


@pytest.mark.parametrize("options", [{"max_to_keep": 0}, {"checkpoint_interval": 5}])
def test_invalid_manager_options_are_refused(
    step: Any, tmp_path: pathlib.Path, options: Any
) -> None:
    with pytest.raises(InvalidArgumentError):
        CheckpointManager(Checkpoint(step=step), tmp_path, **{"max_to_keep": 1, **options})


def test_file_given_as_directory_is_refused_by_name(step: Any, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "model.ckpt"
    file.touch()
    with pytest.raises(InvalidArgumentError, match=r"model.ckpt', which is.*: name a folder"):
        CheckpointManager(Checkpoint(step=step), file)
    for directory in (file, file / "sub"):
        with pytest.raises(InvalidArgumentError, match="a file: name a folder"):
            Checkpoint(step=step).save(directory)


def test_file_is_no_place_to_read_checkpoints_from(step: Any, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    for read in (
        lambda: Checkpoint(step=step).restore(file),
        lambda: manifest.latest_checkpoint(file / "inside"),
        lambda: next(checkpoints_iterator(file, timeout=0)),
    ):
        with pytest.raises(InvalidArgumentError, match=r"can be in '.*file.*a file"):
            read()


@pytest.mark.parametrize("number", ["x", 1.5, True, -1])
def test_checkpoint_number_that_is_none_is_refused(
    step: Any, tmp_path: pathlib.Path, number: Any
) -> None:
    manager = CheckpointManager(Checkpoint(step=step), tmp_path)
    with pytest.raises(ValueError, match=f"number .* non-negative integer, got {number!r}"):
        manager.save(number)
    assert _names(manager) == []


def test_checkpoints_iterator_yields_newest_checkpoints(step: Any, tmp_path: pathlib.Path) -> None:
    saved, seen = Checkpoint(step=step), []
    saved.save(tmp_path)
    saved.save(tmp_path)
    for path in checkpoints_iterator(tmp_path, timeout=0):
        seen.append(pathlib.Path(path).name)
        if len(seen) == 1:
            saved.save(tmp_path)
            saved.save(tmp_path)
    assert seen == ["ckpt-2", "ckpt-4"]


def test_checkpoints_iterator_with_every_yields_each_checkpoint(
    step: Any, tmp_path: pathlib.Path
) -> None:
    manager, seen = CheckpointManager(Checkpoint(step=step), tmp_path, max_to_keep=3), []
    manager.save()
    manager.save()
    for path in checkpoints_iterator(tmp_path, timeout=0, every=True):
        seen.append(pathlib.Path(path).name)
        if seen[-1] == "ckpt-2":
            for _ in range(4):
                manager.save()
    assert seen == ["ckpt-1", "ckpt-2", "ckpt-4", "ckpt-5", "ckpt-6"]


def _save_hourly(manager: CheckpointManager, start_s: float, hours: range) -> None:
    """Saves as if an hour passed between two saves."""
    for hour in hours:
        path = manager.save()
        # A minute is added: in a slow test too, checkpoint 3 is two hours after the start.
        at_s = start_s + 3600 * hour + 60
        os.utime(os.path.join(str(path), "manifest.json"), (at_s, at_s))


def test_keep_checkpoint_every_n_hours_preserves_old_checkpoint(
    step: Any, tmp_path: pathlib.Path
) -> None:
    options: dict[str, Any] = {"max_to_keep": 1, "keep_checkpoint_every_n_hours": 2}
    start_s = time.time()
    for hours in (range(3), range(3, 5)):  # as after a restart
        manager = CheckpointManager(Checkpoint(step=step), tmp_path, **options)
        _save_hourly(manager, start_s, hours)
    assert _names(manager) == ["ckpt-5"]
    assert sorted(p.name for p in tmp_path.glob("ckpt-*")) == ["ckpt-3", "ckpt-5"]


def test_restarted_manager_knows_which_checkpoints_stay_for_good(
    step: Any, tmp_path: pathlib.Path
) -> None:
    options: dict[str, Any] = {"max_to_keep": 1, "keep_checkpoint_every_n_hours": 2}
    start_s = time.time()
    _save_hourly(CheckpointManager(Checkpoint(step=step), tmp_path, **options), start_s, range(4))
    manager = CheckpointManager(Checkpoint(step=step), tmp_path, **options)
    assert _names(manager) == ["ckpt-4"]
    _save_hourly(manager, start_s, range(4, 5))
    # It does not trust the time of checkpoint 3, which lies in the future, so 4 stays as well.
    index = json.loads((tmp_path / "checkpoint").read_text())
    assert (index["latest"], index["all"]) == ("ckpt-5", ["ckpt-5"])
    assert index["preserved"] == ["ckpt-3", "ckpt-4"]
    assert sorted(p.name for p in tmp_path.glob("ckpt-*")) == ["ckpt-3", "ckpt-4", "ckpt-5"]


def test_restarted_manager_counts_hours_from_the_checkpoint_that_stayed_last(
    step: Any, tmp_path: pathlib.Path
) -> None:
    index = {"preserved": [], "preserved_at_s": time.time() - 3 * 3600}
    (tmp_path / "checkpoint").write_text(json.dumps(index))
    manager = CheckpointManager(Checkpoint(step=step), tmp_path, 1, keep_checkpoint_every_n_hours=2)
    for _ in range(3):
        manager.save()
    assert _names(manager) == ["ckpt-3"]
    assert sorted(p.name for p in tmp_path.glob("ckpt-*")) == ["ckpt-1", "ckpt-3"]


@pytest.mark.parametrize("text", ['model_checkpoint_path: "ckpt-1"\n', "[]", '{"preserved": []}'])
def test_file_in_the_place_of_the_index_is_refused(
    step: Any, tmp_path: pathlib.Path, text: str
) -> None:
    """TensorFlow's manager has a file of that name too."""
    (tmp_path / "checkpoint").write_text(text)
    with pytest.raises(InvalidArgumentError, match=r"checkpoint is not the index.*: move it away"):
        CheckpointManager(Checkpoint(step=step), tmp_path)


def test_manager_uses_name_and_number_and_calls_init_fn_on_first_start(
    step: Any, tmp_path: pathlib.Path
) -> None:
    started: list[bool] = []
    manager = CheckpointManager(
        Checkpoint(step=step), tmp_path, 5, None, "epoch", init_fn=lambda: started.append(True)
    )
    assert manager.restore_or_initialize() is None
    assert started == [True]
    assert manager.save(7) == str(tmp_path / "epoch-7")
    step.assign(20)
    assert manager.save(checkpoint_number=step) == manager.latest_checkpoint
    assert _names(manager) == ["epoch-7", "epoch-20"]
    assert manager.restore_or_initialize() == str(tmp_path / "epoch-20")
    assert started == [True]


def test_step_equal_to_last_checkpoint_step_is_not_saved_again(
    step: Any, tmp_path: pathlib.Path
) -> None:
    manager = CheckpointManager(
        Checkpoint(step=step),
        tmp_path,
        5,
        step_counter=step,
        checkpoint_interval=10,
        last_checkpoint_step=0,
    )
    assert manager.save(check_interval=False) is None
    step.assign(1)
    assert manager.save(check_interval=False) is not None


def test_step_whose_save_failed_is_saved_again(
    step: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = CheckpointManager(
        Checkpoint(step=step),
        tmp_path,
        step_counter=step,
        checkpoint_interval=10,
        last_checkpoint_step=0,
        asynchronous=True,
    )
    step.assign(10)
    with monkeypatch.context() as patch:
        patch.setattr(manifest, "_write_synced", _full)
        manager.save()
        with pytest.raises(ResourceExhaustedError, match="full"):
            manager.wait()
    saved = manager.save()
    assert saved is not None
    assert manager.save() is None
    manager.wait()
    assert manager.latest_checkpoint == saved


def _full(_path: str, _text: str) -> None:
    raise OSError("full")


def test_checkpoints_iterator_ends_by_timeout_fn_or_stop_event(tmp_path: pathlib.Path) -> None:
    answers = iter([False, False, True])
    assert list(checkpoints_iterator(tmp_path, timeout=0, timeout_fn=lambda: next(answers))) == []
    assert next(answers, None) is None
    stop = threading.Event()
    stop.set()
    assert list(checkpoints_iterator(tmp_path, stop=stop)) == []
    assert list(checkpoints_iterator(tmp_path, timeout_fn=lambda: False, stop=stop)) == []


class Waits(threading.Event):
    """A stop event whose waits end at once; at the second of them something happens."""

    def __init__(self, happens: Callable[[Waits], object] = lambda _: None) -> None:
        super().__init__()
        self.waits: list[float] = []
        self._happens = happens

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waits.append(timeout)
        if len(self.waits) == 2:
            self._happens(self)
        return self.is_set()


@pytest.mark.parametrize("timeout", [None, 600.0])
def test_checkpoints_iterator_looks_each_second_for_a_checkpoint(
    tmp_path: pathlib.Path, timeout: float | None
) -> None:
    step = Variable(1)
    stop = Waits(lambda _: Checkpoint(step=step).save(tmp_path))
    found = next(checkpoints_iterator(tmp_path, timeout=timeout, stop=stop))
    assert found == str(tmp_path / "ckpt-1")
    assert stop.waits == [1.0, 1.0]


def test_checkpoints_iterator_waits_no_longer_than_its_timeout(tmp_path: pathlib.Path) -> None:
    stop = Waits(Waits.set)
    assert list(checkpoints_iterator(tmp_path, timeout=0.25, stop=stop)) == []
    assert all(0.0 < wait_s <= 0.25 for wait_s in stop.waits)


def test_checkpoints_iterator_pauses_between_checkpoints_until_it_is_stopped(
    tmp_path: pathlib.Path,
) -> None:
    for _ in range(3):
        Checkpoint(step=Variable(1)).save(tmp_path)
    stop = Waits(Waits.set)
    paths = checkpoints_iterator(tmp_path, min_interval_secs=600.0, every=True, stop=stop)
    assert [os.path.basename(path) for path in paths] == ["ckpt-1", "ckpt-2"]
    assert all(500.0 < wait_s <= 600.0 for wait_s in stop.waits)


def test_checkpoints_iterator_does_not_pause_after_slow_use_of_a_checkpoint(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Checkpoint(step=Variable(1)).save(tmp_path)
    stop = Waits()
    paths = checkpoints_iterator(tmp_path, min_interval_secs=10.0, timeout=0.0, stop=stop)
    next(paths)
    used_s = time.monotonic() + 60.0
    monkeypatch.setattr(time, "monotonic", lambda: used_s)
    assert list(paths) == []
    assert stop.waits == [0.0]
