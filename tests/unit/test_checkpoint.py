"""Checkpoints: whole or invisible, matched by name, refused where they do not fit."""

from __future__ import annotations

import json
import os
import pathlib
import threading
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from pstrain import initializers
from pstrain.checkpoints import manifest
from pstrain.checkpoints.checkpoint import Checkpoint, checkpoints, latest_checkpoint, read_config
from pstrain.errors import (
    DataLossError,
    DeadlineExceededError,
    InvalidArgumentError,
    InvalidTypeError,
    NotFoundError,
)
from pstrain.layers import Dense, Embedding
from pstrain.metrics import Mean
from pstrain.paramserver import checkpoint as shard_files
from pstrain.variables.scope import local_parameters
from pstrain.variables.variable import Variable, create_variable


class Model:
    """Variables of two names, the second twice."""

    def __init__(self, rows: int = 4, *, seed: int = 1) -> None:
        start = initializers.normal(seed=seed)
        self.variables = [
            create_variable(start, shape=(rows, 2), name="table"),
            create_variable(start, shape=(3,), name="bias"),
            create_variable(initializers.constant(seed), shape=(3,), name="bias"),
        ]

    def get_config(self) -> dict[str, Any]:
        return {"rows": self.variables[0].shape[0]}

    def values(self) -> list[Any]:
        return [variable.numpy().tolist() for variable in self.variables]


class Position:
    """Data that knows where it is."""

    def __init__(self, row: Any = 0) -> None:
        self.row = row

    def state_dict(self) -> dict[str, Any]:
        return {"row": self.row}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.row = state["row"]


@pytest.fixture(autouse=True)
def _own_parameters() -> Iterator[None]:
    with local_parameters():
        yield


def test_everything_comes_back_together(tmp_path: pathlib.Path) -> None:
    model, step, data = Model(), Variable(7), Position(40)
    path = Checkpoint(model=model, step=step, data=data, nothing=None).save(tmp_path)
    other, other_step, other_data = Model(seed=2), Variable(0), Position()
    assert Checkpoint(model=other, step=other_step, data=other_data).restore(path) == path
    assert other.values() == model.values()
    assert (int(other_step), other_data.row) == (7, 40)


def test_a_part_of_a_checkpoint_can_be_restored(tmp_path: pathlib.Path) -> None:
    Checkpoint(model=Model(), step=Variable(7)).save(tmp_path)
    step = Variable(0)
    Checkpoint(step=step).restore(tmp_path)
    assert int(step) == 7


def test_values_of_several_places_share_a_checkpoint(tmp_path: pathlib.Path) -> None:
    with local_parameters():
        here = Variable(1.0, name="x")
    there = Variable(2.0, name="x")
    Checkpoint(here=here, there=there).save(tmp_path)
    here.assign(0)
    there.assign(0)
    Checkpoint(here=here, there=there).restore(tmp_path)
    assert (float(here), float(there)) == (1.0, 2.0)


def test_a_directory_stands_for_its_newest(tmp_path: pathlib.Path) -> None:
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


