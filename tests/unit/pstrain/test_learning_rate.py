"""Learning rates that change between epochs, and optimizers that go on with another rate."""

from __future__ import annotations

import numpy as np
import pytest

import pstrain as ps
from pstrain.callbacks import LearningRateSchedule
from pstrain.errors import InvalidArgumentError


def data() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    page = rng.integers(0, 8, 256)
    return {"page": page, "label": page % 2}


def model() -> ps.models.LogisticRegression:
    made = ps.models.LogisticRegression(
        ps.FeatureSchema(categorical={"page": ps.Category(8, hashed=False)})
    )
    made.compile(ps.optimizers.Adagrad(0.5))
    return made


def test_with_learning_rate_keeps_rule_and_counter() -> None:
    optimizer = ps.optimizers.Adagrad(0.5, initial_accumulator_value=0.01)
    changed = optimizer.with_learning_rate(0.25)
    assert (optimizer.learning_rate, changed.learning_rate) == (0.5, 0.25)
    assert changed.iterations is optimizer.iterations
    assert changed.spec.slots == (0.01,)
    with pytest.raises(InvalidArgumentError, match="learning_rate"):
        optimizer.with_learning_rate(-1.0)


def test_learning_rate_of_zero_in_second_epoch_changes_nothing() -> None:
    trained, seen = model(), []
    schedule = LearningRateSchedule(lambda epoch: seen.append(epoch) or (0.5, 0.0)[epoch])
    trained.fit(data(), epochs=1, batch_size=64, callbacks=[schedule], verbose=0)
    after_one = [variable.numpy() for variable in trained.variables]
    trained.fit(data(), epochs=2, initial_epoch=1, batch_size=64, callbacks=[schedule], verbose=0)
    assert seen == [0, 1]
    assert int(trained.optimizer.iterations.numpy()) == 8
    for before, variable in zip(after_one, trained.variables, strict=True):
        np.testing.assert_array_equal(before, variable.numpy())
    assert any(np.abs(value).max() > 0.01 for value in after_one)
