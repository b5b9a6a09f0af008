"""The coordinator of a program without a cluster: what its calls give, raise and refuse."""

from __future__ import annotations

import dataclasses
import pathlib
import pickle
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import pytest

import dataservice as ds
import pstrain as ps
from pstrain.errors import (
    ClosureInputError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    InvalidTypeError,
    OutOfRangeError,
    UnimplementedError,
)
from pstrain.variables.closure_gate import CLOSURES

ROWS = ds.Dataset.range(10).batch(2)


def coordinator(**options: Any) -> Any:
    return ps.LocalCoordinator(**options)


def fail() -> None:
    raise KeyError("wrong")


def first(iterator: Any) -> int:
    return int(next(iterator)["id"][0].as_py())


def test_coordinator_of_this_process_has_the_default_strategy_and_one_trainer() -> None:
    made = coordinator()
    assert made.strategy is ps.get_strategy()
    assert ps.LocalCoordinator(ps.get_strategy()).strategy is ps.get_strategy()
    assert (made.num_trainers, made.live_trainers(), made.is_over) == (1, {0}, False)
    for options in ({"closures_in_flight": 0}, {"queue_capacity": 0}, {"trainer_timeout_s": 0.0}):
        with pytest.raises(InvalidArgumentError, match=next(iter(options))):
            coordinator(**options)
    with pytest.raises(InvalidTypeError, match="checkpoint"):
        coordinator(checkpoint="ckpt/")
    with pytest.raises(TypeError, match="stays in its process"):
        pickle.dumps(made)


def test_each_coordinator_refuses_the_strategy_of_the_other_naming_it() -> None:
    with pytest.raises(ValueError, match=r"DefaultStrategy; .*pstrain\.LocalCoordinator\(\)"):
        ps.ClusterCoordinator(ps.get_strategy())
    with pytest.raises(ValueError, match="ParameterServerStrategy: ClusterCoordinator is for"):
        ps.LocalCoordinator(ps.v1.ParameterServerStrategy())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"v1 has no coordinator"):
        ps.ClusterCoordinator(ps.v1.ParameterServerStrategy())  # type: ignore[arg-type]


def test_function_has_run_when_schedule_returns_its_value() -> None:
    made, seen = coordinator(), []
    value = made.schedule(lambda x, by=1: seen.append(x * by) or x * by, (3,), {"by": 2})
    assert seen == [6]
    assert (value.fetch(), value.get(), value.is_ready(), value.cancel()) == (6, 6, True, False)
    assert made.fetch({"a": [value]}) == {"a": [6]}
    assert made.done()
    made.join(timeout=0)
    assert made.schedule(ps.get_current_worker_index).fetch() == 0
    assert made.stats()["finished"] == 2
    assert set(made.stats()) >= {"waiting", "running", "failed", "retries", "restores"}
    assert repr(made) == "<LocalCoordinator of this process; closures: 2 finished>"


def test_values_are_as_if_they_had_travelled() -> None:
    made, scale = coordinator(), ps.Variable([1.0, 2.0])
    tensor = made.schedule(lambda: ps.losses.MeanSquaredError()([1.0], np.zeros(1, np.float32)))
    assert isinstance(tensor.fetch(), np.ndarray | np.generic)
    kept = made.schedule(scale.numpy).fetch()
    scale.assign_add([1.0, 1.0])
    assert kept.tolist() == [1.0, 2.0]
    made.schedule(object)
    with pytest.raises(InvalidArgumentError, match="object"):
        made.join()


def test_values_among_arguments_stand_for_what_they_hold() -> None:
    made, given = coordinator(), [1, 2]
    one = made.schedule(lambda: 1)
    assert made.schedule(lambda a, b: a["k"][0] + b, ({"k": [one]},), {"b": one}).fetch() == 2
    made.schedule(given.extend, (given,))
    assert given == [1, 2, 1, 2]
    failed = made.schedule(fail)
    with pytest.raises(KeyError):
        made.join()
    lacking = made.schedule(lambda x: x, (failed,))
    with pytest.raises(ClosureInputError, match="value of closure 3, which has none: KeyError"):
        lacking.fetch()
    with pytest.raises(ClosureInputError) as caught:
        made.join()
    assert isinstance(caught.value.__cause__, KeyError)