def test_a_save_that_fails_leaves_nothing(tmp_path: pathlib.Path) -> None:
    with pytest.raises(InvalidArgumentError, match="JSON"):
        Checkpoint(model=Model(), data=Position(row={1, 2})).save(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert latest_checkpoint(tmp_path) is None


def test_an_asynchronous_save_is_of_the_moment_it_was_asked_for(tmp_path: pathlib.Path) -> None:
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


def test_a_background_save_that_fails_is_told_by_the_next(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Variable(7)
    saved = Checkpoint(step=step)
    with monkeypatch.context() as patch:
        patch.setattr(manifest, "_write_synced", _full)
        path = saved.save(tmp_path, asynchronous=True)
        with pytest.raises(OSError, match="full"):
            path.wait(30)
        assert not path.is_complete
    with pytest.raises(OSError, match="full"):
        saved.save(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert saved.save(tmp_path) == str(tmp_path / "ckpt-1")


def _full(_path: str, _text: str) -> None:
    raise OSError("full")


def test_a_save_that_was_waited_for_too_shortly_is_waited_for_again(
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
    with pytest.raises(OSError, match="full"):
        saved.wait(30)
    saved.wait(0)


def test_who_is_alone_has_waited_for_what_another_thread_writes(
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


def test_what_no_thread_can_be_had_for_is_saved_at_once(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    assert Checkpoint(step=Variable(7)).save(tmp_path, asynchronous=True).is_complete


def test_saves_that_overlap_have_numbers_of_their_own(tmp_path: pathlib.Path) -> None:
    steps = [Variable(n) for n in range(3)]
    paths = [Checkpoint(step=step).save(tmp_path, asynchronous=True) for step in steps]
    for path in paths:
        path.wait(30)
    assert checkpoints(tmp_path) == [str(tmp_path / f"ckpt-{n}") for n in (1, 2, 3)]


def test_what_a_killed_save_left_is_invisible_and_removed(tmp_path: pathlib.Path) -> None:
    left = tmp_path / ".partial-ckpt-1"
    left.mkdir()
    (left / "manifest.json").write_text("{}")
    (tmp_path / "ckpt-9").mkdir()
    assert checkpoints(tmp_path) == []
    assert Checkpoint(step=Variable(0)).save(tmp_path) == str(tmp_path / "ckpt-10")
    assert not left.exists()


def test_no_checkpoint_is_an_error_that_says_where(tmp_path: pathlib.Path) -> None:
    assert latest_checkpoint(tmp_path / "absent") is None
    with pytest.raises(NotFoundError, match="absent"):
        Checkpoint(step=Variable(0)).restore(tmp_path / "absent")


def test_another_shape_is_named_and_changes_nothing(tmp_path: pathlib.Path) -> None:
    Checkpoint(step=Variable(7), model=Model(4)).save(tmp_path)
    step, other = Variable(0), Model(5, seed=2)
    before = other.values()
    with pytest.raises(InvalidArgumentError, match=r"'model/table'.*\(5, 2\).*\(4, 2\)"):
        Checkpoint(step=step, model=other).restore(tmp_path)
    assert (int(step), other.values()) == (0, before)


@pytest.mark.parametrize(("names", "missing"), [("modle", "modle"), ("step", "step")])
def test_what_is_not_there_is_named(tmp_path: pathlib.Path, names: str, missing: str) -> None:
    Checkpoint(model=Model()).save(tmp_path)
    with pytest.raises(NotFoundError, match=f"'{missing}'.*model"):
        Checkpoint(**{names: Variable(0)}).restore(tmp_path)


def test_a_variable_that_is_not_there_is_named(tmp_path: pathlib.Path) -> None:
    model, larger = Model(), Model()
    Checkpoint(model=model).save(tmp_path)
    larger.variables.append(Variable(0.0, name="extra"))
    with pytest.raises(NotFoundError, match=r"'model/extra'.*model/bias#2"):
        Checkpoint(model=larger).restore(tmp_path)


def test_damage_is_noticed_before_anything_changes(tmp_path: pathlib.Path) -> None:
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


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 3}', '{"format": 2'])
def test_a_damaged_manifest_is_noticed(tmp_path: pathlib.Path, text: str) -> None:
    path = pathlib.Path(Checkpoint(step=Variable(0)).save(tmp_path))
    (path / "manifest.json").write_text(text)
    with pytest.raises(DataLossError, match="manifest"):
        Checkpoint(step=Variable(0)).restore(path)


def test_a_manifest_that_is_damaged_and_still_one_is_noticed(tmp_path: pathlib.Path) -> None:
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


def test_a_checkpoint_without_sums_of_pieces_is_read(
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


def test_another_format_is_refused(tmp_path: pathlib.Path) -> None:
    path = pathlib.Path(Checkpoint(step=Variable(0)).save(tmp_path))
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "format": 99}))
    with pytest.raises(InvalidArgumentError, match="99"):
        Checkpoint(step=Variable(0)).restore(path)


def test_configurations_are_kept(tmp_path: pathlib.Path) -> None:
    Checkpoint(model=Model(6), step=Variable(0)).save(tmp_path)
    assert read_config(tmp_path) == {"rows": 6}
    with pytest.raises(NotFoundError, match="step"):
        read_config(tmp_path, "step")


def test_only_what_can_be_saved_is_taken() -> None:
    with pytest.raises(InvalidArgumentError, match="nothing to save"):
        Checkpoint(model=None)
    with pytest.raises(InvalidTypeError, match="weights=ndarray"):
        Checkpoint(weights=np.zeros(3))


class Later:
    """Makes its variables when it is first needed."""

    def __init__(self) -> None:
        self.variables: list[Any] = []

    def build(self) -> None:
        self.variables = Model(seed=9).variables


def test_values_wait_until_their_variables_are_made(tmp_path: pathlib.Path) -> None:
    model = Model()
    Checkpoint(model=model, step=Variable(3)).save(tmp_path)
    later = Later()
    status = Checkpoint(model=later).restore(tmp_path)
    with pytest.raises(AssertionError, match="model/table"):
        status.assert_consumed()
    status.assert_existing_objects_matched()
    later.build()
    assert [variable.numpy().tolist() for variable in later.variables] == model.values()
    status.assert_existing_objects_matched().expect_partial()
    with pytest.raises(AssertionError, match="step"):
        status.assert_consumed()
    assert Model(seed=9).values() != model.values(), "a value was given out twice"


def test_the_newest_restore_counts_and_nothing_waits_for_the_dead(tmp_path: pathlib.Path) -> None:
    first, second = Model(seed=1), Model(seed=2)
    paths = [Checkpoint(model=each).save(tmp_path) for each in (first, second)]
    later, gone = Later(), Later()
    Checkpoint(model=gone).restore(paths[0])
    del gone
    for path in paths:
        Checkpoint(model=later).restore(path)
    later.build()
    assert [variable.numpy().tolist() for variable in later.variables] == second.values()
    assert Model(seed=9).values() not in (first.values(), second.values())


def test_waiting_values_must_fit(tmp_path: pathlib.Path) -> None:
    Checkpoint(model=Model()).save(tmp_path)
    later = Later()
    Checkpoint(model=later).restore(tmp_path)
    with pytest.raises(InvalidArgumentError, match="shape"):
        Model(rows=7)


def test_layers_and_metrics_of_one_name_get_their_own_values(tmp_path: pathlib.Path) -> None:
    one_row = np.ones((1, 2), np.float32)

    def objects() -> dict[str, Any]:
        return {"a": Dense(1), "b": Dense(1), "m": Mean(), "n": Mean()}

    first = objects()
    for value, layer, metric in ((1.0, "a", "m"), (2.0, "b", "n")):
        first[layer](one_row)
        first[layer].variables[0].assign(value)
        first[metric].update_state(value)
    path = Checkpoint(**first).save(tmp_path)

    second = objects()
    status = Checkpoint(**second).restore(path)
    for layer, metric in (("b", "n"), ("a", "m")):
        second[layer](one_row)
        second[metric].update_state([])
    status.assert_consumed()
    assert [second[name].variables[0].numpy().tolist() for name in "ab"] == [[[1], [1]], [[2], [2]]]
    assert [second[name].result() for name in "mn"] == [1.0, 2.0]


def test_what_an_object_builds_later_gets_its_values_beside_what_it_has(
    tmp_path: pathlib.Path,
) -> None:
    ids = np.array([1, 2])

    class Net:
        def __init__(self, value: float) -> None:
            self.table, self.towers = Embedding(4, 2, name="table"), [Dense(1)]
            self.table.variables[0].assign(np.full((4, 2), value))

        @property
        def variables(self) -> list[Any]:
            return [*self.table.variables, *self.towers[0].variables]

        def __call__(self) -> list[Any]:
            return self.towers[0](self.table(ids)).value.tolist()  # type: ignore[no-any-return]

    saved, later, other = Net(1.0), Net(2.0), Dense(1)
    expected = saved()
    path = Checkpoint(net=saved).save(tmp_path)
    status = Checkpoint(net=later).restore(path)
    other(np.ones((1, 2), np.float32))
    with pytest.raises(AssertionError, match="net/dense/kernel"):
        status.assert_consumed()
    assert later() == expected
    status.assert_consumed()


def test_another_layer_of_the_name_is_not_the_restored_one(tmp_path: pathlib.Path) -> None:
    one_row = np.ones((1, 2), np.float32)
    saved = Dense(1)
    saved(one_row)
    saved.variables[0].assign(5.0)
    path = Checkpoint(layer=saved).save(tmp_path)
    restored, other = Dense(1), Dense(1)
    Checkpoint(layer=restored).restore(path)
    other(one_row)
    restored(one_row)
    assert restored.variables[0].numpy().tolist() == [[5.0], [5.0]]
    assert other.variables[0].numpy().tolist() != [[5.0], [5.0]]


def test_values_that_several_objects_wait_for_are_not_guessed(tmp_path: pathlib.Path) -> None:
    Checkpoint(a=Model(seed=1), b=Model(seed=2)).save(tmp_path)
    several = Later(), Later()
    Checkpoint(a=several[0], b=several[1]).restore(tmp_path)
    with pytest.raises(InvalidArgumentError, match="'table' was restored for several objects"):
        several[1].build()


def test_a_model_made_anew_gets_its_values_while_the_old_one_lives(tmp_path: pathlib.Path) -> None:
    class Net:
        def __init__(self) -> None:
            self.variables: list[Any] = []

        def build(self, value: float) -> None:
            self.variables = [Variable(value, name=name) for name in ("weight", "shift")]

    saved, old, new = Net(), Net(), Net()
    saved.build(5.0)
    Checkpoint(net=saved).save(tmp_path)
    Checkpoint(net=old).restore(tmp_path)
    status = Checkpoint(net=new).restore(tmp_path)
    new.build(0.0)
    status.assert_consumed()
    assert new.variables == [5.0, 5.0]
    old.build(0.0)
    assert old.variables == [5.0, 5.0]


class Net:
    """An encoder, which makes its variables late, and one more variable."""

    def __init__(self) -> None:
        self.encoder = Dense(2, name="encoder")
        self.head: list[Any] = []

    @property
    def variables(self) -> list[Any]:
        return [*self.encoder.variables, *self.head]

    def build(self, value: float) -> Net:
        self.encoder(np.ones((1, 3), np.float32))
        self.head = [Variable(value, name="scale")]
        for variable in self.encoder.variables:
            variable.assign(variable.numpy() * 0 + value)
        return self

    def restored(self) -> list[float]:
        return sorted({float(value) for v in self.variables for value in v.numpy().reshape(-1)})


def _one_net_of_two_names(folder: pathlib.Path) -> str:
    net = Net().build(5.0)
    return Checkpoint(net=net, encoder=net.encoder).save(folder)


def _stored(path: str) -> list[str]:
    text = (pathlib.Path(path) / "manifest.json").read_text()
    return sorted(shard["name"] for shard in json.loads(text)["saved"]["shards"])


def test_what_has_two_names_is_stored_once_and_restored_by_both(tmp_path: pathlib.Path) -> None:
    path = _one_net_of_two_names(tmp_path)
    assert _stored(path) == ["net/encoder/bias", "net/encoder/kernel", "net/scale"]
    net = Net().build(1.0)
    Checkpoint(net=net, encoder=net.encoder).restore(path).assert_consumed()
    assert net.restored() == [5.0]


def test_either_name_of_two_restores(tmp_path: pathlib.Path) -> None:
    path = _one_net_of_two_names(tmp_path)
    net, other = Net().build(1.0), Net().build(1.0)
    Checkpoint(net=net).restore(path).assert_consumed()
    Checkpoint(encoder=other.encoder).restore(path).assert_existing_objects_matched()
    assert (net.restored(), other.restored()) == ([5.0], [1.0, 5.0])
    apart = Net().build(1.0), Net().build(1.0)
    Checkpoint(net=apart[0], encoder=apart[1].encoder).restore(path)
    assert [each.restored() for each in apart] == [[5.0], [1.0, 5.0]]


def test_values_of_two_names_wait_for_either(tmp_path: pathlib.Path) -> None:
    path = _one_net_of_two_names(tmp_path)
    one_row = np.ones((1, 3), np.float32)
    both, only = Net(), Net()
    status = Checkpoint(net=both, encoder=both.encoder).restore(path)
    Checkpoint(encoder=only.encoder).restore(path)
    for net in (both, only):
        net.encoder(one_row)
        net.head = [Variable(0.0, name="scale")]
    status.assert_consumed()
    assert (both.restored(), only.restored()) == ([5.0], [0.0, 5.0])


def test_a_value_that_came_by_one_name_does_not_wait_for_others(tmp_path: pathlib.Path) -> None:
    """Of plain objects, whose variables anybody may have made."""
    inner = Model()
    outer = Later()
    outer.variables = inner.variables
    path = Checkpoint(outer=outer, inner=inner).save(tmp_path)
    outer, second = Later(), Later()
    status = Checkpoint(outer=outer, inner=second).restore(path)
    outer.build()
    second.variables = outer.variables
    status.assert_consumed()
    assert [variable.numpy().tolist() for variable in outer.variables] == inner.values()
    assert Model(seed=9).values() != inner.values(), "a value was given out twice"


def test_two_objects_made_later_both_get_what_was_one(tmp_path: pathlib.Path) -> None:
    model = Model()
    path = Checkpoint(a=model, b=model).save(tmp_path)
    assert _stored(path) == ["a/bias", "a/bias#2", "a/table"]
    later = Later(), Later()
    status = Checkpoint(a=later[0], b=later[1]).restore(path)
    for each in later:
        each.build()
        assert [variable.numpy().tolist() for variable in each.variables] == model.values()
    status.assert_consumed()


def test_a_new_name_of_what_was_saved_needs_no_values_of_its_own(tmp_path: pathlib.Path) -> None:
    net = Net().build(5.0)
    path = Checkpoint(net=net).save(tmp_path)
    again = Net().build(1.0)
    Checkpoint(net=again, encoder=again.encoder).restore(path).assert_consumed()
    assert again.restored() == [5.0]
    later = Net()
    Checkpoint(net=later, same=later).restore(path)
    with pytest.raises(NotFoundError, match="no object 'other'"):
        Checkpoint(net=again, other=Net().build(1.0)).restore(path)


def test_one_variable_of_values_that_were_two_gets_the_first(tmp_path: pathlib.Path) -> None:
    path = Checkpoint(a=Variable(1.0), b=Variable(2.0)).save(tmp_path)
    tied = Variable(0.0)
    status = Checkpoint(a=tied, b=tied).restore(path)
    assert float(tied) == 1.0
    with pytest.raises(AssertionError, match=r"not restored from .*: b"):
        status.assert_consumed()


def test_an_older_checkpoint_of_two_names_is_read(tmp_path: pathlib.Path) -> None:
    """They stored what has several names under the last."""
    saved = Net().build(5.0)
    path = pathlib.Path(Checkpoint(encoder=saved.encoder, net=saved).save(tmp_path))
    older = json.loads((path / "manifest.json").read_text())
    assert "net/encoder/bias" in older.pop("aliases")
    (path / "manifest.json").write_text(json.dumps({**older, "format": 5}))
    net = Net().build(1.0)
    Checkpoint(net=net, encoder=net.encoder).restore(path).assert_consumed()
    assert net.restored() == [5.0]


def test_what_was_restored_can_be_asked(tmp_path: pathlib.Path) -> None:
    model = Model()
    path = Checkpoint(model=model).save(tmp_path)
    status = Checkpoint(model=model).restore(path)
    assert status.assert_consumed().assert_nontrivial_match() == status.path == path
    model.variables.append(Variable(0.0, name="extra"))
    with pytest.raises(AssertionError, match="model/extra"):
        status.assert_existing_objects_matched()


def test_checkpoints_may_be_named_and_numbered(tmp_path: pathlib.Path) -> None:
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


def test_objects_are_found_by_their_names(tmp_path: pathlib.Path) -> None:
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
def test_state_that_would_come_back_as_another_is_refused(
    state: Any, message: str, tmp_path: pathlib.Path
) -> None:
    counted = types.SimpleNamespace(state_dict=lambda: state, load_state_dict=print)
    with pytest.raises(InvalidArgumentError, match=message):
        Checkpoint(counted=counted).save(tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_url_is_no_folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint = Checkpoint(step=Variable(1))
    for use in (checkpoint.save, checkpoint.restore, latest_checkpoint):
        with pytest.raises(InvalidArgumentError, match="got the URL 's3://bucket/ckpt'"):
            use("s3://bucket/ckpt")
    assert os.listdir(tmp_path) == []


def test_a_number_of_numpy_names_a_checkpoint(tmp_path: pathlib.Path) -> None:
    number: Any = np.int64(7)
    saved = Checkpoint(step=Variable(1)).save(tmp_path, number=number)
    assert (saved, latest_checkpoint(tmp_path)) == (str(tmp_path / "ckpt-7"),) * 2


@pytest.mark.parametrize("variables", [{"a": 1}, None, [np.zeros(2)]])
def test_variables_are_a_list_of_variables(variables: Any, tmp_path: pathlib.Path) -> None:
    with pytest.raises(TypeError, match=r"net=SimpleNamespace: its variables must be a list"):
        Checkpoint(net=types.SimpleNamespace(variables=variables)).save(tmp_path)


def test_a_list_of_objects_is_told_to_be_named() -> None:
    with pytest.raises(TypeError, match=r"tables is a list: .* Checkpoint\(\*\*\{f'tables_\{i\}'"):
        Checkpoint(tables=[])
