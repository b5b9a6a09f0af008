"""``models.load_model``: a model made anew from where it was saved."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

import pstrain as ps
from pstrain.errors import InvalidArgumentError, NotFoundError

ROWS = {"age": np.array([20.0, 40.0, 60.0]), "city": np.array([1, 2, 3])}


class Doubled(ps.models.LogisticRegression):
    kind = "doubled"


def trained(cls: Any = ps.models.LogisticRegression) -> Any:
    schema = ps.FeatureSchema(dense=["age"], categorical={"city": ps.Category(10)}, label="y")
    model = cls(schema, seed=1)
    model.compile("adagrad")
    model.fit({**ROWS, "y": np.array([0, 1, 1])}, epochs=2, verbose=0)
    return model


def test_saved_weights_become_the_model_again(tmp_path: pathlib.Path) -> None:
    model = trained()
    path = model.save_weights(tmp_path)
    for given in (tmp_path, str(tmp_path), path):
        again = ps.models.load_model(given)
        assert type(again) is ps.models.LogisticRegression
        np.testing.assert_array_equal(again.predict_on_batch(ROWS), model.predict_on_batch(ROWS))


def test_newest_checkpoint_of_a_folder_counts(tmp_path: pathlib.Path) -> None:
    model = trained()
    first = model.save_weights(tmp_path)
    earlier = model.predict_on_batch(ROWS)
    model.fit({**ROWS, "y": np.array([0, 1, 1])}, verbose=0)
    model.save_weights(tmp_path)
    newest = ps.models.load_model(tmp_path).predict_on_batch(ROWS)
    np.testing.assert_array_equal(newest, model.predict_on_batch(ROWS))
    np.testing.assert_array_equal(ps.models.load_model(first).predict_on_batch(ROWS), earlier)
    assert (newest != earlier).any()


def test_model_of_another_name_is_loaded_by_it(tmp_path: pathlib.Path) -> None:
    model = trained()
    ps.Checkpoint(tower=model, optimizer=model.optimizer).save(tmp_path)
    again = ps.models.load_model(tmp_path, name="tower")
    np.testing.assert_array_equal(again.predict_on_batch(ROWS), model.predict_on_batch(ROWS))
    with pytest.raises(InvalidArgumentError, match="holds no 'model' that can be made"):
        ps.models.load_model(tmp_path)


def test_model_of_a_programs_own_class_is_left_to_the_program(tmp_path: pathlib.Path) -> None:
    trained(Doubled).save_weights(tmp_path)
    with pytest.raises(
        InvalidArgumentError, match=r"unknown model 'doubled'.*another model of your"
    ):
        ps.models.load_model(tmp_path)


def test_folder_without_checkpoint_is_named(tmp_path: pathlib.Path) -> None:
    with pytest.raises(NotFoundError, match=r"no checkpoint at .*nowhere"):
        ps.models.load_model(tmp_path / "nowhere")
