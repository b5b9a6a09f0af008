"""What a save says of itself while it is written, and what it leaves behind however it ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from pstrain.checkpoints.saving import SavedCheckpoint, Written, end_save, save
from pstrain.errors import ServerLostError

DEADLINE_S = 30.0


class Partial:
    """A checkpoint that is not visible yet; notes what becomes of it."""

    folder = "partial"

    def __init__(self) -> None:
        self.done: list[Any] = []

    def commit(self, contents: dict[str, Any]) -> None:
        self.done.append(contents)

    def end(self) -> None:
        self.done.append("ended")

    def release(self) -> None:
        self.done.append("released")


def new_save() -> SavedCheckpoint:
    return SavedCheckpoint("ckpt-1", pause_s=0.1, drain_s=0.2, size_bytes=1000)


def run(
    saved: SavedCheckpoint, write: Callable[[str], Written], *, asynchronous: bool = False
) -> list[Any]:
    partial: Any = Partial()
    told = partial.done.append
    save(saved, partial, write, partial.release, asynchronous=asynchronous, written=[told])
    return partial.done


@pytest.mark.parametrize(("size_bytes", "expected"), [(None, 1000), (10, 10), (0, 0)])
def test_whole_checkpoint_is_committed_before_anybody_is_told(
    size_bytes: int | None, expected: int
) -> None:
    saved = new_save()
    assert saved.write_s is None
    done = run(saved, lambda folder: Written({"folder": folder}, size_bytes))
    assert done == [{"folder": "partial"}, "ended", "released", "ckpt-1"]
    assert (saved.is_complete, saved.has_ended, saved.has_failed) == (True, True, False)
    assert saved.size_bytes == expected
    assert saved.write_s is not None
    assert 0.0 <= saved.write_s < DEADLINE_S


def test_failed_save_is_released_and_neither_committed_nor_announced() -> None:
    def write(_folder: str) -> Written:
        raise OSError("disk full")

    saved = new_save()
    partial: Any = Partial()
    with pytest.raises(OSError, match="full"):
        save(
            saved,
            partial,
            write,
            partial.release,
            asynchronous=False,
            written=[partial.done.append],
        )
    assert partial.done == ["ended", "released"]
    assert (saved.is_complete, saved.has_ended, saved.has_failed) == (False, True, True)
    assert saved.write_s is None


@pytest.mark.parametrize("error", [None, OSError("disk full")])
def test_save_under_way_has_neither_succeeded_nor_failed(error: Exception | None) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def write(_folder: str) -> Written:
        begun.set()
        assert goes_on.wait(DEADLINE_S)
        if error is not None:
            raise error
        return Written({})

    saved = new_save()
    run(saved, write, asynchronous=True)
    assert begun.wait(DEADLINE_S)
    assert (saved.is_complete, saved.has_ended, saved.has_failed) == (False, False, False)
    goes_on.set()
    saved.wait_ended()
    assert (saved.is_complete, saved.has_ended) == (error is None, True)


@pytest.mark.parametrize("error", [ServerLostError("gone"), OSError("disk full")])
def test_save_that_is_given_up_is_awaited_and_its_error_told(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever goes back to a checkpoint must not be stopped by one that could not be written."""

    def wait() -> None:
        raise error

    end_save(wait)
    assert str(error) in caplog.text


def test_error_of_the_program_itself_is_not_taken_for_one_of_a_save() -> None:
    def wait() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        end_save(wait)
