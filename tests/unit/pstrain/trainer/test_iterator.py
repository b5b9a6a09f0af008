"""A trainer's iterator: made on first use, shared, and over for good once it is closed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

import dataservice
from pstrain.errors import CancelledError, ClosureInputError, OutOfRangeError
from pstrain.trainer.context import InputContext
from pstrain.trainer.resources import TrainerIterator, open_dataset
from pstrain.trainer.staging import ClosureRun
from pstrain.variables.parameters import step_scope
from pstrain.vocabulary import StepToken


class Source:
    """An iterator that counts up and records whether it was closed."""

    def __init__(self) -> None:
        self.is_closed = False
        self._next = 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        self._next += 1
        return self._next

    def close(self) -> None:
        self.is_closed = True


def test_iterator_is_created_once_on_first_use() -> None:
    made: list[Source] = []

    def make() -> Source:
        made.append(Source())
        return made[-1]

    iterator = TrainerIterator(make)
    assert not made
    assert [next(iterator), next(iterator)] == [1, 2]
    assert len(made) == 1


def test_dataset_that_cannot_be_created_fails_every_use() -> None:
    def make() -> Iterator[int]:
        raise OSError("no such bucket")

    iterator = TrainerIterator(make)
    depths = []
    for _ in range(3):
        with pytest.raises(ClosureInputError, match="OSError: no such bucket") as caught:
            next(iterator)
        depths.append(len(caught.traceback))
    assert depths[2] == depths[1], "it is told to the program, which need not read each time again"


def test_closed_iterator_refuses_reads_and_does_not_reopen() -> None:
    made: list[Source] = []

    def make() -> Source:
        made.append(Source())
        return made[-1]

    iterator = TrainerIterator(make)
    next(iterator)
    iterator.close()
    iterator.close()
    assert made[0].is_closed
    with pytest.raises(CancelledError, match="was closed: make another"):
        next(iterator)
    assert len(made) == 1


@pytest.mark.parametrize(
    ("took", "part", "error", "only"),
    [
        (0, 0, StopIteration(), True),
        (0, 0, OutOfRangeError("no rows"), True),
        (0, 0, KeyError("price"), False),
        (1, 0, StopIteration(), False),  # a run elsewhere would lose the element taken
        (0, 1, StopIteration(), False),  # a run elsewhere would make its part twice
    ],
)
def test_run_only_met_end_if_it_took_no_element_and_made_no_part(
    took: int, part: int, error: Exception, only: bool
) -> None:
    iterator = TrainerIterator(lambda: iter(range(took)), lambda _source, _receipt: None)
    commits: Any = None
    run = ClosureRun(StepToken("s", 1, 0), commits)
    run.part = part
    with step_scope(run.token, run):
        assert not run.only_met_end(error)
        assert list(iterator) == list(range(took))
        assert run.only_met_end(error) is only


@pytest.mark.parametrize(("took", "error"), [(1, KeyError("price")), (0, StopIteration())])
def test_end_of_data_after_taken_elements_gets_explaining_note(took: int, error: Exception) -> None:
    iterator = TrainerIterator(lambda: iter(range(took)), lambda _source, _receipt: None)
    commits: Any = None
    run = ClosureRun(StepToken("s", 1, 0), commits)
    with step_scope(run.token, run):
        assert list(iterator) == list(range(took))
    run.explain_taken_elements(error)
    assert not hasattr(error, "__notes__")
    end = StopIteration()
    run.explain_taken_elements(end)
    assert ["used up" in note for note in getattr(end, "__notes__", ())] == [True] * took


def test_iterator_closed_before_use_opens_nothing() -> None:
    iterator = TrainerIterator(lambda: pytest.fail("it was opened"))
    iterator.close()
    with pytest.raises(CancelledError):
        next(iterator)


def test_source_created_during_close_is_closed_too() -> None:
    made: list[Source] = []

    def make() -> Source:
        made.append(Source())
        iterator.close()
        return made[-1]

    iterator = TrainerIterator(make)
    with pytest.raises(CancelledError):
        next(iterator)
    assert made[0].is_closed


def test_generator_in_use_is_closed_by_the_thread_that_reads_it() -> None:
    """The thread that reads the coordinator's messages must not close it: that raises an error."""
    inside, go_on, is_closed = threading.Event(), threading.Event(), threading.Event()

    def rows() -> Iterator[int]:
        try:
            inside.set()
            assert go_on.wait(30)
            yield 1
        finally:
            is_closed.set()

    iterator, taken = TrainerIterator(rows), list[int]()
    reader = threading.Thread(target=lambda: taken.append(next(iterator)))
    reader.start()
    assert inside.wait(30)
    iterator.close()
    assert not is_closed.is_set()
    go_on.set()
    reader.join(30)
    assert taken == [1]
    assert is_closed.is_set()


def test_error_while_closing_source_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    class SourceFailingToClose(Source):
        def close(self) -> None:
            raise OSError("the connection is gone")

    iterator = TrainerIterator(SourceFailingToClose)
    next(iterator)
    iterator.close()
    assert "OSError('the connection is gone')" in caplog.text


def test_dataset_given_to_all_trainers_is_shuffled_by_each_in_an_order_of_its_own() -> None:
    drawn = dataservice.Dataset.range(50).shuffle(50)

    def read(source: Any, trainer: int) -> list[int]:
        batches = open_dataset(source, 0, InputContext(2, trainer))
        return [row for batch in batches for row in batch["id"].to_pylist()]

    first, second = read(drawn, 0), read(drawn, 1)
    assert sorted(first) == sorted(second) == list(range(50))
    assert first != second == read(drawn, 1)
    # A function that cuts a share out of one order gets the same order on all trainers.
    assert read(lambda: drawn, 0) == read(lambda: drawn, 1)


def test_position_of_a_trainers_own_order_is_restored() -> None:
    drawn = dataservice.Dataset.range(50).shuffle(50).batch(10)
    original: Any = open_dataset(drawn, 0, InputContext(2, 1))
    next(original)
    position, rest = original.state_dict(), [batch["id"].to_pylist() for batch in original]
    again: Any = open_dataset(drawn, 0, InputContext(2, 1), restores=True)
    again.load_state_dict(position)
    assert [batch["id"].to_pylist() for batch in again] == rest
