"""Checkpoints: whole or invisible, matched by name, refused where they do not fit."""

from __future__ import annotations

import errno
import json
import os
import pathlib
import threading
import types
from typing import Any

import numpy as np
import pytest

from pstrain import initializers
from pstrain.checkpoints import manifest
from pstrain.checkpoints.checkpoint import Checkpoint, checkpoints, latest_checkpoint
from pstrain.checkpoints.objects import read_config
from pstrain.errors import (
    DataLossError,
    DeadlineExceededError,
    InvalidArgumentError,
    InvalidTypeError,
    NotFoundError,
    ResourceExhaustedError,
)
from pstrain.optimizers import Adagrad
from pstrain.paramserver import checkpoint as shard_files
from pstrain.variables.scope import local_parameters
from pstrain.variables.variable import ShardedVariable, Variable
from tests.unit.pstrain.checkpoints.checkpoint_cases import Model, Position

pytestmark = pytest.mark.usefixtures("own_parameters")


def test_restore_brings_back_model_variable_and_data_position(tmp_path: pathlib.Path) -> None:
    model, step, data = Model(), Variable(7), Position(40)
    path = Checkpoint(model=model, step=step, data=data, nothing=None).save(tmp_path)
    other, other_step, other_data = Model(seed=2), Variable(0), Position()
    assert Checkpoint(model=other, step=other_step, data=other_data).restore(path) == path
    assert other.values() == model.values()
    assert (int(other_step), other_data.row) == (7, 40)


def test_single_object_of_checkpoint_can_be_restored(tmp_path: pathlib.Path) -> None:
    Checkpoint(model=Model(), step=Variable(7)).save(tmp_path)
    step = Variable(0)
    Checkpoint(step=step).restore(tmp_path)
    assert int(step) == 7


def test_local_and_remote_variables_share_one_checkpoint(tmp_path: pathlib.Path) -> None:
    with local_parameters():
        here = Variable(1.0, name="x")
    there = Variable(2.0, name="x")
    Checkpoint(here=here, there=there).save(tmp_path)
    here.assign(0)
    there.assign(0)
    Checkpoint(here=here, there=there).restore(tmp_path)
    assert (float(here), float(there)) == (1.0, 2.0)


def test_restore_from_directory_uses_its_newest_checkpoint(tmp_path: pathlib.Path) -> None:
    step = Variable(0)
    saved = Checkpoint(step=step)
    for value in range(11):
        step.assign(value)
        saved.save(tmp_path)
    assert checkpoints(tmp_path) == [str(tmp_path / f"ckpt-{n}") for n in range(1, 12)]
    assert latest_checkpoint(tmp_path) == str(tmp_path / "ckpt-11")
    saved.restore(tmp_path / "ckpt-2")
    assert int(step) == 1
    saved.restore(tmp_path)
    assert int(step) == 10


def test_failed_save_leaves_no_files(tmp_path: pathlib.Path) -> None:
    with pytest.raises(InvalidArgumentError, match="JSON"):
        Checkpoint(model=Model(), data=Position(row={1, 2})).save(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert latest_checkpoint(tmp_path) is None


def test_asynchronous_save_holds_values_at_time_of_call(tmp_path: pathlib.Path) -> None:
    step = Variable(7)
    saved = Checkpoint(step=step)
    told: list[str] = []
    path = saved.save(tmp_path, asynchronous=True, written=told.append)
    step.assign(8)
    path.wait(30)
    assert path.is_complete
    assert (told, path.pause_s < 30, path.size_bytes) == ([path], True, 8)
    saved.restore(tmp_path)
    assert int(step) == 7


def test_failed_asynchronous_save_is_raised_by_next_save(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Variable(7)
    saved = Checkpoint(step=step)
    with monkeypatch.context() as patch:
        patch.setattr(manifest, "_write_synced", _full)
        path = saved.save(tmp_path, asynchronous=True)
        path.wait_ended()
        assert not path.is_complete
    with pytest.raises(ResourceExhaustedError, match="full"):
        saved.save(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert saved.save(tmp_path) == str(tmp_path / "ckpt-1")


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "Make room there, or keep fewer"),
        (errno.EROFS, "or save into another"),
        (errno.ENOENT, "only one program may save into a directory"),
    ],
)
def test_error_of_the_manifest_names_directory_and_remedy(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, number: int, remedy: str
) -> None:
    def fail(_path: str, _text: str) -> None:
        raise OSError(number, "no way")

    monkeypatch.setattr(manifest, "_write_synced", fail)
    found = f"could not be written into {tmp_path}: .* no way; the one before it .*{remedy}"
    with pytest.raises(ResourceExhaustedError, match=found):
        Checkpoint(step=Variable(7)).save(tmp_path)


