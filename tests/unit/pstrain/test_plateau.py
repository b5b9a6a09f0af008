"""When a rate is reduced: after epochs in a row without improvement, but not below its least."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pstrain.callbacks import ReduceLROnPlateau
from pstrain.optimizers import SGD
from pstrain.variables.scope import local_parameters


def begun(**options: Any) -> ReduceLROnPlateau:
    """A callback at the begin of the training of a model with the rate 1.0."""
    callback = ReduceLROnPlateau("loss", factor=0.5, min_delta=0.0, **options)
    with local_parameters():
        callback.set_model(SimpleNamespace(optimizer=SGD(1.0)))
    callback.on_train_begin()
    return callback


def rates(callback: ReduceLROnPlateau, losses: list[float]) -> list[float]:
    """The rate after each epoch."""
    found = []
    for epoch, loss in enumerate(losses):
        callback.on_epoch_end(epoch, {"loss": loss})
        found.append(float(callback.model.optimizer.learning_rate))
    return found


def test_improvement_forgives_the_epochs_before_it(capsys: Any) -> None:
    assert rates(begun(patience=2), [3, 3, 2, 2, 1, 1, 1]) == [1, 1, 1, 1, 1, 1, 0.5]
    assert not capsys.readouterr().out


def test_rate_at_its_least_stays(capsys: Any) -> None:
    callback = begun(patience=1, min_lr=0.5, verbose=1)
    assert rates(callback, [1, 1, 1, 1]) == [1, 0.5, 0.5, 0.5]
    assert capsys.readouterr().out == "epoch 2: learning rate 0.5 from here on\n"


def test_each_training_looks_for_a_plateau_of_its_own() -> None:
    callback = begun(patience=2)
    rates(callback, [1, 1])
    callback.on_train_begin()
    assert rates(callback, [5, 5, 5]) == [1, 1, 0.5]
    resting = begun(patience=1, cooldown=3)
    assert rates(resting, [1, 1]) == [1, 0.5]
    resting.on_train_begin()
    assert rates(resting, [5, 5]) == [0.5, 0.25]


def test_resumed_training_goes_on_with_the_epochs_that_it_counted() -> None:
    earlier = begun(patience=2)
    rates(earlier, [1, 1])
    resumed = begun(patience=2)
    resumed.load_state_dict(earlier.state_dict())
    assert rates(resumed, [1]) == [0.5]


def test_rate_that_was_not_reduced_is_left_as_a_checkpoint_has_restored_it() -> None:
    resumed = begun(patience=2)
    resumed.model.optimizer.learning_rate = 0.75
    resumed.load_state_dict(begun(patience=2).state_dict())
    assert resumed.model.optimizer.learning_rate == 0.75


def test_epoch_without_a_validation_does_not_count() -> None:
    callback = begun(patience=1)
    callback._monitor.name = "val_loss"
    callback.set_params({"validation_freq": 2})
    callback.on_epoch_end(0, {"loss": 1.0})
    callback.on_epoch_end(1, {"val_loss": 1.0})
    callback.on_epoch_end(2, {"loss": 1.0})
    assert callback.model.optimizer.learning_rate == 1.0
