"""What a checkpoint saves beside the objects that the program gave, and who is told of it."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from pstrain.checkpoints.checkpoint import Checkpoint
from pstrain.errors import InvalidArgumentError, InvalidTypeError
from pstrain.variables.variable import Variable
from tests.unit.pstrain.checkpoints.checkpoint_cases import Position

pytestmark = pytest.mark.usefixtures("own_parameters")


class Progress:
    """How far a program has come; notes each state that it is given."""

    def __init__(self, epoch: int = 0) -> None:
        self.epoch = epoch
        self.given: list[Any] = []

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch}

    def load_state_dict(self, state: Any) -> None:
        self.given.append(state)


class Told:
    """A follower that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def mark_moment(self) -> None: ...

    def committed(self, _mark: object, path: str) -> None:
        self.told.append(path)

    def restored(self, path: str) -> None:
        self.told.append(path)


def saved_with_progress(directory: pathlib.Path) -> str:
    saved = Checkpoint(step=Variable(7))
    saved.attach("progress", Progress(3))
    return saved.save(directory)


def test_attached_object_gets_its_state_once_and_only_as_asked(tmp_path: pathlib.Path) -> None:
    path = saved_with_progress(tmp_path)
    resumed = Checkpoint(step=Variable(0))
    resumed.restore(path)
    progress = Progress()
    assert resumed.attach("progress", progress) == {"epoch": 3}
    resumed.restore(path)
    assert progress.given == []
    resumed.restore(path, with_attached=True)
    assert progress.given == [{"epoch": 3}]


def test_detached_object_is_not_saved_and_its_state_not_told_again(tmp_path: pathlib.Path) -> None:
    resumed = Checkpoint(step=Variable(0))
    resumed.restore(saved_with_progress(tmp_path))
    assert resumed.attach("progress", Progress()) == {"epoch": 3}
    resumed.detach("progress")
    assert resumed.attach("progress", Progress()) is None
    resumed.detach("progress")
    later = Checkpoint(step=Variable(0))
    later.restore(resumed.save(tmp_path))
    assert later.attach("progress", Progress()) is None


def test_checkpoint_without_the_attached_object_gives_it_no_state(tmp_path: pathlib.Path) -> None:
    saved = Checkpoint(step=Variable(7))
    path = saved.save(tmp_path)
    progress = Progress()
    assert saved.attach("progress", progress) is None
    saved.restore(path, with_attached=True)
    assert progress.given == [None]


def test_name_that_is_taken_is_refused() -> None:
    saved = Checkpoint(step=Variable(7))
    saved.attach("progress", Progress())
    for name in ("step", "progress"):
        with pytest.raises(InvalidArgumentError, match=f"already holds an object named '{name}'"):
            saved.attach(name, Progress())


def test_follower_that_has_left_is_told_nothing(tmp_path: pathlib.Path) -> None:
    saved, stays, leaves = Checkpoint(step=Variable(7)), Told(), Told()
    saved.follow(leaves)
    saved.follow(stays)
    first = saved.save(tmp_path)
    saved.unfollow(leaves)
    second = saved.save(tmp_path)
    assert stays.told == [first, second]
    assert leaves.told == [first]


def test_checkpoint_that_was_never_saved_waits_for_nobody() -> None:
    saved = Checkpoint(step=Variable(7))
    with saved.alone():
        saved.wait()


def test_state_under_a_second_name_may_be_missing(tmp_path: pathlib.Path) -> None:
    Checkpoint(data=Position(40)).save(tmp_path)
    data = Position()
    Checkpoint(data=data, same=data).restore(tmp_path)
    assert data.row == 40


def test_object_without_a_name_is_refused_with_a_hint() -> None:
    with pytest.raises(InvalidTypeError, match=r"as in Checkpoint\(model=m\)"):
        Checkpoint(Variable(7))