def test_failed_asynchronous_save_raised_by_wait_is_not_raised_by_next_save(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = Checkpoint(step=Variable(7))
    with monkeypatch.context() as patch:
        patch.setattr(manifest, "_write_synced", _full)
        path = saved.save(tmp_path, asynchronous=True)
        for _ in range(2):
            with pytest.raises(ResourceExhaustedError, match="full"):
                path.wait(30)
    assert saved.save(tmp_path) == str(tmp_path / "ckpt-1")


def _full(_path: str, _text: str) -> None:
    raise OSError("full")


def test_follower_is_told_paths_of_restored_and_committed_checkpoints(
    tmp_path: pathlib.Path,
) -> None:
    saved, told = Checkpoint(step=Variable(7)), list[Any]()
    saved.follow(
        types.SimpleNamespace(
            mark_moment=lambda: "moment",
            committed=lambda mark, path: told.append((mark, path)),
            restored=told.append,
        )
    )
    earlier = Checkpoint(step=Variable(1)).save(tmp_path, number=9)
    saved.restore(earlier)
    path = saved.save(tmp_path, number=2)
    assert told == [earlier, ("moment", path)]


def test_wait_after_timeout_waits_again_and_raises_save_error(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, may_fail = Variable(7), threading.Event()
    saved = Checkpoint(step=step)

    def fail(path: str, text: str) -> None:
        may_fail.wait(30)
        _full(path, text)

    monkeypatch.setattr(manifest, "_write_synced", fail)
    saved.save(tmp_path, asynchronous=True)
    with pytest.raises(DeadlineExceededError):
        saved.wait(0)
    may_fail.set()
    with pytest.raises(ResourceExhaustedError, match="full"):
        saved.wait(30)
    saved.wait(0)


def test_alone_waits_for_save_of_another_thread(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end, saved = threading.Event(), threading.Event(), Checkpoint(step=Variable(7))
    write = manifest._write_synced

    def write_late(path: str, text: str) -> None:
        begun.set()
        assert may_end.wait(30)
        write(path, text)

    monkeypatch.setattr(manifest, "_write_synced", write_late)
    thread = threading.Thread(target=saved.save, args=(tmp_path,))
    thread.start()
    assert begun.wait(30)
    threading.Timer(0.01, may_end.set).start()
    with saved.alone():
        assert latest_checkpoint(tmp_path) is not None
    thread.join(30)


def test_asynchronous_save_is_made_synchronously_when_no_thread_can_start(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    assert Checkpoint(step=Variable(7)).save(tmp_path, asynchronous=True).is_complete


def test_overlapping_saves_get_distinct_numbers(tmp_path: pathlib.Path) -> None:
    steps = [Variable(n) for n in range(3)]
    paths = [Checkpoint(step=step).save(tmp_path, asynchronous=True) for step in steps]
    for path in paths:
        path.wait(30)
    assert checkpoints(tmp_path) == [str(tmp_path / f"ckpt-{n}") for n in (1, 2, 3)]


def test_leftovers_of_killed_save_are_ignored_and_removed(tmp_path: pathlib.Path) -> None:
    left = tmp_path / ".partial-ckpt-1"
    left.mkdir()
    (left / "manifest.json").write_text("{}")
    file = tmp_path / ".partial-file-1"
    file.touch()
    (tmp_path / "ckpt-9").mkdir()
    assert checkpoints(tmp_path) == []
    assert Checkpoint(step=Variable(0)).save(tmp_path) == str(tmp_path / "ckpt-10")
    assert not left.exists()
    assert not file.exists()


def test_restore_without_checkpoint_fails_and_names_directory(tmp_path: pathlib.Path) -> None:
    assert latest_checkpoint(tmp_path / "absent") is None
    with pytest.raises(NotFoundError, match="absent"):
        Checkpoint(step=Variable(0)).restore(tmp_path / "absent")


def test_restore_of_mismatched_shape_names_it_and_changes_nothing(tmp_path: pathlib.Path) -> None:
    Checkpoint(step=Variable(7), model=Model(4)).save(tmp_path)
    step, other = Variable(0), Model(5, seed=2)
    before = other.values()
    with pytest.raises(InvalidArgumentError, match=r"'model/table'.*\(5, 2\).*\(4, 2\)"):
        Checkpoint(step=step, model=other).restore(tmp_path)
    assert (int(step), other.values()) == (0, before)


@pytest.mark.parametrize(("names", "missing"), [("modle", "modle"), ("step", "step")])
def test_missing_object_is_named(tmp_path: pathlib.Path, names: str, missing: str) -> None:
    Checkpoint(model=Model()).save(tmp_path)
    with pytest.raises(NotFoundError, match=f"'{missing}'.*model"):
        Checkpoint(**{names: Variable(0)}).restore(tmp_path)


def test_missing_variable_is_named(tmp_path: pathlib.Path) -> None:
    model, larger = Model(), Model()
    Checkpoint(model=model).save(tmp_path)
    larger.variables.append(Variable(0.0, name="extra"))
    with pytest.raises(NotFoundError, match=r"'model/extra'.*model/bias#2"):
        Checkpoint(model=larger).restore(tmp_path)


def test_missing_state_is_named_before_anything_changes(tmp_path: pathlib.Path) -> None:
    step = Variable(1)
    Checkpoint(step=step, data=Variable(0)).save(tmp_path)
    step.assign(5)
    with pytest.raises(NotFoundError, match="no state of 'data', which is a Position here"):
        Checkpoint(step=step, data=Position()).restore(tmp_path)
    assert int(step) == 5


@pytest.mark.parametrize(
    ("cut", "error"), [((3, 3, 5), InvalidArgumentError), ((4, 6, 1), NotFoundError)]
)
def test_differently_partitioned_sharded_variable_is_refused_by_name(
    tmp_path: pathlib.Path, cut: tuple[int, ...], error: type[Exception]
) -> None:
    def joined(*rows: int) -> ShardedVariable:
        parts = [Variable(np.zeros((n, 2)), name=f"part{i}") for i, n in enumerate(rows)]
        return ShardedVariable(parts, name="table")

    path = Checkpoint(table=joined(4, 6)).save(tmp_path)
    Checkpoint(table=joined(4, 6)).restore(path)
    with pytest.raises(error, match=f"'table' was joined of parts with {', '.join(map(str, cut))}"):
        Checkpoint(table=joined(*cut)).restore(path)


@pytest.mark.parametrize("small_bytes", [0, 1 << 20])
@pytest.mark.parametrize("cut", [(10,), (3, 5, 2), (6, 4)])
def test_sharded_variable_is_restored_into_other_partition(
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    cut: tuple[int, ...],
    small_bytes: int,
) -> None:
    def joined(*rows: int) -> ShardedVariable:
        parts = [Variable(np.ones((n, 2), np.float32), name=f"p{i}") for i, n in enumerate(rows)]
        return ShardedVariable(parts, name="table")

    def step(table: ShardedVariable, seed: int) -> None:
        gradient = np.random.default_rng(seed).normal(size=(10, 2)).astype(np.float32)
        ends = np.cumsum([part.shape[0] for part in table.variables])[:-1]
        optimizer.apply_gradients(zip(np.split(gradient, ends), table.variables, strict=True))

    monkeypatch.setattr(shard_files, "SMALL_BYTES", small_bytes)
    optimizer = Adagrad(0.1)
    table, other = joined(4, 6), joined(*cut)
    saved, model = Checkpoint(table=table), types.SimpleNamespace(variables=[table])
    step(table, 1)
    saved.save(tmp_path, incremental=True)
    table.scatter_update([1, 5], np.zeros((2, 2), np.float32))
    path = saved.save(tmp_path, incremental=True)
    Checkpoint(table=other).restore(path).assert_consumed()
    for seed in (2, 3):
        np.testing.assert_array_equal(other.numpy(), table.numpy())
        step(table, seed)
        step(other, seed)
    again = types.SimpleNamespace(variables=[joined(*cut)])
    Checkpoint(m=again).restore(Checkpoint(m=model).save(tmp_path))
    np.testing.assert_array_equal(again.variables[0].numpy(), table.numpy())


def test_damaged_file_is_detected_before_anything_changes(tmp_path: pathlib.Path) -> None:
    path = pathlib.Path(Checkpoint(model=Model()).save(tmp_path))
    file = sorted(path.rglob("*.safetensors"))[-1]
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))
    other = Model(seed=2)
    before = other.values()
    with pytest.raises(DataLossError, match=file.name):
        Checkpoint(model=other).restore(tmp_path)
    assert other.values() == before


@pytest.mark.parametrize("dim", [2, 1 << 18])
def test_state_is_refused_before_any_variable_changes(tmp_path: pathlib.Path, dim: int) -> None:
    def table(seed: int) -> Any:
        return Variable(initializers.normal(seed=seed)((2, dim)), name="table")

    Checkpoint(table=table(1), data=Position(row=None)).save(tmp_path)
    other = table(2)
    before = other.numpy()
    with pytest.raises(InvalidArgumentError, match="no position of these data"):
        Checkpoint(table=other, data=Position()).restore(tmp_path)
    np.testing.assert_array_equal(other.numpy(), before)


def test_damaged_remote_values_leave_local_values_and_data_unchanged(
    tmp_path: pathlib.Path,
) -> None:
    with local_parameters():
        here = Variable(1.0, name="here")
    there, data = Variable(2.0, name="there"), Position(row=3)
    saved = Checkpoint(here=here, there=there, data=data)
    path = pathlib.Path(saved.save(tmp_path))
    for file in path.rglob("*.safetensors"):
        if b"there" in (found := file.read_bytes()):
            file.write_bytes(found[:-1] + b"?")
    here.assign(0)
    data.row = 0
    with pytest.raises(DataLossError, match="damaged"):
        saved.restore(tmp_path)
    assert (float(here), data.row) == (0.0, 0)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 3}', '{"format": 2'])
def test_unparsable_manifest_is_refused(tmp_path: pathlib.Path, text: str) -> None:
    path = pathlib.Path(Checkpoint(step=Variable(0)).save(tmp_path))
    (path / "manifest.json").write_text(text)
    with pytest.raises(DataLossError, match="manifest"):
        Checkpoint(step=Variable(0)).restore(path)


def test_manifest_with_wrong_checksum_is_refused(tmp_path: pathlib.Path) -> None:
    path = pathlib.Path(Checkpoint(position=Position(12345), step=Variable(0)).save(tmp_path))
    text = (path / "manifest.json").read_text()
    position, step = Position(7), Variable(5)
    for place, damage in [
        ("12345", "12344"),
        ('"row_stop": 1', '"row_stop": 0'),
        ('"step"', '"stop"'),
    ]:
        assert place in text
        (path / "manifest.json").write_text(text.replace(place, damage, 1))
        with pytest.raises(DataLossError, match=r"manifest\.json is damaged.*an older checkpoint"):
            Checkpoint(position=position, step=step).restore(path)
    assert (position.row, int(step)) == (7, 5)
    (path / "manifest.json").write_text(text)
    Checkpoint(position=position, step=step).restore(path)
    assert (position.row, int(step)) == (12345, 0)


def test_checkpoint_of_format_3_without_piece_checksums_is_read(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_files, "SMALL_BYTES", 0)
    model = Model()
    path = pathlib.Path(Checkpoint(model=model).save(tmp_path))
    older = json.loads((path / "manifest.json").read_text())
    assert all(len(shard.pop("sums")) == 16 for shard in older["saved"]["shards"])
    (path / "manifest.json").write_text(json.dumps({**older, "format": 3}))
    other = Model(seed=2)
    Checkpoint(model=other).restore(path)
    assert other.values() == model.values()


def test_unknown_checkpoint_format_is_refused(tmp_path: pathlib.Path) -> None:
    path = pathlib.Path(Checkpoint(step=Variable(0)).save(tmp_path))
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "format": 99}))
    with pytest.raises(InvalidArgumentError, match="99"):
        Checkpoint(step=Variable(0)).restore(path)


