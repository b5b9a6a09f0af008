"""The values of the best epoch: which ones a training adopts, and who keeps them where."""

from __future__ import annotations

import os
import pathlib
import shutil
from types import SimpleNamespace

import pytest

import pstrain as ps
from pstrain.callbacks import EarlyStopping
from pstrain.callbacks.best_values import BestValues
from pstrain.errors import InvalidArgumentError


@pytest.fixture(scope="module")
def model() -> ps.models.LogisticRegression:
    made = ps.models.LogisticRegression(
        ps.FeatureSchema(categorical={"page": ps.Category(8, hashed=False)})
    )
    made.compile("sgd")
    return made


def test_values_that_were_saved_are_adopted_or_the_newer_ones_that_replaced_them(
    model: ps.models.LogisticRegression, tmp_path: pathlib.Path
) -> None:
    def adopted(path: str) -> tuple[str | None, object]:
        values = BestValues(model, str(tmp_path))
        assert values.adopt(path)
        return values.path, values.saved_fields.get("best")

    first = BestValues(model, str(tmp_path))
    first.save(best=1.0)
    replaced = str(first.path)
    first.save(best=2.0)
    newest = str(first.path)
    ps.Checkpoint(model=model).save(tmp_path, name="other")
    assert sorted(os.listdir(tmp_path)) == ["best-2", "other-3"]
    assert adopted(replaced) == adopted(newest) == (newest, 2.0)
    shutil.copytree(newest, tmp_path / "best-9")
    assert adopted(newest) == (newest, 2.0), "it is there"
    assert adopted(replaced) == (str(tmp_path / "best-9"), 2.0)


def test_values_of_this_training_are_newer_than_those_of_a_state(
    model: ps.models.LogisticRegression, tmp_path: pathlib.Path
) -> None:
    values = BestValues(model, str(tmp_path))
    assert values.adopt(None)
    assert not values.adopt(str(tmp_path / "best-1"))
    values.save(best=1.0)
    own = values.path
    assert values.adopt(str(tmp_path / "best-0"))
    assert (values.path, values.saved_fields) == (own, {"best": 1.0})


def test_values_on_parameter_servers_need_a_directory() -> None:
    servers = SimpleNamespace(strategy=SimpleNamespace(parameters=object()))
    with pytest.raises(InvalidArgumentError, match=r"EarlyStopping\(..., directory=\.\.\.\)"):
        BestValues(servers, None)


def test_worker_that_saves_no_checkpoints_keeps_no_values(
    model: ps.models.LogisticRegression, tmp_path: pathlib.Path
) -> None:
    for saves, kept in ((False, []), (True, ["best-1"])):
        worker = SimpleNamespace(extended=SimpleNamespace(should_checkpoint=saves))
        stop = EarlyStopping("loss", restore_best_weights=True, directory=tmp_path)
        stop.set_model(_Of(model, worker))
        stop.on_train_begin()
        stop.on_epoch_end(0, {"loss": 1.0})
        stop.on_train_end()
        assert [path.name for path in tmp_path.iterdir()] == kept


class _Of:
    """A model as one of another strategy."""

    def __init__(self, model: ps.models.LogisticRegression, strategy: object) -> None:
        self._model, self.strategy = model, strategy

    def __getattr__(self, name: str) -> object:
        return getattr(self._model, name)
