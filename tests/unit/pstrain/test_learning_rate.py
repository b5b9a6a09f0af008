"""Learning rates that change between epochs, and optimizers that go on with another rate."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import pstrain as ps
from pstrain.callbacks import LearningRateSchedule, LearningRateScheduler
from pstrain.errors import FailedPreconditionError, InvalidArgumentError
from pstrain.serialization.pickling import capture_generation
from pstrain.trainer.rounds import RoundCommitter
from pstrain.variables.parameters import step_scope
from pstrain.variables.scope import local_parameters
from pstrain.vocabulary import StepToken


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
    optimizer.learning_rate = 0.1
    changed = optimizer.with_learning_rate(0.25)
    assert changed.saved_rate() == {"rate": None}, "a checkpoint saves what a program has set"
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


def begun(schedule: Any, **options: Any) -> LearningRateScheduler:
    """A callback at the begin of the training of a model with the rate 0.5."""
    callback = LearningRateScheduler(schedule, **options)
    with local_parameters():
        callback.set_model(SimpleNamespace(optimizer=ps.optimizers.SGD(0.5)))
    callback.on_train_begin()
    return callback


def rate_of(callback: LearningRateScheduler, epoch: int) -> float:
    callback.on_epoch_begin(epoch)
    return float(callback.model.optimizer.learning_rate)


def of_rate_before(_epoch: int, rate: float, /) -> float:
    return rate / 2


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        (of_rate_before, [0.25, 0.125]),
        (lambda epoch, scale=2.0: scale / (epoch + 1), [2.0, 1.0]),
        (lambda epoch, *, scale=2.0: scale / (epoch + 1), [2.0, 1.0]),
        (lambda epoch, *more: 2.0 / (epoch + 1 + len(more)), [2.0, 1.0]),
        (functools.partial(max, 0.1), [0.1, 1.0]),  # has no signature that could be asked for
    ],
)
def test_schedule_gets_the_rate_before_if_it_needs_two_arguments(
    schedule: Any, rates: list[float]
) -> None:
    callback = begun(schedule)
    assert [rate_of(callback, 0), rate_of(callback, 1)] == rates


def test_rate_of_each_epoch_is_printed_if_told_to(capsys: pytest.CaptureFixture[str]) -> None:
    rate_of(begun(lambda _epoch: 0.125), 0)
    assert not capsys.readouterr().out
    rate_of(begun(lambda _epoch: 0.125, verbose=1), 2)
    assert capsys.readouterr().out == "epoch 3: learning rate 0.125\n"


def test_resumed_schedule_saves_what_it_restored_and_forgets_it_after_use() -> None:
    first = begun(of_rate_before)
    assert [rate_of(first, epoch) for epoch in range(3)] == [0.25, 0.125, 0.0625]
    saved = first.state_dict()
    resumed = begun(of_rate_before)
    resumed.load_state_dict(saved)
    assert resumed.state_dict() == saved
    assert [rate_of(resumed, epoch) for epoch in (2, 3, 4)] == [0.0625, 0.03125, 0.015625]
    for state in (saved, {}):
        resumed.load_state_dict(state)
        resumed.on_train_begin()
        assert rate_of(resumed, 3) == resumed.state_dict()["before"] / 2 < 0.015625


def test_steps_of_other_trainers_are_counted_from_time_to_time() -> None:
    optimizer = ps.optimizers.SGD(0.1)
    servers = optimizer.iterations.parameters
    assert optimizer._counter.next_step(optimizer.iterations) == 0
    servers.assign(optimizer.iterations.spec, "add", 100)
    steps = [optimizer._counter.next_step(optimizer.iterations) for _ in range(32)]
    assert steps == [*range(1, 16), *range(100, 116), 100]


def test_learning_rate_is_set_in_the_program_only_and_reaches_the_trainers() -> None:
    optimizer = ps.optimizers.SGD(0.1)
    servers = optimizer.iterations.parameters
    committer = RoundCommitter(servers, "t", list, list, lambda result, _: result, False)
    token = StepToken("s", 0, 1)
    with (
        step_scope(token, committer.new_run(token, 0)),
        pytest.raises(FailedPreconditionError, match="set it in the program"),
    ):
        optimizer.learning_rate = 0.2
    assert optimizer.learning_rate == 0.1
    sent = capture_generation()
    optimizer.learning_rate = 0.2
    assert capture_generation() != sent, "trainers would go on with the old rate"
