"""Names in checkpoints: values that wait for their variables, and values with two names."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest

from pstrain.checkpoints.checkpoint import Checkpoint
from pstrain.errors import (
    InvalidArgumentError,
    NotFoundError,
)
from pstrain.layers import Dense, Embedding
from pstrain.metrics import Mean
from pstrain.variables.variable import Variable
from tests.unit.pstrain.checkpoints.checkpoint_cases import Model

pytestmark = pytest.mark.usefixtures("own_parameters")


class BuiltLater:
    """An object whose variables are created only when it is built."""

    def __init__(self) -> None:
        self.variables: list[Any] = []

    def build(self) -> None:
        self.variables = Model(seed=9).variables


def test_restored_values_wait_until_their_variables_are_created(tmp_path: pathlib.Path) -> None:
    model = Model()
    Checkpoint(model=model, step=Variable(3)).save(tmp_path)
    later = BuiltLater()
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


def test_newest_restore_wins_and_values_of_deleted_objects_are_dropped(
    tmp_path: pathlib.Path,
) -> None:
    first, second = Model(seed=1), Model(seed=2)
    paths = [Checkpoint(model=each).save(tmp_path) for each in (first, second)]
    later, gone = BuiltLater(), BuiltLater()
    Checkpoint(model=gone).restore(paths[0])
    del gone
    for path in paths:
        Checkpoint(model=later).restore(path)
    later.build()
    assert [variable.numpy().tolist() for variable in later.variables] == second.values()
    assert Model(seed=9).values() not in (first.values(), second.values())


def test_deferred_value_of_wrong_shape_is_refused(tmp_path: pathlib.Path) -> None:
    Checkpoint(model=Model()).save(tmp_path)
    later = BuiltLater()
    Checkpoint(model=later).restore(tmp_path)
    with pytest.raises(InvalidArgumentError, match="shape"):
        Model(rows=7)


def test_layer_that_was_saved_under_another_name_is_refused_when_it_makes_its_variables(
    tmp_path: pathlib.Path,
) -> None:
    class Head:
        def __init__(self, name: str) -> None:
            self.layers = [Dense(1, name=name)]

        @property
        def variables(self) -> list[Any]:
            return self.layers[0].variables

    one_row = np.ones((1, 2), np.float32)
    saved, renamed, within, other = Dense(1, name="a"), Dense(1, name="b"), Head("b"), Dense(1)
    saved(one_row)
    path = Checkpoint(layer=saved).save(tmp_path)
    Checkpoint(layer=renamed).restore(path)
    Checkpoint(layer=within).restore(path)
    for layer in (renamed, within.layers[0]):
        with pytest.raises(NotFoundError, match=r"no variable 'layer/b/kernel'.*layer/a/kernel"):
            layer(one_row)
    other(one_row)


def test_metric_that_was_saved_as_another_is_refused_when_it_makes_its_state(
    tmp_path: pathlib.Path,
) -> None:
    saved, renamed = Mean(), Mean("other")
    saved.update_state(1.0)
    with pytest.raises(NotFoundError, match="no variable 'm/metrics/other'"):
        Checkpoint(m=renamed).restore(Checkpoint(m=saved).save(tmp_path))


def test_layers_and_metrics_with_equal_names_get_their_own_values(tmp_path: pathlib.Path) -> None:
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


def test_save_warns_of_restored_values_not_yet_assigned(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    later = BuiltLater()
    saved = Checkpoint(model=later, step=Variable(3))
    saved.restore(Checkpoint(model=Model(), step=Variable(3)).save(tmp_path))
    saved.save(tmp_path)
    assert "'model' has not made its variables yet" in caplog.text
    caplog.clear()
    later.build()
    saved.save(tmp_path)
    assert not caplog.text


def test_metric_restored_before_first_update_has_restored_state(tmp_path: pathlib.Path) -> None:
    first, second, third = Mean(), Mean(), Mean()
    first.update_state([4.0])
    saved = Checkpoint(m=first).save(tmp_path)
    Checkpoint(m=second).restore(saved).assert_consumed()
    assert float(second.result()) == 4.0
    Checkpoint(m=third).restore(Checkpoint(m=second).save(tmp_path))
    third.reset_state()
    third.update_state([1.0])
    assert float(third.result()) == 1.0


def test_metric_restored_to_state_before_first_update_is_reset(tmp_path: pathlib.Path) -> None:
    saved = Checkpoint(m=(metric := Mean()))
    path = saved.save(tmp_path)
    metric.update_state([1.0])
    saved.restore(path)
    metric.update_state([3.0])
    assert float(metric.result()) == 3.0


def test_variables_built_after_restore_get_values_beside_existing_variables(
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
            return self.towers[0](self.table(ids)).value.tolist()

    saved, later, other = Net(1.0), Net(2.0), Dense(1)
    expected = saved()
    path = Checkpoint(net=saved).save(tmp_path)
    status = Checkpoint(net=later).restore(path)
    other(np.ones((1, 2), np.float32))
    with pytest.raises(AssertionError, match="net/dense/kernel"):
        status.assert_consumed()
    assert later() == expected
    status.assert_consumed()


def test_other_layer_with_same_name_does_not_get_restored_values(tmp_path: pathlib.Path) -> None:
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


def test_deferred_value_with_several_candidate_objects_is_refused(tmp_path: pathlib.Path) -> None:
    Checkpoint(a=Model(seed=1), b=Model(seed=2)).save(tmp_path)
    several = BuiltLater(), BuiltLater()
    Checkpoint(a=several[0], b=several[1]).restore(tmp_path)
    with pytest.raises(InvalidArgumentError, match="'table' was restored for several objects"):
        several[1].build()


def test_recreated_model_gets_its_values_while_old_model_lives(tmp_path: pathlib.Path) -> None:
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
    """An encoder, which creates its variables on first use, and one more variable."""

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


def _net_saved_under_two_names(folder: pathlib.Path) -> str:
    net = Net().build(5.0)
    return Checkpoint(net=net, encoder=net.encoder).save(folder)


def _stored(path: str) -> list[str]:
    text = (pathlib.Path(path) / "manifest.json").read_text()
    return sorted(shard["name"] for shard in json.loads(text)["saved"]["shards"])


def test_value_with_two_names_is_stored_once_and_restored_by_both(tmp_path: pathlib.Path) -> None:
    path = _net_saved_under_two_names(tmp_path)
    assert _stored(path) == ["net/encoder/bias", "net/encoder/kernel", "net/scale"]
    net = Net().build(1.0)
    Checkpoint(net=net, encoder=net.encoder).restore(path).assert_consumed()
    assert net.restored() == [5.0]


def test_value_with_two_names_is_restored_by_either(tmp_path: pathlib.Path) -> None:
    path = _net_saved_under_two_names(tmp_path)
    net, other = Net().build(1.0), Net().build(1.0)
    Checkpoint(net=net).restore(path).assert_consumed()
    Checkpoint(encoder=other.encoder).restore(path).assert_existing_objects_matched()
    assert (net.restored(), other.restored()) == ([5.0], [1.0, 5.0])
    apart = Net().build(1.0), Net().build(1.0)
    Checkpoint(net=apart[0], encoder=apart[1].encoder).restore(path)
    assert [each.restored() for each in apart] == [[5.0], [1.0, 5.0]]


def test_deferred_value_with_two_names_waits_for_either(tmp_path: pathlib.Path) -> None:
    path = _net_saved_under_two_names(tmp_path)
    one_row = np.ones((1, 3), np.float32)
    both, only = Net(), Net()
    status = Checkpoint(net=both, encoder=both.encoder).restore(path)
    Checkpoint(encoder=only.encoder).restore(path)
    for net in (both, only):
        net.encoder(one_row)
        net.head = [Variable(0.0, name="scale")]
    status.assert_consumed()
    assert (both.restored(), only.restored()) == ([5.0], [0.0, 5.0])


def test_value_assigned_by_one_name_does_not_wait_for_its_other_name(
    tmp_path: pathlib.Path,
) -> None:
    """The objects are plain: one takes over the variables that the other has created."""
    inner = Model()
    outer = BuiltLater()
    outer.variables = inner.variables
    path = Checkpoint(outer=outer, inner=inner).save(tmp_path)
    outer, second = BuiltLater(), BuiltLater()
    status = Checkpoint(outer=outer, inner=second).restore(path)
    outer.build()
    second.variables = outer.variables
    status.assert_consumed()
    assert [variable.numpy().tolist() for variable in outer.variables] == inner.values()
    assert Model(seed=9).values() != inner.values(), "a value was given out twice"


def test_two_objects_built_later_both_get_value_saved_as_one(tmp_path: pathlib.Path) -> None:
    model = Model()
    path = Checkpoint(a=model, b=model).save(tmp_path)
    assert _stored(path) == ["a/bias", "a/bias#2", "a/table"]
    later = BuiltLater(), BuiltLater()
    status = Checkpoint(a=later[0], b=later[1]).restore(path)
    for each in later:
        each.build()
        assert [variable.numpy().tolist() for variable in each.variables] == model.values()
    status.assert_consumed()


def test_new_alias_of_saved_object_needs_no_values_of_its_own(tmp_path: pathlib.Path) -> None:
    net = Net().build(5.0)
    path = Checkpoint(net=net).save(tmp_path)
    again = Net().build(1.0)
    Checkpoint(net=again, encoder=again.encoder).restore(path).assert_consumed()
    assert again.restored() == [5.0]
    later = Net()
    Checkpoint(net=later, same=later).restore(path)
    with pytest.raises(NotFoundError, match="no object 'other'"):
        Checkpoint(net=again, other=Net().build(1.0)).restore(path)


def test_variable_tied_to_two_saved_values_gets_first(tmp_path: pathlib.Path) -> None:
    path = Checkpoint(a=Variable(1.0), b=Variable(2.0)).save(tmp_path)
    tied = Variable(0.0)
    status = Checkpoint(a=tied, b=tied).restore(path)
    assert float(tied) == 1.0
    with pytest.raises(AssertionError, match=r"not restored from .*: b"):
        status.assert_consumed()


def test_checkpoint_of_format_5_with_aliases_is_read(tmp_path: pathlib.Path) -> None:
    """Older checkpoints (format 5) store a value with several names under the last name."""
    saved = Net().build(5.0)
    path = pathlib.Path(Checkpoint(encoder=saved.encoder, net=saved).save(tmp_path))
    older = json.loads((path / "manifest.json").read_text())
    assert "net/encoder/bias" in older.pop("aliases")
    (path / "manifest.json").write_text(json.dumps({**older, "format": 5}))
    net = Net().build(1.0)
    Checkpoint(net=net, encoder=net.encoder).restore(path).assert_consumed()
    assert net.restored() == [5.0]


def test_restore_status_checks_chain_and_return_path(tmp_path: pathlib.Path) -> None:
    model = Model()
    path = Checkpoint(model=model).save(tmp_path)
    status = Checkpoint(model=model).restore(path)
    assert status.assert_consumed().assert_nontrivial_match() == status.path == path
    model.variables.append(Variable(0.0, name="extra"))
    with pytest.raises(AssertionError, match="model/extra"):
        status.assert_existing_objects_matched()
