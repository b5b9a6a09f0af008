"""When keys are evicted during training, and from where on keys count as new."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from pstrain.callbacks import CallbackList, Evict
from pstrain.errors import InvalidArgumentError


class Model:
    """Notes what is evicted, of which every call removes three keys."""

    def __init__(self) -> None:
        self.stop_training = False
        self.evicted: list[Any] = []

    def checked_online(self) -> Model:
        return self

    def limits(self, keep: Any) -> None:
        if keep == "wrong":
            raise InvalidArgumentError(keep)

    def evict(self, keep: Any) -> int:
        self.evicted.append(keep)
        return 3 if keep else 0


def begun(evict: Evict) -> tuple[Model, CallbackList]:
    model = Model()
    callbacks = CallbackList([evict], model)
    callbacks.train_begin()
    return model, callbacks


def train(callbacks: CallbackList, epoch: int, reports: list[int]) -> None:
    """Trains an epoch; ``reports``: how many of its steps were reported each time."""
    callbacks.epoch_begin(epoch)
    for before, after in itertools.pairwise(reports):
        callbacks.batch_begin(before)
        callbacks.batch_end(after, dict)


def test_keys_are_evicted_after_so_many_steps_of_all_epochs() -> None:
    evict = Evict(keep := {"user": 5}, every_steps=10)
    keep["user"] = 7
    model, callbacks = begun(evict)
    train(callbacks, 0, [0, 4, 8, 9])
    assert model.evicted == [{}], "keys used from here on are new"
    train(callbacks, 1, [0, 1, 9, 12, 30])
    assert model.evicted == [{}, {"user": 5}, {"user": 5}, {"user": 5}]
    assert evict.evicted == 9


@pytest.mark.parametrize("is_new_program", [True, False])
def test_resumed_training_goes_on_counting_and_knows_again_which_keys_are_new(
    is_new_program: bool,
) -> None:
    first = Evict(5, every_steps=10)
    model, callbacks = begun(first)
    train(callbacks, 0, [0, 10, 16])
    saved = first.state_dict()
    resumed = Evict(5, every_steps=10) if is_new_program else first
    if is_new_program:
        model, callbacks = begun(resumed)
    model.evicted.clear()
    resumed.load_state_dict(saved)
    train(callbacks, 1, [0, 3])
    assert (model.evicted, resumed.evicted) == ([{}], 3)
    train(callbacks, 2, [0, 1])
    assert (model.evicted, resumed.evicted) == ([{}, 5], 6)


def test_each_training_begins_anew() -> None:
    evict = Evict(5, every_steps=10)
    _, callbacks = begun(evict)
    train(callbacks, 0, [0, 10, 16])
    model, callbacks = begun(evict)
    assert evict.state_dict() == {"steps": 0, "evicted": 0}
    train(callbacks, 0, [0, 9])
    assert model.evicted == [{}]


def test_unusable_number_of_keys_is_refused_before_training() -> None:
    with pytest.raises(InvalidArgumentError):
        begun(Evict("wrong"))  # type: ignore[arg-type]