def test_model_configuration_is_saved(tmp_path: pathlib.Path) -> None:
    Checkpoint(model=Model(6), step=Variable(0)).save(tmp_path)
    assert read_config(tmp_path) == {"rows": 6}
    with pytest.raises(NotFoundError, match="step"):
        read_config(tmp_path, "step")


def test_objects_that_cannot_be_saved_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="nothing to save"):
        Checkpoint(model=None)
    with pytest.raises(InvalidTypeError, match="weights=ndarray"):
        Checkpoint(weights=np.zeros(3))


def test_save_accepts_name_and_number(tmp_path: pathlib.Path) -> None:
    step = Variable(1, name="step")
    saved = Checkpoint(step=step)
    assert saved.save(tmp_path, name="epoch", number=12) == str(tmp_path / "epoch-12")
    assert saved.save(tmp_path) == str(tmp_path / "ckpt-13")
    step.assign(2)
    saved.save(tmp_path, name="epoch", number=12)
    assert [pathlib.Path(p).name for p in checkpoints(tmp_path)] == ["epoch-12", "ckpt-13"]
    saved.restore(tmp_path / "epoch-12")
    assert int(step) == 2
    for bad in ("", ".x", "a/b"):
        with pytest.raises(InvalidArgumentError, match="name"):
            saved.save(tmp_path, name=bad)