@dataclasses.dataclass(frozen=True)
class Frozen:
    value: Any
    others: tuple[Any, ...] = ()


@dataclasses.dataclass(slots=True)
class Slotted:
    value: Any


class Pair(NamedTuple):
    first: Any
    second: Any


class Plain:
    """An object of a program's own class, which refers to itself."""

    def __init__(self, value: Any) -> None:
        self.inner = {"value": value}
        self.me = self


class Uncopied:
    """An object that cannot be copied."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __reduce_ex__(self, _protocol: Any) -> Any:
        raise TypeError("it has a socket")


@pytest.mark.parametrize(
    ("hold", "read"),
    [
        (Frozen, lambda held: held.value),
        (Slotted, lambda held: held.value),
        (Plain, lambda held: held.me.inner["value"]),
        (lambda value: Pair(1, [value]), lambda held: held.second[0]),
        (lambda value: Frozen(0, (Slotted(value),)), lambda held: held.others[0].value),
        (lambda value: {value}, lambda held: next(iter(held))),
        (lambda value: deque([value]), lambda held: held[0]),
        (lambda value: OrderedDict(k=value), lambda held: held["k"]),
        (lambda value: {value: 1}, lambda held: next(iter(held))),
    ],
)
def test_values_within_any_object_are_resolved_and_the_object_is_not_changed(
    hold: Any, read: Any
) -> None:
    made = coordinator()
    value = made.schedule(lambda: 7)
    given, beside = hold(value), Plain(ps.Variable(1.0))
    seen: list[Any] = []
    made.schedule(lambda *args: seen.extend(args), (given, beside, [beside]))
    made.join()
    assert read(seen[0]) == 7
    assert type(seen[0]) is type(given)
    assert read(given) is value
    assert seen[1] is seen[2][0] is beside


def test_arguments_are_copied_only_where_they_hold_a_value() -> None:
    made, seen = coordinator(), []
    given = Uncopied([1, {"k": Frozen(2)}])
    made.schedule(seen.append, (given,))
    made.schedule(lambda *args: seen.extend(args), ([made.schedule(int), given],))
    assert seen == [given, [0, given]]
    with pytest.raises(InvalidArgumentError, match=r"holds a RemoteValue is copied.* a socket; gi"):
        made.schedule(seen.append, (Uncopied(made.schedule(int)),))
    made.join()


def test_what_a_change_returns_unread_is_no_result() -> None:
    made, weight = coordinator(), ps.Variable([1.0, 2.0])
    assert made.schedule(lambda: weight.assign_add([1.0, 1.0])).fetch() is None
    assert made.schedule(lambda: weight.assign_add([1.0, 1.0]).numpy()).fetch().tolist() == [3, 4]
    assert made.schedule(lambda: weight).fetch().tolist() == [3, 4]
    assert weight.assign(0.0) is weight


@pytest.mark.parametrize("call", ["join", "done", "schedule"])
def test_error_is_raised_once_by_the_next_call(call: str) -> None:
    made, run = coordinator(), []
    value = made.schedule(fail)
    assert made.stats()["failed"] == 1
    with pytest.raises(KeyError, match="wrong") as caught:
        made.schedule(run.append, (1,)) if call == "schedule" else getattr(made, call)()
    assert 'raise KeyError("wrong")' in caught.value.__notes__[0]
    assert not run
    made.join()
    with pytest.raises(KeyError):
        value.fetch()


def test_loop_to_the_end_of_the_data_ends_with_out_of_range_in_every_epoch() -> None:
    made = coordinator()
    dataset = made.create_per_worker_dataset(
        lambda context: ROWS.shard(1, context.input_pipeline_id)
    )
    assert dataset.element_spec.names == ["id"]
    for _ in range(2):
        iterator = iter(dataset)
        values = [made.schedule(first, (iterator,)) for _ in range(6)]
        with pytest.raises(OutOfRangeError, match="the dataset is exhausted"):
            made.schedule(first, (iterator,))
        with pytest.raises(OutOfRangeError):
            values.pop().fetch()
        assert made.fetch(values) == [0, 2, 4, 6, 8]


def test_each_iterator_is_the_next_epoch_and_its_position_is_saved(tmp_path: pathlib.Path) -> None:
    made = coordinator()
    dataset = made.create_per_worker_dataset(ds.Dataset.range(20).shuffle(20, seed=1).batch(4))
    iterator = iter(dataset)
    weight = ps.Variable(0.0)
    assert isinstance(made.schedule(first, (iterator,)).fetch(), int)
    ps.Checkpoint(weight=weight, data=iterator).save(tmp_path)
    left = [made.schedule(first, (iterator,)).fetch() for _ in range(4)]
    assert iter(dataset).epoch == 1
    again = iter(made.create_per_worker_dataset(ds.Dataset.range(20).shuffle(20, seed=1).batch(4)))
    ps.Checkpoint(weight=weight, data=again).restore(tmp_path)
    assert [first(again) for _ in range(4)] == left
    assert again.epoch == 0
    later = iter(made.create_per_worker_dataset(ROWS, first_epoch=3))
    assert later.epoch == 3
    with pytest.raises(InvalidArgumentError, match="needs a Dataset or a function that makes one"):
        made.create_per_worker_dataset([1, 2])


def test_options_of_a_cluster_are_checked() -> None:
    made = coordinator()
    assert made.schedule(int, trainer=0, deadline_s=5.0, priority=2).fetch() == 0
    with pytest.raises(InvalidArgumentError, match="there is no trainer 1"):
        made.schedule(int, trainer=1)
    with pytest.raises(InvalidArgumentError, match="deadline_s"):
        made.schedule(int, deadline_s=-1.0)
    with pytest.raises(InvalidTypeError, match="schedule needs a function, got int"):
        made.schedule(3)
    with pytest.raises(InvalidTypeError, match="write args="):
        made.schedule(abs, 3)
    for call in (made.trainer_stats, lambda: made.trace("trace.json")):
        with pytest.raises(UnimplementedError, match="watches the trainers of a cluster"):
            call()


def test_progress_and_barrier_are_those_of_a_cluster() -> None:
    made, told = coordinator(), []
    made.schedule(int)
    with made.barrier():
        made.join(progress=told.append)
    assert [(each.finished, each.queued, each.trainers) for each in told] == [(1, 0, 1)]
    with pytest.raises(InvalidTypeError, match="progress"):
        made.join(progress=3)


def test_functions_may_schedule_others() -> None:
    made = coordinator()
    assert made.schedule(lambda: made.schedule(lambda: 2).fetch() + 1).fetch() == 3
    assert [made.schedule(int).closure for _ in range(2)] == [2, 3]


def test_closed_coordinator_takes_no_more_functions() -> None:
    made = coordinator()
    made.close()
    made.close()
    with pytest.raises(FailedPreconditionError, match=r"is closed; pstrain\.LocalCoord"):
        made.schedule(int)
    assert coordinator().schedule(int).fetch() == 0


def test_error_that_is_raised_again_and_again_has_one_note() -> None:
    made = coordinator()

    def fails() -> ds.Dataset:
        raise OSError("no such file")

    iterator = iter(made.create_per_worker_dataset(fails))
    for _ in range(3):
        value = made.schedule(first, (iterator,))
        with pytest.raises(ClosureInputError, match="no such file") as caught:
            made.join()
        assert [note.count("Traceback") for note in caught.value.__notes__] == [2]
    with pytest.raises(ClosureInputError):
        made.schedule(value.fetch).fetch()
    assert len(caught.value.__notes__) == 1


def test_first_of_two_errors_is_raised() -> None:
    made = coordinator()

    def outer() -> None:
        made.schedule(fail)
        raise RuntimeError("later")

    value = made.schedule(outer)
    with pytest.raises(KeyError, match="wrong"):
        made.join()
    with pytest.raises(RuntimeError, match="later"):
        value.fetch()


def nothing() -> None: ...


@contextmanager
def running_elsewhere(made: Any, at_end: Callable[[], None] = nothing) -> Iterator[None]:
    """Opens a scope in which another thread runs a function, which ends by ``at_end()``."""
    begun, may_end = threading.Event(), threading.Event()

    def slow() -> None:
        begun.set()
        may_end.wait(60)
        at_end()

    other = threading.Thread(target=made.schedule, args=(slow,))
    other.start()
    try:
        assert begun.wait(60)
        yield
    finally:
        may_end.set()
        other.join()


def test_function_of_another_thread_is_waited_for() -> None:
    made = coordinator()
    with running_elsewhere(made):
        assert not made.done()
        with pytest.raises(DeadlineExceededError, match="another thread has scheduled still runs"):
            made.join(timeout=0.01)
    made.join(timeout=60)
    assert made.done()


def test_function_that_cannot_begin_before_its_deadline_never_runs() -> None:
    made, seen = coordinator(), []
    with running_elsewhere(made):
        late = made.schedule(seen.append, (1,), deadline_s=0.01)
        assert late.has_ended
    made.join()
    with pytest.raises(DeadlineExceededError, match=r"1 \(.*append\) had not begun 0\.01 s after"):
        late.fetch()
    assert (seen, made.stats()["cancelled"], made.stats()["failed"]) == ([], 1, 0)
    # As on a cluster, what needs its value is cancelled with it.
    needs = made.schedule(seen.append, (late,))
    made.join()
    with pytest.raises(ClosureInputError, match=r"2 needs the value of closure 1, which ha"):
        needs.fetch()
    assert (seen, made.stats()["cancelled"], made.stats()["failed"]) == ([], 2, 0)
    made.schedule(seen.append, (3,), deadline_s=60)
    assert seen == [3]


def test_save_of_another_thread_sees_all_or_nothing_of_a_function(tmp_path: pathlib.Path) -> None:
    made, first, second = coordinator(), ps.Variable(0.0), ps.Variable(0.0)
    checkpoint = ps.Checkpoint(first=first, second=second)
    saver = threading.Thread(target=checkpoint.save, args=(tmp_path,))

    def end() -> None:
        first.assign(1.0)
        saver.start()
        while saver.is_alive() and not CLOSURES.is_awaited:
            saver.join(0.001)
        second.assign(1.0)

    with running_elsewhere(made, end):
        pass
    saver.join(60)
    checkpoint.restore(tmp_path)
    assert (float(first), float(second)) == (1.0, 1.0)


def test_functions_wait_for_a_barrier_of_another_thread_and_may_save_themselves(
    tmp_path: pathlib.Path,
) -> None:
    made, seen = coordinator(), []
    late: list[Any] = []
    with made.barrier(), made.barrier():
        other = threading.Thread(target=made.schedule, args=(seen.append, (1,)))
        other.start()
        made.schedule(seen.append, (0,))
        made.join(timeout=60)
        impatient = threading.Thread(
            target=lambda: late.append(made.schedule(seen.append, (2,), deadline_s=0.01))
        )
        impatient.start()
        impatient.join(60)
        assert seen == [0]
    other.join(60)
    assert seen == [0, 1]
    assert isinstance(late[0].error, DeadlineExceededError)
    checkpoint = ps.Checkpoint(weight=ps.Variable(1.0))
    with running_elsewhere(coordinator()):  # two that waited for each other would wait for ever
        assert made.schedule(lambda: str(checkpoint.save(tmp_path))).fetch().endswith("ckpt-1")


def test_barrier_that_functions_keep_closed_gives_up() -> None:
    made = coordinator()
    with (
        running_elsewhere(made),
        pytest.raises(DeadlineExceededError, match=r"to end, to save, after 0\.01 s"),
        CLOSURES.quiet(timeout_s=0.01),
    ):
        pass
    assert made.schedule(lambda: 1).fetch() == 1


@pytest.mark.parametrize("state", [{}, {"epoch": "x"}, {"epoch": -1}, [1], None])
def test_what_is_no_position_is_refused_and_changes_nothing(state: Any) -> None:
    iterator = iter(coordinator().create_per_worker_dataset(ROWS))
    first(iterator)
    with pytest.raises(InvalidArgumentError, match="not a position of a per-worker iterator"):
        iterator.load_state_dict(state)
    assert first(iterator) == 2