def test_checkpointed_objects_are_read_only_attributes(tmp_path: pathlib.Path) -> None:
    step = Variable(1, name="step")
    checkpoint: Any = Checkpoint(step=step)
    checkpoint.step.assign_add(1)
    assert int(checkpoint.step) == 2
    assert checkpoint.step is step
    with pytest.raises(AttributeError, match=r"read': write restore\(path\)"):
        checkpoint.read(tmp_path)
    with pytest.raises(TypeError, match=r"when the Checkpoint was made.*other=other"):
        checkpoint.other = step


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"seen": {3: 1}}, "the key 3, which JSON would make text: use '3'"),
        ([{"a": [{True: 1}]}], "the key True"),
    ],
)
def test_state_that_json_would_change_is_refused(
    state: Any, message: str, tmp_path: pathlib.Path
) -> None:
    counted = types.SimpleNamespace(state_dict=lambda: state, load_state_dict=print)
    with pytest.raises(InvalidArgumentError, match=message):
        Checkpoint(counted=counted).save(tmp_path)
    assert os.listdir(tmp_path) == []


def test_url_as_checkpoint_folder_is_refused(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint = Checkpoint(step=Variable(1))
    for use in (checkpoint.save, checkpoint.restore, latest_checkpoint):
        with pytest.raises(InvalidArgumentError, match="got the URL 's3://bucket/ckpt'"):
            use("s3://bucket/ckpt")
    assert os.listdir(tmp_path) == []


def test_numpy_integer_is_accepted_as_checkpoint_number(tmp_path: pathlib.Path) -> None:
    number: Any = np.int64(7)
    saved = Checkpoint(step=Variable(1)).save(tmp_path, number=number)
    assert (saved, latest_checkpoint(tmp_path)) == (str(tmp_path / "ckpt-7"),) * 2


@pytest.mark.parametrize("variables", [{"a": 1}, None, [np.zeros(2)]])
def test_object_whose_variables_are_no_list_of_variables_is_refused(
    variables: Any, tmp_path: pathlib.Path
) -> None:
    with pytest.raises(TypeError, match=r"net=SimpleNamespace: its variables must be a list"):
        Checkpoint(net=types.SimpleNamespace(variables=variables)).save(tmp_path)


def test_list_of_objects_is_refused_with_hint_to_name_them() -> None:
    with pytest.raises(TypeError, match=r"tables is a list: .* Checkpoint\(\*\*\{f'tables_\{i\}'"):
        Checkpoint(tables=[])


def test_class_instead_of_object_is_refused() -> None:
    with pytest.raises(InvalidTypeError, match="model is the class Model"):
        Checkpoint(model=Model)
